"""Who binds may be frozen in the middle of it, and find another world when it wakes."""

from __future__ import annotations

from partq_spark.flow.binding import Binder
from partq_spark.flow.effects import Effects
from partq_spark.flow.model import Delivery, FlowRecord, GroupKey
from partq_spark.flow.stores.api import Beat
from partq_spark.flow.stores.memory import MemoryOwnership, MemoryServer
from tests.flow.session.world import KEY, QUEUE_ID


def test_deliveries_made_while_the_one_who_binds_was_frozen_are_kept() -> None:
    """It reads the former instance's record, is frozen, and goes on when that one has delivered and left."""
    server = MemoryServer()
    former = server.open(KEY)
    record = FlowRecord(
        flow="a",
        instance="i1",
        queue_id=QUEUE_ID,
        incarnation=former.incarnation(),
        bound=True,
        session_timeout_s=5.0,
    )
    former.bind(KEY, record, replaces=None)
    now_s = [0.0]
    looks: list[str] = []

    class Slow(MemoryOwnership):
        """Frozen after its second look at the record, before it hears of it."""

        def read_flow(self, key: GroupKey, flow: str) -> tuple[FlowRecord, Beat] | None:
            found = super().read_flow(key, flow)
            looks.append(flow)
            if len(looks) == 2:
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
