"""How commands print the client's values: JSON for machines, tables for people, and the words for sizes and times.

`document` makes JSON of any frozen value, `print_values` a table of several, by columns. Sentences go through `say`,
which wraps nothing; rich draws tables only, imported when one is drawn. Whatever is printed here is printable
(`partq_spark.base.terminal`), and commands print nowhere else: ruff refuses `click.echo` in them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import click

from partq_spark.base.terminal import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"

MOST_ROWS = 64  # of a table
_GAP = 3  # what rich puts between two columns of the box used here
_LEAST_WIDTH = 12  # characters of a column that gives way
_SHOWN_BYTES = 400  # of one value in a table: more than a line can hold


def print_json(*documents: Json) -> None:
    """Print each document on a line of its own, in UTF-8 whatever the terminal's encoding (RFC 8259)."""
    lines = [printable_json(json.dumps(each, ensure_ascii=False, allow_nan=False)) for each in documents]
    click.echo("\n".join(lines).encode())


def document(value: object) -> Json:
    """Any value of the client as JSON: a frozen dataclass becomes an object of its fields and properties, a point in
    time RFC 3339, seconds a number with six digits.
    """
    if is_dataclass(value):
        own = [each.name for each in fields(value)]
        own += [name for name, found in vars(type(value)).items() if isinstance(found, property)]
        return {name.rstrip("_"): document(getattr(value, name)) for name in own}
    match value:
        case float():
            return round(value, 6)
        case datetime():
            from partq_spark.base.timestamps import format_rfc3339, unix_us

            return format_rfc3339(unix_us(value))
        case list() | tuple():
            return [document(each) for each in value]
        case None | bool() | int():
            return value
        case _:
            return str(value)


def documents(value: object) -> dict[str, Json]:
    """`document` of a dataclass, for those who add to it."""
    made = document(value)
    return dict(made) if isinstance(made, Mapping) else {}


def say(text: str = "", *, err: bool = False) -> None:
    """Print one line."""
    click.echo(printable(text), err=err)


def console() -> Console:
    """A console on standard output as it is now, so that tests and pipes get what is printed."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False)


class Column(NamedTuple):
    """A column of a table: its heading; what it shows of a value (a number with its thousands apart, a time, text, or
    None for nothing); `<` (text), `>` (numbers) or `*` (text that is cut with an ellipsis where the terminal has no
    room, the longest first); and its style.
    """

    heading: str
    cell: Callable[[Any], object]
    kind: Literal["<", ">", "*"] = "<"
    style: Callable[[Any], str] = lambda _: ""


def print_values(
    values: Sequence[Any],
    columns: Sequence[Column],
    *,
    noun: str = "row",
    first: Callable[[Any], Any] = lambda _: 0,
    most: int | None = MOST_ROWS,
) -> None:
    """Print a table, one row per value, at most `most` of them: those that `first` sorts to the front."""
    numbers = sorted(sorted(range(len(values)), key=lambda number: first(values[number]))[:most])
    _draw(columns, [values[number] for number in numbers])
    if len(values) > len(numbers):
        say(f"… and {plural(len(values) - len(numbers), f'more {noun}')}: --json shows all")


def _draw(columns: Sequence[Column], values: Sequence[Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = [[Text(shown(column.cell(each)), style=column.style(each)) for column in columns] for each in values]
    to = console()
    widths = [max(len(column.heading), *(row[i].cell_len for row in rows), 0) for i, column in enumerate(columns)]
    flexible = [i for i, column in enumerate(columns) if column.kind == "*"]
    fixed = sum(width for i, width in enumerate(widths) if i not in flexible) + _GAP * len(columns)
    for i, width in zip(flexible, fitted([widths[i] for i in flexible], to.width - fixed), strict=True):
        widths[i] = width
    # Wider than the terminal is better than cells squeezed to nothing, which is what rich would do.
    to.width = max(to.width, sum(widths) + _GAP * len(columns))
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column.kind == ">" else "left"
        made.add_column(column.heading, justify=justify, width=width, no_wrap=True, overflow="ellipsis")
    for row in rows:
        made.add_row(*row)
    to.print(made)


def shown(cell: object) -> str:
    """What a table shows of a value."""
    match cell:
        case None:
            return ""
        case int():
            return f"{cell:,}"
        case datetime():
            return when(cell)
        case _:
            return printable(str(cell))


def fitted(widths: Sequence[int], room: int) -> list[int]:
    """`widths` cut so that they take at most `room` in all, the longest first, none below `_LEAST_WIDTH` or itself."""
    cut = list(widths)
    while cut and sum(cut) > room and (longest := max(cut)) > _LEAST_WIDTH:
        cut[cut.index(longest)] = longest - 1
    return cut


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values below each other, the values aligned and never cut."""
    pairs = list(pairs)
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        click.echo(f"{click.style(name.ljust(width), dim=True)}  {printable(value)}")


def bar(count: int, most: int, width: int) -> str:
    """`count` as a bar, `most` being `width` characters long; something is never shown as nothing."""
    return "█" * max(round(width * count / most), 1) if count else ""


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
    from partq_spark.base.timestamps import format_rfc3339, unix_us

    return format_rfc3339(unix_us(time))[:-4].replace("T", " ")


def age(seconds: float) -> str:
    """How long ago something was, in words."""
    for most, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < most:
            return f"{int(max(seconds, 0)) // unit_s} {unit} ago"
    return f"{int(seconds) // 86_400:,} days ago"


def seconds(value: float) -> str:
    """A duration from a setting: `5 s`."""
    return f"{value:g} s"


def readable(data: bytes) -> str:
    """Bytes on one line: text if they are UTF-8, with what cannot be printed escaped; else hexadecimal digits."""
    start = data[:_SHOWN_BYTES]
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if len(data) > _SHOWN_BYTES and error.end == len(start) and error.reason == "unexpected end of data":
            text = start[: error.start].decode()
        else:
            return f"0x{start.hex()}" + ("…" if len(data) > _SHOWN_BYTES else "")
    return printable(text) + ("…" if len(data) > _SHOWN_BYTES else "")
