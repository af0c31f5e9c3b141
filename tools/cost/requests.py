"""Requests to Azure Blob Storage, and to S3, by the classes in which they are paid for. How they are counted (`meter`),
what is asked for (`deeds`, `idle`) and what it costs (`prices`) is not known here.

Which request is of which class is Azure's table "Map each REST operation to a price", for standard general-purpose v2
accounts; AWS has the same classes. A request that is refused, or answered with "not changed", is paid for like any
other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from enum import StrEnum
from itertools import starmap
from operator import add
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

ON_S3: Final = " on S3"
"""Behind a table's name: the same table, counted there."""


class Kind(StrEnum):
    """A class of requests."""

    WRITE = "writes"
    LIST = "lists"  # and the making of a container
    READ = "reads"
    OTHER = "others"
    DELETE = "deletes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """How many requests of each class; fractions where it is an average."""

    writes: float = 0
    lists: float = 0
    reads: float = 0
    others: float = 0
    deletes: float = 0

    def __add__(self, more: Self) -> Counts:
        return Counts(**dict(zip(Kind, starmap(add, zip(astuple(self), astuple(more), strict=True)), strict=True)))

    def times(self, factor: float) -> Counts:
        """So many times."""
        return Counts(**dict(zip(Kind, (factor * each for each in astuple(self)), strict=True)))

    def rounded(self) -> Counts:
        """To whole requests: for averages."""
        return Counts(**dict(zip(Kind, (round(each) for each in astuple(self)), strict=True)))


def least(found: Iterable[Counts]) -> Counts:
    """Of each class the fewest."""
    return Counts(**dict(zip(Kind, map(min, zip(*map(astuple, found), strict=True)), strict=True)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """A line of a table: what was done, in words, how often, and what it asked for. `table` is `each`, `million` or
    `month`, perhaps with `ON_S3`.
    """

    table: str
    what: str
    counts: Counts


def kind_of(method: str, path: str) -> Kind:
    """The class of a request. Raises `ValueError` for one that partq has never made."""
    given = parse_qs(urlsplit(path).query, keep_blank_values=True)
    comp, restype = given.get("comp", [""])[0], given.get("restype", [""])[0]
    match method, restype, comp:
        case ("GET", "container", "list") | ("PUT", "container", ""):
            return Kind.LIST
        case ("GET", "", "") if "list-type" in given or "uploads" in given:
            return Kind.LIST
        case ("GET", "", ""):
            return Kind.READ
        case ("PUT" | "POST", "", "" | "block" | "blocklist"):
            return Kind.WRITE
        case ("DELETE", _, ""):
            return Kind.DELETE
        case ("HEAD", _, ""):
            return Kind.OTHER
    raise ValueError(f"{method} {path} has no class yet: look it up in Azure's table, and add it to kind_of")
