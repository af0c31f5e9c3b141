"""Flows in a group's documents: each has a heartbeat, `beats/<flow>`, which decides which instance the flow is, and
says what the flow has to say. A flow lives while the document's own token moves.

One listing tells a leader everything about all flows. Nothing of leases and ownership records is known here. A refusal
names the document and the next step: nothing of it is needed to begin anew.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from partq_spark.base.errors import Conflict, Corrupt, Fenced, Invalid, Unavailable
from partq_spark.base.json_documents import check_sealed, sealed
from partq_spark.group.documents import (
    Announce,
    Audience,
    DocumentOperation,
    Documents,
    Found,
    Listing,
    Load,
    Remove,
    Swap,
    Value,
    Written,
)
from partq_spark.group.model import FlowRecord, GroupKey, Progress
from partq_spark.group.ownership.versions import (
    BEATS,
    STATE,
    FlowsSeen,
    Seen,
    StateDocument,
    decode_version,
    read_fields,
)
from partq_spark.objects.api import Unchanged

T = TypeVar("T")

_TRIES: Final = 4
"""How often a document is read again that changed meanwhile. Each has one writer, so that twice is rare already."""

MOST_MAPPING: Final = 6_000
"""Characters: an object's metadata has room for 8 kB. What does not fit comes to the flow at the next epoch, marked."""

MOST_PROGRESS: Final = 4_000
_NO_ROOM: Final = "-"

_TO_COORDINATORS: Final = Announce(Audience.COORDINATORS)


class Flows:
    """The flows of all groups, as one user sees and changes them."""

    def __init__(self, documents: Documents) -> None:
        self.documents = documents
        self._registers: dict[tuple[GroupKey, str], DocumentRegister[Any]] = {}
        self._said: dict[GroupKey, dict[str, tuple[Value, FlowRecord]]] = {}
        self._beating = threading.Lock()  # held while a heartbeat is written: two threads do so

    def _register(self, key: GroupKey, name: str, decode: Callable[[Found, str], T]) -> DocumentRegister[T]:
        """A document of a group, as this user saw it last."""
        found = self._registers.get((key, name))
        return found or self._registers.setdefault((key, name), DocumentRegister(self.documents, key, name, decode))

    def _state(self, key: GroupKey) -> DocumentRegister[StateDocument]:
        """The group's state, body and all: what a heartbeat meets is what `read_state` tells."""
        return self._register(key, STATE, decode_version)

    def _heart(self, key: GroupKey, flow: str) -> DocumentRegister[FlowRecord]:
        return self._register(key, beat_name(flow), decode_flow)

    # ---- read by anybody

    def _flows_in(self, key: GroupKey, listed: Sequence[Found]) -> FlowsSeen:
        """What every flow says, and what is wrong with those that cannot be read. What says nothing new is not taken
        apart again.
        """
        known, said = self._said.get(key, {}), dict[str, tuple[Value, FlowRecord]]()
        seen = FlowsSeen({}, {})
        for found in listed:
            before = known.get(found.name)
            try:
                if before is None or before[0] != found.value:
                    before = found.value, decode_flow(found, self.documents.where(key, f"{BEATS}/{found.name}"))
            except Corrupt as problem:
                seen.damaged[found.name] = problem
            else:
                said[found.name] = before
                seen.beats[found.name] = Seen(found.token, before[1], found.age_s)
        self._said[key] = said
        return seen

    def read_flows(self, key: GroupKey) -> Mapping[str, FlowRecord]:
        """What all flows of the group say, by name, by one listing. Raises `Corrupt`."""
        seen = self.look_at_flows(key)
        for problem in seen.damaged.values():
            raise problem
        return {flow: beat.value for flow, beat in seen.beats.items()}

    def look_at_flows(self, key: GroupKey) -> FlowsSeen:
        """All flows, also where some cannot be read."""
        (listed,) = self.documents.ask(key, Listing(BEATS))
        return self._flows_in(key, listed)

    def read_flow(self, key: GroupKey, flow: str) -> Seen[FlowRecord] | None:
        """What one flow says with its heartbeat."""
        return self._heart(key, flow).read()

    # ---- written by their flow

    def bind(self, key: GroupKey, record: FlowRecord, *, replaces: str | None) -> None:
        """The first heartbeat of a new instance, `record` (bound); news for the coordinator.

        Allowed where there is no heartbeat of that name, or its token is still `replaces`, also if its flow has
        unbound. An instance that takes over a name must have watched that the former instance is still. Raises
        `Conflict` otherwise, and nothing was changed. Repeating a bind whose answer was lost succeeds and changes
        nothing.
        """
        checked_flow(record.instance)
        heart = self._heart(key, record.flow)
        former = heart.read()
        if former is not None:
            if _is_bound(former, record.instance):
                return  # an earlier try, whose answer was lost
            if replaces != former.token:
                raise _name_taken(key, record.flow)
        if heart.swap(former, record, encode_flow(record), _TO_COORDINATORS) is None:
            if (now := heart.read()) is not None and now.value.instance == record.instance:
                return  # an earlier try, which was late
            raise _name_taken(key, record.flow)  # the former instance's heart beats, or somebody else was faster

    def beat(self, key: GroupKey, record: FlowRecord) -> str | None:
        """One heartbeat, one call: what the flow says now, then a look at the state; returns the state's token (None:
        no state). News for the coordinator where it has closed a partition since the last one.

        Raises `Fenced` if the flow is not bound to this instance any more, or was forgotten.
        """
        heart, state = self._heart(key, record.flow), self._state(key)

        def is_mine(last: Seen[FlowRecord] | None) -> bool:
            return last is not None and _is_bound(last, record.instance)

        with self._beating:
            last, known = heart.seen, state.seen
            # Of what is in doubt nobody knows whether it was told.
            news = () if last is not None and last.value.closes == record.closes else (_TO_COORDINATORS,)
            answers = heart.swap_where(is_mine, record, encode_flow(record), state.look(known), *news)
        if answers is not None:
            seen = state.saw(answers[0], known)
            return None if seen is None else seen.value.token
        # taken over, or moved by a call whose answer was lost
        raise Fenced(
            f"flow {record.flow!r} of group {key} is not bound to instance {record.instance} any more: bind again as a"
            " new instance"
        )

    def unbind(self, key: GroupKey, flow: str, instance: str) -> None:
        """The flow is not bound any more; news for the coordinator. Another instance is left alone."""
        heart = self._heart(key, flow)
        with self._beating:
            for _ in range(_TRIES):
                last = heart.read()
                if last is None or not _is_bound(last, instance):
                    return
                left = replace(last.value, bound=False)
                if heart.swap(last, left, encode_flow(left), _TO_COORDINATORS) is not None:
                    return
        raise _restless(key, flow)

    # ---- removed by the leader

    def forget_flow(self, key: GroupKey, flow: str, instance: str, *, state_token: str) -> bool:
        """Remove the heartbeat of this instance: by the leader, when no partition names the flow. Another instance is
        left alone.

        False: the state's token is not `state_token` any more, and nothing was done: another leader may have given the
        flow partitions again.

        In this order: the heartbeat is read, the state is looked at, and the heartbeat is removed if it is still the
        one that was read: a flow that lives on under a later state has moved it.
        """
        name, state = beat_name(flow), self._state(key)
        for _ in range(_TRIES):
            known = state.seen
            found, answer = self.documents.ask(key, Load(name), state.look(known))
            seen = state.saw(answer, known)
            if seen is None or seen.value.token != state_token:
                return False
            if not isinstance(found, Found):
                return True
            if decode_flow(found, self.documents.where(key, name)).instance != instance:
                return True
            (removed,) = self.documents.ask(key, Remove(name, found.token))
            if removed:
                return True
        raise _restless(key, flow)


