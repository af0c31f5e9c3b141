"""Real processes on a real Redis: a flow whose parent is killed or stopped keeps no lease alive (LOS-07)."""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import Beat, Ownership, open_ownership
from partq_spark.objects import open_store
from tests.support.processes import Program
from tests.support.servers import ROOT, RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.crash]

BEAT_S = 0.05
SILENCE_S = 20 * BEAT_S


@dataclass(kw_only=True, slots=True)
class Family:
    """A parent, and the flow that works for it."""

    program: Program
    ownership: Ownership
    key: GroupKey
    child_pid: int

    def beat(self) -> Beat:
        found = self.ownership.read_flow(self.key, "a")
        assert found is not None
        return found[1]

    def moves(self) -> bool:
        """Whether the heartbeat moves within 20 beats' time."""
        before = self.beat()
        deadline_s = time.monotonic() + SILENCE_S
        while time.monotonic() < deadline_s:
            now = self.beat()
            if now.token != before.token:
                return True
            time.sleep(BEAT_S / 2)
        return False


@pytest.fixture
def family(redis_server: RedisServer, tmp_path: Path) -> Iterator[Family]:
    group = "g" + secrets.token_hex(4)
    key = GroupKey("default", "orders", group)
    plan = {
        "group": group,
        "store": f"file://{tmp_path}/store",
        "ownership": redis_server.url,
        "session_timeout_s": 30.0,
        "beat_interval_s": BEAT_S,
    }
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "PYTHON": sys.executable}
    script = Path(__file__).with_name("processes.py")
    ownership = open_ownership(redis_server.url, store=open_store(f"file://{tmp_path}/store"))
    with Program.script(script, plan, name="flow", folder=tmp_path, environment=environment) as program:
        text = program.wait_until(lambda: re.search(r"bound (\d+)", program.text()), "a bound flow", 60)
        assert text is not None
        program.family()  # remembered, so that the orphan is ended with the test
        yield Family(program=program, ownership=ownership, key=key, child_pid=int(text[1]))
    ownership.close()


@pytest.mark.conformance("LOS-07")
def test_a_flow_falls_silent_when_its_parent_is_killed(family: Family) -> None:
    assert family.moves()
    os.kill(family.program.pid, signal.SIGKILL)
    family.program.wait_end(10)
    deadline_s = time.monotonic() + 10
    while "silent: the parent process" not in family.program.text():
        assert time.monotonic() < deadline_s, family.program.tail()
        time.sleep(BEAT_S)
    assert not family.moves()
    os.kill(family.child_pid, 0)  # the orphan itself is still there: it was the thread that fell silent


@pytest.mark.conformance("LOS-06")
@pytest.mark.conformance("LOS-07")
def test_a_flow_is_silent_while_its_parent_is_stopped(family: Family) -> None:
    assert family.moves()
    instance = family.beat().instance
    os.kill(family.program.pid, signal.SIGSTOP)
    time.sleep(2 * BEAT_S)
    assert not family.moves()
    os.kill(family.program.pid, signal.SIGCONT)
    assert family.moves()
    assert family.beat().instance == instance
