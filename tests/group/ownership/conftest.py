"""What tests of ownership over every kind of documents write into it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from partq_spark.group.model import FlowRecord, GroupKey, Lease, OwnershipRecord, Progress
from partq_spark.group.ownership import Ownership, StateDocument
from tools.servers import RedisServer, running

KEY = GroupKey("default", "orders", "billing")
"""The group of tests that have a store of their own."""

_instances = itertools.count(1)


def a_record(flow: str = "billing-1", instance: str | None = None, **progress: Progress) -> FlowRecord:
    """What a flow says that is bound, of an instance of its own; `p3=Progress(…)`: how far it is with partition 3."""
    return FlowRecord(
        flow=flow,
        instance=instance or f"{next(_instances):016x}",
        queue_id="0123456789abcdef",
        bound=True,
        session_timeout_s=10.0,
        mapping={7: 3},
        progress={int(name[1:]): one for name, one in progress.items()},
    )


def last_beat(store: Ownership, key: GroupKey, flow: str = "billing-1") -> str | None:
    """What a bind of that name has to present as `replaces`."""
    found = store.read_flow(key, flow)
    return found.token if found is not None else None


RECORD = a_record()
"""Of the flow `billing-1`, of the instance `ME`."""

ME = RECORD.instance


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of this test's own."""
    with running(RedisServer()) as made:
        yield made


def verbs(store: Ownership) -> dict[str, Callable[[], object]]:
    """Every call of the contract but `wait_news`, as it would be done on a group that is running."""
    lease = Lease(token="l", name="n", beat=1)
    claim = OwnershipRecord(partition=0, owner=None, epoch=1)
    return {
        "read_state": lambda: store.read_state(KEY),
        "swap_state": lambda: store.swap_state(KEY, b"{}", token="t2", expected="t1"),
        "read_flows": lambda: store.read_flows(KEY),
        "read_flow": lambda: store.read_flow(KEY, "billing-1"),
        "bind": lambda: store.bind(KEY, RECORD, replaces=None),
        "beat": lambda: store.beat(KEY, RECORD),
        "unbind": lambda: store.unbind(KEY, "billing-1", ME),
        "forget_flow": lambda: store.forget_flow(KEY, "billing-1", ME, state_token="t1"),
        "read_lease": lambda: store.read_lease(KEY),
        "take_lease": lambda: store.take_lease(KEY, lease, expected=None),
        "renew_lease": lambda: store.renew_lease(KEY, lease),
        "release_lease": lambda: store.release_lease(KEY, "l"),
        "list_ownership": lambda: store.list_ownership(KEY),
        "claim_ownership": lambda: store.claim_ownership(KEY, [claim]),
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
