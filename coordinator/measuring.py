"""What a coordinator counts while it works, for metrics: the calls of its stores, what it tells its log, and what
became of handoffs. Nobody decides by any of it.

A call to the object store counts with the tries that it took; a listing with the time until its first answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Any, Final, TypeVar, cast

from coordinator.core.events import NOBODY, Told
from coordinator.core.handoff import Cause
from coordinator.logs import FieldValue
from partq_spark.base.errors import PartqError
from partq_spark.base.metrics import Counts, Distribution, Histogram, Metric, Sample, counter
from partq_spark.group.model import GroupState, Phase

T = TypeVar("T")


# --- calls of the stores ----------------------------------------------------------------------------------------------

STORE_CALLS: Final = Metric(
    name="partq_store_call_duration_seconds",
    kind="histogram",
    help="How long calls of the object store took.",
    labels=("operation",),
    bounds=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
STORE_ERRORS: Final = counter(
    "partq_store_call_errors_total",
    "Calls of the object store that raised; a Conflict is no trouble, somebody else was first.",
    ("operation", "error"),
)
OWNERSHIP_CALLS: Final = replace(
    STORE_CALLS,
    name="partq_ownership_call_duration_seconds",
    help="How long calls of the ownership store (Redis, or objects) took.",
)
OWNERSHIP_ERRORS: Final = replace(
    STORE_ERRORS,
    name="partq_ownership_call_errors_total",
    help="Calls of the ownership store (Redis, or objects) that raised.",
)


class Calls:
    """Of one store, by operation."""

    def __init__(self, durations: Metric, errors: Metric) -> None:
        self.durations_metric = durations
        self.errors_metric = errors
        self.durations: dict[str, Histogram] = {}
        self.errors = Counts()

    def samples(self) -> Iterator[Sample]:
        """Of all that were made so far."""
        for operation in sorted(self.durations):
            yield Sample(self.durations_metric, (operation,), self.durations[operation].distribution())
        for labels, count in self.errors.all().items():
            yield Sample(self.errors_metric, labels, count)

    def timed(self, operation: str, call: Callable[[], T]) -> T:
        """The answer of `call`, which is counted."""
        begun_s = time.perf_counter()
        try:
            return call()
        except PartqError as error:
            self.errors.add(operation, type(error).__name__)
            raise
        finally:
            histogram = self.durations.get(operation) or self.durations.setdefault(
                operation, Histogram(self.durations_metric)
            )
            histogram.observe(time.perf_counter() - begun_s)


ASIDE: Final = {"close", "probe", "time_us", "where", "wait", "look_at_place"}
"""What is no call of a store, or waits for others, or is counted where it reads."""


class _Measured:
    """Passes everything on to `target`; its calls are counted, but for those `ASIDE`."""

    def __init__(self, target: object, calls: Calls) -> None:
        self._target = target
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name in ASIDE or not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            return self._calls.timed(name, lambda: _begun(found(*arguments, **named)))

        return call


def measured(target: T, calls: Calls) -> T:
    """The same to its users."""
    return cast("T", _Measured(target, calls))


def _begun(answer: Any) -> Any:
    """The same; of what comes item by item, the first one is here."""
    if not isinstance(answer, Iterator):
        return answer
    return chain([first], answer) if (first := next(answer, None)) is not None else iter(())


# --- what is told to the log ------------------------------------------------------------------------------------------


def _tidied(what: str, text: str) -> Metric:
    return counter(f"partq_housekeeping_{what}_total", f"What this coordinator did as the housekeeper: {text}.")


HOUSEKEEPING: Final[Mapping[tuple[str, str], Metric]] = {
    ("messages_trimmed", "messages"): _tidied("trimmed_messages", "messages that became unreadable by retention"),
    ("log_compacted", "messages"): _tidied("compacted_messages", "messages whose slices were joined"),
    ("log_compacted", "bytes"): _tidied("compacted_bytes", "bytes written for that"),
    ("objects_deleted", "objects"): _tidied("deleted_objects", "objects that nothing referred to"),
    ("objects_deleted", "bytes"): _tidied("deleted_bytes", "bytes of these"),
    ("temporary_files_removed", "files"): _tidied("removed_temporary_files", "what writers that died had left"),
}
"""The log's events that tell of housekeeping, which of their facts are added up, and as what."""

EVENTS: Final = counter(
    "partq_coordinator_events_total", "Decisions and troubles: lines of the log, printed or not, by event.", ("event",)
)


