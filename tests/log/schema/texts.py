"""Random texts that are a DDL, or nearly one."""

from __future__ import annotations

import random
from typing import Final

NAMES: Final = (
    "a", "B", "c_d", "e1", "1st", "_x", "`f g`", "`h``i`", "`é`", "int", "Array",
    "not", "null", "comment", "x-y", "é", "12", "1d", "3e4", "7L",
)  # fmt: skip
SIMPLE: Final = (
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint",
    "long", "float", "real", "double", "string", "binary", "date", "timestamp",
    "timestamp_ltz", "timestamp_ntz", "decimal", "dec", "numeric", "decimal(5)", "decimal(38,38)", "numeric(7,2)",
    "DECIMAL(3,4)", "decimal(0)", "decimal(39,1)", "varchar(3)", "char(2)", "void", "interval", "variant",
    "time(3)", "int(3)", "text", "datetime", "uuid",
)  # fmt: skip
ADDITIONS: Final = (
    " ", ",", "<", ">", "(", ")", ":", "`", "'", "-", "--", "/*", "*/", " not null", " null", "<>", ";", "\n",
)  # fmt: skip


def a_type(rng: random.Random, depth: int = 0) -> str:
    choice = rng.random()
    if depth > 3 or choice < 0.6:
        word = rng.choice(SIMPLE[:22] if rng.random() < 0.9 else SIMPLE)
        return word.upper() if rng.random() < 0.3 else word
    if choice < 0.75:
        return f"array{_gap(rng)}<{a_type(rng, depth + 1)}>"
    if choice < 0.85:
        return f"map<{a_type(rng, depth + 1)},{_gap(rng)}{a_type(rng, depth + 1)}>"
    inner = ", ".join(a_field(rng, depth + 1, rng.choice((": ", ":", " "))) for _ in range(rng.randint(1, 3)))
    return f"struct<{inner}{_gap(rng)}>"


def a_field(rng: random.Random, depth: int, between: str) -> str:
    name = rng.choice(NAMES[:12] if rng.random() < 0.9 else NAMES)
    end = rng.choice(("", "", "", " NOT NULL", " not  null", " COMMENT 'it is'", ' not null comment "x\\"y"'))
    return f"{name}{between}{a_type(rng, depth)}{end}"


def a_ddl(rng: random.Random) -> str:
    """Some columns; one time in three something is put in or left out."""
    text = f",{_gap(rng)}".join(a_field(rng, 0, " ") for _ in range(rng.randint(1, 4)))
    if rng.random() < 0.33:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + (rng.choice(ADDITIONS) + text[at:] if rng.random() < 0.6 else text[at + 1 :])
    return text


def _gap(rng: random.Random) -> str:
    return rng.choice(("", " ", "  ", "\n", " /* c */ ", " -- c\n"))
