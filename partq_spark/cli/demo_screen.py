"""What a person sees of `partq demo`: a line for each thing that happens, a live table below them on a terminal, the
proof at the end. Words and form only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from partq_spark.base.words import printable, ranges
from partq_spark.client import GroupView, PartitionStatus
from partq_spark.demo.processes import Change, FlowGone, Joined, Ledger, Moved, MoveKind, PartitionMove

COLOURS = {"amber": "yellow", "blue": "bright_blue", "coral": "magenta"}
_NOBODY = "·"


class Screen:
    """One demo's output. A context manager, so that the terminal is left as it was."""

    def __init__(self, console: Console, *, rebalance_delay_s: float, session_s: float) -> None:
        self._console = console
        self._rebalance_delay_s = rebalance_delay_s
        self._session_s = session_s
        self._begun_s = time.monotonic()
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    # --- lines --------------------------------------------------------------------------------------------------------

    def head(self, flights: int, aircraft: int, partitions: int, store: str, page: str) -> None:
        """What this is, in words for somebody who has never seen it."""
        self._print("[bold]A year of flights, shared by streaming queries that come and go[/]\n")
        self._print(f"{flights:,} flights out of New York in 2013 go through a queue, in the order of the timetable.")
        self._print(
            f"Each is a row of 19 columns, and its aircraft ({aircraft:,} of them) decides which of the {partitions}"
        )
        self._print("partitions it goes to. Each of these belongs to one query at a time. No server; everything is in")
        self._print(f"{store}\n")
        if page:
            self._print(f"To be seen in a browser while it runs: {page}\n")
        flows = ", ".join(f"[{colour}]{flow[0].upper()}[/] is {flow}" for flow, colour in COLOURS.items())
        self._print(f"   time  who has partitions 0 to {partitions - 1}: {flows}; a small letter: it rests just now")

    def tell(self, ledger: Ledger, words: str) -> None:
        """One line: when, who has what, what happened."""
        line = Text().append(f"{time.monotonic() - self._begun_s:5.1f} s  ", style="dim")
        line.append_text(_mapping(ledger)).append(f"  {printable(words)}")
        self._console.print(line, soft_wrap=True)

    def changed(self, ledger: Ledger, changes: Iterable[Change], killed_ms: Mapping[str, int]) -> None:
        """A line for each change that the coordinator made."""
        for change in changes:
            match change:
                case Joined() if len(ledger.bound) > 1:
                    also = f"flows that come or go within {self._rebalance_delay_s:g} s are dealt with together"
                    self.tell(ledger, f"{change.flow} has joined; {also}")
                case Joined():
                    pass  # it gets everything at once, which is the next change
                case FlowGone():
                    self.tell(ledger, self._missed(change))
                case Moved():
                    self.tell(ledger, _moved(change.moves, killed_ms))

    def _missed(self, change: FlowGone) -> str:
        if change.left:
            return f"{change.flow} has left"
        return (
            f"{change.flow} was silent for {self._session_s:g} s: lost; its partitions wait "
            f"{self._rebalance_delay_s:g} s in case it comes back"
        )

    # --- the live table -----------------------------------------------------------------------------------------------

    def show(self, view: GroupView, published: int, expected: int) -> None:
        """The group as it is now; on a terminal only."""
        if self._live is None:
            return
        table = Table(box=None, padding=(0, 1), show_header=False)
        rows = view.partitions[: max((self._console.width - 16) // 9, 1)]
        table.add_row("partition", *(Text(str(each.partition), style="bold") for each in rows))
        table.add_row(
            "flow", *(Text(printable(each.flow or _NOBODY), style=COLOURS.get(each.flow or "", "")) for each in rows)
        )
        table.add_row("status", *(_status(each.status) for each in rows))
        table.add_row("epoch", *(str(each.epoch) for each in rows))
        table.add_row("done", *(f"{each.acknowledged:,}" for each in rows))
        table.add_row("to do", *(f"{each.lag:,}" for each in rows))
        status = f"  {published:,} of {expected:,} flights published · group: {view.rebalance_status}"
        self._live.update(Group(Text(""), table, Text(status, style="dim")), refresh=True)

    # --- the end ------------------------------------------------------------------------------------------------------

    def proof(self, facts: Mapping[str, Any], expected: int, moves: Sequence[PartitionMove]) -> None:
        """What the sinks have, counted."""
        shares = ", ".join(f"{flow} {rows:,}" for flow, rows in facts["per_flow"].items())
        self._print(f"\nThe proof, counted with Spark SQL in what the queries wrote ({shares}):")
        self._verdict(
            facts["missing"] == 0,
            f"every flight arrived: {facts['delivered']:,} of {expected:,}",
            f"{facts['missing']:,} flights are missing",
        )
        self._verdict(facts["twice"] == 0, _repeats(facts), f"{facts['twice']:,} flights came twice without a mark")
        self._verdict(
            facts["aircraft_out_of_order"] == 0 and facts["offsets_out_of_order"] == 0,
            f"the flights of each of {facts['aircraft']:,} aircraft came in order, also "
            f"the {facts['handed_over']} times that a partition went on in another query",
            f"{facts['aircraft_out_of_order']:,} aircraft out of order",
        )
        pauses = sorted(move.paused_ms for move in moves if move.paused_ms is not None)
        if pauses:
            self._print(
                f"  {len(pauses)} handoffs between living queries: a partition was paused {pauses[0]:,} to "
                f"{pauses[-1]:,} ms, {pauses[len(pauses) // 2]:,} ms in the middle"
            )

    def end(self, seconds: float, commands: Sequence[str]) -> None:
        """What to look at now."""
        self._print(
            f"\n{seconds:.0f} s in all. Everything is still there, look for yourself, in the end with a browser:"
        )
        for command in commands:
            self._print(f"  {command}")

    def _verdict(self, good: bool, well: str, badly: str) -> None:
        self._print(f"  [green]✓[/] {well}" if good else f"  [red]✗ {badly}[/]")

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)  # a terminal wraps by itself, a file wants none


def _repeats(facts: Mapping[str, Any]) -> str:
    if not facts["redelivered"]:
        return "none came twice, and none is marked 'redelivered'"
    if not facts["again"]:
        return f"none came twice; the {facts['redelivered']:,} that might have are marked 'redelivered'"
    unsure = facts["redelivered"] - facts["again"]
    more = f", like {unsure:,} more that might have" if unsure else ""
    return f"{facts['again']:,} came again, each of them marked 'redelivered'{more}"


def _mapping(ledger: Ledger) -> Text:
    """`AAAAbbBB`: one letter per partition."""
    made, held = Text(), ledger.held
    for partition, owner in sorted(ledger.owners.items()):
        letter = _NOBODY if owner is None else owner[0] if partition in held else owner[0].upper()
        made.append(letter, style=COLOURS.get(owner or "", "dim"))
    return made


def _moved(moves: Sequence[PartitionMove], killed_ms: Mapping[str, int]) -> str:
    """`amber → blue: 4-7, paused 49, 49, 50, 50 ms`, each pair of flows once."""
    parts = []
    for before, after, kind in dict.fromkeys((move.before, move.after, move.kind) for move in moves):
        these = [move for move in moves if (move.before, move.after, move.kind) == (before, after, kind)]
        which = ranges([move.partition for move in these])
        if kind is MoveKind.FIRST:
            parts.append(f"{after} has joined and finds nobody: it gets {which} at once")
            continue
        text = f"{before} → {after or 'nobody'}: {which}"
        pauses = ", ".join(f"{move.paused_ms}" for move in these if move.paused_ms is not None)
        if pauses:
            text += f", {'paused' if kind is MoveKind.HANDOFF else 'moved by force after'} {pauses} ms"
        parts.append(text)
    gone = [(move.at_ms - killed_ms[move.before]) / 1000 for move in moves if move.before and move.before in killed_ms]
    since = f" ({max(gone):.1f} s after the kill, from where it had acknowledged)" if gone else ""
    return "; ".join(parts) + since


def _status(status: PartitionStatus) -> Text:
    return Text(str(status).lower(), style="green" if status is PartitionStatus.READY else "yellow")
