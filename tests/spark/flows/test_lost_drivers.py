"""A Spark driver with a JVM of its own that is frozen, cut off, fenced and killed, beside a query that goes on (LOS-06,
LOS-07).

The other query is one of the shared session, so that one driver is enough. Each case begins and ends with both at work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from partq_spark.group.checkpoints import Checkpoint
from tests.cast.cable import Cable
from tests.spark.flows.conftest import GROUP, SESSION_S, Shared, flow_of
from tests.spark.flows.driver import Plan, Query, read_lines
from tests.spark.flows.test_handoffs import Gate
from tests.support.faults import Faults
from tests.support.processes import Program, readers_among, spark_environment
from tests.support.servers import RedisServer
from tests.support.spark import Consumer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.crash, pytest.mark.timeout(300)]

Make = Callable[..., Shared]
Place = tuple[int, int]
SCRIPT = Path(__file__).with_name("driver.py")
LONG_S = SESSION_S + 40.0
"""For a lost flow to be missed and its partitions to be taken over, on a busy machine."""


@dataclass(kw_only=True)
class Both:
    """Query `here` in this session, and query `there` of a driver; two partitions, one for each."""

    orders: Shared
    here: Consumer
    program: Program
    faults: Faults
    folder: Path
    published: int = 0

    @property
    def there(self) -> Consumer:
        """Only its Spark checkpoint."""
        return Consumer(checkpoint=self.folder / "there.checkpoint")

    def rows(self) -> list[tuple[int, int, bool]]:
        """What the driver's sink was given, in order."""
        lines = read_lines(self.folder / "there.rows")
        return [(p, offset, marked) for line in lines for p, offset, marked in line["rows"]]

    def everywhere(self) -> list[Place]:
        return sorted([(r.partition, r.offset) for r in self.here.rows] + [(p, o) for p, o, _ in self.rows()])

    def publish(self) -> None:
        """A message for each partition."""
        self.published += 1
        self.orders.publish((0, b"%d" % self.published), (1, b"%d" % self.published))

    def jvm(self) -> psutil.Process:
        (found,) = [process for process in self.program.family() if process.name() == "java"]
        return found

    def reader(self) -> psutil.Process:
        (found,) = readers_among(self.program.family())
        return found

    def work(self) -> None:
        """Both have one partition, get a message each, and acknowledge it."""
        wait_until(
            lambda: len(self.orders.shares()) == 2 and 1 in self.orders.shares().values(), "a share each", LONG_S
        )
        self.publish()
        self.program.wait_until(lambda: set(self.everywhere()) == set(self.orders.everything()), "the messages")
        self.program.wait_until(lambda: self.orders.offsets() == [self.published] * 2, "acknowledgements")


@pytest.fixture
def both(shared: Make, redis_server: RedisServer, tmp_path: Path) -> Iterator[tuple[Both, Cable]]:
    orders = shared(partitions=2, delay_s=0.5, handoff_s=2.0)
    faults = Faults(tmp_path / "faults")
    with Cable(redis_server.port) as cable:
        given = {
            "store": orders.lab.url,
            "group": GROUP,
            "ownership": f"redis://127.0.0.1:{cable.port}/0",
            "startingOffsets": "earliest",
            "sessionTimeout": f"{SESSION_S}s",
            "checkpointInterval": "0s",
        }
        plan = Plan(folder=str(tmp_path), queries={"there": Query(queue=orders.name, options=given, once=False)})
        environment = spark_environment(tmp_path, faults.environment)
        with Program.script(SCRIPT, plan, name="driver", folder=tmp_path, environment=environment) as program:
            here, _ = orders.start("here", checkpointInterval="0s")
            yield Both(orders=orders, here=here, program=program, faults=faults, folder=tmp_path), cable


