"""Storms and calms: what is done to the processes of a `Cast`, by chance of a seed, and whether balance comes back.

In a storm flows are killed, frozen past their session timeout, replaced while frozen, stopped and started, the leading
coordinator is killed at a steady pace, and Redis is restarted empty. A calm is time in which nothing is done: it begins
when everybody who was started runs and a coordinator leads, and it must end in balance.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from partq_spark.group.model import Lease
from tests.ownership.cast import Cast, Child
from tests.ownership.facts import now_s
from tests.ownership.flow import NAME_TAKEN

LEADER_EVERY_S: Final = 10.0
COORDINATORS: Final = ("coordinator-1", "coordinator-2")
_ACT_S: Final = (0.3, 1.5)
_FROZEN_S: Final = (0.5, 2.5)  # beyond the session timeout
_READY_WAIT_S: Final = 20.0
_DUEL_WAIT_S: Final = 15.0
_TURN_S: Final = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Weather:
    """How long, and how much. `redis_restarts` are spread evenly over the whole time; half-way Redis is flushed.
    `slack_s` is granted on top of what a calm may take: to tests, which run on busy machines.
    """

    duration_s: float
    storm_s: float = 20.0
    redis_restarts: int = 2
    slack_s: float = 0.0


@dataclass(slots=True)
class Course:
    """What was done, and how long balance took in each calm; `troubles` is what must not be."""

    done: Counter[str] = field(default_factory=Counter)
    balance_s: list[float] = field(default_factory=list)
    flowing_s: list[float] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Duel:
    """Two processes under one name, the older one frozen until `thaw_s`; one of them has to go."""

    name: str
    old: Child
    new: Child
    thaw_s: float


class Storm:
    """Runs one course over a cast whose processes are not started yet."""

    def __init__(self, cast: Cast, names: list[str], weather: Weather, seed: int, tell: Callable[[str], None]) -> None:
        self._cast = cast
        self._names = names
        self._weather = weather
        self._chance = random.Random(seed)
        self._tell = tell
        self._frozen: list[tuple[float, Child]] = []
        self._duels: list[_Duel] = []
        self._begun_s = 0.0
        self._restarted = 0
        self._flushed = False
        self.course = Course()

    @property
    def calm_s(self) -> float:
        """The bound: rebalance delay, session timeout, and a second."""
        return self._cast.rebalance_delay_s + self._cast.session_timeout_s + 1.0 + self._weather.slack_s

    def run(self) -> Course:
        """Calm and storm in turn until the time is over; ends with a calm."""
        for name in COORDINATORS:
            self._cast.start_coordinator(name)
        for name in self._names:
            self._start(name)
        self._begun_s = now_s()
        self._calm()
        while (left_s := self._begun_s + self._weather.duration_s - now_s()) > 0:
            self._storm(min(self._weather.storm_s, left_s))
            self._calm()
        return self.course

    # --- storm --------------------------------------------------------------------------------------------------------

    def _storm(self, duration_s: float) -> None:
        begun_s = act_due_s = now_s()
        leader_due_s = begun_s + 1.0
        while (at_s := now_s()) < begun_s + duration_s:
            if at_s >= act_due_s:
                self._act(begun_s + duration_s - at_s)
                act_due_s = at_s + self._chance.uniform(*_ACT_S)
            if at_s >= leader_due_s:
                leader_due_s = at_s + LEADER_EVERY_S
                self._kill_leader()
            self._restart_redis(at_s)
            self._flush_redis(at_s)
            self._thaw()
            time.sleep(_TURN_S)

    def _act(self, left_s: float) -> None:
        """Something to one flow. A frozen one wakes up before the storm is over, so that the calm begins at once."""
        fighting = {duel.name for duel in self._duels}
        alive = self._cast.alive()
        awake = [name for name in alive if name not in fighting and not self._cast.flows[name].frozen]
        gone = [name for name in self._names if name not in alive and name not in fighting]
        doomed = awake if len(awake) > 1 else []  # somebody is always left, or nothing would move
        enough = left_s > self._cast.session_timeout_s + _FROZEN_S[1]
        acts: list[tuple[Callable[[str], object], list[str], float]] = [
            (self._start, gone, 1.0 + len(gone)),
            (self._kill, doomed, 3.0),
            (self._freeze, doomed if enough else [], 3.0),
            (self._replace, doomed if enough else [], 1.5),
            (self._stop, doomed, 1.0),
        ]
        possible = [each for each in acts if each[1]]
        if possible:
            act, names, _ = self._chance.choices(possible, [weight for *_, weight in possible])[0]
            act(self._chance.choice(names))

    def _start(self, name: str) -> Child:
        note = self._cast.folder / f"{name}.mapping"
        if note.exists() and self._chance.random() < 0.5:
            self._count("flows started with their mapping")
        else:
            note.unlink(missing_ok=True)
            self._count("flows started without history")
        return self._cast.start_flow(name, keep_mapping=str(note), slow_s=2.0, slow_share=0.005, dawdle_share=0.1)

    def _kill(self, name: str) -> None:
        self._count("flows killed")
        self._cast.flows[name].kill()

    def _stop(self, name: str) -> None:
        self._count("flows stopped")
        self._cast.flows[name].terminate()
        self._cast.flows[name].wait()

    def _freeze(self, name: str) -> None:
        self._count("flows frozen")
        self._cast.flows[name].freeze()
        self._frozen.append((self._wake_s(), self._cast.flows[name]))

    def _replace(self, name: str) -> None:
        """Frozen, and another process starts under the name."""
        self._count("flows replaced while frozen")
        old = self._cast.flows[name]
        old.freeze()
        self._duels.append(_Duel(name, old, self._start(name), self._wake_s()))

    def _wake_s(self) -> float:
        return now_s() + self._cast.session_timeout_s + self._chance.uniform(*_FROZEN_S)

    def _thaw(self) -> None:
        """Wake the processes that are due, and see who of two under one name has gone."""
        at_s = now_s()
        for due in [each for each in self._frozen if at_s >= each[0]]:
            self._frozen.remove(due)
            due[1].thaw()
        for duel in list(self._duels):
            if duel.old.frozen and at_s >= duel.thaw_s:
                duel.old.thaw()
            left = [child for child in (duel.old, duel.new) if child.alive]
            if len(left) == 2 and at_s < duel.thaw_s + _DUEL_WAIT_S:
                continue
            self._duels.remove(duel)
            codes = sorted(child.code for child in (duel.old, duel.new) if child.code is not None)
            if codes != [NAME_TAKEN]:
                told = duel.old.tail() + duel.new.tail()
                self.course.troubles.append(f"of two processes as {duel.name} ended {codes}, not one with 3: {told}")
            if left:
                self._cast.flows[duel.name] = left[0]

    def _kill_leader(self) -> None:
        lease = self._cast.lease()
        if lease is not None:
            self._count("leading coordinators killed")
            self._cast.coordinators[lease.name].kill()
            self._cast.start_coordinator(lease.name)

    def _restart_redis(self, at_s: float) -> None:
        pace_s = self._weather.duration_s / (self._weather.redis_restarts + 1)
        if self._restarted < self._weather.redis_restarts and at_s - self._begun_s > pace_s * (self._restarted + 1):
            self._restarted += 1
            self._count("Redis restarted empty")
            self._cast.redis.kill()
            time.sleep(self._chance.uniform(0, 1))
            self._cast.redis.start()

    def _flush_redis(self, at_s: float) -> None:
        """FLUSHALL: everything is gone, and the server is the same."""
        if self._weather.redis_restarts and not self._flushed and at_s - self._begun_s > self._weather.duration_s / 2:
            self._flushed = True
            self._count("Redis flushed")
            self._cast.redis_command("FLUSHALL")

    def _count(self, what: str) -> None:
        self.course.done[what] += 1

    # --- calm ---------------------------------------------------------------------------------------------------------

    def _calm(self) -> None:
        """Wait for what was begun to have happened, then for balance, within the bound."""
        while self._frozen or self._duels:
            self._thaw()
            time.sleep(_TURN_S)
        lease = self._cast.lease()
        self._expect(lambda: self._unready(lease), _READY_WAIT_S, "not everybody runs")
        balance_s = self._expect(self._cast.imbalance, self.calm_s, "not balanced")
        flowing_s = None
        if balance_s is not None:
            self.course.balance_s.append(balance_s)
            ends = self._cast.queue.refresh().next
            flowing_s = self._expect(lambda: self._cast.behind(ends), self.calm_s, "balanced, but not all flows")
        if flowing_s is not None:
            self.course.flowing_s.append(flowing_s)
            self._tell(f"{now_s() - self._begun_s:4.0f} s: balanced after {balance_s:.1f} s of calm")
        for name, child in self._cast.flows.items():
            if child.code not in (None, 0, -9, NAME_TAKEN):
                self.course.troubles.append(f"{name} ended with {child.code}: {child.tail()}")

    def _unready(self, before: Lease | None) -> str:
        """A calm begins when everybody who was started runs, and a coordinator leads."""
        unborn = self._cast.unborn()
        if unborn:
            return f"{unborn} have not begun"
        lease = self._cast.lease()
        moved = lease is not None and (before is None or (lease.token, lease.beat) != (before.token, before.beat))
        return "" if moved else "nobody leads"

    def _expect(self, reason: Callable[[], str], wait_s: float, what: str) -> float | None:
        """How long it took; None, and a trouble noted, if it took too long."""
        try:
            return self._cast.wait_until(reason, wait_s)
        except AssertionError as error:
            self.course.troubles.append(f"{what}, {now_s() - self._begun_s:.0f} s after the beginning: {error}")
            self._tell(self.course.troubles[-1])
            return None
