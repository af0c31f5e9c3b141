"""Who gets a flow's name, and after how long: a process that binds, with ownership in memory and a clock of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.group.binding import MAX_TRIES, Binder
from partq_spark.group.codec import encode_state
from partq_spark.group.membership import GroupInQueue
from partq_spark.group.model import Flow, FlowRecord, GroupSettings, GroupState
from partq_spark.log.admin import create_group, create_queue
from tests.group.ownership.redis_servers import an_object_store
from tests.support.ownership import OwnershipServer

QUEUE = create_queue(an_object_store(), "default", "orders", 1)
create_group(QUEUE, "billing", [0])
GROUP = GroupInQueue(QUEUE, "billing")
KEY = GROUP.key
TIMEOUT_S = 10.0


class Place:
    """A former instance that has the name, and a process that binds; `events`: what happens after so long."""

    def __init__(self) -> None:
        self.server = OwnershipServer()
        self.users = self.server.open(KEY)
        self.now_s = 0.0
        self.events: dict[float, Callable[[], object]] = {}
        self.binder = Binder(
            self.server.open(KEY), GROUP, "a", session_timeout_s=TIMEOUT_S,
            effects=Effects(now_s=lambda: self.now_s, sleep=self.sleep),
        )  # fmt: skip
        self.record = FlowRecord(
            flow="a", instance="former", queue_id=GROUP.queue_id, bound=True, session_timeout_s=TIMEOUT_S
        )
        self.users.bind(KEY, self.record, replaces=None)

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        for at_s in [each for each in self.events if each <= self.now_s]:
            self.events.pop(at_s)()

    def beats(self) -> None:
        self.users.beat(KEY, self.record)

    def leaves(self) -> None:
        self.users.unbind(KEY, "a", "former")

    def is_given_up(self, instance: str = "former", *, bound: bool = False) -> None:
        flow = Flow(name="a", instance=instance, bound=bound, since=1)
        state = GroupState(queue_id=GROUP.queue_id, settings=GroupSettings(), partitions={}, flows={"a": flow})
        self.users.swap_state(KEY, encode_state(state, self.now_s), token="t", expected=None)


HAPPENS: dict[str, tuple[dict[float, Callable[[Place], object]], float]] = {
    "it left": ({-1.0: Place.leaves}, 0.0),
    "it leaves": ({4.0: Place.leaves}, 4.0),
    "it beats, then leaves": ({3.0: Place.beats, 6.0: Place.leaves}, 6.0),
    "it is silent": ({}, TIMEOUT_S),
    "its last beat was long on its way": ({8.0: Place.beats}, 8.0 + TIMEOUT_S),
    "the coordinator gives it up": ({4.0: Place.is_given_up}, 4.0),
    "the coordinator has given it up": ({-1.0: Place.is_given_up}, 0.0),
    "the coordinator sees it": ({-1.0: lambda place: place.is_given_up(bound=True)}, TIMEOUT_S),
    "another was given up": ({-1.0: lambda place: place.is_given_up("one before it")}, TIMEOUT_S),
}


@pytest.mark.conformance("FLO-08")
@pytest.mark.parametrize("what", HAPPENS)
def test_the_name_of_one_that_is_over_is_taken_once_that_is_known(what: str) -> None:
    place = Place()
    happens, after_s = HAPPENS[what]
    for at_s, act in happens.items():
        if at_s < 0:
            act(place)
        else:
            place.events[at_s] = lambda act=act: act(place)  # type: ignore[misc]
    life = place.binder.bind({4: 2})
    assert after_s <= place.now_s <= after_s + 0.2
    record = place.server.records_of(KEY)["a"]
    assert (record.instance, record.mapping) == (life.me.instance, {4: 2})


@pytest.mark.conformance("FLO-08")
def test_one_that_beats_twice_is_alive_and_keeps_its_name() -> None:
    place = Place()
    place.events = {3.0: place.beats, 6.0: place.beats}
    with pytest.raises(Invalid, match="in use by another live process"):
        place.binder.bind({4: 2})
    assert place.now_s <= 6.2
    assert place.server.records_of(KEY)["a"] == place.record


def test_a_store_that_stays_away_ends_a_bind_in_bounded_tries() -> None:
    place = Place()
    place.leaves()
    tries = []

    def lose(verb: str) -> None:
        if verb == "bind":
            tries.append(verb)
            raise Unavailable("away (test)")

    place.server.before = lose
    with pytest.raises(Unavailable, match=rf"could not be bound in {MAX_TRIES} tries: .*away"):
        place.binder.bind({4: 2})
    assert len(tries) == MAX_TRIES