@contextmanager
def stopped(victims: Sequence[psutil.Process]) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end."""
    for each in victims:
        each.suspend()
    try:
        yield
    finally:
        for each in victims:
            each.resume()


def taken_over(both: Both) -> dict[int, Checkpoint]:
    """Waits until the query here has everything, and has dealt with what is published now; the checkpoints then."""
    wait_until(lambda: both.orders.shares() == {flow_of(both.here): 2}, "the other's partition", LONG_S)
    both.publish()
    wait_until(lambda: both.orders.offsets() == [both.published] * 2, "all of it here", LONG_S)
    return dict(both.orders.checkpoints())


def goes_on_by_itself(both: Both, before: list[tuple[int, int, bool]], ends: int) -> None:
    """The driver comes back; of what moved meanwhile it has delivered nothing, nor taken anything back."""
    both.work()
    later = both.rows()[len(before) :]
    assert all(offset >= ends for _, offset, _ in later), "nothing of what had moved on"
    assert both.everywhere() == both.orders.everything(), "everything, once"
    assert read_lines(both.folder / "there.errors") == [], "the query never ended"


@pytest.mark.conformance("LOS-06", "LOS-07", "LOS-03", "LOS-04", "CHK-05")
def test_whatever_befalls_a_driver_the_other_takes_over_and_the_lost_one_does_nothing_further(
    both: tuple[Both, Cable],
) -> None:
    the, cable = both
    the.work()

    # The JVM is frozen, while its reader process lives on: the heartbeat ends all the same.
    before = the.rows()
    with stopped([the.jvm()]):
        moved = taken_over(the)
        assert the.rows() == before
    ends = the.published
    goes_on_by_itself(the, before, ends)
    assert all(now.offset >= ends for now in the.orders.checkpoints().values() if now.offset is not None)
    assert all(now.epoch >= moved[p].epoch for p, now in the.orders.checkpoints().items()), "none went back"

    # Its connection to Redis is cut. It says so, does nothing, and goes on when there is one again.
    before = the.rows()
    cable.pull()
    taken_over(the)
    assert the.rows() == before
    cable.plug()
    goes_on_by_itself(the, before, the.published)
    assert "nothing is delivered until the store answers again" in the.program.text()
    assert "the store answers again, going on" in the.program.text()

    # JVM and reader are frozen as the reader is about to write an acknowledgement. It writes late, and in vain.
    (mine,) = [p for p, flow in the.orders.owners().items() if flow == flow_of(the.there)]
    gate = Gate()
    gate.close()
    the.here.failing = gate
    the.faults.hold_flow("before", "acknowledge", the.orders.name)
    the.publish()
    the.program.wait_until(lambda: the.faults.held_flow("before", "acknowledge", the.orders.name), "the late write")
    with stopped([the.jvm(), the.reader()]):
        wait_until(lambda: the.orders.owners()[mine] == flow_of(the.here), "its partition, elsewhere", LONG_S)
        taken = the.orders.checkpoints()[mine]
        assert taken.offset == the.published - 1
    the.faults.release_flow("before", "acknowledge", the.orders.name)
    until_s = time.monotonic() + 1.5
    while time.monotonic() < until_s:
        now = the.orders.checkpoints()[mine]
        assert now.epoch >= taken.epoch
        if now.epoch == taken.epoch:
            assert (now.owner, now.offset) == (taken.owner, taken.offset), "written by who has lost it"
    gate.open()
    the.work()
    last = (mine, the.published - 2)
    assert the.everywhere() == sorted([*the.orders.everything(), last]), "once, but for what was not acknowledged"
    everywhere = [*the.rows(), *((row.partition, row.offset, row.redelivered) for row in the.here.rows)]
    assert sorted(marked for *place, marked in everywhere if tuple(place) == last) == [False, True]

    # kill -9 of the JVM ends the reader, and with it the heartbeat.
    reader = the.reader()
    the.jvm().kill()
    begun_s = time.monotonic()
    wait_until(lambda: not reader.is_running() or reader.status() == psutil.STATUS_ZOMBIE, "the reader's end", 10)
    taken_over(the)
    assert time.monotonic() - begun_s < SESSION_S + 20
