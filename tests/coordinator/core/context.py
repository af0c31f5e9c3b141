"""A group in a test: events in, what is told as short lines, and a clock that fires timers while it is moved. After
every event the invariants are checked, and that `decide` gives the same answer twice and leaves its argument alone.

And histories of such groups, as text: one a paragraph says what happens, what follows and how it stands then.

    LOS-04: who never returns          statements, and what it shows
      group 4, 2 flows                 a and b have two partitions each; `fences wait`: they land when it says so
      bind s, expire b: status …       acts in a row, and all that follows from the last; "nothing"
      sleep 5 = Ready; owners a a a a  timers fire when they are due; how it stands, in the words of `SEEN`
      all: …                           what followed from the line above and from the fences that landed by themselves

`bind b back` presents what b had (LOS-01), `bind b with 0@1` partition 0 at epoch 1, `bind b` nothing. Instances are
named like their flow, with a number: a2 is a's second. A line that begins with `;` goes on with the one above.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import pytest

from coordinator.core.events import (
    CheckpointAhead,
    CheckpointMark,
    Event,
    FenceStuck,
    FlowBound,
    FlowExpired,
    FlowUnbound,
    PartitionDrained,
    PartitionFenced,
    QueueAltered,
    Tick,
    Told,
    initial_state,
)
from coordinator.core.invariants import violations
from coordinator.core.machine import decide
from partq_spark.group.model import (
    AccessType,
    GroupSettings,
    GroupState,
    Owner,
    Partition,
    PartitionStatus,
    Phase,
    RebalanceStatus,
)
from partq_spark.group.status import partition_status
from tests.coordinator.modelcheck.world import broken_by_change

DELAY_S = 5.0
HANDOFF_S = 3.0
SESSION_S = 10.0


def _name(owner: Owner | None) -> str:
    return "nobody" if owner is None else owner.instance


def line(told: Told, before: GroupState, after: GroupState) -> str | None:
    """What was told, without its reason, in the words of histories; None: they have no word for it. Instances are named
    like the flow, with a number: `a1`, `a2`.
    """
    assert told.reason, f"no reason: {told}"
    was = before.partitions.get(told.partition) if told.partition is not None else None
    now = after.partitions.get(told.partition) if told.partition is not None else None
    match told.event:
        case "pause" if now is not None:
            return f"pause {now.partition} {_name(now.owner)} for {_name(now.to)}"
        case "fence" | "force" if now is not None:
            drained = " drained" if now.drained else ""
            former = f"{_name(now.owner)}@{now.epoch}"
            return f"{told.event} {now.partition} {former} for {_name(now.to)}@{now.to_epoch}{drained}"
        case "assign" if was is not None:
            return f"assign {was.partition} to {_name(was.to)}@{was.to_epoch}"
        case "resume" if now is not None:
            return f"resume {now.partition} {_name(now.owner)}"
        case "flow_change_update":
            return f"tell {told.instance} {told.status}"
        case "status":
            return f"status {told.status}"
    return None


class Group:
    """A group whose fences land when the test says so (`fence`), or at once (`land_fences=True`)."""

    state: GroupState

    def __init__(
        self,
        partitions: int = 4,
        flows: int = 0,
        *,
        delay_s: float = DELAY_S,
        handoff_s: float = HANDOFF_S,
        access: AccessType = AccessType.NON_EXCLUSIVE,
        land_fences: bool = True,
    ) -> None:
        """Flows a, b, c … have their share, at epoch 1; a has the lowest numbers."""
        self.settings = GroupSettings(rebalance_delay_s=delay_s, max_handoff_time_s=handoff_s, access_type=access)
        self.now_s = 1000.0
        self.land_fences = land_fences
        self.instances: Counter[str] = Counter()
        self.had: dict[str, Mapping[int, int]] = {}  # of those who left
        self.log: list[str] = []
        owners = sorted(string.ascii_lowercase[number % flows] for number in range(partitions)) if flows else []
        self.adopt(partitions, {n: CheckpointMark(epoch=1, owner=Owner(f, f"{f}0")) for n, f in enumerate(owners)})
        for flow in sorted({*owners}):
            self.bind(flow, self.mapping(flow))
            self.fence()
        assert self.status is RebalanceStatus.READY
        self.log.clear()

    def adopt(self, partitions: int, checkpoints: Mapping[int, CheckpointMark]) -> None:
        """As a new leader does that finds no state."""
        self.state = initial_state(
            queue_id="q",
            settings=self.settings,
            partitions=range(partitions),
            checkpoints=checkpoints,
            session_timeout_s=SESSION_S,
            now_s=self.now_s,
        )
        assert violations(self.state) == ()

    # --- events -------------------------------------------------------------------------------------------------------

    def event(self, event: Event) -> list[str]:
        """Feed one event; returns what follows. Where fences land by themselves, they do so afterwards."""
        lines = self._feed(event)
        if self.land_fences:
            self.fence()
        return lines

    def _feed(self, event: Event) -> list[str]:
        before, kept = self.state, repr(self.state)
        self.state, told = decide(before, event, self.now_s)
        assert (self.state, told) == decide(before, event, self.now_s)
        assert repr(before) == kept, "decide changed its argument"
        assert violations(self.state) == (), (event, self.state)
        assert list(broken_by_change(before, self.state)) == [], event
        lines = [word for each in told if (word := line(each, before, self.state)) is not None]
        self._check_updates(before, [entry.split()[1] for entry in lines if entry.startswith("tell")])
        self.log += lines
        return lines

    def _check_updates(self, before: GroupState, told: list[str]) -> None:
        """Who became active or inactive is told so once, but within its own bind (FLO-05)."""
        assert len(set(told)) == len(told), "told twice of one change"
        for name, flow in self.state.flows.items():
            former = before.flows.get(name)
            if flow.bound and former is not None and former.instance == flow.instance:
                assert (flow.active != former.active) == (flow.instance in told)
                assert flow.updates == former.updates + (flow.active != former.active)
            elif flow.bound:
                assert flow.updates == 0, "told within its own bind"

    def bind(self, flow: str, mapping: Mapping[int, int] | None = None) -> list[str]:
        self.instances[flow] += 1
        return self.event(FlowBound(flow=flow, instance=f"{flow}{self.instances[flow]}", mapping=mapping or {}))

    def unbind(self, flow: str) -> list[str]:
        self.had[flow] = self.mapping(flow)
        return self.event(FlowUnbound(flow=flow, instance=f"{flow}{self.instances[flow]}"))

    def expire(self, flow: str) -> list[str]:
        self.had[flow] = self.mapping(flow)
        return self.event(FlowExpired(flow=flow, instance=f"{flow}{self.instances[flow]}"))

    def drain(self, *numbers: int) -> list[str]:
        """Everything that was delivered of these partitions (of all that are paused) has been acknowledged."""
        paused = [p for p in self.state.partitions.values() if p.phase is Phase.PAUSED]
        lines = []
        for partition in paused:
            if not numbers or partition.partition in numbers:
                lines += self.event(PartitionDrained(partition=partition.partition, epoch=partition.epoch))
        return lines

    def fence(self, *numbers: int) -> list[str]:
        """The fences of these partitions (all that are asked for) land."""
        lines = []
        for fence in self.state.pending:
            if not numbers or fence.partition in numbers:
                lines += self._feed(PartitionFenced(partition=fence.partition, epoch=fence.to_epoch, owner=fence.to))
        return lines + self.fence() if lines and self.land_fences else lines

    def alter(
        self,
        partitions: Iterable[int] | None = None,
        *,
        access: AccessType | None = None,
        epochs: Mapping[int, int] | None = None,
    ) -> list[str]:
        self.settings = replace(self.settings, access_type=access or self.settings.access_type)
        present = (p.partition for p in self.state.partitions.values() if not p.removed)
        numbers = tuple(present if partitions is None else partitions)
        return self.event(QueueAltered(settings=self.settings, partitions=numbers, epochs=epochs or {}))

    def sleep(self, seconds: float) -> list[str]:
        """Let time pass; every timer fires when it is due."""
        until = self.now_s + seconds
        lines: list[str] = []
        for _ in range(1000):
            due = self.state.next_deadline_s
            if due is None or due > until:
                self.now_s = until
                return lines
            self.now_s = max(self.now_s, due)
            lines += self.event(Tick())
        raise AssertionError("a timer fires without end")

    def settle(self) -> None:
        """Let everything that runs come to its end, everybody acknowledging at once."""
        for _ in range(1000):
            if self.status is RebalanceStatus.READY and not self.state.pending:
                return
            if not (self.fence() or self.drain()):
                self.sleep(max((self.state.next_deadline_s or self.now_s) - self.now_s, 0.0))
        raise AssertionError(f"never Ready: {self.state}")

    # --- what can be seen ---------------------------------------------------------------------------------------------

    @property
    def status(self) -> RebalanceStatus:
        return self.state.status

    def statuses(self) -> dict[int, PartitionStatus]:
        return {number: partition_status(self.state, p) for number, p in self.state.partitions.items()}

    def owners(self) -> dict[int, str | None]:
        """Who has each partition according to its checkpoint: the flow's name."""
        return {number: p.owner.flow if p.owner else None for number, p in self.state.partitions.items()}

    def counts(self) -> dict[str, int]:
        """How many partitions each bound flow has."""
        counts = Counter(owner for owner in self.owners().values() if owner is not None)
        return {name: counts[name] for name, flow in self.state.flows.items() if flow.bound}

    def mapping(self, flow: str) -> dict[int, int]:
        """What the flow would present when it binds again."""
        return {n: p.epoch for n, p in self.state.partitions.items() if p.owner is not None and p.owner.flow == flow}


