"""A group is taken away only when no flow lives in it: what counts as life, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Invalid
from partq_spark.group.lifecycle import Remains, require_no_flow
from tests.group.ownership.conftest import KEY, a_record
from tests.support.ownership import MemoryOwnership, OwnershipServer


class Watch:
    """Two flows are bound, of which one is silent; a look later something happens."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.flows = MemoryOwnership(OwnershipServer(now_s=lambda: self.now_s), group=KEY)
        self.silent, self.other = a_record("billing-1"), a_record("billing-2")
        for record in (self.silent, self.other):
            self.flows.bind(KEY, record, replaces=None)

    def look(self, then: Callable[[], object]) -> None:
        """As an operator's command does, which watches until nobody can live any more."""
        left = Remains(key=KEY, group=None, checkpoints={}, damaged=(), records=self.flows.read_flows(KEY))
        waits: list[Callable[[], object]] = [then]

        def sleep(pause_s: float) -> None:
            self.now_s += pause_s
            if waits:
                waits.pop()()

        require_no_flow(self.flows, left, Effects(now_s=lambda: self.now_s, sleep=sleep))


def test_a_flow_that_leaves_while_it_is_watched_does_not_live() -> None:
    watch = Watch()
    watch.look(lambda: watch.flows.unbind(KEY, "billing-2", watch.other.instance))
    assert watch.now_s >= min(watch.silent.session_timeout_s, 60.0), "the silent one was watched to its end"


def test_a_flow_that_left_before_does_not_live() -> None:
    watch = Watch()
    watch.flows.unbind(KEY, "billing-2", watch.other.instance)
    watch.look(lambda: None)


@pytest.mark.parametrize("what", ["beats", "binds"])
def test_a_flow_that_beats_or_binds_lives(what: str) -> None:
    watch = Watch()
    if what == "beats":
        act: Callable[[], object] = lambda: watch.flows.beat(KEY, "billing-2", watch.other.instance)  # noqa: E731
    else:
        act = lambda: watch.flows.bind(KEY, a_record("billing-3"), replaces=None)  # noqa: E731
    with pytest.raises(Invalid, match=f"billing-{2 if what == 'beats' else 3}.*whose heartbeat moves"):
        watch.look(act)
