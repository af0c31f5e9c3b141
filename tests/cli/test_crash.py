"""SIGKILL of `partq publish` at chosen and at random instants, then the same command again: one copy, in order."""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import json_lines
from tests.cli.processes import WAIT_S, run, start

KEYS = 7
ROWS = 5000
SEED = 20261120

pytestmark = pytest.mark.crash


def batch(path: Path, number: int) -> Path:
    """A file of messages that tell which batch and row they are."""
    path.write_text(json_lines({"key": f"k{row % KEYS}", "value": f"{number}/{row}"} for row in range(ROWS)))
    return path


def killed(store: Path, path: Path, publish_id: str, moment: Callable[[float], bool]) -> bool:
    """Kill a publish as soon as `moment` (given the seconds since its start) says so; False if it ended first."""
    begun_s = time.monotonic()
    with start(store, "publish", "orders", "--file", path, "--publish-id", publish_id) as process:
        while process.poll() is None and not moment(time.monotonic() - begun_s):
            assert time.monotonic() - begun_s < WAIT_S
            time.sleep(0.0005)
        process.kill()
    return process.returncode < 0


def check_one_copy(store: Path, batches: int) -> None:
    """Every batch is there once, and every key's messages are in the order of batches and rows."""
    found = [
        json.loads(line) for line in run(store, "browse", "orders", "--json", "--limit", 10**6).stdout.splitlines()
    ]
    for key, messages in itertools.groupby(sorted(found, key=lambda each: str(each["key"])), lambda each: each["key"]):
        row = int(key[1:])
        expected = [f"{number}/{i}" for number in range(batches) for i in range(row, ROWS, KEYS)]
        assert [each["value"] for each in messages] == expected
    assert len(found) == batches * ROWS
    for partition, messages in itertools.groupby(
        sorted(found, key=lambda each: int(each["partition"])), lambda each: each["partition"]
    ):
        offsets = sorted(int(each["offset"]) for each in messages)
        assert offsets == list(range(len(offsets))), f"partition {partition} has a gap"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    assert run(folder, "queue", "create", "orders", "--partitions", 3).returncode == 0
    return folder


@pytest.mark.conformance("DIS-09")
def test_killed_between_staging_and_swap_and_after_the_swap(store: Path, tmp_path: Path) -> None:
    """The instants that matter, by what shows in the store: a file begun, a segment durable, the head swapped."""
    head = store / "default/orders/_head.json"

    def objects(prefix: str, suffix: str) -> int:
        return sum(
            name.startswith(prefix) and name.endswith(suffix)
            for _, _, names in os.walk(store / "default/orders")
            for name in names
        )

    for number in range(3):
        path = batch(tmp_path / f"{number}.jsonl", number)
        segments, before = objects("0", ".arrow"), head.stat().st_ino
        moments: list[Callable[[float], bool]] = [
            lambda _: objects(".tmp-", "") > 0,
            lambda _, segments=segments: objects("0", ".arrow") > segments,  # type: ignore[misc]  # bound per round
            lambda _, before=before: head.stat().st_ino != before,  # type: ignore[misc]
        ]
        killed(store, path, f"batch-{number}", moments[number])
        again = run(store, "publish", "orders", "--file", path, "--publish-id", f"batch-{number}", "--json")
        assert again.returncode == 0, again.stderr
        report = json.loads(again.stdout)
        assert report["published"] != report["already_published"]
        for left in store.rglob(".tmp-*"):
            left.unlink()  # so that the next round's first moment is its own
    check_one_copy(store, 3)


@pytest.mark.conformance("DIS-09")
def test_killed_at_random_instants(store: Path, tmp_path: Path) -> None:
    seconds = random.Random(SEED)
    paths = [batch(tmp_path / f"{number}.jsonl", number) for number in range(6)]
    begun_s = time.monotonic()
    assert run(store, "publish", "orders", "--file", paths[0], "--publish-id", "batch-0").returncode == 0
    whole_s = time.monotonic() - begun_s
    deaths = 0
    for number in range(1, len(paths)):
        instant_s = seconds.uniform(0.2, 1.1) * whole_s
        deaths += killed(store, paths[number], f"batch-{number}", lambda after_s, at=instant_s: after_s >= at)  # type: ignore[misc]
        again = run(store, "publish", "orders", "--file", paths[number], "--publish-id", f"batch-{number}")
        assert again.returncode == 0, again.stderr
    assert deaths > 0, "no publish was killed: the instants are too late"
    check_one_copy(store, len(paths))
