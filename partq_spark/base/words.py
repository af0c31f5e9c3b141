"""The words for numbers, sizes, times and bytes, as the command line and the page show them. Pure, and of partq's own
values it knows nothing: what is said of a queue or a group stands in `client.words`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from partq_spark.base.effects import format_rfc3339, unix_us

SHOWN_BYTES = 400  # of one value in a table: more than a line can hold


def plural(count: int, noun: str) -> str:
    """`1 message`, `12,000 messages`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith('sh') else 's'}"


def size(count: int) -> str:
    """A number of bytes in the largest decimal unit that leaves at least one digit before the point."""
    number = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def when(time: datetime) -> str:
    """A point in time for people: UTC, to the millisecond; `--json` has every digit."""
    return format_rfc3339(unix_us(time))[:-4].replace("T", " ")


def age(seconds: float) -> str:
    """How long ago something was, in words."""
    for most, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < most:
            return f"{int(max(seconds, 0)) // unit_s} {unit} ago"
    return f"{int(seconds) // 86_400:,} days ago"


def seconds(value: float) -> str:
    """A duration from a setting: `5 s`."""
    return f"{value:.15g} s"


def partitions(numbers: Sequence[int]) -> str:
    """`partition 3`, `partitions 0-3, 7`."""
    return f"partition{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"


def readable(data: bytes, most: int = SHOWN_BYTES) -> str:
    """Bytes on one line: text if they are UTF-8, with what cannot be printed escaped; else hexadecimal digits. Cut
    after `most` of them.
    """
    start = data[:most]
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if len(data) > most and error.end == len(start) and error.reason == "unexpected end of data":
            text = start[: error.start].decode()
        else:
            return f"0x{start.hex()}" + ("…" if len(data) > most else "")
    return printable(text) + ("…" if len(data) > most else "")


# --- what may reach a terminal ----------------------------------------------------------------------------------------

# The one way in which text that partq did not write itself (from a store, a file, an argument) may reach a terminal.
#
# A terminal obeys control characters: titles, colours, keys that it pretends were typed. So what is not printable is
# shown as its escape. Everything that is printed or logged for people goes through here.


def printable(text: str) -> str:
    """`text` on one line, with line ends, control characters and the like as escapes: `\\x1b`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """`printable`, for text of several lines that partq put together itself."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def printable_json(document: str) -> str:
    """A JSON document that says the same with what is not printable as JSON's own escapes, half surrogates included."""
    if document.isprintable():
        return document
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in document)


def ranges(numbers: Sequence[int], between: str = ", ") -> str:
    """Numbers in rising order in words: `0-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return between.join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
