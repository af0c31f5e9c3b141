"""A batch under a number that its writer has used: a repetition however its rows lie, or refused; never dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from partq_spark.log import admin, housekeeping, repetition, writers
from partq_spark.log.destinations import StagedSegment, stage_of
from partq_spark.log.fanout import publish_tasks
from partq_spark.log.names import LogSizes
from partq_spark.log.publish import PublishResult
from partq_spark.log.queue import QueueLog
from partq_spark.log.repetition import BatchRefused
from partq_spark.log.staging import Stager
from partq_spark.log.writers import PublishIdentity
from tests.log import typed
from tests.log.queues import HOUR_US, Row, World, all_steps, batch_of, head_of, read, read_flat, rounds, send, values
from tests.log.typed import Row as TypedRow

pytestmark = pytest.mark.conformance("DIS-10")

ROWS: list[Row] = [(None if number % 3 else f"k{number % 5}", b"%d" % (number % 90)) for number in range(100)]


def of(batch: int, writer: str = "query") -> PublishIdentity:
    return PublishIdentity(writer=writer, batch=batch, owner="query")


def tasks_of(queue: QueueLog, *rows: Sequence[Row], seed: str = "s", compression: str = "lz4") -> list[StagedSegment]:
    stage = stage_of(queue.refresh())
    made = []
    for number, each in enumerate(rows):
        with Stager(queue.store, stage, seed=f"{seed}/{number}", compression=compression, run_bytes=700) as stager:
            stager.add(batch_of(each))
            segment = stager.finish()
        made += [segment] if segment is not None else []
    return made


def put(world: World, batch: int, *rows: Sequence[Row], **how: str) -> PublishResult:
    """By a process that knows nothing of the queue."""
    queue = world.handle()
    return publish_tasks(queue, tasks_of(queue, *rows, **how), of(batch), seed="s")


def older(world: World) -> None:
    """Others publish so much that the batch leaves the head; what was is compacted."""
    for number in range(40):
        send(world.handle(), values(1000 + number))
    world.clock.now_us += HOUR_US
    all_steps(world.handle())


CHANGES: dict[str, Callable[[World], object]] = {
    "nothing": lambda world: None,
    "resized": lambda world: admin.alter_queue(world.handle(), partitions=7),
    "resized to one": lambda world: admin.alter_queue(world.handle(), partitions=1),
    "compacted": older,
    "others went on": lambda world: [send(world.handle(), values(n), of(n, "other")) for n in range(1, 9)],
}


@pytest.fixture(autouse=True)
def small(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that grows deep, and rows that are compared in shares."""
    world.sizes = LogSizes(inline_entries=4, fan_out=3, head_writers=4)
    monkeypatch.setattr(repetition, "MOST_DIGESTS", 40)


AGAIN: dict[str, tuple[Sequence[Sequence[Row]], bool]] = {
    "the same": ([ROWS], True),
    "another order": ([ROWS[::-1]], True),
    "other tasks": ([ROWS[:13], ROWS[60:], ROWS[13:60]], True),
    "fewer rows": ([ROWS[:13], ROWS[50:]], True),
    "one row": ([ROWS[99:]], True),
    "one more": ([ROWS[:50], [("k1", b"new"), *ROWS[50:]]], False),
    "one row once more": ([ROWS[:50], [ROWS[7], *ROWS[50:]]], False),
    "all others": ([[(key, b"new") for key, _ in ROWS]], False),
    "another key": ([[("another", ROWS[0][1])]], False),
}


@pytest.mark.conformance("DIS-09")
@pytest.mark.parametrize(("again", "is_repetition"), AGAIN.values(), ids=AGAIN)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_repetition_is_one_however_its_rows_lie_and_a_new_row_is_refused(
    world: World, change: Callable[[World], object], again: Sequence[Sequence[Row]], is_repetition: bool
) -> None:
    world.create(4)
    first = put(world, 5, ROWS)
    change(world)
    before = head_of(world.store)
    for how in ({}, {"seed": "another"}, {"compression": "zstd"}):
        if is_repetition:
            done = put(world, 5, *again, **how)
            assert (done.duplicate, done.rows, done.sequence) == (True, 0, first.sequence)
        else:
            with pytest.raises(BatchRefused, match="that row is not among those that were published under it"):
                put(world, 5, *again, **how)
    assert head_of(world.store) == before
    assert not put(world, 6, *again).duplicate
    with pytest.raises(BatchRefused, match="the last batch is 6, and the numbers of a writer only grow"):
        put(world, 5, *again)


def test_what_was_trimmed_and_collected_in_part_is_compared_as_far_as_it_is_there(world: World) -> None:
    queue = world.create(2)
    rows: list[Row] = [(f"k{number}", b"%d" % number) for number in range(40)]
    put(world, 5, rows)
    send(queue, values(1))
    there = read(queue)[1]
    housekeeping.trim(queue, (queue.refresh().next[0], 0))
    older(world)
    rounds(world, 4)
    left = [row for row in rows if row[1] in there]
    assert put(world, 5, left[::-1]).duplicate
    with pytest.raises(BatchRefused, match="as far as they have not been trimmed"):
        put(world, 5, rows[::-1])
    housekeeping.trim(queue, queue.refresh().next)
    with pytest.raises(BatchRefused, match="is trimmed, so nobody can compare the rows"):
        put(world, 5, left[::-1])


