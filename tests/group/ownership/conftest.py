"""The ownership stores under test: one fixture that is each in turn, opened by as many users as a test needs."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partq_spark.group.model import Delivery, FlowRecord, GroupKey
from partq_spark.group.ownership import Beat, Ownership, open_ownership
from partq_spark.objects import ObjectStore, open_store
from partq_spark.objects.azure_access import CONNECTION_STRING
from tests.group.ownership.redis_servers import an_object_store
from tests.support.ownership import OwnershipServer
from tests.support.servers import Azurite, RedisServer

KEY = GroupKey("default", "orders", "billing")
"""A group for tests that have a store of their own; in a `World` each test has another."""

FOLDER = "default/orders/billing/ownership/"
"""Where it lies, if ownership is objects."""

_KINDS = [
    "memory",
    "objects-local",
    pytest.param("objects-azure", marks=pytest.mark.azurite),
    pytest.param("redis", marks=pytest.mark.redis),
]


class World:
    """One store, and a group in it that nobody else uses. `open` gives another user's view of it."""

    def __init__(self, kind: str, open_one: Callable[[GroupKey | None], Ownership]) -> None:
        self.kind = kind
        self.key = GroupKey("default", "orders", f"billing-{secrets.token_hex(4)}")
        self._open_one = open_one
        self._opened: list[Ownership] = []

    @property
    def has_messages(self) -> bool:
        """Whether news come by themselves; otherwise everybody has to look."""
        return not self.kind.startswith("objects")

    def open(self, group: GroupKey | None = None) -> Ownership:
        """Another user: a coordinator, or a flow of `group`."""
        store = self._open_one(group)
        self._opened.append(store)
        return store

    def close(self) -> None:
        """Close what was opened."""
        for store in self._opened:
            store.close()


@pytest.fixture(params=_KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Every store, empty."""
    kind: str = request.param
    if kind == "memory":
        server = OwnershipServer()
        made = World(kind, server.open)
    elif kind == "redis":
        redis_server: RedisServer = request.getfixturevalue("redis_server")
        beside = an_object_store()
        made = World(kind, lambda group: open_ownership(redis_server.url, store=beside, group=group))
    else:
        if kind == "objects-azure":
            azurite: Azurite = request.getfixturevalue("azurite")
            monkeypatch.setenv(CONNECTION_STRING, azurite.connection_string)
            url = azurite.fresh_url()
        else:
            url = f"file://{tmp_path}/store"
        objects: ObjectStore = open_store(url, retry_timeout_s=0)
        made = World(kind, lambda group: open_ownership("store", store=objects, group=group))
    yield made
    made.close()


@pytest.fixture
def store(world: World) -> Ownership:
    """One user of it."""
    return world.open()


@pytest.fixture
def key(world: World) -> GroupKey:
    """Its group."""
    return world.key


_instances = itertools.count(1)


def a_record(flow: str = "billing-1", instance: str | None = None, **deliveries: Delivery) -> FlowRecord:
    """A record that is bound, of an instance of its own; `p3=delivery(…)` is what it did with partition 3."""
    return FlowRecord(
        flow=flow,
        instance=instance or f"{next(_instances):016x}",
        queue_id="0123456789abcdef",
        incarnation="life",
        bound=True,
        session_timeout_s=10.0,
        mapping={7: 3},
        deliveries={int(name[1:]): one for name, one in deliveries.items()},
    )


def last_beat(store: Ownership, key: GroupKey, flow: str = "billing-1") -> Beat | None:
    """What a bind of that name has to present as `replaces`."""
    found = store.read_flow(key, flow)
    return found[1] if found is not None else None


def delivery(delivered: int, acknowledged: int = 0, epoch: int = 1) -> Delivery:
    """How far a flow is."""
    return Delivery(epoch=epoch, delivered=delivered, acknowledged=acknowledged)


def together(action: Callable[[int], None], count: int) -> None:
    """`action(0)`, `action(1)` … in so many threads, released at once; fails if one does."""
    barrier = threading.Barrier(count)
    failed: list[BaseException] = []

    def run(which: int) -> None:
        try:
            barrier.wait(10)
            action(which)
        except BaseException as error:  # noqa: BLE001 - shown to the test
            failed.append(error)

    threads = [threading.Thread(target=run, args=(which,)) for which in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed, failed
