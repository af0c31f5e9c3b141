"""What commands show of the client's values, printed: JSON for machines; lines, facts and tables for people; and a
progress bar for those who wait.

`document` makes JSON of any frozen value. Lines are not wrapped; rich draws tables and the bar, imported when one is
drawn. Whatever is printed here is printable (`partq_spark.base.words`), and commands print nowhere else: ruff refuses
`click.echo` in them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

import click

from partq_spark.base import words
from partq_spark.base.process import end_unread
from partq_spark.base.words import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

MOST_ROWS = 64  # of a table
DOCUMENTS_AT_A_TIME = 500
_GAP = 3  # what rich puts between two columns of the box used here
_LEAST_WIDTH = 12  # characters of a column that gives way
_SHOWN_AFTER_S = 0.5  # of the progress bar


# --- what is shown ----------------------------------------------------------------------------------------------------


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


class Facts(NamedTuple):
    """Names and values below each other, the values aligned and never cut."""

    pairs: Sequence[tuple[str, str]]


View: TypeAlias = "Iterator[str | Facts | Table]"
"""What people see, part by part; a text is a line."""


class Answer(NamedTuple):
    """What a command has to show: a value of the client, or its view for people. Of an iterator each item is a JSON
    document of its own, printed as it is.
    """

    value: object
    view: View


def show(answer: Answer, *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        documents = answer.value if isinstance(answer.value, Iterator) else iter((document(answer.value),))
        while some := list(islice(documents, DOCUMENTS_AT_A_TIME)):
            print_json(*some)
        return
    for part in answer.view:
        match part:
            case Table():
                _print_table(part)
            case Facts():
                width = max(len(name) for name, _ in part.pairs)
                for name, value in part.pairs:
                    click.echo(f"{click.style(name.ljust(width), dim=True)}  {printable(value)}")
            case _:
                say(part)


def say(text: str = "", *, err: bool = False) -> None:
    """Print one line."""
    click.echo(printable(text), err=err)


# --- JSON -------------------------------------------------------------------------------------------------------------


def print_json(*documents: object) -> None:
    """Print each document on a line of its own, in UTF-8 whatever the terminal's encoding (RFC 8259)."""
    lines = [printable_json(json.dumps(each, ensure_ascii=False, allow_nan=False)) for each in documents]
    click.echo("\n".join(lines).encode())


def document(value: object) -> Any:
    """Any value of the client as JSON: a frozen dataclass or Struct becomes an object of its fields and properties, a
    point in time RFC 3339, seconds a number with six digits.
    """
    own = [each.name for each in fields(value)] if is_dataclass(value) else getattr(value, "__struct_fields__", ())
    if own:
        more = (name for name, found in vars(type(value)).items() if isinstance(found, property))
        return {name.rstrip("_"): document(getattr(value, name)) for name in (*own, *more)}
    match value:
        case float():
            return round(value, 6)
        case datetime():
            from partq_spark.base.timestamps import format_rfc3339, unix_us

            return format_rfc3339(unix_us(value))
        case Mapping():
            return {name: document(each) for name, each in value.items()}
        case list() | tuple():
            return [document(each) for each in value]
        case None | bool() | int():
            return value
        case _:
            return str(value)


# --- tables -----------------------------------------------------------------------------------------------------------


def _print_table(table: Table) -> None:
    values = table.values
    numbers = sorted(sorted(range(len(values)), key=lambda number: table.first(values[number]))[: table.most])
    left_out = _draw(table.columns, [values[number] for number in numbers], may_leave_out=table.may_leave_out)
    if left_out:
        say(f"… and {words.plural(left_out, 'more column')}: --json shows all")
    if len(values) > len(numbers):
        say(f"… and {words.plural(len(values) - len(numbers), f'more {table.noun}')}: --json shows all")


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


# --- bars -------------------------------------------------------------------------------------------------------------


def bar(count: int, most: int, width: int) -> str:
    """`count` as a bar, `most` being `width` characters long; something is never shown as nothing."""
    return "█" * max(round(width * count / most), 1) if count else ""


class ProgressBar:
    """A progress bar on standard error: none where no terminal is, none for what is quick. Use as a context manager.
    Shows the share done where it is known, the number of messages, and the rate.
    """

    def __init__(self, doing: str) -> None:
        self._doing = printable(doing)
        self._watched = sys.stderr.isatty()
        self._begun_s = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()

    def update(self, messages: int, done: int, total: int | None) -> None:
        """`done` of `total` is read (None: nobody knows of how much), `messages` so far."""
        elapsed_s = time.monotonic() - self._begun_s
        if not self._watched or elapsed_s < _SHOWN_AFTER_S:
            return
        if self._shown is None:
            self._shown = self._start()
        bar, task = self._shown
        bar.update(task, completed=done, total=total, messages=messages, rate=messages / elapsed_s)

    def _start(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[messages]:,} messages"),
            TextColumn("{task.fields[rate]:,.0f}/s", style="dim"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
        )
        task = bar.add_task(self._doing, total=None, messages=0, rate=0.0)
        bar.start()
        return bar, task
