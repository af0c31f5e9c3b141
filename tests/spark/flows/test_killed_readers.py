"""Every durable step of a flow's reader is interrupted by SIGKILL once before and once after it, and recovered.

One driver is enough: it has a query for each kind of step, whose reader is held there and killed, and starts it again
on its Spark checkpoint. The Redis wants a password, which must not appear anywhere.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from partq_spark.log.model import QueueConfig
from tests.group.ownership.redis_servers import SpecialRedis
from tests.spark.flows.conftest import GROUP, SESSION_S, Shared, start_coordinator
from tests.spark.flows.driver import Plan, Query, read_lines
from tests.support.faults import Faults, Step, When
from tests.support.processes import Program, spark_environment
from tests.support.servers import free_port, running
from tests.support.spark import Lab

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.crash, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("driver.py")
STEPS: tuple[Step, ...] = ("group", "bind", "plan", "batch", "acknowledge", "fence")
TIMES: tuple[When, ...] = ("before", "after")
NOWHERE = "nowhere"
"""A query whose Redis does not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Killed:
    """A driver whose readers were killed at every step, and what came of it."""

    folder: Path
    program: Program
    faults: Faults
    password: str
    nowhere: str
    orders: dict[Step, Shared]
    victims: dict[tuple[When, Step], int]

    def batches(self, name: str) -> list[tuple[int, list[tuple[int, int, bool]]]]:
        """Of a query: batch id and rows (partition, offset, redelivered) of everything that its sink was given."""
        lines = read_lines(self.folder / f"{name}.rows")
        return [(line["batch"], [(p, o, marked) for p, o, marked in line["rows"]]) for line in lines]

    def errors(self, name: str) -> list[str]:
        return [str(line) for line in read_lines(self.folder / f"{name}.errors")]

    def missing(self, step: Step) -> set[tuple[int, int]]:
        there = {(p, offset) for _, rows in self.batches(step) for p, offset, _ in rows}
        return set(self.orders[step].everything()) - there


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    folder = tmp_path_factory.mktemp("killed-readers")
    password = f"hunter-{secrets.token_hex(8)}"
    lab = Lab(spark=None, folder=folder, url=f"file://{folder}/store")  # type: ignore[arg-type] # Spark is elsewhere
    faults = Faults(folder / "faults")
    with running(SpecialRedis("--requirepass", password)) as redis, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARTQ_REDIS_PASSWORD", password)
        nowhere = f"redis://127.0.0.1:{free_port()}/0"
        orders: dict[Step, Shared] = {}
        queries: dict[str, Query] = {}
        for step in STEPS:
            made = orders[step] = Shared(lab=lab, ownership=redis.url, name=step, partitions=2)
            lab.create(step, 2, QueueConfig(rebalance_delay_s=2.0, max_handoff_time_s=3.0))
            made.publish((0, b"a"), (1, b"b"), (0, b"c"))
            for when in TIMES:
                faults.hold_flow(when, step, step)
            queries[step] = Query(queue=step, options=options(made, step), once=False)
        queries[NOWHERE] = Query(
            queue="bind",
            options=options(orders["bind"], "bind") | {"ownership": nowhere, "retryTimeout": "1s"},
            once=True,
        )
        environment = spark_environment(folder, {**faults.environment, "PARTQ_REDIS_PASSWORD": password})
        plan = Plan(folder=str(folder), queries=queries)
        program = Program.script(SCRIPT, plan, name="driver", folder=folder, environment=environment)
        coordinator = start_coordinator(lab.url, redis.url, folder / "coordinator.log")
        try:
            with program:
                found = Killed(
                    folder=folder,
                    program=program,
                    faults=faults,
                    password=password,
                    nowhere=nowhere,
                    orders=orders,
                    victims={},
                )
                kill_everywhere(found)
                for made in orders.values():
                    made.publish((0, b"d"), (1, b"e"))
                program.wait_until(lambda: not any(found.missing(step) for step in STEPS), "all messages")
                program.wait_until(lambda: all(orders[step].offsets() == [3, 2] for step in STEPS), "acknowledgements")
                yield found
        finally:
            coordinator.kill()
            coordinator.wait(10)


def options(orders: Shared, step: Step) -> dict[str, str]:
    """Of the query whose reader is killed at that step: only one that is alone fences by itself."""
    shared = {"ownership": orders.ownership, "sessionTimeout": f"{SESSION_S}s"}
    return {
        "store": orders.lab.url,
        "group": GROUP,
        "startingOffsets": "earliest",
        "checkpointInterval": "0s",
        **({"ownership": "none"} if step == "fence" else shared),
    }


def kill_everywhere(killed: Killed) -> None:
    """The reader that comes to a point first is killed there, until all points have had their victim."""
    left = {(when, step) for when in TIMES for step in STEPS}

    def kill_who_is_there() -> bool:
        for when, step in sorted(left):
            if pid := killed.faults.held_flow(when, step, step):
                os.kill(pid, signal.SIGKILL)
                killed.victims[when, step] = pid
                left.remove((when, step))
        return not left

    killed.program.wait_until(kill_who_is_there, "somebody at every point")


@pytest.mark.parametrize("step", STEPS)
def test_a_reader_that_is_killed_before_and_after_a_step_loses_and_repeats_nothing(killed: Killed, step: Step) -> None:
    """Twice is only what is marked, and what Spark repeats with the same batch id."""
    assert len({killed.victims[when, step] for when in TIMES}) == 2
    assert len(killed.errors(step)) >= 2, "each of them ended the query"
    assert killed.missing(step) == set()
    unmarked: dict[tuple[int, int], set[int]] = defaultdict(set)
    for batch, rows in killed.batches(step):
        for partition, offset, marked in rows:
            if not marked:
                unmarked[partition, offset].add(batch)
    assert [place for place, batches in unmarked.items() if len(batches) > 1] == []
    for partition in (0, 1):
        found = [offset for _, rows in killed.batches(step) for p, offset, marked in rows if p == partition]
        first = list(dict.fromkeys(found))
        assert first == sorted(first), "in order"


@pytest.mark.conformance("CHK-03")
def test_checkpoints_are_read_by_a_reader_when_it_claims_its_partitions_and_at_no_other_time(killed: Killed) -> None:
    orders = killed.orders["bind"]
    before = killed.faults.reads("bind")
    last = before[-1].split()[1]
    assert before.count(f"load {last}") >= 2, "one for each claim"
    for _ in range(3):
        ends = [offset + 1 for offset in orders.lab.head("bind").next]
        orders.publish((0, b"more"), (1, b"more"))
        killed.program.wait_until(lambda ends=ends: orders.offsets() == ends, "acknowledgements")  # type: ignore[misc]
    time.sleep(1.0)
    assert killed.faults.reads("bind") == before


def test_a_redis_that_does_not_answer_at_the_start_is_named(killed: Killed) -> None:
    (said,) = killed.errors(NOWHERE)
    assert killed.nowhere in said
    assert killed.batches(NOWHERE) in ([], [(0, [])]), "no message without ownership"


def test_the_password_of_redis_is_nowhere_but_in_the_environment(killed: Killed) -> None:
    """Neither in errors, plans, progress and logs nor in a Spark checkpoint or the store."""
    assert "== Physical Plan ==" in killed.program.text()
    assert '"latestOffset"' in killed.program.text()
    searched: list[str] = []
    for path in killed.folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the driver is still at work
            if path.is_file():
                searched.append(path.name)
                assert killed.password.encode() not in path.read_bytes(), path
    assert {"driver.log", "coordinator.log", "bind.errors"} <= set(searched)