def partition(words: str, number: int = 0) -> Partition:
    """`free -@4`, `owned a1@4`, `paused a1@4 b1`, `fencing a1@4 b1@5`; then `removed`, `stuck`, `drained`."""
    phase, holder, *rest = words.split()
    (owner, epoch), (to, to_epoch) = at(holder), at(rest[0] if rest else "-")
    return Partition(
        partition=number,
        phase=Phase(phase),
        epoch=epoch,
        owner=owner,
        to=to,
        to_epoch=to_epoch,
        deadline_s=9.0 if phase == "paused" or "drained" in rest else None,
        removed="removed" in rest,
        drained="drained" in rest,
        stuck="it is damaged" if "stuck" in rest else "",
    )


def at(word: str) -> tuple[Owner | None, int]:
    """Of `a1@4` flow a's first instance at epoch 4, of `-@4` nobody."""
    instance, _, epoch = word.partition("@")
    return (None if instance == "-" else Owner(instance[0], instance)), int(epoch or 0)


# --- histories --------------------------------------------------------------------------------------------------------

_BEGIN: Final = re.compile(
    r"group (\d+), (\d+) flows?(, exclusive)?(?:, delay (\d+))?(?:, handoff (\d+))?(, fences wait)?"
)
_LINE: Final = re.compile(r"(?P<acts>[^:=]*)(: (?P<follows>.*?))?( ?= (?P<stands>.*))?")


