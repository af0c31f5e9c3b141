"""Ownership as objects, with answers that are lost on their way from a real Azurite."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.group.model import Lease, OwnershipRecord
from partq_spark.group.ownership import StateDocument
from tests.group.ownership.conftest import KEY, a_record, delivery
from tests.objects.conftest import azure_store
from tests.support.ownership import in_objects
from tests.support.proxy import Fault, Proxy
from tests.support.servers import Azurite


@pytest.fixture
def proxy(azurite: Azurite) -> Iterator[Proxy]:
    """A proxy before it."""
    with Proxy(azurite.port).running() as made:
        yield made


def lose_answer(proxy: Proxy, path: str, act: Callable[[], object]) -> None:
    """The service does it, and the call ends as unknown."""
    left = [1]
    proxy.next_fault = lambda seen: (
        Fault.LOSE_ANSWER if seen.method == "PUT" and path in seen.path and left and left.pop() else None
    )
    with pytest.raises(Unavailable):
        act()
    assert not left


@pytest.mark.azurite
def test_a_lost_answer_is_settled_by_reading_or_repeating(
    azurite: Azurite, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = azure_store(azurite, monkeypatch, port=proxy.port)
    store, other = in_objects(objects), in_objects(objects)
    record = a_record()
    me = record.instance
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    lose_answer(proxy, "/state", lambda: store.swap_state(KEY, b"{}", token="t2", expected="t1"))
    found = store.read_state(KEY)
    assert isinstance(found, StateDocument)
    assert found.token == "t2"
    for path in ("/flows/", "/beats/"):
        lose_answer(proxy, path, lambda: store.bind(KEY, record, replaces=None))
    store.bind(KEY, record, replaces=None)
    assert other.read_flows(KEY) == {"billing-1": record}

    for number, path in enumerate(("/flows/", "/beats/")):
        new = {1: delivery(10 + number)}
        lose_answer(proxy, path, lambda: store.deliver(KEY, "billing-1", me, new, state_token="t2"))  # noqa: B023
        assert store.deliver(KEY, "billing-1", me, new, state_token="t2")
        assert other.read_flows(KEY)["billing-1"].deliveries == new
        lose_answer(proxy, path, lambda: store.report(KEY, "billing-1", me, {1: delivery(1)}))
        store.report(KEY, "billing-1", me, {1: delivery(1)})
        assert other.read_flows(KEY)["billing-1"].deliveries == {1: delivery(1)}
    lose_answer(proxy, "/beats/", lambda: store.beat(KEY, "billing-1", me))
    assert store.beat(KEY, "billing-1", me) == "t2"

    lease = Lease(token="l", name="n", beat=0)
    lose_answer(proxy, "/leader", lambda: store.take_lease(KEY, lease, expected=None))
    held = store.read_lease(KEY)
    assert held is not None
    assert held.lease == lease
    lose_answer(proxy, "/leader", lambda: store.renew_lease(KEY, Lease(token="l", name="n", beat=1)))
    assert store.renew_lease(KEY, Lease(token="l", name="n", beat=2)).state_token == "t2"
    objects.close()


@pytest.mark.azurite
@pytest.mark.conformance("OWN-02")
def test_a_claim_whose_answer_is_lost_counts_as_not_claimed(
    azurite: Azurite, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = azure_store(azurite, monkeypatch, port=proxy.port)
    store = in_objects(objects)
    claims = [
        OwnershipRecord(key=KEY, partition=number, owner=None, epoch=1, version="", modified="") for number in range(3)
    ]
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    left = [1]
    proxy.next_fault = lambda seen: (
        Fault.LOSE_ANSWER if seen.method == "PUT" and "ownership/1" in seen.path and left and left.pop() else None
    )
    assert sorted(store.claim_ownership(claims)) == [0, 2]
    found = store.list_ownership(KEY)
    assert sorted(found) == [0, 1, 2]
    assert sorted(store.claim_ownership([found[1]])) == [1]
    objects.close()
