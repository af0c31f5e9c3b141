"""Trouble with one checkpoint, one answer or one process stops its own partition and no other, and lets nobody deliver
what is somebody else's by then.
"""

from __future__ import annotations

from typing import Any

import pytest

import partq
from partq_spark.base.errors import Corrupt, Invalid, Unavailable
from partq_spark.group import session
from partq_spark.query import participant
from tests.scenarios.stage import FOLDER, Instead, Query, Stage, Staged
from tests.world.plan import URL, Plan
from tests.world.world import World


def forbid(stage: Stage, kind: str, partition: int, by: str, error: type[partq.PartqError], times: int = 3000) -> None:
    def refuse(effect: Any) -> Any:
        raise error("not for you (test)")

    stage.line.coming += [Instead(kind, f"checkpoint/{partition}", by, refuse)] * times


def owners(stage: Stage) -> list[str]:
    return [f"{each.flow} {each.status.value}" for each in stage.status().partitions]


def damage(stage: Stage, partition: int) -> None:
    stage.edit(f"{FOLDER}checkpoint/{partition}", lambda found: {**found.metadata, "offset": "3"})


def idle(stage: Stage, *messages: int) -> Query:
    """A flow that has everything, and has closed it."""
    found = stage.query("a").begun(*messages).drain()
    for _ in range(2):
        stage.sleep(2.0)
        found.trigger()
    return found


# --- one checkpoint ---------------------------------------------------------------------------------------------------


@pytest.mark.conformance("REB-15", "HAN-04")
@pytest.mark.parametrize("error", [Corrupt, Invalid, Unavailable])
def test_a_paused_partition_that_is_unreadable_holds_up_no_other(staged: Staged, error: type[partq.PartqError]) -> None:
    stage = staged(max_handoff_time_s=2.0, partitions=4)
    a = stage.query("a").begun(4, 4, 4, 4)
    a.plan()
    a.deliver()
    a.commit()
    a.run()
    for kind in ("load", "swap"):
        forbid(stage, kind, 3, "coordinator", error)
    stage.query("b").begun().run()
    stage.until(lambda: owners(stage)[2] == "b Ready", 10.0)
    stage.until(lambda: "checkpoint" in stage.status().partitions[3].reason, 10.0)
    stage.query("c").begun().run()
    stage.until(lambda: any(each == "c Ready" for each in owners(stage)), 10.0)


@pytest.mark.parametrize("delay_s", [0.0, 30.0])
@pytest.mark.parametrize("harm", [damage, lambda stage, partition: forbid(stage, "load", partition, "a", Invalid)])
def test_a_damaged_checkpoint_stops_nothing_else_of_its_flow(staged: Staged, delay_s: float, harm: Any) -> None:
    """Nor one that may not be read. It is to move at once; or its flow stood still, and has to bind again."""
    stage = staged(max_handoff_time_s=2.0, rebalance_delay_s=delay_s)
    a = idle(stage, 4, 4)
    a.freeze()
    stage.sleep(delay_s / 2)
    harm(stage, 1)
    a.thaw()
    stage.query("b").begun().run()
    for _ in range(4):
        stage.publish(1, 0)
        a.trigger()
        stage.sleep(1.5)
    assert [row.offset for row in a.rows if row.partition == 0][-4:] == [4, 5, 6, 7]


def test_a_flow_that_may_not_read_a_checkpoint_stays_the_same_instance(stage: Stage) -> None:
    """Another one would void what the application has in hand, and could not read it either."""
    forbid(stage, "load", 1, "a", Invalid)
    stage.query("a").begun().run()
    stage.until(lambda: owners(stage) == ["a Ready", "a Ready"])
    before = stage.metadata(0)
    stage.sleep(60.0)
    assert stage.metadata(0)["instance"] == before["instance"]


def test_a_flow_that_may_not_write_a_checkpoint_holds_its_partition_back_until_it_may(staged: Staged) -> None:
    stage = staged(max_handoff_time_s=2.0, partitions=4)
    a = idle(stage, 4, 4, 4, 4)
    forbid(stage, "swap", 3, "a", Invalid)
    stage.publish(0, 0, 30, 30)
    a.trigger()
    assert (len(a.offsets(2)), len(a.offsets(3))) == (34, 4)
    stage.sleep(2.0)
    assert "holds back 1 ([3])" in stage.status().flows[0].note
    stage.line.coming.clear()
    stage.sleep(2.0)
    assert a.drain().offsets(3) == list(range(34))
    forbid(stage, "swap", 3, "a", Invalid)
    a.run()
    stage.query("b").begun().run()
    stage.until(lambda: owners(stage)[3] == "b Ready", 20.0)
    assert a.failure is None


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("harm", [lambda stage: stage.rewind(to=2, partitions=[0]), lambda stage: damage(stage, 0)])
def test_a_raise_that_is_refused_costs_its_partition_and_not_the_query(stage: Stage, leads: bool, harm: Any) -> None:
    """The partition has more to deliver than its reserve covers, and the flow has not looked since."""
    a = idle(stage, 4, 4)
    if not leads:
        stage.coordinator.kill()
    harm(stage)
    before = stage.line.asked("swap", "checkpoint/", "a")
    stage.publish(30, 30)
    a.trigger()
    assert stage.line.asked("swap", "checkpoint/", "a") - before < 20
    assert [row.offset for row in a.rows if row.partition == 1][-1] == 33


