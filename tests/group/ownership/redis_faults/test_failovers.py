"""A replica took over and gave back: the same server, under the same `run_id`, with an old copy of everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from partq_spark.group.ownership import Ownership, Reincarnated
from tests.group.ownership.conftest import KEY, delivery
from tests.group.ownership.redis_faults.conftest import ME, begin, token_of, verbs
from tests.group.ownership.redis_servers import Pair, followed, open_redis
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis


@pytest.fixture
def pair(server: RedisServer) -> Iterator[Pair]:
    """The server that `store` uses, and its replica."""
    with followed(server) as pair:
        yield pair


@pytest.mark.conformance("OWN-04")
def test_a_failover_and_a_quick_failback_are_noticed_by_every_call(pair: Pair, store: Ownership) -> None:
    """Nobody called in between, and every connection lives on."""
    begin(store)
    pair.synced()
    for name, verb in verbs(store).items():
        life = store.incarnation()
        pair.fail_over()
        store.report(KEY, "billing-1", ME, {1: delivery(30)})
        pair.fail_back()
        with pytest.raises(Reincarnated, match="restarted or replaced"):
            verb()
        assert store.incarnation() != life, name
        assert token_of(store) == "t1", name
        assert store.read_flows(KEY)["billing-1"].deliveries == {}, "the report is gone"
        pair.follow()
        store.incarnation()


def test_users_of_one_server_give_its_life_the_same_name(pair: Pair, store: Ownership) -> None:
    other = open_redis(pair.server)
    begin(store)
    life = store.incarnation()
    assert other.incarnation() == life
    pair.fail_over()
    pair.fail_back()
    assert store.incarnation() == other.incarnation() != life


def test_a_replica_that_became_the_master_while_connected_is_another_life(pair: Pair) -> None:
    """An address that leads to the replica, which is promoted under an open connection."""
    store = open_redis(pair.replica)
    assert store.read_state(KEY) is None
    pair.fail_over()
    with pytest.raises(Reincarnated):
        store.swap_state(KEY, b"{}", token="t1", expected=None)
    store.close()
