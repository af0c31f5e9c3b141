"""Groups that are removed, and made again under their name: whoever belongs to the former one ends and says so, nothing
of it is taken for the new one's, and nothing is left out silently.
"""

from __future__ import annotations

import pytest

import partq
from tests.scenarios.stage import GROUP, OWNERSHIPS, Query, Stage, begun, delivered

GONE = r"group default/orders/billing was removed"


def one(stage: Stage, flow: str | None = None, **options: str) -> Query:
    return stage.query(flow, **{"ownership": "none", "startingOffsets": "latest", **options})


def made_again(stage: Stage, starting: str = "latest") -> None:
    stage.remove_group()
    stage.do(lambda queue: queue.create_group(GROUP, starting=starting))


def groups(stage: Stage) -> list[str]:
    return [each.group for each in stage.do(lambda queue: queue.groups())]


def night(stage: Stage, **options: str) -> Query:
    """A job that has read the first (4, 4) messages and ended; (2, 2) more came since, and its group was removed."""
    query = one(stage, "nightly", **options).begun(4, 4).drain().stop()
    stage.remove_group()
    stage.publish(2, 2)
    return query


# --- who starts again -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_cut_off", [False, True])
@pytest.mark.parametrize("options", [{}, {"checkpoints": "none"}, {"ackMode": "manual"}])
def test_a_job_whose_group_was_removed_is_refused_and_nothing_is_skipped(
    alone: Stage, options: dict[str, str], is_cut_off: bool
) -> None:
    """A batch that was not complete counts for nothing. By hand nobody knows what is dealt with: no place is named."""
    query = night(alone, **options)
    if is_cut_off:
        query.forget(len(query.log), commits=query.committed - 1)
    with pytest.raises(partq.Invalid, match=GONE) as refused:
        query.start(available_now=True).trigger()
    starting = '{"0":0,"1":0}' if is_cut_off else '{"0":4,"1":4}'
    for part in ("flow 'nightly'", "new checkpoint location"):
        assert part in str(refused.value)
    assert (f"startingOffsets={starting}" in str(refused.value)) == ("ackMode" not in options)
    assert groups(alone) == [], "it was not made anew"
    if "ackMode" not in options and not is_cut_off:
        again = one(alone, startingOffsets=starting, **options).begun().drain()
        assert delivered(query, again) == alone.everything


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_query_that_has_nothing_but_its_name_is_refused_too(alone: Stage, is_stopped: bool) -> None:
    """Where it was to begin was resolved when the group was made. Also if it has not bound when the group goes."""
    query = one(alone).begun()
    if is_stopped:
        query.stop()
    alone.remove_group()
    alone.publish(3, 3)
    with pytest.raises(partq.Invalid, match=GONE):
        (query.start() if is_stopped else query).trigger()
    assert groups(alone) == []


@pytest.mark.parametrize("options", [{}, {"checkpoints": "none"}, {"ackMode": "manual"}])
def test_a_group_that_somebody_made_again_is_not_the_one_that_it_was(alone: Stage, options: dict[str, str]) -> None:
    """The other's group begins at the end, and what came before it was never read by anybody."""
    query = night(alone, **options)
    begun(one(alone, "other", **options))[0].drain().stop()
    with pytest.raises(partq.Invalid, match=GONE):
        query.start().trigger()
    assert not any(row.offset >= 4 for row in query.rows)


def test_several_flows_that_start_again_are_all_refused(stage: Stage) -> None:
    """Each knows a part of the places; the first one must not make the group for the others."""
    queries = begun(stage.query("a"), stage.query("b"))
    for query in queries:
        query.run()
    stage.until(lambda: sorted(len(query.partitions) for query in queries) == [1, 1])
    stage.publish(4, 4)
    stage.until(lambda: delivered(*queries) == stage.everything)
    for query in queries:
        query.stop()
    stage.remove_group()
    stage.publish(2, 2)
    for query in queries:
        with pytest.raises(partq.Invalid, match=GONE) as refused:
            query.start().trigger()
        assert '":4}' in str(refused.value), "what it knows of its own partition"
        assert "startingOffsets={" not in str(refused.value), "it does not know the other's"
    assert groups(stage) == []


# --- who lives --------------------------------------------------------------------------------------------------------


@OWNERSHIPS
@pytest.mark.parametrize("for_s", [0.0, 15.0])
def test_a_query_whose_group_is_removed_ends_and_says_so(stage: Stage, ownership: str, for_s: float) -> None:
    """Also if its instance has ended when it goes on: nobody would ever answer the next one."""
    query = stage.query("a", ownership=ownership).begun().run()
    stage.publish(4, 4)
    stage.until(lambda: stage.offset(0) == 4)
    stage.remove_group(query, for_s=for_s)
    stage.until(lambda: query.failure is not None, 10.0)
    assert isinstance(query.failure, partq.Invalid)
    assert "group default/orders/billing was removed" in str(query.failure)
    assert not [name for name in stage.world.store._objects if "/ownership/beats/" in name], "it did not bind again"


@pytest.mark.parametrize("again", [True, False])
def test_who_takes_partitions_of_a_group_that_is_removed_meanwhile_says_nothing_in_the_next(
    alone: Stage, again: bool
) -> None:
    """A query alone has looked at the head, and takes its partitions when the group is another one, or none."""
    query = one(alone, "left", startingOffsets="earliest").begun(4, 4)
    held = alone.hold("swap", "checkpoint/0", by="left")
    going = query.asking(query._trigger)
    alone.until(lambda: held.is_waiting)
    alone.remove_group()
    if again:
        alone.do(lambda queue: queue.create_group(GROUP, starting="latest"))
    held.release()
    with pytest.raises((partq.Invalid, partq.Fenced), match="was removed"):
        going.result() and query.drain()
    assert query.rows == []
    query.kill()
    other = one(alone, "other").begun(1, 1).drain()
    assert (other.offsets(0), other.offsets(1)) == ([4], [4])


# --- the next one -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_group_made_again_begins_where_it_is_told_to_whatever_its_flows_remember(alone: Stage, starting: str) -> None:
    """What a flow knows at the same epoch counts as exact, so no epoch of the former group comes again."""
    query = one(alone, "a", startingOffsets="earliest").begun(4, 4).drain()
    assert query.epochs == {0: 1, 1: 1}
    query.stop()
    alone.publish(2, 2)
    alone.remove_group()
    again = one(alone, "a", startingOffsets=starting).begun(1, 1).drain()
    assert again.offsets(0) == ([*range(7)] if starting == "earliest" else [6])
    assert again.epochs == {0: 3, 1: 3}
    assert {row.marked for row in again.rows} == {False}
