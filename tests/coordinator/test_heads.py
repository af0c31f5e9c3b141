"""A coordinator leaves alone what is shared in another way than by its own ownership."""

from __future__ import annotations

from random import Random

import pytest

from coordinator.heads import Heads
from partq_spark.base.errors import Invalid
from partq_spark.group.model import GroupKey
from partq_spark.log import admin, groups
from partq_spark.objects.memory import MemoryStore


@pytest.mark.parametrize(
    ("ownership", "seen"),
    [
        ("redis://h:6379/0", {"undecided", "redis"}),
        ("rediss://h", {"undecided", "redis"}),
        ("store", {"undecided", "store"}),
    ],
)
def test_groups_that_are_shared_by_this_ownership_are_seen_and_those_of_which_nobody_said_it(
    ownership: str, seen: set[str]
) -> None:
    store = MemoryStore(clock=lambda: 0.0, rng=Random(1))
    queue = admin.create_queue(store, "default", "orders", 1)
    for kind in ("none", "store", "redis"):
        admin.create_group(queue, kind, [0], ownership="redis://elsewhere:1/0" if kind == "redis" else kind)
    admin.create_group(queue, "undecided", [0])
    heads = Heads(store, "default", ownership=ownership)
    heads.look("orders")
    assert {key.group for key in heads.groups()} == seen

    key = GroupKey("default", "orders", "undecided")
    groups.change_ownership(queue, "undecided", queue.head.groups["undecided"], "none")
    with pytest.raises(Invalid, match="is shared in another way now"):
        heads.now(key)
