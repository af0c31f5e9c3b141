"""A typed queue's columns as the head keeps them, with what they were in earlier versions. Values alone, without Arrow.

A slice names the version that it was written with, and every version can be told from the columns of today: a column
says since when it is there and which types it had until when. So one list is enough however often it was altered, and
nothing has to be forgotten while a slice or a publisher may still need it. Types stand here in Spark's words (`ddl`),
because a head is read by people and by programs that need no Arrow. How they change is decided in `versions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Final

from msgspec import Meta, Struct

from partq_spark.base.json_documents import Positive

_SHOWN: Final = 300  # characters
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def name_text(name: str) -> str:
    """A name as it stands in a DDL, in back quotes where it needs them."""
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def find_name(names: Sequence[str], name: str) -> str | None:
    """That of `names` which is meant, as Spark finds it: by its exact name, else by its name in another case."""
    return name if name in names else next((each for each in names if each.lower() == name.lower()), None)


def shown_names(names: Sequence[str]) -> str:
    """Names for a message, which has not room for a thousand of them."""
    text = ", ".join(names)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(names)} columns)"


class FormerType(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a column's type was, up to and with a version."""

    type: str
    until: Positive


class Column(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One column. `since` is the first version that has it, `former` its types before this one, oldest first."""

    name: str
    type: str
    nullable: bool = True
    since: Positive = 1
    former: tuple[FormerType, ...] = ()

    def type_at(self, version: int) -> str:
        """Its type in a version that has it."""
        return next((former.type for former in self.former if version <= former.until), self.type)

    def types(self) -> Iterator[str]:
        """All types that it has had, the oldest first."""
        yield from (former.type for former in self.former)
        yield self.type

    def __str__(self) -> str:
        return f"{name_text(self.name)} {self.type}{'' if self.nullable else ' NOT NULL'}"


class Columns(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The columns of a typed queue, version `version` of them. `key` is the name of that which decides the partition;
    None: messages have no key.
    """

    columns: Annotated[tuple[Column, ...], Meta(min_length=1)]
    key: str | None = None
    version: Positive = 1

    def __post_init__(self) -> None:
        """Raises `ValueError` for what no field alone can say, also where a head is read."""
        known = {column.name for column in self.columns}
        if len(known) < len(self.columns):
            raise ValueError("two columns have one name")
        if self.key is not None and self.key not in known:
            raise ValueError(f"the key column {self.key!r} is none of the columns")
        for column in self.columns:
            ends = [column.since - 1, *(former.until for former in column.former), self.version]
            if any(one >= other for one, other in pairwise(ends)):
                raise ValueError(f"the versions of column {column.name!r} do not rise up to {self.version}")

    @property
    def ddl(self) -> str:
        """The columns of today as people read them."""
        return ", ".join(map(str, self.columns))

    @property
    def names(self) -> tuple[str, ...]:
        """Of today's columns."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column | None:
        """As `find_name` finds it."""
        found = find_name(self.names, name)
        return next((column for column in self.columns if column.name == found), None)


def same_columns(one: Columns, other: Columns) -> bool:
    """Whether both have the same columns of the same types today, in whatever order."""
    return {*map(str, one.columns)} == {*map(str, other.columns)}
