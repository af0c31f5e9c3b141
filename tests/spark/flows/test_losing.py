"""What a group loses while its queries run: readers and drivers that freeze, are cut off and killed, a Redis that comes
back empty.

The lost driver has a JVM of its own; the other query is one of the shared session, so that one driver is enough. Each
case begins and ends with both at work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis

from tests.cast.cable import Cable
from tests.spark.flows.conftest import (
    GROUP,
    SESSION_S,
    Gate,
    Shared,
    coordinating,
    flow_of,
    frozen,
    got,
    twice_only_marked,
)
from tests.spark.flows.driver import Plan, read_lines
from tests.spark.flows.watch import Watch
from tests.support.faults import Faults
from tests.support.processes import Program, readers_among, spark_environment
from tests.support.servers import RedisServer, running
from tests.support.spark import Consumer, Lab
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]
Place = tuple[int, int]
SCRIPT = Path(__file__).with_name("driver.py")
LONG_S = SESSION_S + 40.0
"""For a lost flow to be missed and its partitions to be taken over, on a busy machine."""


@pytest.mark.conformance("OWN-03", "DIS-05")
def test_a_redis_that_is_emptied_or_comes_back_empty_costs_time_and_marks_and_nothing_else(
    lab: Lab, tmp_path: Path
) -> None:
    """FLUSHALL: nobody is told, no connection ends. Then it is killed, and started without data."""
    with running(RedisServer()) as server:
        orders = Shared(lab=lab, ownership=server.url, name="orders", partitions=4)
        lab.create("orders", 4, rebalance_delay_s=0.5, max_handoff_time_s=5.0)
        watch = Watch(orders)
        with coordinating(lab.url, server.url, tmp_path / "coordinator.log"):
            one, first = orders.start("one", retryTimeout="60s")
            two, second = orders.start("two", retryTimeout="60s")
            orders.wait_for_shares(2, 2)
            orders.publish_all(b"a")
            orders.wait_for_offsets(1, 1, 1, 1)
            with watch.running():
                redis.Redis.from_url(server.url).flushall()
                orders.publish_all(b"b")
                wait_until(lambda: set(got(one, two)) == set(orders.everything()), "everything")
                orders.wait_for_shares(2, 2)
                orders.publish_all(b"c")
                orders.wait_for_offsets(3, 3, 3, 3)

                before = got(one, two)
                server.kill()
                orders.publish_all(b"d")
                time.sleep(3.0)
                assert got(one, two) == before, "without Redis nothing is planned"
                server.start()
                wait_until(lambda: set(got(one, two)) == set(orders.everything()), "everything")
                orders.wait_for_shares(2, 2)
                orders.publish_all(b"e")
                orders.wait_for_offsets(5, 5, 5, 5)
            assert watch.never_two()
            assert twice_only_marked(orders, one, two)
            assert first.isActive
            assert second.isActive
            for query in lab.spark.streams.active:
                query.stop()


# --- a driver of its own ----------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Both:
    """Query `here` in this session, and query `there` of a driver; two partitions, one for each."""

    orders: Shared
    here: Consumer
    program: Program
    faults: Faults
    cable: Cable
    folder: Path
    published: int = 0

    def rows(self) -> list[tuple[int, int, bool]]:
        """What the driver's sink was given, in order."""
        lines = read_lines(self.folder / "there.rows")
        return [(p, offset, marked) for line in lines for p, offset, marked in line["rows"]]

    def everywhere(self) -> list[Place]:
        return sorted([(r.partition, r.offset) for r in self.here.rows] + [(p, o) for p, o, _ in self.rows()])

    def publish(self) -> None:
        """A message for each partition."""
        self.published += 1
        self.orders.publish_all(b"%d" % self.published)

    def jvm(self) -> psutil.Process:
        (found,) = [process for process in self.program.family() if process.name() == "java"]
        return found

    def reader(self) -> psutil.Process:
        (found,) = readers_among(self.program.family())
        return found

    def work(self) -> None:
        """Both have one partition, get a message each, and acknowledge it."""
        self.program.wait_until(lambda: sorted(self.orders.shares().values()) == [1, 1], "a share each")
        self.publish()
        self.program.wait_until(lambda: set(self.everywhere()) == set(self.orders.everything()), "the messages")
        self.program.wait_until(lambda: self.orders.offsets() == [self.published] * 2, "acknowledgements")

    def taken_over(self) -> dict[int, int]:
        """Waits until the query here has everything, and has dealt with what is published now; the epochs then."""
        wait_until(lambda: self.orders.shares() == {flow_of(self.here): 2}, "the other's partition", LONG_S)
        self.publish()
        self.orders.wait_for_offsets(self.published, self.published, wait_s=LONG_S)
        return self.orders.epochs()

    def goes_on_by_itself(self, before: list[tuple[int, int, bool]]) -> None:
        """The driver comes back; of what moved meanwhile it has delivered nothing, nor taken anything back."""
        ends = self.published
        self.work()
        assert all(offset >= ends for _, offset, _ in self.rows()[len(before) :]), "nothing of what had moved on"
        assert self.everywhere() == self.orders.everything(), "everything, once"
        assert read_lines(self.folder / "there.errors") == [], "the query never ended"


