"""Flows in plain Python that are frozen, cut off from Redis, or left alone by their parent: what they do afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ownership.cable import Cable
from tests.ownership.cast import Cast, Observer
from tests.ownership.checker import judge
from tests.ownership.facts import Bound, Claimed, Delivered, Failed, now_s

pytestmark = [pytest.mark.redis, pytest.mark.crash]

PARENT = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:])
print(child.pid, flush=True)
child.wait()
"""


def started(cast: Cast, *flows: str, **changes: Any) -> None:
    """Coordinator, publisher and flows, until they are in balance."""
    cast.start_coordinator("coordinator-1")
    cast.start_publisher(16, 0.1)
    for flow in flows:
        cast.start_flow(flow, **changes)
    cast.wait_until(cast.imbalance, 15)


def finished(cast: Cast, observer: Observer) -> list[str]:
    """Everything published is acknowledged; what the judge has to say."""
    assert cast.publisher is not None
    cast.publisher.terminate()
    cast.publisher.wait()
    ends = cast.queue.refresh().next
    cast.wait_until(lambda: cast.behind(ends), 15)
    observer.look()
    return list(judge(cast.facts(), dict(enumerate(ends))).violations)


def owned_by(cast: Cast, flow: str) -> str:
    """What keeps this flow from having every partition."""
    state = cast.state()
    others = (
        [p.partition for p in state.partitions.values() if p.owner is None or p.owner.flow != flow] if state else []
    )
    return f"{others} are not {flow}'s" if others or state is None else ""


@pytest.mark.conformance("LOS-06")
def test_a_frozen_flow_plans_and_acknowledges_nothing_after_its_partitions_moved(tmp_path: Path) -> None:
    with Cast(tmp_path, partitions=8, rebalance_delay_s=0.5) as cast:
        with Observer(cast) as observer:
            started(cast, "a", "b", hold_s=0.5, dawdle_share=1.0)
            cast.flows["a"].freeze()
            cast.wait_until(lambda: owned_by(cast, "b"), cast.session_timeout_s + 3)
            moved = cast.epochs()
            thawed_s = now_s()
            cast.flows["a"].thaw()
            cast.wait_until(lambda: "" if cast.imbalance() == "" and cast.epochs() != moved else "still b's", 10)
            violations = finished(cast, observer)
        assert violations == []
        after = [each for each in cast.facts_of("a") if isinstance(each, Delivered) and each.done_s > thawed_s]
        assert after, "it came back"
        assert all(each.epoch > moved[each.partition] for each in after)


@pytest.mark.conformance("LOS-06")
def test_a_flow_that_is_cut_off_from_redis_stops_when_its_lease_ends(tmp_path: Path) -> None:
    with Cast(tmp_path, partitions=8, rebalance_delay_s=0.5) as cast, Cable(cast.redis.port) as cable:
        with Observer(cast) as observer:
            cast.start_flow("a", ownership=f"redis://127.0.0.1:{cable.port}/0")
            started(cast, "b")
            pulled_s = now_s()
            cable.pull()
            cast.wait_until(lambda: owned_by(cast, "b"), cast.session_timeout_s + 3)
            moved = cast.epochs()
            plugged_s = now_s()
            cable.plug()
            cast.wait_until(lambda: "" if cast.imbalance() == "" and cast.epochs() != moved else "still b's", 10)
            violations = finished(cast, observer)
        assert violations == []
        facts = cast.facts_of("a")
        delivered = [each for each in facts if isinstance(each, Delivered)]
        assert not [each for each in delivered if pulled_s + cast.session_timeout_s < each.done_s < plugged_s]
        assert any(isinstance(each, Failed) and each.doing == "turn" for each in facts)
        assert any(each.done_s > plugged_s for each in delivered), "it came back by itself"


@pytest.mark.conformance("LOS-06")
def test_a_short_cut_costs_nobody_anything(tmp_path: Path) -> None:
    """Shorter than the session timeout: the same instance goes on at the same epochs."""
    with Cast(tmp_path, partitions=8, rebalance_delay_s=0.5) as cast, Cable(cast.redis.port) as cable:
        with Observer(cast) as observer:
            cast.start_flow("a", ownership=f"redis://127.0.0.1:{cable.port}/0")
            started(cast, "b")
            epochs, pulled_s = cast.epochs(), now_s()
            cable.pull()
            cast.wait_until(lambda: "" if now_s() - pulled_s > 2.5 else "not yet", 5)
            cable.plug()
            assert finished(cast, observer) == []
            assert cast.epochs() == epochs
        assert cast.imbalance() == ""


@pytest.mark.conformance("LOS-07")
def test_a_flow_ends_with_its_parent_and_keeps_no_lease_alive(tmp_path: Path) -> None:
    with Cast(tmp_path, partitions=8, rebalance_delay_s=0.5) as cast:
        with Observer(cast) as observer:
            settings = cast.flow_settings("child", follow_parent=True)
            parent = cast.start_other("parent", [sys.executable, "-c", PARENT, *cast.flow_command(settings)])
            cast.wait_until(lambda: "" if Path(settings.journal).exists() else "the child has not begun", 10)
            child = psutil.Process(int(parent.log.read_text().split()[0]))
            try:
                cast.start_coordinator("coordinator-1")
                cast.start_publisher(16, 0.1)
                cast.wait_until(lambda: owned_by(cast, "child"), 10)
                cast.start_flow("other")
                parent.kill()
                killed_s = now_s()
                cast.wait_until(lambda: "it lives" if is_alive(child) else "", 5)
                ended_s = now_s()
                cast.wait_until(lambda: owned_by(cast, "other"), cast.session_timeout_s + 5)
                violations = finished(cast, observer)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
        assert violations == []
        assert ended_s - killed_s < 2 * settings.beat_interval_s + 1
        late = [each for each in cast.facts_of("child") if isinstance(each, Delivered | Claimed)]
        assert all(each.done_s < ended_s for each in late)
        assert any(isinstance(each, Bound) for each in cast.facts_of("child"))


def is_alive(process: psutil.Process) -> bool:
    """A zombie, which nobody has waited for, does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
