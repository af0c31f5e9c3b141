"""What befalls the processes of a world: they are stopped, killed and freeze, the stores fail and forget, people come
and do something. Some of it strikes at one particular call (`Aimed`), or between two lines.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.world.facts import DROPPED
from tests.world.ownership import LOSSES
from tests.world.plan import URL, Event
from tests.world.processes import Actor, Flow, Operator
from tests.world.queries import Query
from tests.world.scheduler import SECOND_US, Crash, Process
from tests.world.store import Weather

if TYPE_CHECKING:
    from tests.world.world import World

ACCIDENTS: Final = (
    *("kill", "freeze", "twin", "storm", "outage", "refusals"),
    *("late", "slow", "request lost", "answer lost", "landed late"),
    *("rewind", "settings", "remake", DROPPED, *LOSSES),
)
"""By these messages may come again, marked."""

_FATES: Final = ("late", "answer lost", "request lost")
_COPIED_S: Final = 3.0  # between two copies of what keeps ownership


class Aimed:
    """A trap for the `event.number`-th call of `event.on` ("swap checkpoint", "after load state") that a process of
    `event.whom` makes; of anybody's, where it names nobody. So the seed strikes between reading and writing, where
    chance alone comes by once in thousands of seeds. `sprung` is told when it has struck, and whom.
    """

    def __init__(self, event: Event, sprung: Callable[[Aimed, Process], None]) -> None:
        self.event = event
        self._left = max(event.number, 1)
        self._sprung = sprung

    def fate(self, process: Process, call: str) -> str:
        event = self.event
        if call != event.on or not process.name.startswith(f"{event.whom}/" if event.whom else ""):
            return ""
        self._left -= 1
        if self._left:
            return ""
        self._sprung(self, process)
        if not process.alive:
            raise Crash
        if event.what == "freeze":
            process.freeze(round(event.for_s * SECOND_US))
            process.sleep(1e-6)
        if event.what == "slow":
            process.sleep(event.for_s)
        return event.what if event.what in _FATES else ""


class Accidents:
    """Of one world, by its plan."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"world chance {world.plan.seed}")
        self._happen: dict[str, Callable[[Event], Callable[[], None] | None]] = {
            "kill": self._kill,
            "stop": self._stop,
            "freeze": self._freeze,
            "twin": self._twin,
            "cut": self._cut,
            "switches": self._switches,
            "storm": self._storm,
            "outage": self._outage,
            "refusals": self._outage,
            **dict.fromkeys(LOSSES, self._forget),
        }
        """What each does at once; what it returns happens when its time is over."""

    def begin(self) -> None:
        """From now on, at the times of the plan."""
        for event in self._world.plan.happening:
            act = self._arm if event.on else self._begin
            self._world.scheduler.push(partial(act, event), round(event.at_s * SECOND_US))
        if self._world.plan.ownership == URL:
            self._copy()

    def disarm(self) -> None:
        """No call strikes any more."""
        for weather in self._weathers(""):
            weather.traps.clear()

    def _begin(self, event: Event) -> None:
        if self._world.is_calm:
            return
        self._world.counts[event.what] += 1
        self._world.befell(event.what, event.whom)
        actor = self._world.actors.get(event.whom)
        act = self._happen.get(event.what, self._person)
        after = actor.befall(event) if isinstance(actor, Query) and event.what != "cut" else act(event)

        def over() -> None:
            if after is not None:
                after()
            self._world.befell("over", event.whom or event.what)

        self._world.scheduler.push(over, round(event.for_s * SECOND_US))

    # --- processes and people -----------------------------------------------------------------------------------------

    def _kill(self, event: Event) -> Callable[[], None]:
        actor = self._world.actors[event.whom]
        actor.kill()
        return actor.start

    def _stop(self, event: Event) -> Callable[[], None]:
        actor = self._world.actors[event.whom]
        actor.stop()
        return actor.start

    def _freeze(self, event: Event) -> None:
        process = self._world.actors[event.whom].process
        if process is not None:
            process.freeze(round(event.for_s * SECOND_US))

    def _twin(self, event: Event) -> Callable[[], None]:
        """A second process under the name of a flow."""
        world = self._world
        twin = Flow(world, f"{event.whom}-twin{len(world.actors)}", world.QUEUE, world.GROUP, event.whom)
        world.actors[twin.name] = twin
        twin.start()
        return twin.leave

    def _person(self, event: Event) -> None:
        person = Operator(self._world, f"{event.what} {len(self._world.actors)}", event)
        self._world.actors[person.name] = person
        person.start()

    # --- stores -------------------------------------------------------------------------------------------------------

    def _weathers(self, where: str) -> list[Weather]:
        found = self._world.weathers
        return [found[where]] if where else list(found.values())

    def _storm(self, event: Event) -> Callable[[], None]:
        for weather in self._weathers(event.whom):
            weather.bad = event.rate
        return self._clear

    def _clear(self) -> None:
        for weather in self._weathers(""):
            weather.bad = 0.0

    def _outage(self, event: Event) -> None:
        until_us = self._world.now_us + round(event.for_s * SECOND_US)
        for weather in self._weathers(event.whom):
            weather.down_us = max(weather.down_us, until_us)
            weather.refuses = event.what == "refusals"

    def _forget(self, event: Event) -> None:
        self._world.weathers["ownership"].lives += event.what != "flush"
        self._world.server.forget(event.what, self._chance)

    def _copy(self) -> None:
        self._world.server.copy()
        self._world.scheduler.push(self._copy, round(_COPIED_S * SECOND_US))

    # --- at one call --------------------------------------------------------------------------------------------------

    def _arm(self, event: Event) -> None:
        trap = Aimed(event, self._sprung)
        for weather in self._weathers(""):
            weather.traps.append(trap)

    def _sprung(self, trap: Aimed, process: Process) -> None:
        event, name = trap.event, process.name.partition("/")[0]
        for weather in self._weathers(""):
            if trap in weather.traps:  # else all were disarmed while one before it stood still
                weather.traps.remove(trap)
        self._world.counts[f"{event.what} on a call"] += 1
        self._world.befell(event.what, name)
        lasts_us = round(event.for_s * SECOND_US)
        if event.what == "kill":
            self._world.actors[name].kill()
            self._world.scheduler.push(partial(self._again, self._world.actors[name]), lasts_us)
        elif event.what == "freeze":
            self._world.scheduler.push(partial(self._world.befell, "over", name), lasts_us)

    # --- between two lines --------------------------------------------------------------------------------------------

    def _cut(self, event: Event) -> None:
        """At the `number`-th place from now on at which another thread, or a signal, may come in there."""
        actor = self._world.actors[event.whom]
        if actor.is_alive:
            self._interrupt(actor, event.number, partial(self._killed, actor))

    def _interrupt(self, actor: Actor, at: int, act: Callable[[], None]) -> None:
        assert actor.process is not None
        if actor.process.strands:
            self._world.interrupter.arm(self._chance.choice(actor.process.strands), at, act)

    def _killed(self, actor: Actor) -> None:
        """By its own strand, between two lines, and is there again some time later."""
        self._world.counts["cut between two lines"] += 1
        self._world.befell("kill", actor.name)
        actor.kill()
        self._world.scheduler.push(partial(self._again, actor), 2 * SECOND_US)
        raise Crash

    def _again(self, actor: Actor) -> None:
        actor.start()
        self._world.befell("over", actor.name)

    def _switches(self, event: Event) -> None:
        self._switch(self._world.now_us + round(event.for_s * SECOND_US))

    def _switch(self, until_us: int) -> None:
        """From now on, at any line, others may go on for a moment."""
        if self._world.now_us < until_us:
            actor = self._chance.choice([each for each in self._world.actors.values() if each.is_alive] or [None])
            if actor is not None:
                self._interrupt(actor, self._chance.choice((5, 50, 500)), self._pause)
            self._world.scheduler.push(partial(self._switch, until_us), 100_000)

    def _pause(self) -> None:
        self._world.counts["switched between two lines"] += 1
        self._world.scheduler.sleep_us(self._chance.choice((0, 1000, 200_000)))
