"""Spark's DDL: `id BIGINT NOT NULL, tags ARRAY<STRING>` as columns of Arrow, and back, without a JVM; and the JSON of
a `StructType`, whose types are words of the same language.

A recursive-descent parser over Spark's own grammar (`SqlBaseParser.g4`, colTypeList; a test parses thousands of random
texts with both). What Spark would parse and a queue cannot keep is refused by name, with its place in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from partq_spark.base.errors import Invalid
from partq_spark.log.schema.columns import name_text
from partq_spark.log.schema.types import MAX_DEPTH, SIMPLE_TYPES, TOO_DEEP, check_columns, list_of, map_of, normal

MAX_TEXT: Final = 256 * 1024
"""Characters of a DDL: the head carries it, and every publish writes the head."""

_TOKEN: Final = re.compile(
    r"""
    (?P<space>   [\s\u0085\u001c-\u001f]+ | --[^\r\n]* )
  | (?P<comment> /\* )
  | (?P<quoted>  ` (?: [^`] | `` )* ` )
  | (?P<string>  ' (?: [^'\\] | \\. )* ' | " (?: [^"\\] | \\. )* " )
  | (?P<number>  (?: \d+ (?: L | S | Y | D | F | BD | E[+-]?\d+ (?: D | F | BD )? )? ) (?! \w ) )
  | (?P<word>    \w+ )
  | (?P<mark>    [<>(),:-] )
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)

_DECIMALS: Final = ("DECIMAL", "DEC", "NUMERIC")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # quoted, string, number, word, mark, end
    text: str
    at: int

    @property
    def word(self) -> str:
        """As a keyword; empty where it cannot be one."""
        return self.text.upper() if self.kind == "word" else ""

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def parse_ddl(text: str) -> pa.Schema:
    """The columns that `text` names, in its order, checked (`types.check_columns`). Comments on columns are taken and
    not kept.

    Raises `Invalid`: what does not parse, with its place (characters from the beginning, from 1 up); types that a queue
    does not keep, by column.
    """
    if len(text) > MAX_TEXT:
        raise Invalid(f"schema has {len(text)} characters, at most {MAX_TEXT} are allowed: name fewer columns")
    schema = pa.schema(_Parser(text).columns())
    check_columns(schema)
    return schema


def parse_type(text: str) -> pa.DataType:
    """One type. Raises `Invalid` as `parse_ddl` does."""
    return _Parser(text).one_type()


def ddl_of(schema: pa.Schema) -> str:
    """What `parse_ddl` reads as these columns."""
    return ", ".join(_column_text(field, " ") for field in schema)


def type_text(kind: pa.DataType) -> str:
    """A type of the normal form in Spark's words: `ARRAY<STRUCT<a: INT NOT NULL>>`."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(_column_text(field, ': ') for field in kind)}>"
    return _TEXTS[kind]


def said_type(kind: pa.DataType) -> str:
    """Any type, for a message: in Spark's words if a queue keeps its values, else in Arrow's."""
    found = normal(kind)
    return str(kind) if found is None else type_text(found)


def _column_text(field: pa.Field, between: str) -> str:
    not_null = "" if field.nullable else " NOT NULL"
    return f"{name_text(field.name)}{between}{type_text(field.type)}{not_null}"


_TEXTS: Final[Mapping[pa.DataType, str]] = {kind: text for text, kind in reversed(tuple(SIMPLE_TYPES.items()))}


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def columns(self) -> list[pa.Field]:
        found = self._fields(1)
        self._end()
        return found

    def one_type(self) -> pa.DataType:
        kind = self._type(1)
        self._end()
        return kind

    def _fields(self, depth: int) -> list[pa.Field]:
        found = [self._field(depth)]
        while self._took(","):
            found.append(self._field(depth))
        return found

    def _field(self, depth: int) -> pa.Field:
        """A column, or, deeper, a field of a STRUCT, which may have a colon."""
        name = self._name()
        if depth > 1:
            self._took(":")
        kind = self._type(depth)
        nullable = not self._took_word("NOT")
        if not nullable and not self._took_word("NULL"):
            raise self._unexpected("NULL")
        if self._took_word("COMMENT"):
            if self._next.kind != "string":
                raise self._unexpected("a comment in quotes")
            self._take()
        return pa.field(name, kind, nullable)

    def _name(self) -> str:
        token = self._next
        if token.kind == "quoted" and len(token.text) > 2:
            name = token.text[1:-1].replace("``", "`")
        elif token.kind == "word":
            name = token.text
            if not name.isascii():
                raise _refused(
                    token.at, f"the name {name!r} has letters that need back quotes: write {name_text(name)}"
                )
        else:
            raise self._unexpected("a column's name")
        self._take()
        if token.kind == "word" and self._next.text == "-" and self._next.at == token.at + len(token.text):
            raise _refused(self._next.at, "a name with '-' needs back quotes around it")
        return name

    def _type(self, depth: int) -> pa.DataType:
        if depth > MAX_DEPTH:
            raise _refused(
                self._next.at, f"types are nested more than {MAX_DEPTH} deep: nest less, or keep this part as text"
            )
        token = self._next
        if token.kind != "word":
            raise self._unexpected("a type")
        self._take()
        if token.word in ("ARRAY", "MAP", "STRUCT"):
            return self._nested(token, depth + 1)
        if token.word in _DECIMALS:
            return self._decimal(token)
        kind = SIMPLE_TYPES.get(token.word)
        if kind is None:
            raise _refused(token.at, f"type {token.text!r} is none that a queue keeps: it keeps {_kept()}")
        if self._next.text == "(":
            raise _refused(self._next.at, f"{token.word} takes nothing in parentheses")
        if self._next.word == "COLLATE":
            raise _refused(self._next.at, "collations are not kept: leave COLLATE out, and name it where you compare")
        return kind

    def _nested(self, token: _Token, depth: int) -> pa.DataType:
        self._mark("<")
        if token.word == "ARRAY":
            kind = list_of(self._type(depth))
        elif token.word == "MAP":
            key = self._type(depth)
            self._mark(",")
            kind = map_of(key, self._type(depth))
        elif self._next.text == ">":
            raise _refused(token.at, "STRUCT<> has no field: name at least one")
        else:
            kind = pa.struct(self._fields(depth))
        self._mark(">")
        return kind

    def _decimal(self, token: _Token) -> pa.DataType:
        precision, scale = 10, 0
        if self._took("("):
            precision = self._whole("a number of digits")
            if self._took(","):
                scale = self._whole("a number of digits behind the point")
            self._mark(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise _refused(
                token.at,
                f"DECIMAL({precision},{scale}) is not possible: 1 to 38 digits, of which no more than all are behind"
                " the point",
            )
        return pa.decimal128(precision, scale)

    def _whole(self, wanted: str) -> int:
        token = self._next
        if token.kind != "number" or not token.text.isdigit() or len(token.text) > 9:
            raise self._unexpected(wanted)
        self._take()
        return int(token.text)

    # ---- tokens

    def _take(self) -> None:
        self._next = next(self._tokens)

    def _took(self, mark: str) -> bool:
        if self._next.kind != "mark" or self._next.text != mark:
            return False
        self._take()
        return True

    def _mark(self, mark: str) -> None:
        if not self._took(mark):
            raise self._unexpected(repr(mark))

    def _took_word(self, word: str) -> bool:
        if self._next.word != word:
            return False
        self._take()
        return True

    def _end(self) -> None:
        if self._next.kind != "end":
            raise self._unexpected("',' or the end")

    def _unexpected(self, wanted: str) -> Invalid:
        return _refused(self._next.at, f"{self._next} stands where {wanted} was expected")


def _tokens(text: str) -> Iterator[_Token]:
    """The tokens of `text`, then an end without end."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _refused(at, f"{text[at]!r} belongs to no column and no type")
        kind = match.lastgroup or ""
        if kind == "comment":
            at = _after_comment(text, at)
            continue
        if kind != "space":
            yield _Token(kind, match.group(), at)
        at = match.end()
    while True:
        yield _Token("end", "", len(text))


def _after_comment(text: str, at: int) -> int:
    """The place behind the comment that begins at `at`; comments nest."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return match.end()
    raise _refused(at, "this comment does not end: close it with */")


def _kept() -> str:
    return f"{', '.join(sorted(set(_TEXTS.values())))}, DECIMAL, ARRAY, MAP and STRUCT"


def _refused(at: int, what: str) -> Invalid:
    return Invalid(f"schema, at character {at + 1}: {what}")


# ---- the JSON of a StructType

_COLLATIONS: Final = "__COLLATIONS"
_JSON_TYPE: Final = re.compile(r"[a-z_]+(\(\d+,\d+\))?")


def parse_struct_json(text: str) -> pa.Schema:
    """The columns of a `StructType.json()`, checked. Whether elements of arrays and values of maps may be null is not
    kept: they may. Raises `Invalid`, by column where it can.
    """
    try:
        match json.loads(text):
            case {"type": "struct", "fields": [*fields]}:
                schema = pa.schema([_json_field(field, "") for field in fields])
            case _:
                raise ValueError("another document")
    except RecursionError:
        raise Invalid(f"schema is {TOO_DEEP}") from None
    except ValueError:
        raise Invalid("schema is no JSON of a StructType: give the text of StructType.json(), or a DDL") from None
    check_columns(schema)
    return schema


def _json_field(found: Any, path: str) -> pa.Field:
    match found:
        case {"name": str(name), "type": kind, "nullable": bool(nullable)}:
            where = f"{path}.{name}" if path else name
        case _:
            raise _refused_column(path, "is no field of a StructType")
    if _COLLATIONS in (found.get("metadata") or ()):
        raise _refused_column(where, "has a collation, which is not kept: leave it out, and name it where you compare")
    return pa.field(name, _json_type(kind, where), nullable)


def _json_type(found: Any, where: str) -> pa.DataType:
    match found:
        case {"type": "array", "elementType": element}:
            return list_of(_json_type(element, f"{where}.element"))
        case {"type": "map", "keyType": key, "valueType": value}:
            kind = _json_type(key, f"{where}.key")
            return map_of(kind, _json_type(value, f"{where}.value"))
        case {"type": "struct", "fields": [_, *_] as fields}:
            return pa.struct([_json_field(field, where) for field in fields])
        case str() if _JSON_TYPE.fullmatch(found):
            with suppress(Invalid):
                return parse_type(found)
    raise _refused_column(
        where, f"has type {str(found)[:60]!r}, which a queue does not keep: cast it, or keep it as text"
    )


def _refused_column(where: str, what: str) -> Invalid:
    return Invalid(f"schema: column {where!r} {what}")
