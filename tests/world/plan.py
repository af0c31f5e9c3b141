"""What happens in a world, as data: its processes and their settings, and what befalls them when. A plan is drawn
from a seed or written down by hand, and a part of its events may be left out.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, NamedTuple, Self

from tests.world.log_plan import HOUR_S, LogPlan
from tests.world.query_plan import RESULTS, TO_QUERIES, QueryPlan, queues_of

URL: Final = "redis://world:6379/0"
"""Of the server that keeps ownership and forgets."""

KINDS: Final = (
    *("quiet", "restarts", "weather", "operators", "everything", "forgetful", "application"),
    *("queries", "sinks", "queries", "log"),
)
"""What befalls the processes: they come and go in good order; they are killed and freeze; the stores fail; people
change the queue; all that; what keeps ownership forgets, while they are killed and freeze; one of the flows uses its
consumer in every way that there is. Or it is about streaming queries in all modes, or about what they write; or for
days people and cron jobs work on the log while others publish."""


OPERATIONS: Final = ("alter", "rewind", "settings", "remake", "compact", "collect")
"""What a person does at a command line; `number`: of partitions, or by how many messages."""


class Habits(NamedTuple):
    """What an application does with its consumer, and how many of its calls meet a signal."""

    operations: Sequence[str]
    signals: float = 0.0


_LOOPS: Final = ("loop", "loop", "loop", "go_on", "poll", "pause", "reopen")
_THREADS: Final = ("poll", "beside", "three", "abandon", "abandon", "cancel", "cancel", "pause")
_ROUNDS: Final = ("poll", "poll", "acknowledge", "acknowledge", "give_back", "worker", "pause")
HABITS: Final = {
    "loops": Habits(_LOOPS),
    "threads": Habits(_THREADS),
    "rounds": Habits(_ROUNDS),
    "signals": Habits(("poll", "poll", "poll", "loop", "acknowledge", "pause"), 0.5),
    "all": Habits((*_LOOPS, *_THREADS, *_ROUNDS, "stop"), 0.15),
}
APPLICATION: Final = "application"
"""The flow that has them."""


LOG: Final = "log"


class Event(NamedTuple):
    """Something that happens at a time. `for_s`: until it is over, or the process is there again. `on`: not before that
    call (`accidents`).
    """

    at_s: float
    what: str
    whom: str = ""
    for_s: float = 0.0
    rate: float = 0.0
    number: int = 0
    on: str = ""

    def __str__(self) -> str:
        lasts = f" for {self.for_s:g} s" if self.for_s else ""
        on = f" on {self.on}" if self.on else ""
        return f"at {self.at_s:g} s {self.what} {self.whom or self.number or ''}{on}{lasts}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`seed`: of the order and of all small chances. Names of processes say what they are."""

    seed: int = 0
    kind: str = "quiet"
    ownership: str = "store"  # or the address of the server that forgets
    partitions: int = 2
    coordinators: tuple[str, ...] = ("coordinator",)
    publishers: tuple[str, ...] = ("publisher",)
    flows: tuple[str, ...] = ("one", "two")
    queries: tuple[str, ...] = ()  # flows of the same group, which write into a second queue
    readers: tuple[str, ...] = ()  # flows of a group of that queue
    habits: str = ""  # of the application
    operations: int = 0  # of the application, before it behaves
    switches: float = 0.0  # of so many of its calls: others may go on at a line in them
    query: QueryPlan = QueryPlan()  # noqa: RUF009 - it is frozen
    manual: bool = False
    holds: bool = False  # by hand, a batch is acknowledged when the next one is handled
    max_messages: int = 10
    messages: int = 40  # of each publisher
    pause_s: float = 0.5  # between two
    handles_s: float = 0.1  # a batch, at most
    session_timeout_s: float = 5.0
    lease_timeout_s: float = 2.0
    rebalance_delay_s: float = 1.0
    max_handoff_time_s: float = 3.0
    way_us: int = 2_000
    paid: bool = False  # the store: each request costs
    drift: float = 0.0  # of clocks
    log: LogPlan = LogPlan()  # noqa: RUF009 - it is frozen
    skew_s: float = 600.0  # of wall clocks where clocks drift, at most
    events: tuple[Event, ...] = ()
    left_out: frozenset[int] = frozenset()

    @classmethod
    def draw(cls, seed: int) -> Self:
        """The kind by the seed's number, the rest at random."""
        rng = random.Random(f"world {seed}")
        kind = kind_of(seed)
        if kind in {"queries", "sinks"}:
            return cls._with_queries(seed, rng)
        queries = ("query", "second-query")[: rng.choice((0, 0, 1, 2))]
        flows = ("one", "two", "three")[: rng.randint(0 if queries else 1, 3 - len(queries))]
        coordinators = ("coordinator", "second-coordinator")[: rng.choice((1, 2))]
        publishers = ("publisher", "second-publisher")[: rng.randint(1, 2)]
        messages, pause_s = rng.choice((30, 60)), rng.choice((0.5, 1.0, 2.0))
        plan = cls(
            seed=seed,
            kind=kind,
            ownership=URL if kind == "forgetful" or rng.random() < 0.4 else "store",
            partitions=rng.randint(1, 4),
            coordinators=coordinators,
            publishers=publishers,
            flows=flows,
            queries=queries,
            readers=("reader", "second-reader")[: rng.randint(1, 2)] if queries else (),
            manual=rng.random() < 0.5,
            max_messages=rng.choice((3, 10)),
            messages=messages,
            pause_s=pause_s,
            handles_s=rng.choice((0.05, 0.4)),
            session_timeout_s=rng.choice((5.0, 8.0)),
            lease_timeout_s=rng.choice((2.0, 4.0)),
            rebalance_delay_s=rng.choice((0.5, 2.0)),
            way_us=rng.choice((0, 2_000, 30_000)),
            paid=rng.random() < 0.3,
            drift=rng.choice((0.0, 0.0001)),
            holds=rng.random() < 0.3,
        )
        if kind == APPLICATION:
            plan = plan._with_application(rng)
        if kind == LOG:
            return plan._for_days(rng)
        return replace(plan, events=tuple(_events(rng, plan, plan.messages * plan.pause_s / 2)))

    def _with_application(self, rng: random.Random) -> Self:
        habits, alone = rng.choice(list(HABITS)), rng.random() < 0.7
        return replace(
            self,
            habits=habits,
            operations=rng.randint(6, 30),
            switches=0.0 if habits in ("loops", "signals") else rng.choice((0.0, 0.3, 0.6)),
            ownership="none" if alone else self.ownership,
            manual=habits == "rounds" or (habits in ("signals", "all") and rng.random() < 0.5),
            coordinators=() if alone else self.coordinators[:1],
            publishers=self.publishers[:1],
            flows=(APPLICATION,) if alone else (APPLICATION, "two")[: rng.randint(1, 2)],
            queries=(),
            readers=(),
            partitions=rng.choice((1, 1, 2, 3)),
            max_messages=rng.choice((2, 4, 10)),
            messages=rng.choice((30, 60)),
            pause_s=rng.choice((0.2, 0.5)),
            way_us=rng.choice((0, 1_000, 20_000)),
        )

    def _for_days(self, rng: random.Random) -> Self:
        plan = replace(
            self,
            log=LogPlan.draw(rng),
            ownership="none",
            coordinators=(),
            publishers=(),
            flows=("visitor",),
            queries=(),
            readers=(),
            partitions=rng.randint(1, 3),
            messages=rng.randint(4, 10),
            pause_s=rng.choice((2.0, 60.0, 3 * HOUR_S, 12 * HOUR_S)),
            way_us=rng.choice((2_000, 30_000)),
            paid=False,
            drift=0.0001,
        )
        events = [Event(**each) for each in plan.log.events(rng, plan.messages * plan.pause_s)]
        return replace(plan, events=tuple(sorted(events)))

    @classmethod
    def _with_queries(cls, seed: int, rng: random.Random) -> Self:
        kind = kind_of(seed)
        query = QueryPlan.draw(rng, seed // len(KINDS), sinks=kind == "sinks")
        names = ("query", "second-query")[: rng.randint(1, 2) if query.how.shared or not query.how.grouped else 1]
        readers = ("reader",) if RESULTS in queues_of(query.sink) and rng.random() < 0.3 else ()
        plan = cls(
            seed=seed,
            kind=kind,
            ownership=rng.choice(("store", URL)) if query.how.shared else "none",
            partitions=rng.randint(1, 4),
            coordinators=("coordinator",) if query.how.shared or readers else (),
            flows=("one",) if query.how.shared and query.how.keeps and rng.random() < 0.3 else (),
            queries=names,
            readers=readers,
            query=query,
            max_messages=rng.choice((3, 10)),
            messages=30,
            pause_s=rng.choice((0.3, 1.0)),
            handles_s=rng.choice((0.1, 1.0, 6.0)),
            rebalance_delay_s=rng.choice((0.5, 2.0)),
            max_handoff_time_s=rng.choice((0.5, 3.0)),
            way_us=rng.choice((2_000, 10_000)),
            drift=rng.choice((0.0, 0.0001)),
        )
        lasts_s = min(25.0, plan.messages * plan.pause_s)
        return replace(plan, events=tuple(_query_events(rng, plan, lasts_s)))

    def without(self, numbers: Collection[int]) -> Self:
        """The same, but these of its events do not happen."""
        return replace(self, left_out=self.left_out | frozenset(numbers))

    @property
    def happening(self) -> Sequence[Event]:
        """What is not left out."""
        return [each for number, each in enumerate(self.events) if number not in self.left_out]

    @property
    def line(self) -> str:
        """The command that repeats it, if it was drawn."""
        without = f" --without {','.join(map(str, sorted(self.left_out)))}" if self.left_out else ""
        return f"scripts/simulate --first {self.seed} --seeds 1{without}"

    @property
    def is_hasty(self) -> bool:
        """A handoff may be forced although nothing befell anybody."""
        return self.handles_s + 1.0 > self.max_handoff_time_s

    @property
    def look_s(self) -> float:
        """Between two looks at how far all is."""
        return 60.0 if self.log.keepers else 1.0

    @property
    def beat_s(self) -> float:
        """Between two heartbeats of a flow, at most."""
        return max(1.0, self.session_timeout_s / 4) if self.paid else 1.0

    @property
    def settled_s(self) -> float:
        """From the last thing that befell anybody on, each partition is given within this: a flow that is gone is found
        out, after a new leader granted it a full period; then come the delay and the handoff.
        """
        if self.log.keepers:
            return 10_000 * HOUR_S
        leader_s = 2 * self.lease_timeout_s + 5.0  # the pause of a failed step, too
        gone_s = 2 * self.session_timeout_s + self.beat_s
        handoff_s = self.rebalance_delay_s + self.max_handoff_time_s
        batches_s = (self.partitions + 2) * (self.handles_s + 1.0)  # of the other partitions of its flow
        return leader_s + gone_s + 2 * handoff_s + batches_s + self.query.lasts_s


CALLS: Final = {
    "coordinator": (
        *("load state", "swap state", "after swap state", "load checkpoint", "swap checkpoint"),
        *("after swap checkpoint", "swap leader", "after swap leader", "load leader", "load flows"),
    ),
    "publisher": ("swap head", "after swap head", "load head", "written segments"),
    "flow": (
        *("swap flows", "after swap flows", "swap beats", "after swap beats", "load state", "after load state"),
        *("load checkpoint", "after load checkpoint", "swap checkpoint", "after swap checkpoint", "load head"),
        *("read segments", "after read segments"),
    ),
}
"""At which calls of each something may befall it, in particular."""


def _role(plan: Plan, whom: str) -> str:
    return "coordinator" if whom in plan.coordinators else "publisher" if whom in plan.publishers else "flow"


def kind_of(seed: int) -> str:
    """What befalls the seed's processes."""
    return KINDS[seed % len(KINDS)]


def seeds_of(kind: str, first: int = 0) -> Iterator[int]:
    """Those of one kind, from `first` on."""
    return (seed for seed in count(first) if kind_of(seed) == kind)


def _events(rng: random.Random, plan: Plan, lasts_s: float) -> list[Event]:
    roles = (plan.coordinators, plan.coordinators, plan.publishers, plan.flows, plan.queries, plan.readers)
    found = []
    for _ in range(rng.choice((0, 0, 1, 3) if plan.kind == APPLICATION else (1, 4, 12))):
        at_s, whom = round(rng.uniform(1.0, lasts_s + 5.0), 1), rng.choice(rng.choice([each for each in roles if each]))
        lease_s, session_s = plan.lease_timeout_s, plan.session_timeout_s
        most_s = (lease_s + rng.uniform(0.0, 1.0), session_s + rng.uniform(-0.5, 2.0), rng.uniform(0.0, 25.0))
        away_s = round(rng.choice((0.2, 2.0, *most_s)), 1)
        restarts = [Event(at_s, "kill", whom, away_s), Event(at_s, "freeze", whom, away_s)]
        stores = ("objects", "ownership", "") if plan.ownership == URL else ("",)
        weather = [
            Event(at_s, "storm", rng.choice(stores), away_s, rate=rng.choice((0.02, 0.1, 0.4))),
            Event(at_s, rng.choice(("outage", "refusals")), rng.choice(stores), away_s),
        ]
        calls = CALLS[_role(plan, whom)]
        aimed = [
            Event(at_s, what, whom, away_s, number=rng.choice((1, 1, 2, 3)), on=rng.choice(calls))
            for what in ("kill", "freeze", "freeze", "late", "answer lost")
        ]
        twins = [Event(at_s, "twin", whom, away_s)] if whom in plan.flows else []
        losses = [Event(at_s, what) for what in ("flush", "empty", "rollback", "rollback")]
        quiet = [Event(at_s, "stop", whom, away_s)]
        lines = [
            Event(at_s, "cut", whom, number=rng.randint(1, rng.choice((20, 200, 2000)))),
            Event(at_s, "switches", "", min(away_s, 5.0)),
        ]
        people = [
            Event(at_s, "alter", number=rng.randint(1, 5)),
            Event(at_s, "rewind", number=rng.randint(1, 20)),
            Event(at_s, rng.choice(("compact", "collect"))),
            Event(at_s, "settings", number=rng.randint(0, 3)),
        ]
        if not plan.queries:  # a query is bound to the very group
            people.append(Event(at_s, "remake"))
        choices = {
            "quiet": quiet,
            "restarts": restarts + quiet + lines + aimed + twins,
            "weather": weather + aimed[3:],
            "forgetful": losses + restarts + aimed + quiet,
            "operators": people + quiet,
            "everything": quiet + restarts + weather + people + lines + aimed + twins,
            APPLICATION: quiet + restarts + weather + lines,
        }
        found.append(rng.choice(choices[plan.kind]))
    return sorted(found)


def _query_events(rng: random.Random, plan: Plan, lasts_s: float) -> list[Event]:
    """What befalls queries, their Spark checkpoints, and the queues that they read and write."""
    query = plan.query
    results = queues_of(query.sink)
    found = []
    for _ in range(rng.choice((0, 1, 2, 4))):
        at_s, whom = round(rng.uniform(1.0, lasts_s + 3.0), 1), rng.choice(plan.queries)
        for_s = round(rng.choice((0.5, 3.0, plan.session_timeout_s + rng.uniform(-0.5, 4.0))), 1)
        draw = rng.random()
        if draw < 0.6:
            found.append(Event(at_s, rng.choice(TO_QUERIES), whom, for_s, number=rng.choice((1, 2, 2, 3, 5, 8))))
        elif draw < 0.75 and results:
            queue = rng.choice(results)
            found.append(Event(at_s, rng.choice(("alter", "compact", "collect")), queue, number=rng.randint(1, 4)))
        elif draw < 0.85:
            found.append(Event(at_s, "storm", "", for_s, rate=rng.choice((0.02, 0.1))))
        elif draw < 0.92 and query.how.keeps:
            found.append(Event(at_s, "rewind", number=rng.randint(1, 8)))
        elif draw < 0.96 and plan.ownership == URL:
            found.append(Event(at_s, rng.choice(("flush", "empty", "rollback"))))
        else:
            found.append(Event(at_s, "alter", number=rng.randint(1, 4)))
    return sorted(found)
