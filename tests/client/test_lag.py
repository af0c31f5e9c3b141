"""How old the oldest message is that a group has not acknowledged (`lag_s`), against when messages were published."""

from __future__ import annotations

import time
from typing import Any

import pytest

from partq_spark.log.queue import QueueLog
from tests.client.conftest import Make, acknowledged


@pytest.mark.parametrize("compacted", [False, True])
def test_it_is_the_age_of_the_first_message_that_is_there_and_not_acknowledged(make: Make, compacted: bool) -> None:
    """By a real clock, within a second."""
    queue = make()
    for number in range(6):
        with queue.publisher() as publisher:
            for each in range(4):
                publisher.send(f"{number}.{each}", key=f"k{each}")
    if compacted:
        assert queue.compact(min_age_s=0).steps
    queue.create_group("billing", starting="earliest")
    ends = [each.next for each in queue.describe().partitions]
    for part in (0.0, 0.4, 0.8, 1.0):
        offsets = {partition: int(part * end) for partition, end in enumerate(ends)}
        acknowledged(queue, "billing", offsets)
        found = queue.status("billing").partitions
        now_s = time.time()
        for view, (partition, offset) in zip(found, offsets.items(), strict=True):
            behind = [m.timestamp.timestamp() for m in queue.browse(partition=partition) if m.offset >= offset]
            assert view.lag == ends[partition] - offset == len(behind)
            assert view.lag_s == pytest.approx(now_s - min(behind, default=now_s), abs=1)
    assert [view.lag_s for view in queue.status("billing").partitions] == [0.0, 0.0]


def test_of_many_compacted_partitions_the_rest_are_at_most_too_old(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(partitions=40)
    for _ in range(8):
        with queue.publisher() as publisher:
            for number in range(200):
                publisher.send(b"x", key=str(number))
    assert queue.compact(min_age_s=0).steps
    queue.create_group("billing", starting=dict.fromkeys(range(40), 2))
    times, asked = QueueLog.times_us, list[object]()

    def counted(queue: QueueLog, *given: Any) -> Any:
        asked.append(given)
        return times(queue, *given)

    oldest = {m.partition: m.timestamp.timestamp() for m in queue.browse() if m.offset == 2}
    monkeypatch.setattr(QueueLog, "times_us", counted)
    ages = {each.partition: each.lag_s for each in queue.status("billing").partitions}
    now_s = time.time()
    assert len(asked) == 16, "of forty"
    for partition, then_s in oldest.items():
        assert now_s - then_s - 1 < (ages[partition] or 0) < 60