DDL = (
    "id INT, name STRING, total DECIMAL(9,2), at TIMESTAMP, x DOUBLE, tags ARRAY<STRUCT<k: STRING, n: BIGINT>>, "
    "m MAP<STRING, FLOAT>"
)


def typed_rows(*numbers: int) -> list[TypedRow]:
    return [
        {
            "id": None if n % 4 == 0 else n,
            "name": f"n{n}",
            "total": Decimal(n) / 100,
            "at": datetime(1 if n == 3 else 2026, 1, 1, tzinfo=UTC),
            "x": float("nan") if n == 5 else n / 3,
            "tags": [{"k": None, "n": n}, None],
            "m": [("a", float(n))] if n else None,
        }
        for n in numbers
    ]


@pytest.mark.conformance("TYP-06")
@pytest.mark.parametrize("altered", [False, True])
def test_rows_of_a_typed_queue_are_compared_whichever_version_they_have(world: World, altered: bool) -> None:
    """With their headers, which are part of them."""
    queue = typed.create(world, DDL)
    rows = typed_rows(*range(30))

    def put_typed(*tasks: Sequence[TypedRow], named: bool = True, headers: Sequence[Any] | None = None) -> bool:
        stage = stage_of(queue.refresh())
        made = [each for task in tasks for each in typed.staged(queue, stage, task, headers=headers)]
        return publish_tasks(world.handle(), made, of(1) if named else None, seed="s").duplicate

    assert not put_typed(rows)
    if altered:
        admin.alter_queue(queue, add_columns="coupon STRING", widen="id BIGINT, total DECIMAL(12,4)")
        for _ in range(20):
            put_typed(typed_rows(1, 2), named=False)
        typed.compact_all(world, queue)
    assert put_typed(rows[::-1])
    assert put_typed(rows[3:9], rows[20:])
    assert put_typed(rows[:2], headers=[None, None])
    with pytest.raises(BatchRefused, match="headers="):
        put_typed(rows[:2], headers=[None, [{"key": "h", "value": b"1"}]])
    for name, other in (("total", Decimal("7.77")), ("x", 0.5), ("m", []), ("tags", None), ("name", None)):
        with pytest.raises(BatchRefused, match="First such row: id=9, "):
            put_typed([*rows[:9], {**rows[9], name: other}])


def test_what_a_person_says_counts_until_the_writer_goes_on(world: World) -> None:
    queue = world.create(1)
    for batch in range(1, 6):
        put(world, batch, values(batch))
    assert writers.resolve(queue, "query", 3, published=True, by="ops@host")
    assert writers.resolve(queue, "query", 3, published=True, by="another@host"), "said twice"
    with pytest.raises(BatchRefused):
        put(world, 2, values(20))
    for batch in (3, 4, 5):
        done = put(world, batch, values(batch * 10))
        assert done.duplicate
        assert done.resolved is not None
        assert (done.resolved.by, done.resolved.published) == ("ops@host", True)
    assert not put(world, 6, values(6)).duplicate
    with pytest.raises(BatchRefused):
        put(world, 5, values(50))
    assert read_flat(queue) == [b"1", b"2", b"3", b"4", b"5", b"6"]

    assert writers.resolve(queue, "query", 4, published=False, by="ops@host")
    assert not put(world, 4, values(40)).duplicate
    assert put(world, 4, values(40)).duplicate, "exactly once from then on"
    with pytest.raises(BatchRefused):
        put(world, 4, values(41))
    assert [put(world, batch, values(batch * 10)).duplicate for batch in (5, 6, 6, 7)] == [False, False, True, False]
    assert read_flat(queue)[6:] == [b"40", b"50", b"60", b"70"]
    assert [(said.batch, said.published) for said in queue.head.resolutions] == [(4, False)]


def test_a_resolution_needs_a_number_that_was_used_and_few_are_kept(world: World) -> None:
    queue = world.create(1)
    names = [f"w{number}" for number in range(writers.MOST_RESOLUTIONS + 5)]  # some of whose records go to pages
    for name in names:
        send(queue, values(1), of(1, name))
    assert [writers.resolve(queue, name, 1, published=False, by="ops") for name in names] == [True] * len(names)
    assert not writers.resolve(queue, "w0", 2, published=True, by="ops")
    assert not writers.resolve(queue, "nobody", 1, published=True, by="ops")
    assert [each.writer for each in queue.refresh().resolutions] == names[5:]


def test_the_refusal_names_the_row_and_how_to_resolve_it(world: World) -> None:
    world.create(1)
    queue = world.handle()
    identity = PublishIdentity.of_transaction("night job", 3, "q")
    publish_tasks(queue, tasks_of(queue, values(1)), identity, seed="s")
    with pytest.raises(BatchRefused) as refused:
        publish_tasks(queue, tasks_of(queue, values(2)), replace(identity, owner=None), seed="s")
    told = str(refused.value)
    assert "batch 3 of writer 'night job'" in told
    assert "key='key', value=b'2'" in told
    where = "--store memory: --namespace default --yes"
    assert f"`partq queue resolve orders --writer 'night job' --batch 3 {where} --as new" in told
