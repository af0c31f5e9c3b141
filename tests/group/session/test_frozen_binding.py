"""A flow that binds may be frozen in the middle of it, and find another world when it wakes."""

from __future__ import annotations

import pytest

from partq_spark.base.effects import Effects
from partq_spark.group.binding import Binder
from partq_spark.group.model import Delivery, FlowRecord, GroupKey
from partq_spark.group.ownership import Beat
from tests.group.session.world import KEY, QUEUE_ID
from tests.support.ownership import MemoryOwnership, OwnershipServer


@pytest.mark.parametrize("frozen_at", [1, 2])
def test_deliveries_made_while_the_one_who_binds_was_frozen_are_kept(frozen_at: int) -> None:
    """It reads the former instance's record, is frozen before it hears of it, and goes on when that one has delivered
    and left.
    """
    server = OwnershipServer()
    former = server.open(KEY)
    former.bind(KEY, a_record(former, "i1"), replaces=None)
    now_s = [0.0]
    looks: list[str] = []

    class Slow(MemoryOwnership):
        def read_flow(self, key: GroupKey, flow: str) -> tuple[FlowRecord, Beat] | None:
            found = super().read_flow(key, flow)
            looks.append(flow)
            if len(looks) == frozen_at:
                now_s[0] = 60.0
                former.report(KEY, "a", "i1", {0: Delivery(epoch=1, delivered=50, acknowledged=0)})
                former.unbind(KEY, "a", "i1")
            return found

    binder = Binder(
        Slow(server, group=KEY),
        KEY,
        QUEUE_ID,
        "a",
        session_timeout_s=5.0,
        effects=Effects(now_s=lambda: now_s[0], sleep=lambda _: None),
    )
    binder.bind({}, {})
    found = former.read_flow(KEY, "a")
    assert found is not None
    assert found[0].deliveries == {0: Delivery(epoch=1, delivered=50, acknowledged=0)}


def test_deliveries_made_between_the_last_look_and_the_bind_are_kept() -> None:
    """Nobody had the name at the look; somebody has had it, delivered and left when the bind arrives."""
    server = OwnershipServer()
    twin = server.open(KEY)
    binds: list[str] = []

    class Slow(MemoryOwnership):
        def bind(self, key: GroupKey, record: FlowRecord, *, replaces: Beat | None) -> None:
            if not binds:
                binds.append("the twin's")
                twin.bind(KEY, a_record(twin, "i1"), replaces=None)
                twin.report(KEY, "a", "i1", {0: Delivery(epoch=1, delivered=50, acknowledged=0)})
                twin.unbind(KEY, "a", "i1")
            super().bind(key, record, replaces=replaces)

    Binder(
        Slow(server, group=KEY), KEY, QUEUE_ID, "a", session_timeout_s=5.0, effects=Effects(sleep=lambda _: None)
    ).bind({}, {})
    found = twin.read_flow(KEY, "a")
    assert found is not None
    assert found[0].instance != "i1"
    assert found[0].deliveries == {0: Delivery(epoch=1, delivered=50, acknowledged=0)}


def a_record(store: MemoryOwnership, instance: str) -> FlowRecord:
    """A bound flow that has nothing."""
    return FlowRecord(
        flow="a",
        instance=instance,
        queue_id=QUEUE_ID,
        incarnation=store.incarnation(),
        bound=True,
        session_timeout_s=5.0,
    )
