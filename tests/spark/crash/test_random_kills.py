"""SIGKILL of a publishing Spark driver at random instants, several times: one copy of each batch, in order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.crash.publishing import Publishing
from tests.support.messages import assert_published

KILLS = 2
QUEUES = ("one", "two", "three")  # three queries, so three instants a kill
FILES, ROWS = 10, 30
SEED = 20261120


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(500)
@pytest.mark.conformance("DIS-09")
def test_killed_at_random_instants(tmp_path: Path) -> None:
    instants = random.Random(SEED)
    publishing = Publishing(tmp_path, dict.fromkeys(QUEUES, 1), files=FILES, rows=ROWS)

    def commits() -> int:
        return sum(len(publishing.spark_commits(queue)) for queue in QUEUES)

    def more_than(seen: int) -> Callable[[], bool]:
        return lambda: commits() > seen

    for _ in range(KILLS):
        with publishing.life() as driver:
            driver.wait_until(more_than(commits()), "a batch")
            time.sleep(instants.uniform(0, 2))
            # The workers are not killed: they notice, and what they have in hand may still be published.
            driver.kill_driver()
        for queue in QUEUES:
            assert publishing.whole_files(queue) >= len(publishing.spark_commits(queue))
    assert commits() < len(QUEUES) * FILES, "everything was published before the last kill: give the queries more to do"

    with publishing.life() as driver:
        assert driver.wait_end() == 0, driver.tail()
    for queue in QUEUES:
        assert_published(publishing.url, queue, publishing.rows[queue])
