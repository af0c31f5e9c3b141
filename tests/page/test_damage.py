"""One object of a group is damaged: that is one row, or one line, with its reason. The page, the lists and the commands
show the rest.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import partq as api
from tests.cast.sidecars import GROUP
from tests.page.conftest import publish, serving
from tests.page.scene import QUEUE, scene
from tests.support.command_line import Partq

pytestmark = [pytest.mark.slow, pytest.mark.conformance("OBS-06")]

FLOWS = ["amber", "blue"]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose group was shared by two flows and a coordinator until all of them went; another has not begun."""
    folder = tmp_path_factory.mktemp("damage")
    with scene(folder, partitions=4, delay_s=0.2) as made:
        publish(made.queue, *[b"value"] * 100)
        for flow in FLOWS:
            made.join(flow)
        made.settled(*FLOWS)
        made.until_acknowledged(made.queue)
        made.coordinator.kill()
    made.queue.create_group("audit", starting="earliest")
    api.create_queue("other", partitions=1, store=made.url)
    return folder / "store"


@pytest.fixture
def store(played: Path, tmp_path: Path) -> Path:
    shutil.copytree(played, tmp_path / "store")
    return tmp_path / "store"


def damage(store: Path, pattern: str) -> Path:
    found = min(store.glob(f"default/{QUEUE}/{pattern}"))
    found.write_bytes(b'{"was": "something"')
    return found


@pytest.mark.parametrize(
    ("pattern", "lost"),
    [
        (f"{GROUP}/checkpoint/0", "checkpoint default/orders/billing/checkpoint/0"),
        (f"{GROUP}/ownership/state*", "who should have what is not known"),
        (f"{GROUP}/ownership/leader*", "who leads this group is not known"),
        (f"{GROUP}/ownership/beats/amber*", "flow amber:"),
    ],
)
def test_what_a_group_has_lost_is_one_line_and_the_rest_is_shown(store: Path, pattern: str, lost: str) -> None:
    """A damaged checkpoint is also told where groups are listed, and does not keep its group from being removed."""
    damage(store, pattern)
    of_checkpoints = "checkpoint/" in pattern
    partq = Partq(store)
    words = ("status", QUEUE, "--group", GROUP, "--ownership", "store")
    seen = partq.json(*words)
    assert [each["partition"] for each in seen["partitions"]] == [0, 1, 2, 3]
    assert [each["flow"] for each in seen["flows"]] == FLOWS
    assert sum(each["end"] for each in seen["partitions"]) == 100
    assert lost in partq(*words).stdout
    audit, billing = partq.json("group", "list", QUEUE)
    assert (audit["group"], audit["problems"], billing["group"]) == ("audit", [], GROUP)
    shared = partq.json("group", "list", QUEUE, "--ownership", "store")
    assert [each["group"] for each in shared] == ["audit", GROUP]
    assert (lost in json.dumps(billing["problems"])) == of_checkpoints
    assert (lost in " ".join(partq("group", "list", QUEUE).stdout.split())) == of_checkpoints
    assert partq.json("queue", "describe", QUEUE)["messages"] == 100
    with serving(partq.url, ownership="store") as page:
        paths = ("/", f"/queues/{QUEUE}", f"/queues/{QUEUE}/groups/audit", f"/queues/{QUEUE}/groups/{GROUP}")
        answers = [page.get(path) for path in paths]
    assert [answer.status for answer in answers] == [200] * 4
    assert not any("Not up to date" in answer.text for answer in answers)
    assert [lost in answer.text for answer in answers[1:]] == [of_checkpoints, False, True]
    if of_checkpoints:
        assert "with 3 checkpoints" in partq("group", "remove", QUEUE, "--group", GROUP, "--force", "--yes").stdout
        assert [each["group"] for each in partq.json("group", "list", QUEUE)] == ["audit"]


@pytest.mark.parametrize("lost", [False, True])
def test_a_log_that_is_damaged_hides_no_other_facts_of_its_queue(store: Path, lost: bool) -> None:
    """How many messages there are stands in the head; how old they are, in an object that is damaged or missing."""
    partq = Partq(store)
    queue = api.open_queue(QUEUE, store=partq.url)
    while not (chunks := list(store.glob(f"default/{QUEUE}/_log/*/chunk-*"))):
        publish(queue, b"more")
    chunks[0].unlink() if lost else chunks[0].write_bytes(chunks[0].read_bytes()[:-9])
    messages = sum(each.next for each in queue.describe().partitions)
    found = partq.json("queue", "describe", QUEUE, "--bytes")
    assert (found["messages"], found["oldest"]) == (messages, None)
    assert chunks[0].name in found["problems"][0]
    assert chunks[0].name in "".join(partq("queue", "describe", QUEUE, "--bytes").stdout.split())
    assert [each["unacknowledged"] for each in partq.json("group", "list", QUEUE)] == [messages, messages - 100]
    assert chunks[0].name in partq.json("status", QUEUE, "--group", GROUP)["notes"][-1]
    with serving(partq.url) as page:
        for path in (f"/queues/{QUEUE}", f"/queues/{QUEUE}/groups/{GROUP}"):
            answer = page.get(path)
            assert (answer.status, chunks[0].name in answer.text) == (200, True)


def test_a_damaged_head_is_one_row_of_the_list(store: Path) -> None:
    damage(store, "_head.json")
    partq = Partq(store)
    with serving(partq.url) as page:
        text = page.get("/").text
        assert "damaged: " in text
        assert 'href="/queues/other"' in text
        assert "_head.json" in page.get(f"/queues/{QUEUE}").text
        assert page.get("/queues/other").status == 200