def _is_bound(heart: Seen[FlowRecord], instance: str) -> bool:
    return heart.value.bound and heart.value.instance == instance


def _name_taken(key: GroupKey, flow: str) -> Conflict:
    """`bind` found another instance, whose heartbeat has moved since it was read."""
    return Conflict(
        f"flow {flow!r} of group {key} is or was bound by another process: watch its heartbeat before taking over"
    )


def _restless(key: GroupKey, flow: str) -> Unavailable:
    """The heartbeat was another one at each try."""
    return Unavailable(f"heartbeat of flow {flow!r} of group {key} changed whenever it was read: try again")


# --- what a flow says with its heartbeat -----------------------------------------------------------------------------

_FLOW: Final = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,127}", re.ASCII)


def checked_flow(name: str) -> str:
    """The name of a flow or an instance itself, if it can be stored; raises `Invalid` otherwise."""
    if _FLOW.fullmatch(name) is None:
        raise Invalid(
            f"flow name {name[:80]!r} is not allowed: use 1 to 128 of A-Z, a-z, 0-9, '.', '_', '=', '-', not beginning"
            " with a dot"
        )
    return name


def beat_name(flow: str) -> str:
    """Of a flow's heartbeat. Raises `Invalid` for a name that no flow can have."""
    return f"{BEATS}/{checked_flow(flow)}"


def encode_flow(record: FlowRecord) -> dict[str, str]:
    """The fields of a heartbeat, sealed. It decides which instance a flow is. One that says nothing new is written all
    the same: what moves is the document's token.
    """
    fields = {
        "instance": record.instance,
        "bound": "1" if record.bound else "0",
        "queue_id": record.queue_id,
        "timeout": f"{record.session_timeout_s:g}",
        "closes": str(record.closes),
        "note": record.note,
        "mapping": _runs({p: str(epoch) for p, epoch in record.mapping.items()}, MOST_MAPPING),
        "progress": _all_runs({p: f"{it.delivered}/{it.acknowledged}" for p, it in (record.progress or {}).items()}),
    }
    return sealed({name: text for name, text in fields.items() if text})