# --- one answer -------------------------------------------------------------------------------------------------------


def test_a_late_answer_beside_one_that_failed_is_waited_for(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it puts an older checkpoint in the place of what is known, and what that covers is delivered without a
    word.
    """
    monkeypatch.setattr(participant, "is_paid", lambda url: True)  # checkpoints are written side by side
    stage = staged(max_handoff_time_s=60.0)
    a = stage.query("a", checkpointInterval="60s").begun(4, 4).drain()
    stage.publish(30, 30)
    forbid(stage, "swap", 0, "a", Unavailable, times=8)
    held = stage.hold("swap", "checkpoint/1", by="a", after=True)
    going = a.asking(a._trigger)
    stage.sleep(5.0)
    assert not going.is_done
    held.release()
    going.result()


def test_what_one_thread_learns_of_a_store_that_was_set_back_counts_for_the_other(
    staged: Staged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flow stands still, another one takes over, Redis is set back to before that, and the thread of the flow that
    listens for news is the first to be connected anew.
    """
    stage = staged(max_handoff_time_s=0.5, ownership=URL)
    a = stage.query("a", ownership=URL, checkpointInterval="60s").begun(4, 4)
    a.plan()
    memory = stage.world.server._memory
    copy = memory.snapshot()
    a.freeze()
    b = stage.query("b", ownership=URL).begun().run()
    stage.until(lambda: len(b.rows) == 4, 5.0)
    memory.restore(copy)
    look, stood = session.Session._look, list[float]()

    def late(self: session.Session) -> Any:
        """Between the look at its life and the answer its connection is made anew."""
        if self.flow == "a" and not stood:
            while self._ownership.documents.lives == self._life.lives:  # type: ignore[union-attr]
                stage.world.machine.sleep(0.001)
            stood.append(stage.now_s)
        return look(self)

    monkeypatch.setattr(session.Session, "_look", late)
    going = a.asking(lambda: a._read(a.log[-1]))
    a.thaw()
    rows = going.result()
    assert stood
    assert not {(row.partition, row.offset) for row in rows} & {(row.partition, row.offset) for row in b.rows}


# --- one process ------------------------------------------------------------------------------------------------------


def test_a_damaged_heartbeat_ends_its_own_flow_and_no_other(stage: Stage) -> None:
    a, beat = idle(stage, 4, 4), f"{FOLDER}ownership/beats/a"
    stage.coordinator.kill()  # so that the flow is the first to meet it
    stage.edit(beat, lambda found: {**found.metadata, "bound": "x"})
    stage.sleep(2.0)
    stage.coordinated()
    stage.query("b").begun().run()
    stage.until(lambda: owners(stage) == ["b Ready"] * 2)
    with pytest.raises(Corrupt, match="remove it, its flow binds anew"):
        a.trigger()
    stage.world.store.delete(beat)
    a.run()
    stage.until(lambda: sorted(owners(stage)) == ["a Ready", "b Ready"])


def test_a_reader_that_stood_still_takes_no_socket_from_the_one_that_has_its_name() -> None:
    """An application that acknowledges by hand would take what the other one gave it for lost."""
    World(Plan.draw(215389)).play()


def test_a_flow_that_stood_still_delivers_nothing_once_its_group_is_shared_otherwise(staged: Staged) -> None:
    stage = staged(session_timeout_s=120.0)
    a = stage.query("a", sessionTimeout="120s").begun(6, 6)
    a.plan()
    a.freeze()
    stage.sleep(1.0)
    stage.do(lambda queue: queue.alter_group("billing", ownership="none"))
    b = stage.query("b", ownership="none").begun().run()
    stage.until(lambda: len(b.rows) == 12, 10.0)
    going = a.asking(lambda: a._read(a.log[-1]))
    a.thaw()
    with pytest.raises(partq.PartqError):
        going.result()
