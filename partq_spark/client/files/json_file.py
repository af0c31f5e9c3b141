"""JSON lines as objects, and the parts of a message that JSON says in the same way everywhere: bytes and headers, in
the form that `partq browse --json` prints.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, NoReturn

from partq_spark.base.errors import Invalid
from partq_spark.client.files.exact_json import ExactDecoder, compact, named_once, number
from partq_spark.client.files.messages import HEADER_BYTES, Lines

ENCODING = "value_encoding"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


# json.loads would make one for every line.
_DECODER = json.JSONDecoder(parse_float=number, parse_constant=_no_constant, object_pairs_hook=named_once)
_EXACT = ExactDecoder(parse_constant=_no_constant)


class JsonFile:
    """Objects, one per line, of which one is looked at at a time; none has a name twice, of which one value would be
    lost. `example` is a line as it is wanted; `exact`: as `ExactDecoder` has it.

    What is said to be wrong is wrong in the line that was given last.
    """

    def __init__(self, lines: Lines, *, example: str, exact: bool = False) -> None:
        self.name = lines.name
        self._example = example
        self._lines = lines
        self._decoder = _EXACT if exact else _DECODER

    @property
    def line(self) -> int:
        """The number of the line that was given last."""
        return self._lines.number

    def progress(self) -> tuple[int, int | None]:
        return self._lines.progress()

    def objects(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each line's text, and what it says."""
        for text in self._lines:
            if text.isspace():
                continue
            try:
                row = self._decoder.decode(text)
            except (ValueError, RecursionError) as error:
                self.refuse(f"is no JSON ({error}): write one object per line")
            if isinstance(row, list):
                self.refuse("is a JSON array: write one object per line, for example with `jq -c '.[]'`")
            if not isinstance(row, dict):
                self.refuse(f"is no JSON object: write one per line, such as {self._example}")
            yield text, row

    def bytes_of(self, value: Any, encoding: Any, what: str) -> bytes:
        """A string, or any other JSON as compact text."""
        if encoding not in (None, "text", "base64"):
            self.refuse(f"has value_encoding={encoding!r}: give base64, or leave it out")
        if isinstance(value, str):
            if encoding == "base64":
                try:
                    return base64.b64decode(value, validate=True)
                except (binascii.Error, ValueError) as error:
                    self.refuse(f"has a {what} that is no base64 ({error}), as its value_encoding says it is")
            return self.encoded(value, what)
        if encoding == "base64":
            self.refuse(f"has {json_kind(value)} for its {what}, and value_encoding=base64: give a string")
        try:
            return compact(value).encode()
        except (ValueError, RecursionError) as error:  # half a surrogate pair, a number that became infinite
            self.refuse(f"has a {what} that cannot be written as JSON ({error})")

    def headers_of(self, headers: Any) -> list[dict[str, Any]] | None:
        """An object, or a list of key and value."""
        if headers is None:
            return None
        if isinstance(headers, dict):
            headers = [{"key": key, "value": value} for key, value in headers.items()]
        if not isinstance(headers, list):
            self.refuse(f"has {json_kind(headers)} for its headers: give an object, or a list of key and value")
        found: list[dict[str, Any]] = []
        for header in headers:
            if not isinstance(header, dict) or not isinstance(header.get("key"), str | None):
                self.refuse('has a header that is none: write {"key": "trace", "value": "text"}')
            unknown = [name for name in header if name not in ("key", "value", ENCODING)]
            if unknown:
                self.refuse(f"has a header with {unknown[0]!r}: only key, value and value_encoding belong there")
            key, value = header.get("key"), header.get("value")
            if key is not None:
                self.encoded(key, "header's key")
            data = None if value is None else self.bytes_of(value, header.get(ENCODING), "header's value")
            found.append({"key": key, "value": data})
        return found

    def encoded(self, text: str, what: str) -> bytes:
        """In UTF-8."""
        try:
            return text.encode()
        except UnicodeEncodeError:
            self.refuse(f"has half of a surrogate pair in its {what}, which is no text: give both halves")

    def refuse(self, why: str) -> NoReturn:
        """Raises `Invalid` that names the line."""
        raise Invalid(f"{self.name} line {self.line} {why}")


def held_bytes(headers: list[dict[str, Any]] | None) -> int:
    """What headers take in memory, about; of texts that are not ASCII up to four times as much."""
    return sum(HEADER_BYTES + len(header["key"] or "") + len(header["value"] or b"") for header in headers or ())


def json_kind(value: object) -> str:
    """What it is called in JSON."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return "a string" if isinstance(value, str) else "a number or boolean"
