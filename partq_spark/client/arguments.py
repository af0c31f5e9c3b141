"""The arguments of the public callables, checked in one place: by what their signatures say; and what those name (a
store, a namespace, an ownership, columns, a time) as the log and the groups work with it.

`@checked` stands on a function, or on a class for its public methods. The annotation of a parameter says what it takes
and what the function gets: `int` is a whole number (also numpy's, no bool), `float` finite seconds (no Decimal), `str`
a text. Anything else is `Invalid`, which names the argument, the value and what is allowed, before anything is done.
What a number or a text means is checked where it is used.

What is not given comes from the environment, read when it is asked for. Stores are opened once per process and shared;
an ownership is opened for one question and closed after it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, cast

from partq_spark.base.effects import LONGEST_WAIT_S, parse_rfc3339, unix_us
from partq_spark.base.errors import Invalid, WrongUse
from partq_spark.base.json_documents import MOST
from partq_spark.group.documents.urls import canonical_ownership, default_ownership
from partq_spark.log.admin import checked_partitions
from partq_spark.log.destinations import checked_subscription, checked_topic
from partq_spark.log.groups import group_kind, require_ownership
from partq_spark.log.model import Head
from partq_spark.log.names import checked_name
from partq_spark.log.queue import NamespaceAddress
from partq_spark.log.settings import QueueConfig, Setting, Unit
from partq_spark.objects.urls import canonical_url, default_store

if TYPE_CHECKING:
    from partq_spark.group.ownership import Ownership
    from partq_spark.log.schema.columns import Columns
    from partq_spark.objects.api import ObjectStore
    from partq_spark.query.settings import Boundary

# Those of the rooms below, for the command line, which knows the client alone.
__all__ = [
    "NamespaceAddress",
    "canonical_ownership",
    "canonical_url",
    "checked_name",
    "checked_partitions",
    "checked_subscription",
    "checked_topic",
]

FileKind = Literal["csv", "json", "parquet"]
_FILE_KINDS: Final[Mapping[str, FileKind]] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
STANDARD_INPUT: Final = "-"
EARLIEST: Final = "earliest"

T = TypeVar("T", bound=Callable[..., Any])
_SHOWN: Final = 60  # characters of a value in a message


class _Kind(NamedTuple):
    """What an annotation stands for: `take` gives the value as the function gets it, or raises `TypeError` or
    `ValueError`; `said` is what is allowed, in words.
    """

    take: Callable[[Any], Any]
    said: str


def checked(target: T) -> T:
    """A function whose arguments are checked, or a class with its public methods as such ones."""
    if not inspect.isclass(target):
        return cast("T", _checked(target))
    for name, member in list(vars(target).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(target, name, _checked(member))
    return target


def shown(value: object) -> str:
    """A value for a message. What may stand behind a URL's scheme, a password for one, is left out."""
    try:
        text, scheme, _ = repr(value).partition("://")
    except Exception:  # noqa: BLE001 - a value that was refused already
        text, scheme = f"a {type(value).__name__}", ""
    return f"{text[:_SHOWN]}…" if scheme or len(text) > _SHOWN else text


def argument(annotation: str, name: str, value: Any) -> Any:
    """One argument, checked; for a function that is called too often to be wrapped."""
    return _taken(_kinds(annotation), name, value)


def check_number(name: str, value: float, unit: Unit, *, least: int = 0, most: int) -> None:
    """Raises `WrongUse` for one out of its range."""
    Setting(name=name, meaning="", unit=unit, least=least, most=most).check(value)


# --- one function -----------------------------------------------------------------------------------------------------


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    kinds: dict[str, tuple[_Kind, ...]] = {}
    positional: list[str] = []
    others: str | None = None  # what takes any number of positions
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            raise TypeError(f"{function.__qualname__} is public: give each of its keywords a name and a type")
        kinds[name] = () if parameter.annotation is parameter.empty else _kinds(parameter.annotation)
        if parameter.kind is parameter.VAR_POSITIONAL:
            others = name
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            positional.append(name)

    @functools.wraps(function)
    def run(*args: Any, **given: Any) -> Any:
        taken = list(args)
        for index, value in enumerate(args):
            name = positional[index] if index < len(positional) else others
            if name is not None and kinds[name]:  # too many are Python's to refuse
                taken[index] = _taken(kinds[name], name, value)
        for name, value in given.items():
            if name not in kinds:
                known = ", ".join(each for each in kinds if each != "self")
                raise Invalid(f"{function.__name__} has no argument {name!r}: give some of {known}")
            given[name] = _taken(kinds[name], name, value)
        return function(*taken, **given)

    return run


