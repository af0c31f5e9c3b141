"""Queues and groups through `import partq`: the same answers and errors as the command line gives (API-01)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import partq
from partq_spark.cli import output
from tests.cli.conftest import Partq
from tests.client.conftest import Make, acknowledged


def filled(make: Make, messages: int = 20) -> partq.Queue:
    queue = make()
    with queue.publication() as publication:
        keys = [f"k{number % 5}" for number in range(messages)]
        publication.add(pa.table({"key": keys, "value": [str(number) for number in range(messages)]}))
        publication.commit()
    return queue


# --- the same answers -------------------------------------------------------------------------------------------------


def same(command: Partq, words: tuple[object, ...], answer: object) -> None:
    """What the command prints as JSON is the answer of the API."""
    found, expected = command.json(*words), json.loads(json.dumps(output.document(answer)))
    for each in [found, expected] if isinstance(found, dict) else [*found, *expected]:
        partitions = each.get("partitions")
        for part in [each, *(partitions if isinstance(partitions, list) else ())]:
            for moving in ("oldest_age_s", "changed_s", "lag_s"):
                part.pop(moving, None)
    assert found == expected


@pytest.mark.conformance("API-01")
def test_what_the_command_line_shows_the_api_gives(command: Partq, make: Make) -> None:
    queue = filled(make)
    acknowledged(queue, "billing", {0: 3, 1: 2})
    queue.subscribe("orders/>")
    group = ("--group", "billing")
    same(command, ("queue", "list"), partq.list_queues(store=command.url))
    same(command, ("queue", "describe", "orders", "--bytes"), queue.describe(count_bytes=True))
    same(command, ("group", "list", "orders"), queue.groups())
    same(command, ("status", "orders", *group), queue.status("billing"))
    same(command, ("checkpoints", "orders", *group), queue.checkpoints("billing"))
    same(command, ("queue", "subscriptions"), partq.list_subscriptions(store=command.url))
    rewind = queue.rewind("billing", to="earliest", dry_run=True)
    same(command, ("checkpoints", "rewind", "orders", *group, "--to", "earliest", "--dry-run"), rewind)
    planned = output.documents(queue.alter(partitions=4, dry_run=True))
    assert planned.pop("description")
    assert command.json("queue", "alter", "orders", "--partitions", 4, "--dry-run") == json.loads(json.dumps(planned))
    seen = [(each.partition, each.offset, each.key, each.value.decode()) for each in queue.browse()]
    assert seen == [
        (each["partition"], each["offset"], each["key"], each["value"]) for each in command.browse("orders")
    ]


@pytest.mark.conformance("API-01")
def test_what_the_command_line_does_the_api_does(command: Partq, make: Make, tmp_path: Path) -> None:
    queue = make(partitions=1, retention_s=3600)
    done = queue.alter(partitions=2, retention_s=None, quota_bytes=10**9)
    assert [(each.setting, each.from_, each.to) for each in done.settings] == [
        ("retention_s", 3600, None),
        ("quota_bytes", None, 10**9),
    ]
    (tmp_path / "a.csv").write_text("key,value\nann,tea\nbob,pot\n")
    with queue.publication(publish_id="monday") as publication:
        publication.add_file(str(tmp_path / "a.csv"))
        report = publication.commit()
    assert (report.messages, report.queues[0].published) == (2, True)
    assert queue.publication(publish_id="monday").is_done
    queue.create_group("billing", starting="earliest")
    assert queue.remove_group("billing", force=True).removed
    assert queue.groups() == ()
    assert queue.trim({0: 1, 1: 1}).trimmed == queue.describe().partitions[0].earliest + 1
    assert queue.compact().steps == 0
    assert queue.collect(grace_s=0).queue == "orders"
    assert queue.delete().deleted
    assert partq.list_queues(store=command.url) == ()
    assert queue.summary() is None


# --- the same errors --------------------------------------------------------------------------------------------------


CASES: dict[str, Callable[[partq.Queue], Any]] = {
    "queue create orders --partitions 3": lambda q: partq.create_queue("orders", partitions=3, store=q.store),
    "queue describe other": lambda q: partq.open_queue("other", store=q.store),
    "status orders --group nobody": lambda q: q.status("nobody"),
    "checkpoints orders --group nobody": lambda q: q.checkpoints("nobody"),
    "checkpoints rewind orders --group billing --to 99 --yes": lambda q: q.rewind("billing", to=99),
    "group remove orders --group nobody --yes": lambda q: q.remove_group("nobody"),
    "group remove orders --group billing --yes": lambda q: q.remove_group("billing"),
    "browse orders --partition 9": lambda q: list(q.browse(partition=9)),
    "queue delete other --yes": lambda q: partq.Queue("other", store=q.store).delete(),
    "publish --topic a/b --fail-unattracted": lambda q: partq.topic_publication(
        "a/b", fail_unattracted=True, store=q.store
    ),
}


@pytest.mark.conformance("API-01")
@pytest.mark.parametrize("line", CASES)
def test_errors_are_the_same(command: Partq, make: Make, line: str) -> None:
    queue = filled(make)
    acknowledged(queue, "billing", {0: 3})
    with pytest.raises(partq.Invalid) as raised:
        CASES[line](queue)
    age = r"changed \d s ago"
    assert re.sub(age, "", command.error(*line.split())) == re.sub(age, "", str(raised.value))


# --- creating ---------------------------------------------------------------------------------------------------------


def test_exist_ok_makes_one_or_finds_the_same(make: Make) -> None:
    first = make(exist_ok=True, retention_s=60)
    assert make(exist_ok=True, retention_s=60) == first
    with pytest.raises(partq.Invalid, match=r"partitions=2, not 3; retention_s=60(\.0)?, not None"):
        make(partitions=3, exist_ok=True)
    with pytest.raises(partq.Invalid, match="exists already"):
        make(retention_s=60)


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_begins_where_it_is_told(make: Make) -> None:
    queue = filled(make)
    ends = [each.next for each in queue.describe().partitions]
    soon = datetime.now(UTC) + timedelta(hours=1)
    for group, starting, expected in (
        ("a", "earliest", (0, 0)),
        ("b", "latest", tuple(ends)),
        ("c", {0: 1, 1: 2}, (1, 2)),
        ("d", soon, tuple(ends)),
        ("e", "2000-01-01T00:00:00Z", (0, 0)),
    ):
        queue.create_group(group, starting=starting)
        found = {each.group: each.start for each in queue.describe().groups}
        assert found[group] == expected
    with pytest.raises(partq.Invalid, match="no time zone"):
        queue.create_group("f", starting=datetime(2026, 1, 1))  # noqa: DTZ001 - that is refused
