"""What only the store in memory can do: be flushed, restarted and set back by a test, and lose calls."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Fenced, Unavailable
from partq_spark.group.ownership import Reincarnated
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