def begun(text: str) -> Group:
    """The group at the beginning of a history."""
    found = _BEGIN.fullmatch(text)
    assert found is not None, text
    partitions, flows, exclusive, delay_s, handoff_s, wait = found.groups()
    how: dict[str, object] = {
        "access": AccessType.EXCLUSIVE if exclusive else AccessType.NON_EXCLUSIVE,
        "land_fences": not wait,
        **({} if delay_s is None else {"delay_s": float(delay_s)}),
        **({} if handoff_s is None else {"handoff_s": float(handoff_s)}),
    }
    return Group(int(partitions), int(flows), **how)  # type: ignore[arg-type] # passed on as they are


def epochs(words: tuple[str, ...]) -> dict[int, int]:
    """Of `3@1`: partition 3 at epoch 1; of a number alone nothing."""
    return {int(word.partition("@")[0]): int(word.partition("@")[2]) for word in words if "@" in word}


def bind(group: Group, name: str, how: str = "", *words: str) -> list[str]:
    return group.bind(name, group.had.get(name) or group.mapping(name) if how == "back" else epochs(words))


def find(group: Group, *words: str) -> None:
    """Its state is lost; the checkpoints are `a1@4`, `-@4`, `-@4r` where one was rewound, or `none`."""
    found = {number: at(word.removesuffix("r")) for number, word in enumerate(words) if word != "none"}
    group.instances.update({owner.flow for owner, _ in found.values() if owner is not None})
    marks = {n: CheckpointMark(epoch=epoch, owner=owner) for n, (owner, epoch) in found.items()}
    group.adopt(len(group.state.partitions), marks)


def timers(group: Group, delay_s: str, handoff_s: str) -> list[str]:
    group.settings = replace(group.settings, rebalance_delay_s=float(delay_s), max_handoff_time_s=float(handoff_s))
    return group.alter()


def stuck(group: Group, number: str, *words: str, earlier: int = 0) -> list[str]:
    epoch = group.state.partitions[int(number)].to_epoch - earlier
    return group.event(FenceStuck(partition=int(number), epoch=epoch, reason=" ".join(words) or "it is damaged"))


