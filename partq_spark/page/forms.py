"""What a form or an address asks for, as values; others are refused, with those that are allowed. Pure but for reading
the body, which is bounded.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from partq_spark.base.errors import Invalid

MOST_BYTES: Final = 64 * 1024
MOST_FIELDS: Final = 40


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, the last of each name. Raises `Invalid` for one that is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise Invalid(f"the form has more than {MOST_BYTES} bytes: send less")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError as error:
        raise Invalid(f"the form cannot be read ({error}): send it as the page does") from None


def number_of(name: str, text: str) -> int | None:
    """A whole number from 0, None for nothing. Raises `Invalid`."""
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Invalid(f"{name}={text[:40]!r} is not allowed: give a whole number from 0")
    return int(text)


def offsets_of(text: str) -> dict[int, int]:
    """`0:12,3:40` as offsets by partition. Raises `Invalid`."""
    pairs = (each.partition(":") for each in text.split(",") if each)
    found = {number_of("partition", number): number_of("before", offset) for number, _, offset in pairs}
    return {number: offset for number, offset in found.items() if number is not None and offset is not None}