def decode_flow(found: Found, where: str) -> FlowRecord:
    """As read. Raises `Corrupt`."""
    fields = read_fields(found.value)
    check_sealed(fields, where, "remove it, its flow binds anew")
    try:
        return FlowRecord(
            flow=found.name,
            instance=fields["instance"],
            queue_id=fields["queue_id"],
            bound=fields["bound"] == "1",
            session_timeout_s=float(fields["timeout"]),
            mapping={p: int(epoch) for p, epoch in _run_values(fields.get("mapping", ""))},
            closes=int(fields["closes"]),
            note=fields.get("note", ""),
            progress=_progress(fields.get("progress", "")),
        )
    except (KeyError, ValueError, TypeError):
        raise Corrupt(f"{where} is no heartbeat that partq wrote: remove it, its flow binds anew") from None


def _runs(values: Mapping[int, str], most: int) -> str:
    """Values by partition, short: `0:5*3,7;9:5` has 5 for the partitions 0 to 2 and 9, and 7 for 3. What is beyond
    `most` characters is left out.
    """
    parts: list[str] = []
    length = 0
    after, last, times = -1, "", 0
    for number in sorted(values):
        if number == after and values[number] == last:
            times += 1
            part = f"{parts[-1].partition('*')[0]}*{times}"
            length += len(part) - len(parts.pop())
        else:
            part = f"{',' if number == after else f';{number}:'}{values[number]}"
            length, last, times = length + len(part), values[number], 1
        if length > most:
            break
        parts.append(part)
        after = number + 1
    return "".join(parts)[1:]


def _all_runs(values: Mapping[int, str]) -> str:
    """All of them or, where they do not fit, a sign of that: half of it would look like the whole."""
    text = _runs(values, 2 * MOST_PROGRESS)
    return text if len(text) <= MOST_PROGRESS else _NO_ROOM


def _progress(text: str) -> Mapping[int, Progress] | None:
    """Raises `ValueError`, `TypeError`."""
    if text == _NO_ROOM:
        return None
    return {p: Progress(*map(int, it.split("/"))) for p, it in _run_values(text)}


def _run_values(text: str) -> Iterator[tuple[int, str]]:
    """Raises `ValueError`."""
    for run in text.split(";") if text else ():
        first, _, values = run.partition(":")
        number = int(first)
        for value in values.split(","):
            single, _, times = value.partition("*")
            for _ in range(min(int(times or 1), MOST_MAPPING)):
                yield number, single
                number += 1


# --- one document, and how this process saw it last -------------------------------------------------------------------

# A register: one document that is changed by compare-and-swap, and how this process saw it last.
#
# What is known of it is dropped whenever it is in doubt: a condition that did not hold, an answer that did not come.
# The next use then reads it. So an unknown outcome is never taken for one's own success, nor for a failure.


class DocumentRegister(Generic[T]):
    """Safe for use by several threads: where one keeps an older version than another one has seen meanwhile, the next
    swap is refused, and it is read again.
    """

    def __init__(self, documents: Documents, group: GroupKey, name: str, decode: Callable[[Found, str], T]) -> None:
        self.seen: Seen[T] | None = None  # the last version that was read or written, unless there is doubt
        self._documents = documents
        self._group = group
        self._name = name
        self._decode = decode

    def look(self, known: Seen[T] | None) -> Load:
        """To be asked together with other operations; costs little where `known` is what is there."""
        return Load(self._name, known=None if known is None else known.token)

    def saw(self, answer: Found | Unchanged | None, known: Seen[T] | None) -> Seen[T] | None:
        """What the answer to a look says; None: there is no document."""
        seen = known if isinstance(answer, Unchanged) else None
        if isinstance(answer, Found):
            where = self._documents.where(self._group, self._name)
            seen = Seen(answer.token, self._decode(answer, where), answer.age_s)
        self.seen = seen
        return seen

    def read(self) -> Seen[T] | None:
        """The document as it is now; None: there is none."""
        known = self.seen
        (answer,) = self._documents.ask(self._group, self.look(known))
        return self.saw(answer, known)

    def swap(
        self, expected: Seen[T] | None, value: T, written: Written, *then: DocumentOperation[Any]
    ) -> Sequence[Any] | None:
        """Replace the version `expected` (None: there must be none) and ask `then`, whose answers come. None: the
        condition did not hold.
        """
        operation = Swap(self._name, written, None if expected is None else expected.token)
        # In doubt until the answer is there, also because an object store takes an earlier beat that lands after the
        # reading for the next one, which must not be a later call's.
        self.seen = None
        token, *answers = self._documents.ask(self._group, operation, *then)
        if token is None:
            return None
        self.seen = Seen(token, value)
        return answers

    def swap_where(
        self, holds: Callable[[Seen[T] | None], bool], value: T, written: Written, *then: DocumentOperation[Any]
    ) -> Sequence[Any] | None:
        """As `swap`, in place of a version that `holds`: the one that was seen last, else the one that is there. It is
        read again where it changed meanwhile. None: the one that is there does not hold, or another one came each time.
        """
        last = self.seen
        found = last if holds(last) else self.read()
        for _ in range(_TRIES):
            if not holds(found):
                break
            answers = self.swap(found, value, written, *then)
            if answers is not None:
                return answers
            found = self.read()
        return None
