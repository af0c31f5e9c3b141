"""Queries whose Spark checkpoint is older than what they have done, or that keep no checkpoints: nothing is left out,
and what comes again is marked.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.scenarios.stage import OWNERSHIPS, Stage, again, begun


def unowned(stage: Stage) -> Callable[[], bool]:
    return lambda: stage.owner(0)[0] is None and stage.owner(1)[0] is None


# --- checkpoints=none -------------------------------------------------------------------------------------------------


@OWNERSHIPS
@pytest.mark.parametrize("restarts", [1, 2])
def test_without_checkpoints_an_unfinished_batch_is_not_skipped(stage: Stage, ownership: str, restarts: int) -> None:
    """Its partitions have moved on when it is repeated; and perhaps the repetition is killed as soon as it is done."""
    query = stage.query("left", checkpoints="none", ownership=ownership)
    query.begun()
    stage.publish(3, 3)
    query.drain()
    stage.publish(4, 4)
    query.plan()
    query.deliver()
    query.kill()
    if ownership == "none":
        begun(stage.query("right", checkpoints="none", ownership=ownership))[0].plan()
    else:
        stage.until(unowned(stage))
    seen = len(query.rows)
    query.start()
    assert query.deliver() == []
    query.commit()
    for _ in range(restarts - 1):
        query.kill().start()
    stage.publish(1, 1)
    stage.until(lambda: query.trigger() or len(query.rows) == seen + 10)
    assert sorted(row[:2] for row in query.rows[seen:]) == [(p, offset) for p in (0, 1) for offset in range(3, 8)]
    assert {row.marked for row in query.rows[seen:] if row.offset < 7} == {True}


# --- older copies of Spark's checkpoint -------------------------------------------------------------------------------


@OWNERSHIPS
@pytest.mark.conformance("HAN-03")
@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("checkpoints", ["none", "store"])
def test_after_an_older_spark_checkpoint_what_comes_again_is_marked(
    single: Stage, ownership: str, checkpoints: str, is_killed: bool
) -> None:
    """Also what Spark forgot by itself (`asyncProgressTrackingEnabled`)."""
    kept = {"checkpointInterval": "1h"} if checkpoints == "store" else {}
    query = single.query("left", ownership=ownership, checkpoints=checkpoints, **kept).begun()
    for _ in range(3):
        single.publish(5)
        query.trigger()
    (query.kill if is_killed else query.stop)()
    query.forget(2)  # the copy that comes back knows of the first five
    single.publish(5)
    query.start().drain()
    assert query.rows[15:25] == again(5, 15)
    assert [row.offset for row in query.rows[25:]] == [15, 16, 17, 18, 19]


def test_alone_a_clean_end_leaves_exact_marks(single: Stage) -> None:
    """And one that was killed leaves no word of how far it came: what is there when it comes back may be repeated."""
    query = single.query("left", ownership="none").begun(5).drain().stop()
    single.publish(5)
    query.start().drain()
    assert {row.marked for row in query.rows} == {False}
    query.kill()
    single.publish(5)
    query.start().drain()
    single.publish(5)
    query.drain()
    assert [row.offset for row in query.rows if row.marked] == [10, 11, 12, 13, 14]
