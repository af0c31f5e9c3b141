"""Queues that look after their storage, with real queries: a full one refuses, a compacted one reads as before."""

from __future__ import annotations

import pytest
from chispa import assert_df_equality

from partq_spark.base.timestamps import format_rfc3339
from partq_spark.log import admin, compaction
from partq_spark.log.model import QueueConfig
from tests.support.spark import Lab, ended, failure

pytestmark = pytest.mark.spark


@pytest.mark.conformance("DIS-09")
def test_a_query_fails_at_the_quota_and_publishes_exactly_once_after_it_was_raised(lab: Lab) -> None:
    lab.create("inbox", 1)
    lab.create("orders", 2, QueueConfig(quota_bytes=1))
    copy = lab.stream("inbox", startingOffsets="earliest", maxMessagesPerTrigger="10").select("key", "value")
    for publish in range(3):
        lab.publish("inbox", [("k", b"%d/%d" % (publish, n)) for n in range(10)])
    said = failure(lab.publisher(copy, "orders", "copy"))
    assert "queue 'orders'" in said
    assert "its quota is 1" in said
    assert "partq queue alter orders --quota-bytes N" in said
    assert len(lab.browse("orders")) == 10, "the first batch reached it"

    admin.alter_queue(lab.queue("orders"), quota_bytes=None)
    ended(lab.publisher(copy, "orders", "copy"))
    assert [message.value for message in lab.browse("orders")] == [message.value for message in lab.browse("inbox")]
    assert [entry.batch for entry in lab.head("orders").entries] == [0, 1, 2]


def test_a_compacted_queue_reads_as_before(lab: Lab) -> None:
    lab.create("orders", 2)
    for publish in range(80):
        lab.publish("orders", [(f"k{n}" if n % 2 else None, b"%d/%d" % (publish, n)) for n in range(3)])
    before = lab.read("orders", includeHeaders="true").persist()
    assert before.count() == 240
    middle = lab.browse("orders")[100].time_us
    done = compaction.compact(lab.queue("orders"), min_age_s=0.0)
    assert done is not None
    assert done.slices == 2
    assert_df_equality(lab.read("orders", includeHeaders="true"), before, ignore_row_order=True)
    consumer = lab.consumer()
    rows = consumer.run(lab.stream("orders", startingOffsets="earliest"))
    assert sorted((row.partition, row.offset, row.timestamp) for row in rows) == sorted(
        (row.partition, row.offset, row.timestamp) for row in before.collect()
    )
    since = lab.read("orders", startingTimestamp=format_rfc3339(middle))
    assert since.count() == sum(message.time_us >= middle for message in lab.browse("orders"))