ACTS: Final[dict[str, Callable[..., list[str] | None]]] = {
    "find": find,
    "bind": bind,
    "unbind": Group.unbind,
    "expire": Group.expire,
    "drain": lambda group, *numbers: group.drain(*map(int, numbers)),
    "fence": lambda group, *numbers: group.fence(*map(int, numbers)),
    "fences": lambda group, _: setattr(group, "land_fences", True),  # "land": by themselves from now on
    "stuck": stuck,  # the fence that it waits for comes to nothing, for nobody knows how long
    "old-word-of": lambda group, number: stuck(group, number, "an", "old", "one", earlier=1),
    "ahead": lambda group, number, epoch: group.event(CheckpointAhead(partition=int(number), epoch=int(epoch))),
    "share": lambda group, access: group.alter(access=AccessType(access)),
    "resize": lambda group, *words: group.alter([int(w) for w in words if "@" not in w], epochs=epochs(words)),
    "timers": timers,
    "sleep": lambda group, seconds: group.sleep(float(seconds)),
    "settle": lambda group: group.settle(),
}


STATUSES: Final = [status.value for status in RebalanceStatus]
SEEN: Final[dict[str, Callable[[Group], list[str]]]] = {
    **dict.fromkeys(STATUSES, lambda group: [f"the status is {group.status}"]),
    "owners": lambda group: [owner or "-" for owner in group.owners().values()],
    "instances": lambda group: [p.owner.instance if p.owner else "-" for p in group.state.partitions.values()],
    "receivers": lambda group: [p.to.instance if p.to else "-" for p in group.state.partitions.values()],
    "counts": lambda group: sorted(f"{name}:{count}" for name, count in group.counts().items()),
    "partitions": lambda group: [str(status) for status in group.statuses().values()],
    "phases": lambda group: [p.phase.value for p in group.state.partitions.values()],
    "numbers": lambda group: [str(number) for number in group.state.partitions],
    "epochs": lambda group: [str(p.epoch) for p in group.state.partitions.values()],
    "retired": lambda group: [f"{number}@{epoch}" for number, epoch in group.state.retired.items()],
    "stuck": lambda group: [str(n) for n, p in group.state.partitions.items() if p.stuck == "it is damaged"],
    "drained": lambda group: [str(n) for n, p in group.state.partitions.items() if p.drained],
    "known": lambda group: sorted(group.state.flows),
    "active": lambda group: sorted(name for name, flow in group.state.flows.items() if flow.active),
    "updates": lambda group: [f"{name}:{flow.updates}" for name, flow in sorted(group.state.flows.items())],
    "handoffs": lambda group: [str(sum(entry.startswith("pause") for entry in group.log))],
    "remembers": lambda group: [name for name in ("trigger", "altered") if getattr(group.state, name)],
    "due": lambda group: ["never" if (at_s := group.state.next_deadline_s) is None else f"{at_s - group.now_s:g}"],
}


def tell(group: Group, line: str, since: int) -> int:
    """Do and check what one line says. `since`: how much had followed before the line above; before this one."""
    found = _LINE.fullmatch(line)
    assert found is not None, line
    before, said = len(group.log), group.log[since:]
    if found["acts"] != "all":
        for act in filter(None, found["acts"].split(", ")):
            verb, *words = act.split()
            said = ACTS[verb](group, *words) or []
    if found["follows"] is not None:
        assert said == ([] if found["follows"] == "nothing" else found["follows"].split("; ")), line
    for item in (found["stands"] or "").split("; ") if found["stands"] else ():
        word, *rest = item.split()
        assert SEEN[word](group) == ([f"the status is {word}"] if word in STATUSES else rest), line
    return before


def histories(text: str) -> pytest.MarkDecorator:
    """The paragraphs, as parameters `lines` with their statements as marks."""
    found = []
    for paragraph in re.sub(r"\n *; ", "; ", text.strip("\n")).split("\n\n"):
        title, *lines = (line.strip() for line in paragraph.splitlines() if not line.strip().startswith("#"))
        ids, _, shows = title.partition(": ")
        marks = [pytest.mark.conformance(*ids.split(", "))] if ids else []
        found.append(pytest.param(lines, id=shows.replace(" ", "-"), marks=marks))
    return pytest.mark.parametrize("lines", found)


def run(lines: list[str]) -> None:
    """Tell one history, line by line."""
    group = begun(lines[0])
    since = 0
    for line in lines[1:]:
        since = tell(group, line, since)
