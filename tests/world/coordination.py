"""What must be true of who leads and who has what, judged by what stores saw: a leader that was followed writes nothing
any more, who lives is not given up, nothing moves before its time, and whose lease is over is given nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from tests.world.facts import (
    MOST_RATE_DIFFERENCE,
    Beaten,
    Befell,
    Checkpointed,
    Decided,
    Given,
    Led,
    Part,
    demand,
    told,
)

Owner = tuple[str, str]
_LEAST: Final = 1 - MOST_RATE_DIFFERENCE
_SOON_US: Final = 1000


@dataclass(slots=True)
class _Life:
    """The heartbeats of one instance of a flow."""

    process: str
    last_us: int
    gap_us: int = 0
    is_bound: bool = True


@dataclass(slots=True)
class _Hands:
    """What the process that has a partition has in hand. `given`: up to where, by process."""

    offset: int = 0
    given: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    since_us: int = 0  # of the state's epoch
    asked: int = 0  # the highest that a state asked for which its store has forgotten
    moves_us: float = 0.0  # since it is paused: when it may move anyway
    is_drained: bool = False  # since it is paused


class Coordination:
    """Of one group. `slack_us`: how long a process may stand still between two lines. `keeps`: whether checkpoints say
    how far it is.
    """

    def __init__(self, session_timeout_s: float, slack_us: int, *, keeps: bool = True) -> None:
        self._keeps = keeps
        self._timeout_us = round(session_timeout_s * 1e6)
        self._slack_us = slack_us
        self._lives: dict[Owner, _Life] = {}
        self._latest: dict[str, str] = {}  # instance of each flow
        self._beaten_us: dict[str, int] = {}  # by process
        self.instances: dict[str, set[str]] = defaultdict(set)  # by process
        self._leases: dict[str, tuple[int, str]] = {}  # by process, its last: in which order they were taken
        self._led = -1
        self._acted_us: dict[str, int] = {}  # by process: when it last wrote for the group
        self._stands_us: dict[str, int] = {}  # by who it is: since when it stands still, or last did
        self._state: Decided | None = None
        self._is_begun = True
        self._hands: dict[int, _Hands] = defaultdict(_Hands)

    def forget(self) -> None:
        """The store has forgotten something: what it said before means nothing, but for a leader that has read it and
        still fences for it, whichever leader there is by then.
        """
        for number, part in self._state.parts.items() if self._state is not None else ():
            hands = self._hands[number]
            hands.asked = max(hands.asked, part.to_epoch)
        self._lives.clear()
        self._leases.clear()
        self._led, self._state = -1, None

    def begin_anew(self) -> None:
        """The group is another one: what its former leader still writes is nobody's business."""
        self.forget()
        self._hands.clear()
        self._is_begun = False

    def stands_still(self, fact: Befell) -> None:
        """Somebody does, from now on."""
        self._stands_us[fact.whom] = fact.at_us

    def take(self, fact: Beaten | Led | Decided | Checkpointed | Given) -> None:
        """A fact, in their order. Raises `Violation`."""
        self._is_begun |= isinstance(fact, Checkpointed)
        if not self._is_begun and isinstance(fact, Decided):
            return
        match fact:
            case Beaten():
                self._beaten(fact)
            case Led():
                self._led_by(fact)
            case Decided():
                self._decided(fact)
            case Checkpointed():
                self._checkpointed(fact)
            case Given():
                self._given(fact)
        if isinstance(fact, Led | Decided):
            self._acted_us[fact.process] = fact.at_us

    def _beaten(self, fact: Beaten) -> None:
        owner = fact.flow, fact.instance
        life = self._lives.setdefault(owner, _Life(fact.process, fact.at_us))
        life.gap_us = max(life.gap_us, fact.at_us - life.last_us)
        life.last_us, life.is_bound = fact.at_us, fact.is_bound
        self._latest[fact.flow] = fact.instance
        self._beaten_us[fact.process] = fact.at_us
        self.instances[fact.process].add(fact.instance)

    def _led_by(self, fact: Led) -> None:
        last = max((number for number, _ in self._leases.values()), default=-1)
        if self._leases.get(fact.process, (0, ""))[1] != fact.token:
            self._leases[fact.process] = last + 1, fact.token

    def _decided(self, fact: Decided) -> None:
        """Only the newest leader that has written may write."""
        if fact.process in self._leases:
            place, _ = self._leases[fact.process]
            demand(place >= self._led, "the next leader has written the state already:", told(fact))
            self._led = place
        before, self._state = self._state, fact
        if before is None:
            return
        for owner in (each for each in before.bound if each not in fact.bound):
            self._given_up(owner, fact)
        for number, part in fact.parts.items():
            if number in before.parts:
                demand(part.epoch >= before.parts[number].epoch, "an epoch went back:", number, told(fact))
                if part.epoch > before.parts[number].epoch:  # what was given at an earlier one its owner has lost
                    self._hands[number].given.clear()
                    self._hands[number].since_us = fact.at_us
                self._moved(number, before.parts[number], part, fact)

    def _given_up(self, owner: Owner, fact: Decided) -> None:
        """A flow is not bound any more: it asked for it, somebody took its name, or it was silent for long."""
        life = self._lives.get(owner)
        if life is None or not life.is_bound or self._latest[owner[0]] != owner[1]:
            return
        silent_us = max(life.gap_us, fact.at_us - life.last_us)
        demand(
            silent_us >= self._timeout_us * _LEAST, owner, "was given up, and silent for", silent_us / 1e6, told(fact)
        )

    def _moved(self, number: int, before: Part, after: Part, fact: Decided) -> None:
        """A pause ends when all that was given is acknowledged, when its time is over, or with its owner."""
        hands = self._hands[number]
        if after.phase == "paused":
            # Who stood still between deciding and writing decided when it began to.
            stands_us = self._stands_us.get(fact.process.split("/")[0], 0)
            begun_us = stands_us if stands_us >= self._acted_us.get(fact.process, 0) else fact.at_us
            moves_us = begun_us + after.left_s * 1e6 * _LEAST
            if before.phase != "paused" or before.epoch != after.epoch:
                hands.moves_us, hands.is_drained = moves_us, False
                self._look(hands, after.owner)
            hands.moves_us = min(hands.moves_us, moves_us)  # each write was some time on its way
            return
        if (before.phase, after.phase) != ("paused", "fencing") or before.owner not in fact.bound:
            return
        if after.drained:
            demand(hands.is_drained or not self._keeps, number, "moves, and not all is acknowledged:", told(fact))
        elif hands.epoch <= before.epoch:  # else its checkpoint is somebody else's already
            is_late = fact.at_us >= hands.moves_us - self._slack_us - _SOON_US
            demand(is_late, number, "moves before its time:", told(fact))

    def _look(self, hands: _Hands, owner: Owner | None) -> None:
        life = self._lives.get(owner) if owner is not None else None
        given = hands.given.get(life.process, 0) if life is not None else 0
        hands.is_drained |= given <= hands.offset

    def _checkpointed(self, fact: Checkpointed) -> None:
        hands = self._hands[fact.partition]
        part = self._state.parts.get(fact.partition) if self._state is not None else None
        if part is not None and fact.flow and fact.epoch > max(hands.epoch, hands.asked, part.epoch, part.to_epoch):
            demand(False, "fenced, and no state has decided it:", told(fact))
        hands.offset, hands.epoch = fact.offset, fact.epoch
        self._look(hands, (fact.flow, fact.instance))

    def _given(self, fact: Given) -> None:
        """Not what a task of Spark reads: a batch that runs is not torn."""
        if not fact.batch and fact.process in self._beaten_us:
            silent_us = fact.at_us - self._beaten_us[fact.process]
            most_us = self._timeout_us / _LEAST + self._slack_us
            demand(silent_us <= most_us, "given after its lease was over, for", silent_us / 1e6, "s:", told(fact))
        for row in fact.rows:
            hands = self._hands[row.partition]
            if fact.at_us >= hands.since_us:  # else a task was slow
                hands.given[fact.process] = max(hands.given.get(fact.process, 0), row.offset + 1)
