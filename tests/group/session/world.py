"""A batch for the loop in plain Python that tests of coordinators have."""

from __future__ import annotations

from partq_spark.group.claims import Claim
from tests.support.flow_loop import Batch


def batch_of(claim: Claim, end: int) -> Batch[int]:
    """What follows a claim's position, up to `end`; each message is its offset."""
    return Batch(
        partition=claim.partition,
        begin=claim.position,
        end=end,
        messages=range(claim.position, end),
        redelivered_below=claim.redelivered_below,
    )