@pytest.fixture
def both(shared: Make, redis_server: RedisServer, tmp_path: Path) -> Iterator[Both]:
    orders = shared(delay_s=0.5, handoff_s=2.0)
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
        plan = Plan(folder=str(tmp_path), queue=orders.name, options=given)
        environment = spark_environment(tmp_path, faults.environment)
        with Program.script(SCRIPT, plan, name="driver", folder=tmp_path, environment=environment) as program:
            here, _ = orders.start("here", checkpointInterval="0s")
            yield Both(orders=orders, here=here, program=program, faults=faults, cable=cable, folder=tmp_path)


@pytest.mark.nightly
@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.conformance("LOS-06", "LOS-07", "LOS-03", "LOS-04", "CHK-05")
def test_whatever_befalls_a_driver_the_other_takes_over_and_the_lost_one_does_nothing_further(both: Both) -> None:
    both.work()

    # The JVM is frozen, while its reader process lives on: the heartbeat ends all the same.
    before = both.rows()
    with frozen([both.jvm()]):
        moved = both.taken_over()
        assert both.rows() == before
    both.goes_on_by_itself(before)
    assert all(epoch >= moved[p] for p, epoch in both.orders.epochs().items()), "none went back"

    # Its connection to Redis is cut. It says so, does nothing, and goes on when there is one again.
    before = both.rows()
    both.cable.pull()
    both.taken_over()
    assert both.rows() == before
    both.cable.plug()
    both.goes_on_by_itself(before)
    assert "nothing is delivered until the store answers again" in both.program.text()
    assert "the store answers again, going on" in both.program.text()

    # JVM and reader are frozen as the reader is about to write an acknowledgement. It writes late, and in vain.
    there = flow_of(Consumer(checkpoint=both.folder / "there.checkpoint"))
    (mine,) = [p for p, flow in both.orders.owners().items() if flow == there]
    gate = Gate(closed=True)
    both.here.failing = gate
    both.faults.hold_flow("before", "acknowledge", both.orders.name)
    both.publish()
    both.program.wait_until(lambda: both.faults.held_flow("before", "acknowledge", both.orders.name), "the late write")
    with frozen([both.jvm(), both.reader()]):
        wait_until(lambda: both.orders.owners()[mine] == flow_of(both.here), "its partition, elsewhere", LONG_S)
        taken = both.orders.checkpoints()[mine]
        assert taken.acknowledged == both.published - 1
    both.faults.release_flow("before", "acknowledge", both.orders.name)
    until_s = time.monotonic() + 1.5
    while time.monotonic() < until_s:
        now = both.orders.checkpoints()[mine]
        assert now.epoch >= taken.epoch
        if now.epoch == taken.epoch:
            assert (now.instance, now.acknowledged) == (taken.instance, taken.acknowledged), "by who has lost it"
    gate.open()
    both.work()
    last = (mine, both.published - 2)
    assert both.everywhere() == sorted([*both.orders.everything(), last]), "once, but for what was not acknowledged"
    everywhere = [*both.rows(), *((row.partition, row.offset, row.redelivered) for row in both.here.rows)]
    assert sorted(marked for *place, marked in everywhere if tuple(place) == last) == [False, True]

    # kill -9 of the JVM ends the reader, and with it the heartbeat.
    reader = both.reader()
    both.jvm().kill()
    wait_until(lambda: not reader.is_running() or reader.status() == psutil.STATUS_ZOMBIE, "the reader's end", 20)
    both.taken_over()
