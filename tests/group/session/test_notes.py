"""What a flow says of itself to people: written when it changes, never in the way."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Unavailable
from tests.group.session.world import KEY, Process, World, bound


def shown(world: World, flow: str = "a") -> str:
    found = world.server.open().read_flow(KEY, flow)
    assert found is not None
    return found[0].note


class Calls:
    """The verbs with which an ownership server was called."""

    def __init__(self, world: World) -> None:
        self.verbs: list[str] = []
        self.failing = False
        world.server.before = self._before

    def _before(self, verb: str) -> None:
        self.verbs.append(verb)
        if self.failing and verb == "note":
            raise Unavailable("no answer (test)")


def lone(world: World) -> Process:
    world.coordinator()
    flow = world.flow("a")
    bound(flow)
    return flow


def test_it_is_written_when_it_changes() -> None:
    world = World()
    flow = lone(world)
    calls = Calls(world)
    for text, count in ((None, 0), ("slow", 1), ("slow", 1), ("slower", 2), (None, 3), (None, 3)):
        flow.session.note(text)
        assert calls.verbs.count("note") == count
        assert shown(world) == (text or "")


def test_what_did_not_come_through_is_written_later() -> None:
    world = World()
    flow = lone(world)
    calls = Calls(world)
    calls.failing = True
    instance = flow.session.instance
    flow.session.note("slow")
    assert shown(world) == ""
    flow.look()
    assert flow.session.instance == instance, "a remark is not worth a new instance"
    calls.failing = False
    flow.session.note("slow")
    assert shown(world) == "slow"


def test_an_answer_that_was_lost_is_no_reason_to_leave_it_there() -> None:
    """It was written, and nobody heard: taking it back has to be asked for all the same."""
    world = World()
    flow = lone(world)

    def lose(verb: str) -> None:
        if verb == "note":
            world.server.after = lambda _: None
            raise Unavailable("the answer was lost (test)")

    world.server.after = lose
    flow.session.note("slow")
    assert shown(world) == "slow"
    flow.session.note(None)
    assert shown(world) == ""


def test_a_new_instance_says_it_anew() -> None:
    world = World()
    flow = lone(world)
    flow.session.note("slow")
    former = flow.session.instance
    world.server.flush()
    world.sleep(2.0)
    flow.look()
    assert flow.session.instance != former
    assert shown(world) == ""
    flow.session.note("slow")
    assert shown(world) == "slow"


@pytest.mark.parametrize("bound_before", [False, True])
def test_who_is_not_bound_says_nothing(bound_before: bool) -> None:
    world = World()
    flow = lone(world) if bound_before else world.flow("a")
    if bound_before:
        flow.session.unbind()
    calls = Calls(world)
    flow.session.note("slow")
    assert calls.verbs == []