def _taken(kinds: Iterable[_Kind], name: str, value: Any) -> Any:
    for kind in kinds:
        try:
            return kind.take(value)
        except (TypeError, ValueError, OverflowError):
            continue
    allowed = " or ".join(dict.fromkeys(kind.said for kind in kinds))
    raise WrongUse(f"{name}={shown(value)} is not allowed: give {allowed}")


# --- what annotations stand for ---------------------------------------------------------------------------------------


@functools.cache
def _kinds(annotation: str) -> tuple[_Kind, ...]:
    return tuple(map(_kind, re.split(r" \| (?![^\[]*\])", annotation)))


def _kind(annotation: str) -> _Kind:
    name, _, inside = annotation.partition("[")
    if annotation in _KINDS:
        return _KINDS[annotation]
    if name == "Literal":
        words = ast.literal_eval(f"[{inside}")
        return _Kind(lambda value: words[words.index(_text(value))], " or ".join(map(repr, words)))
    if name == "Callable":
        return _Kind(_require(callable), "a function")
    # By its name, so that no module is imported for a class that nobody may ever have given.
    name = name.rpartition(".")[2]
    return _Kind(_require(lambda value: any(each.__name__ == name for each in type(value).__mro__)), f"a {name}")


def _require(is_one: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def take(value: Any) -> Any:
        if not is_one(value):
            raise TypeError
        return value

    return take


_text: Final = _require(lambda value: isinstance(value, str))


def _whole(value: Any) -> int:
    found = operator.index(value)
    if isinstance(value, bool) or not -MOST <= found <= MOST:
        raise TypeError
    return found


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    found = float(value)
    if not abs(found) <= threading.TIMEOUT_MAX:  # of which nothing can be waited for; nor for nan
        raise ValueError
    return found


def _many(value: Any) -> Iterable[Any]:
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        raise TypeError
    return cast("Iterable[Any]", value)


def _offsets(value: Any) -> dict[int, int]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {_whole(partition): _whole(offset) for partition, offset in value.items()}


_ANYTHING: Final = _Kind(lambda value: value, "anything")
_KINDS: Final[Mapping[str, _Kind]] = {
    "Any": _ANYTHING,
    "object": _ANYTHING,
    "None": _Kind(_require(lambda value: value is None), "None"),
    "EllipsisType": _Kind(_require(lambda value: value is ...), "nothing"),
    "bool": _Kind(_require(lambda value: isinstance(value, bool)), "True or False"),
    "int": _Kind(_whole, "a whole number of at most 64 bits"),
    "float": _Kind(_seconds, "a finite number (int or float, also of numpy)"),
    "str": _Kind(_text, "text"),
    "PathLike[str]": _Kind(_require(lambda value: isinstance(value, PathLike)), "a path"),
    "datetime": _Kind(_require(lambda value: isinstance(value, datetime)), "a datetime"),
    "Mapping[int, int]": _Kind(_offsets, "a mapping of partitions to offsets, whole numbers"),
    "Collection[int]": _Kind(lambda value: tuple(map(_whole, _many(value))), "whole numbers"),
    "Sequence[str]": _Kind(lambda value: tuple(map(_text, _many(value))), "texts, in a list"),
}


# --- what names stand for ---------------------------------------------------------------------------------------------


def address(store: str | None, namespace: str, retry_timeout_s: float) -> NamespaceAddress:
    """A namespace of a store. `store` None: `$PARTQ_STORE`, else `file://$HOME/.partq`. Raises `Invalid`."""
    check_number("retry_timeout_s", retry_timeout_s, "seconds", most=int(LONGEST_WAIT_S))
    return NamespaceAddress(
        store=default_store(os.environ) if store is None else canonical_url(store),
        namespace=checked_name("namespace", namespace),
        retry_timeout_s=float(retry_timeout_s),
    )


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a function's arguments that are a queue's settings, but for what is left as it is (`...`)."""
    return {name: given[name] for name in QueueConfig.settings() if given[name] is not ...}


def checked_publish_id(text: str) -> str:
    """Raises `Invalid` unless it is 1 to 255 bytes of printable text."""
    # Half a surrogate, what Python makes of an argument that is not UTF-8, is not printable and has no bytes.
    if not text.isprintable() or not 1 <= len(text.encode()) <= 255:
        raise Invalid(f"{text[:60]!r} is not allowed: give 1 to 255 bytes of printable text")
    return text


def checked_file_kind(path: str) -> tuple[FileKind, bool]:
    """What a file is, and whether it is gzipped, by its name. Raises `WrongUse` naming the extensions there are."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes[-2:]]
    compressed = suffixes[-1:] == [".gz"]
    kind = _FILE_KINDS.get(suffixes[-2] if compressed and len(suffixes) > 1 else "".join(suffixes[-1:]))
    if kind is None or (compressed and kind == "parquet"):
        raise WrongUse(
            f"{path!r} is of no kind that is known: name it .csv, .jsonl, .ndjson or .json (each also with .gz), or "
            ".parquet"
        )
    return kind, compressed


def checked_place(text: str) -> int | str:
    """What `text` says of where a group is to go back to: an offset, or `earliest`. Raises `Invalid`."""
    if text == EARLIEST:
        return text
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise no_place(text)
    return int(text)


def no_place(text: str) -> Invalid:
    """The refusal of what is none."""
    return Invalid(f"{text!r} is not allowed: give an offset (a whole number from 0) or {EARLIEST!r}")


def checked_ddl(text: str) -> str:
    """Columns as DDL, as partq writes it. Raises `Invalid` with the place of what does not parse."""
    from partq_spark.log.schema.ddl import ddl_of, parse_ddl

    return ddl_of(parse_ddl(text))


def columns_from(schema: Any, key: str | None) -> Columns | None:
    """The columns of a queue as they are given: a DDL or the JSON of a `StructType` as text, a `StructType`, a
    `pyarrow.Schema`; None for an untyped queue. Raises `WrongUse` by place or column.
    """
    if schema is None:
        if key is not None:
            raise WrongUse(
                f"key={key!r} names a column, and there is no schema: give the schema too, or leave key out (a message "
                "of an untyped queue has a key of its own)"
            )
        return None
    from pyarrow import Schema

    from partq_spark.log.schema import versions

    if not isinstance(schema, str | Schema):  # a `StructType` is known by its `json`: pyspark is not imported
        to_json = getattr(schema, "json", None)
        text = to_json() if callable(to_json) else None
        if not isinstance(text, str) or not text.startswith("{"):
            raise WrongUse(
                f"schema is of type {type(schema).__name__}: give a DDL such as 'id BIGINT NOT NULL, name STRING', a "
                "StructType or a pyarrow.Schema"
            )
        schema = text
    try:
        return versions.columns_of(versions.schema_from(schema), key)
    except Invalid as error:
        raise WrongUse(str(error)) from error


def time_us(time: datetime | str) -> int:
    """Unix time in microseconds. Raises `Invalid` for a text that is no RFC 3339, and a `datetime` without a zone."""
    return parse_rfc3339(time) if isinstance(time, str) else unix_us(time)


def place(given: str | datetime | Mapping[int, int]) -> Boundary:
    """Where to begin or end in a queue: `earliest`, `latest`, a time or offsets. Raises `Invalid` as `time_us`."""
    from partq_spark.query.settings import Boundary

    match given:
        case "latest":
            return Boundary(edge="latest")
        case "earliest":
            return Boundary(edge="earliest")
        case str() | datetime():
            return Boundary(time_us=time_us(given))
        case _:
            return Boundary(offsets=given)


def ownership_url(given: str | None) -> str:
    """Where ownership is kept: as given, else as `$PARTQ_OWNERSHIP` says, else `none`. Raises `Invalid`."""
    return default_ownership(os.environ) if given is None else canonical_ownership(given)


def ownership_for(head: Head, group: str, given: str | None, store_url: str) -> str:
    """The ownership by which this group is shared, `none` if no address is known. What the environment says may be
    meant for other groups, so what does not fit is left out. Raises `Invalid` if what was given does not fit.
    """
    url = ownership_url(given)
    found = head.groups.get(group)
    if found is None or found.ownership in (None, group_kind(url)):
        return url
    if given is not None:
        require_ownership(head, group, url, store=store_url)
    return "store" if found.ownership == "store" else "none"


@contextmanager
def opened_ownership(url: str, store: ObjectStore) -> Iterator[Ownership | None]:
    """Where the groups' ownership is kept; None for `none`. Raises `Invalid` as `open_ownership` does."""
    if url == "none":
        yield None
        return
    from partq_spark.group.ownership import open_ownership

    with closing(open_ownership(url, store=store)) as ownership:
        yield ownership