class Tally:
    """Of one process, for any number of threads."""

    def __init__(self) -> None:
        self.events = Counts()
        self.housekeeping = Counts()
        self.store = Calls(STORE_CALLS, STORE_ERRORS)
        self.ownership = Calls(OWNERSHIP_CALLS, OWNERSHIP_ERRORS)

    def hear(self, event: str, facts: Mapping[str, FieldValue]) -> None:
        """Count an event of the log."""
        self.events.add(event)
        for fact, count in facts.items():
            if (event, fact) in HOUSEKEEPING and isinstance(count, int):
                self.housekeeping.add(event, fact, count=count)

    def samples(self) -> Iterator[Sample]:
        """Of all that was counted so far."""
        for event, count in self.events.all().items():
            yield Sample(EVENTS, event, count)
        done = self.housekeeping.all()
        for each, metric in HOUSEKEEPING.items():
            yield Sample(metric, (), done.get(each, 0))
        yield from self.store.samples()
        yield from self.ownership.samples()


# --- handoffs ---------------------------------------------------------------------------------------------------------

# What became of a group's handoffs, and for how long nothing flowed: counted as a leader writes one state after the
# other.
#
# A handoff begins when a partition of one flow is paused, or fenced for another flow, and ends when that flow has it,
# or when it stays where it was. A partition that nobody had is no handoff, nor is one whose flow comes back. How it
# went is what the core told of it.


PAUSE: Final = Metric(
    name="partq_group_handoff_pause_seconds",
    kind="histogram",
    help="For how long a partition that changed hands got no new messages.",
    labels=("namespace", "queue", "group"),
    bounds=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class Outcome(StrEnum):
    """How a handoff ended."""

    DRAINED = "drained"  # its owner had nothing in hand in time
    FORCED = "forced"  # max-handoff-time was over: what was not acknowledged comes again, marked
    LOST = "lost"  # its owner was lost: the same
    KEPT = "kept"  # the receiver was lost, it stayed with its owner
    OTHER = "other"  # its checkpoint said something else, or it was fenced for a third flow


_OUTCOMES: Final = {
    Cause.DRAINED: Outcome.DRAINED,
    Cause.DEADLINE: Outcome.FORCED,
    Cause.MOVE: Outcome.FORCED,  # max-handoff-time is 0
    Cause.LOST: Outcome.LOST,
    Cause.GIVE: Outcome.LOST,
}
"""By why the partition was fenced."""


@dataclass(slots=True)
class _Begun:
    """A handoff under way. `at_s` None: a former leader began it, nobody here knows when. `outcome` None: nothing came
    of it yet.
    """

    at_s: float | None
    outcome: Outcome | None = None


class Handoffs:
    """Of one group in one process; used by one thread at a time, and read by any."""

    def __init__(self) -> None:
        self._begun: dict[int, _Begun] = {}
        self._ended = dict.fromkeys(Outcome, 0)
        self._pause = Histogram(PAUSE)
        self.redelivered = 0
        """Messages, at most, that come again, marked: their partition went on before they were acknowledged."""

    @property
    def ended(self) -> dict[Outcome, int]:
        """How many have ended, by outcome."""
        return dict(self._ended)

    def pause(self) -> Distribution:
        """Of those that have ended."""
        return self._pause.distribution()

    def forget(self) -> None:
        """Another leader may have ended what was under way."""
        self._begun.clear()

    def adopted(self, state: GroupState) -> None:
        """What was under way when this leader adopted the group."""
        for number, each in state.partitions.items():
            if each.phase is Phase.PAUSED:
                self._begun[number] = _Begun(None)
            elif each.phase is Phase.FENCING and each.owner and each.to and each.owner.flow != each.to.flow:
                self._begun[number] = _Begun(None, Outcome.OTHER)

    def told(self, told: Iterable[Told], now_s: float) -> None:
        """What followed from a decision."""
        for each in told:
            match each.event:
                case "pause":
                    self._begun[each.partition or 0] = _Begun(now_s)
                case "fence" | "force":
                    self._fenced(each, now_s)
                case "resume" | "assign":
                    begun = self._begun.pop(each.partition or 0, None)
                    if begun is not None and each.flow != NOBODY:
                        self._end(begun, Outcome.KEPT if each.event == "resume" else begun.outcome, now_s)

    def _fenced(self, told: Told, now_s: float) -> None:
        number = told.partition or 0
        if told.flow is None or told.to in (NOBODY, told.flow):
            self._begun.pop(number, None)  # from nobody, to nobody, or to the same flow
            return
        begun = self._begun.setdefault(number, _Begun(now_s))
        # Another receiver changes nothing about the pause.
        if begun.outcome is None or told.event == "force" or told.cause is Cause.AHEAD:
            begun.outcome = _OUTCOMES.get(told.cause, Outcome.OTHER) if told.cause else Outcome.OTHER

    def _end(self, begun: _Begun, outcome: Outcome | None, now_s: float) -> None:
        self._ended[outcome or Outcome.OTHER] += 1
        if begun.at_s is not None:
            self._pause.observe(now_s - begun.at_s)
