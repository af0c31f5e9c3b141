"""Tables for people, of the client's values: what a column shows, and how a table is drawn where the terminal has no
room for all of it. rich draws; it is imported when a table is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from partq_spark.base import words
from partq_spark.base.process import end_unread
from partq_spark.base.words import printable

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS = 64  # of a table
_GAP = 3  # what rich puts between two columns of the box used here
_LEAST_WIDTH = 12  # characters of a column that gives way


class TableColumn(NamedTuple):
    """A column of a table: its heading; what it shows of a value (a number with its thousands apart, a time, text, or
    None for nothing); `<` (text), `>` (numbers) or `*` (text that is cut with an ellipsis where the terminal has no
    room, the longest first); and its style.
    """

    heading: str
    cell: Callable[[Any], object]
    kind: Literal["<", ">", "*"] = "<"
    style: Callable[[Any], str] = lambda _: ""


def numbers(*names: str) -> tuple[TableColumn, ...]:
    """Columns called as the fields that they show; empty for a value without such a field."""
    return tuple(TableColumn(name, partial(_field, name), ">") for name in names)


def _field(name: str, value: object) -> object:
    return getattr(value, name, None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A row per value, at most `most`: those that `first` sorts to the front. `may_leave_out`: the last `*` columns may
    go where the terminal has no room for all; that some did is said.
    """

    values: Sequence[Any]
    columns: Sequence[TableColumn]
    noun: str
    first: Callable[[Any], Any] = lambda _: 0
    most: int | None = MOST_ROWS
    may_leave_out: bool = False


def draw(table: Table) -> Iterator[str]:
    """Print it. What is then to be said: what of it is not shown."""
    values = table.values
    numbers = sorted(sorted(range(len(values)), key=lambda number: table.first(values[number]))[: table.most])
    left_out = _draw(table.columns, [values[number] for number in numbers], may_leave_out=table.may_leave_out)
    if left_out:
        yield f"… and {words.plural(left_out, 'more column')}: --json shows all"
    if len(values) > len(numbers):
        yield f"… and {words.plural(len(values) - len(numbers), f'more {table.noun}')}: --json shows all"


def _draw(columns: Sequence[TableColumn], values: Sequence[Any], *, may_leave_out: bool) -> int:
    """How many columns were left out."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = [[Text(shown(column.cell(each)), style=column.style(each)) for column in columns] for each in values]
    to = _console()
    left_out = 0
    widths = [max(len(column.heading), *(row[i].cell_len for row in rows), 0) for i, column in enumerate(columns)]
    flexible = [i for i, column in enumerate(columns) if column.kind == "*"]
    while may_leave_out and len(flexible) > 1 and _least_width(columns, widths) > to.width:
        last = flexible.pop()
        columns, widths = [*columns[:last], *columns[last + 1 :]], [*widths[:last], *widths[last + 1 :]]
        rows = [[*row[:last], *row[last + 1 :]] for row in rows]
        left_out += 1
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
    return left_out


def _least_width(columns: Sequence[TableColumn], widths: Sequence[int]) -> int:
    """With every `*` column cut as far as it may be."""
    cut = (min(width, _LEAST_WIDTH) if each.kind == "*" else width for each, width in zip(columns, widths, strict=True))
    return sum(cut) + _GAP * len(columns)


def shown(cell: object) -> str:
    """What a table shows of a value."""
    match cell:
        case None:
            return ""
        case int():
            return f"{cell:,}"
        case datetime():
            return words.when(cell)
        case _:
            return printable(str(cell))


def fitted(widths: Sequence[int], room: int) -> list[int]:
    """`widths` cut so that they take at most `room` in all, the longest first, none below `_LEAST_WIDTH` or itself."""
    cut = list(widths)
    while cut and sum(cut) > room and (longest := max(cut)) > _LEAST_WIDTH:
        cut[cut.index(longest)] = longest - 1
    return cut


def _console() -> Console:
    """A console on standard output as it is now, so that tests and pipes get what is printed."""
    from rich.console import Console

    class Told(Console):
        def on_broken_pipe(self) -> None:  # rich ends with 1 in silence
            end_unread()

    return Told(file=sys.stdout, highlight=False, markup=False)
