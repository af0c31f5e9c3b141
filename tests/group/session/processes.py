"""A flow as a process of its own, with a parent that it works for: `python processes.py plan.json`.

Run with `"child": false` it starts itself again as its own child and waits; the child binds, beats beside its main
thread, and writes down what it sees until it is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.heartbeat import HeartbeatThread, Liveness
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import open_ownership
from partq_spark.group.session import Session, SessionSettings
from partq_spark.objects import open_store


def parent(path: Path) -> None:
    plan = json.loads(path.read_text())
    inner = path.with_suffix(".child.json")
    inner.write_text(json.dumps({**plan, "child": True}))
    subprocess.Popen([sys.executable, __file__, str(inner)], stdin=subprocess.DEVNULL).wait()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def child(path: Path) -> None:
    plan = json.loads(path.read_text())
    worked_for = os.getppid()
    key = GroupKey("default", "orders", plan["group"])
    store = open_store(plan["store"], retry_timeout_s=0)
    session = Session(
        open_ownership(plan["ownership"], store=store, group=key),
        CheckpointStore(store, key, "q"),
        key,
        "q",
        "a",
        SessionSettings(session_timeout_s=plan["session_timeout_s"], beat_interval_s=plan["beat_interval_s"]),
    )
    session.bind(wait_s=0)
    with HeartbeatThread(session.beat, plan["beat_interval_s"], Liveness(parent=worked_for)) as heartbeat:
        say(f"bound {os.getpid()}")
        while heartbeat.is_beating:
            time.sleep(0.02)
        say(f"silent: {heartbeat.ended_because}")
        time.sleep(600)


if __name__ == "__main__":
    plan_path = Path(sys.argv[1])
    if json.loads(plan_path.read_text()).get("child"):
        child(plan_path)
    else:
        parent(plan_path)
