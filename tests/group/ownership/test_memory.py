"""What only the store in memory can do: be flushed, restarted and set back by a test, and lose calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from partq_spark.base.errors import Fenced, Unavailable
from partq_spark.group.documents.api import DocumentOperation, Found
from partq_spark.group.documents.memory import MemoryDocuments
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import Ownership, Reincarnated, StateDocument
from partq_spark.objects.api import UNCHANGED
from tests.group.ownership.conftest import KEY, a_record, delivery
from tests.support.ownership import OwnershipServer


def test_a_restore_undoes_and_is_noticed() -> None:
    server = OwnershipServer()
    store = server.open()
    life = store.incarnation()
    record = a_record()
    store.swap_state(KEY, b"1", token="t1", expected=None)
    store.bind(KEY, record, replaces=None)
    copy = server.snapshot()
    store.swap_state(KEY, b"2", token="t2", expected="t1")
    store.report(KEY, "billing-1", record.instance, {1: delivery(5)})
    store.forget_flow(KEY, "billing-1", record.instance, state_token="t2")
    for _ in range(2):  # a copy is not used up
        server.restore(copy)
        with pytest.raises(Reincarnated, match=life):
            store.read_state(KEY)
        with pytest.raises(Reincarnated):
            store.beat(KEY, "billing-1", record.instance)
        assert store.incarnation() != life
        assert store.read_flows(KEY) == {"billing-1": record}
        assert store.beat(KEY, "billing-1", record.instance) == "t1"
        life = store.incarnation()
        store.report(KEY, "billing-1", record.instance, {1: delivery(5)})


def test_a_restart_without_data_tells_who_waits_to_look_at_everything() -> None:
    server = OwnershipServer()
    store = server.open()
    store.announce(KEY)
    assert store.wait_news(0) == frozenset({KEY})
    server.restart_empty()
    assert store.wait_news(20) is None
    assert store.wait_news(0) == frozenset()


def test_a_flush_is_noticed_by_what_is_missing_alone() -> None:
    server = OwnershipServer()
    store = server.open()
    life = store.incarnation()
    record = a_record()
    store.bind(KEY, record, replaces=None)
    server.flush()
    assert store.incarnation() == life
    assert store.read_flows(KEY) == {}
    with pytest.raises(Fenced):
        store.beat(KEY, "billing-1", record.instance)


def test_a_new_incarnation_may_be_given_with_nothing_lost() -> None:
    server = OwnershipServer()
    store = server.open()
    store.swap_state(KEY, b"1", token="t1", expected=None)
    server.incarnation = "second"
    with pytest.raises(Reincarnated):
        store.read_state(KEY)
    assert store.incarnation() == "second"
    assert store.read_state(KEY) is not None


def test_requests_and_answers_can_be_lost() -> None:
    server = OwnershipServer()
    store = server.open()

    def lose(verb: str) -> None:
        raise Unavailable(f"{verb} was lost")

    server.before = lose
    with pytest.raises(Unavailable, match="swap_state was lost"):
        store.swap_state(KEY, b"1", token="t1", expected=None)
    server.before = lambda _: None
    assert store.read_state(KEY) is None
    server.after = lose
    with pytest.raises(Unavailable, match="swap_state was lost"):
        store.swap_state(KEY, b"1", token="t1", expected=None)
    server.after = lambda _: None
    assert store.read_state(KEY) is not None


def test_time_and_chance_are_handed_in() -> None:
    now_s, tokens = [0.0], iter(f"token-{number}" for number in range(100))
    server = OwnershipServer(now_s=lambda: now_s[0], token=lambda: next(tokens))
    store = server.open()
    assert store.incarnation() == "token-0"
    record = a_record()
    store.bind(KEY, record, replaces=None)
    now_s[0] = 7.5
    found = store.read_flow(KEY, "billing-1")
    assert found is not None
    assert found[1].age_s == 7.5


class Loads(MemoryDocuments):
    """Documents that count how often a state was loaded, body and all."""

    states = 0

    def carry_out(self, group: GroupKey, operations: Sequence[DocumentOperation[Any]]) -> Sequence[Any]:
        answers = super().carry_out(group, operations)
        self.states += sum(isinstance(answer, Found) and answer.name == "state" for answer in answers)
        return answers


def test_a_state_that_a_heartbeat_met_is_not_loaded_again() -> None:
    server = OwnershipServer()
    leader, documents = server.open(), Loads(server)
    flow, record = Ownership(documents), a_record()
    leader.swap_state(KEY, b"1", token="t1", expected=None)
    flow.bind(KEY, record, replaces=None)
    assert flow.read_state(KEY)
    for number in (2, 3):
        loads = documents.states
        leader.swap_state(KEY, b"%d" % number, token=f"t{number}", expected=f"t{number - 1}")
        assert flow.beat(KEY, "billing-1", record.instance) == f"t{number}"
        found = flow.read_state(KEY, known=f"t{number - 1}")
        assert isinstance(found, StateDocument)
        assert (found.token, found.body) == (f"t{number}", b"%d" % number)
        assert flow.read_state(KEY, known=f"t{number}") is UNCHANGED
        assert documents.states == loads + 1


def test_a_group_is_dropped_while_others_come() -> None:
    """A coordinator does so in one thread while it leads its other groups in others."""
    server = OwnershipServer()
    store = server.open()
    store.bind(KEY, a_record(), replaces=None)
    store.read_flows(KEY)
    others = [GroupKey("default", "orders", f"other-{number}") for number in range(2)]

    kept: list[dict[Any, Any]] = [store._own, store._unused]

    class Busy(GroupKey):
        """A user who compares it finds that another group came."""

        def __eq__(self, other: object) -> bool:
            if others:
                another = others.pop()
                for known in kept:
                    known[another, "x"] = None
            return False

        __hash__ = GroupKey.__hash__

    busy = Busy("default", "orders", "busy")
    for known in kept:
        known[busy, "x"] = None
    store.drop_group(KEY)
    assert not others
    for known in kept:
        assert KEY not in {place[0] for place in known}
