"""A Redis of each test's own, for all that happens to a real one, and a group that is running in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from partq_spark.group.model import Lease, OwnershipRecord
from partq_spark.group.ownership import Ownership, StateDocument
from tests.group.ownership.conftest import KEY, a_record, delivery
from tests.group.ownership.redis_servers import open_redis
from tests.support.servers import RedisServer, running

RECORD = a_record()
"""Of the flow `billing-1`, of the instance `ME`."""

ME = RECORD.instance


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of this test's own."""
    with running(RedisServer()) as made:
        yield made


@pytest.fixture
def store(server: RedisServer) -> Iterator[Ownership]:
    """A user of it."""
    opened = open_redis(server)
    yield opened
    opened.close()


def verbs(store: Ownership) -> dict[str, Callable[[], object]]:
    """Every call of the contract but `wait_news` and `incarnation`, as it would be done on a group that is running."""
    lease = Lease(token="l", name="n", beat=1)
    claim = OwnershipRecord(key=KEY, partition=0, owner=None, epoch=1, version="", modified="")
    return {
        "read_state": lambda: store.read_state(KEY),
        "swap_state": lambda: store.swap_state(KEY, b"{}", token="t2", expected="t1"),
        "read_flows": lambda: store.read_flows(KEY),
        "read_flow": lambda: store.read_flow(KEY, "billing-1"),
        "read_beats": lambda: store.read_beats(KEY),
        "look_at_flows": lambda: store.look_at_flows(KEY),
        "bind": lambda: store.bind(KEY, RECORD, replaces=None),
        "beat": lambda: store.beat(KEY, "billing-1", ME),
        "deliver": lambda: store.deliver(KEY, "billing-1", ME, {1: delivery(1)}, state_token="t1"),
        "report": lambda: store.report(KEY, "billing-1", ME, {1: delivery(1)}),
        "note": lambda: store.note(KEY, "billing-1", ME, "slow"),
        "unbind": lambda: store.unbind(KEY, "billing-1", ME),
        "forget_flow": lambda: store.forget_flow(KEY, "billing-1", ME, state_token="t1"),
        "read_lease": lambda: store.read_lease(KEY),
        "take_lease": lambda: store.take_lease(KEY, lease, expected=None),
        "renew_lease": lambda: store.renew_lease(KEY, lease),
        "release_lease": lambda: store.release_lease(KEY, "l"),
        "list_ownership": lambda: store.list_ownership(KEY),
        "claim_ownership": lambda: store.claim_ownership([claim]),
        "announce": lambda: store.announce(KEY),
        "drop_group": lambda: store.drop_group(KEY),
    }


def begin(store: Ownership) -> None:
    """A state and a bound flow."""
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    store.bind(KEY, RECORD, replaces=None)


def token_of(store: Ownership) -> str | None:
    """The state's token."""
    found = store.read_state(KEY)
    return found.token if isinstance(found, StateDocument) else None
