"""JSON documents that decide something: a person can read them, a checksum tells damage, a type says what they may
hold. And small things that decide, which have no room for such a frame: metadata of an object, or the fields of a
document in Redis, with a checksum of their own.

One kind of document is a `JsonDocument`: the type of its content, which msgspec writes and reads, the number of its
format, and what to do about one that is damaged. What the type does not allow is refused with the name of the object,
the path of the field and the value that was found, since a right checksum does not mean that its writer knew the
format. Equal contents give equal bytes: fields come in the order of the type, maps in the order in which they were
filled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
import xxhash
from msgspec import Meta

from partq_spark.base.errors import Corrupt, Invalid, PartqError

T = TypeVar("T")

MOST: Final = (1 << 63) - 1
Whole = Annotated[int, Meta(ge=0, le=MOST)]
"""A number from 0 up, of 64 bits as everywhere behind: offsets, epochs, times in microseconds."""
Positive = Annotated[int, Meta(ge=1, le=MOST)]
Seconds = Annotated[float, Meta(ge=0, le=MOST)]
"""A time, finite."""

_PREFIX: Final = b'{"xxh3":"'
_HASH_END: Final = len(_PREFIX) + 16
_SHOWN: Final = 60  # characters of a value in a message


def checksum(data: bytes | memoryview) -> str:
    """xxh3 (64 bits) as 16 hex digits: catches damage, not malice."""
    return xxhash.xxh3_64_hexdigest(data)


def check_sum(data: bytes | memoryview, said: str, name: object, repair: str) -> None:
    """Raises `Corrupt` if these are not the bytes that `said` is the checksum of."""
    found = checksum(data)
    if found != said:
        raise Corrupt(f"{name} is damaged: its checksum is {found}, {said} was written down; {repair}")


CHECKSUM: Final = "checksum"
"""The key of the checksum in metadata. A flipped digit in an offset would still be an offset."""


def checksum_of(metadata: Mapping[str, str]) -> str:
    """That of the lines `key=value` of all keys but `checksum`, sorted by key."""
    lines = "".join([f"{key}={value}\n" for key, value in sorted(metadata.items()) if key != CHECKSUM])
    return checksum(lines.encode(errors="surrogatepass"))


def sealed(metadata: Mapping[str, str]) -> dict[str, str]:
    """The same with its checksum."""
    return {**metadata, CHECKSUM: checksum_of(metadata)}


def check_sealed(metadata: Mapping[str, str], what: object, repair: str) -> None:
    """Raises `Corrupt` unless the metadata is as somebody sealed it. `what` names it in the message, `repair` is the
    next step.
    """
    said, found = metadata.get(CHECKSUM), checksum_of(metadata)
    if found != said:
        says = "is missing" if said is None else f"says {said[:40]!a}"
        raise Corrupt(
            f"{what} is damaged, or was edited by hand: its metadata has the checksum {found}, its key {CHECKSUM!r}"
            f" {says}; {repair}"
        )


class JsonDocument(Generic[T]):
    """One kind of document. `check` raises `ValueError` for contents whose fields contradict each other.

    A document of another format is refused with `other_format`, whose message ends with the `upgrade` to make. Contents
    that software of before would take for something else have the next format: those that `is_newer` says.
    """

    def __init__(
        self,
        kind: str,
        content: type[T],
        *,
        format_number: int,
        repair: str,
        upgrade: str,
        other_format: type[PartqError] = Corrupt,
        check: Callable[[T], None] | None = None,
        is_newer: Callable[[T], bool] | None = None,
    ) -> None:
        self._kind = kind
        self._formats = (format_number,) if is_newer is None else (format_number, format_number + 1)
        self._begins = {number: b'{"format":%d,' % number for number in self._formats}
        self._is_newer = is_newer
        self._decoder = msgspec.json.Decoder(content)
        self._repair = repair
        self._upgrade = upgrade
        self._other_format = other_format
        self._check = check

    def write(self, content: T) -> bytes:
        """Without a checksum: for what is referred to with one. Raises `Invalid` for what JSON has no words for."""
        try:
            return self._begins[self._format_of(content)] + msgspec.json.encode(content)[1:]
        except UnicodeEncodeError as error:
            raise Invalid(f"a text in the {self._kind} is not UTF-8 ({error}): give another one") from None

    def read(self, body: bytes | memoryview, name: object) -> T:
        """The content of what `write` gave. `name` is for messages: a text, or what is asked for one only then. Raises
        `Corrupt`, or the error for another format.
        """
        found = next((n for n, begin in self._begins.items() if body[: len(begin)] == begin), None)
        if found is None:
            found = self._parsed_format(body, name)
        try:
            content = self._decoder.decode(body)
            if self._format_of(content) != found:
                raise ValueError(f"they are those of format {self._format_of(content)}")
            if self._check is not None:
                self._check(content)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Corrupt(
                f"{name} has the right checksum but not the fields of format {found}:"
                f" {error}{self._found(body, str(error))}; {self._repair}"
            ) from None
        return content

    def seal(self, content: T) -> bytes:
        """With its checksum first, at a fixed place, so that the content need not be parsed to be checked."""
        body = self.write(content)
        return _PREFIX + checksum(body).encode() + f'","{self._kind}":'.encode() + body + b"}"

    def open(self, document: bytes, name: object) -> T:
        """The content of what `seal` gave, as `read`."""
        middle = f'","{self._kind}":'.encode()
        begin = _HASH_END + len(middle)
        # The checksum covers the content alone, so what stands around it is compared.
        if not document.startswith(_PREFIX) or document[_HASH_END:begin] != middle or document[-1:] != b"}":
            raise Corrupt(f"{name} is damaged: it does not begin or end as a {self._kind} does; {self._repair}")
        body = document[begin:-1]
        check_sum(body, document[len(_PREFIX) : _HASH_END].decode(errors="replace"), name, self._repair)
        return self.read(body, name)

    def require_readable(self, content: T) -> None:
        """Raises `Invalid` for what could be written and never be read again: a number out of its range, for one."""
        try:
            self.read(self.write(content), f"the {self._kind} that this makes")
        except (Corrupt, TypeError) as error:
            said = str(error).removesuffix(f"; {self._repair}")
            raise Invalid(f"{said}: nothing was written; give what it allows") from error

    def _format_of(self, content: T) -> int:
        """The format that a content is written in."""
        return self._formats[-1] if self._is_newer is not None and self._is_newer(content) else self._formats[0]

    def _parsed_format(self, body: bytes | memoryview, name: object) -> int:
        raw = _parsed(body)
        number = raw.get("format") if isinstance(raw, dict) else None
        if type(number) is not int or number not in self._formats:
            known = " and ".join(map(str, self._formats))
            raise self._other_format(f"{name} has format {number!r}, this partq reads format {known}: {self._upgrade}")
        return number

    def _found(self, body: bytes | memoryview, error: str) -> str:
        """The value that an error of msgspec is about, where it says the path."""
        path = re.search(r" - at `\$(.*)`$", error)
        raw = value = _parsed(body)
        try:
            for field, index in re.findall(r"\.(\w+)|\[(\d+|\.{3})\]", path[1] if path else ""):
                if index == "...":
                    value = self._culprit(raw, value, error)
                else:
                    value = value[field] if field else value[int(index)]
        except (LookupError, TypeError, ValueError):
            return ""  # a number that no float holds, or a key that comes twice
        shown = repr(value)
        return f", found {shown[:_SHOWN] + '…' if len(shown) > _SHOWN else shown}" if path else ""

    def _culprit(self, raw: Any, values: dict[str, Any], error: str) -> Any:
        """The value of a map that the error is about, of which msgspec does not say the key: the one that is refused
        alone.
        """
        every = dict(values)
        for key, value in every.items():
            values.clear()
            values[key] = value
            try:
                self._decoder.decode(msgspec.json.encode(raw))
            except msgspec.ValidationError as again:
                if str(again) == error:
                    break
        return value


def _parsed(body: bytes | memoryview) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
