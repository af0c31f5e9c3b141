"""How commands print: JSON for machines, tables for people, and the words for sizes, times and bytes.

Sentences go through `say`, which wraps nothing; rich draws tables only, imported when one is drawn. Whatever is printed
here is printable (`partq_spark.base.terminal`), and commands print nowhere else: ruff refuses `click.echo` in them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import click

from partq_spark.base.terminal import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"

_GAP = 3  # what rich puts between two columns of the box used here
_LEAST_WIDTH = 12  # characters of a column that gives way
_SHOWN_BYTES = 400  # of one value in a table: more than a line can hold


def print_json(*documents: Json) -> None:
    """Print each document on a line of its own, in UTF-8 whatever the terminal's encoding (RFC 8259)."""
    lines = [printable_json(json.dumps(each, ensure_ascii=False, allow_nan=False)) for each in documents]
    click.echo("\n".join(lines).encode())


def say(text: str = "", *, err: bool = False) -> None:
    """Print one line."""
    click.echo(printable(text), err=err)


def console() -> Console:
    """A console on standard output as it is now, so that tests and pipes get what is printed."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False)


def print_table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Text]]) -> None:
    """Print a table. A column is its heading and `<` (text), `>` (numbers) or `*` (text that is cut with an ellipsis
    where the terminal has no room, the longest first).
    """
    from rich import box
    from rich.table import Table

    rows = [[_shown(cell) for cell in row] for row in rows]
    to = console()
    cells = [[heading.cell_len, *(row[i].cell_len for row in rows)] for i, heading in enumerate(_headings(columns))]
    widths = [max(lengths) for lengths in cells]
    flexible = [i for i, (_, kind) in enumerate(columns) if kind == "*"]
    fixed = sum(width for i, width in enumerate(widths) if i not in flexible) + _GAP * len(columns)
    for i, width in zip(flexible, fitted([widths[i] for i in flexible], to.width - fixed), strict=True):
        widths[i] = width
    # Wider than the terminal is better than cells squeezed to nothing, which is what rich would do.
    to.width = max(to.width, sum(widths) + _GAP * len(columns))
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for (heading, kind), width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if kind == ">" else "left"
        made.add_column(heading, justify=justify, width=width, no_wrap=True, overflow="ellipsis")
    for row in rows:
        made.add_row(*row)
    to.print(made)


def _shown(cell: Text) -> Text:
    from rich.text import Text

    return cell if cell.plain.isprintable() else Text(printable(cell.plain), style=cell.style)


def _headings(columns: Sequence[tuple[str, str]]) -> list[Text]:
    from rich.text import Text

    return [Text(heading) for heading, _ in columns]


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


def when(time_us: int) -> str:
    """A Unix time in microseconds for people: UTC, to the millisecond; `--json` has every digit."""
    from partq_spark.base.timestamps import format_rfc3339

    return format_rfc3339(time_us)[:-4].replace("T", " ")


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
