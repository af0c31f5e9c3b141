"""`partq group`: what it lists, how a group is shared, what it refuses to change or remove and why, what is left then;
and commands that are given an ownership that the group does not have.
"""

from __future__ import annotations

import re
import threading

import pytest

import partq as api
from tests.cli.groups import Group
from tests.support.command_line import Partq
from tests.support.waiting import wait_until

LIST = ("group", "list", "orders")
REMOVE = ("group", "remove", "orders", "--group", "billing")
ALTER = ("group", "alter", "orders", "--group", "billing")
STATUS = ("status", "orders", "--group", "billing")
AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture
def group(partq: Partq) -> Group:
    """Two partitions, each acknowledged up to 5 by billing-1 a while ago."""
    return Group(partq, {0: 5, 1: 5})


@pytest.fixture
def alone(partq: Partq) -> Group:
    """The same, and one flow has the group for itself."""
    return Group(partq, {0: 5, 1: 5}, ownership="none")


def names(partq: Partq) -> list[str]:
    return [each["group"] for each in partq.json(*LIST)]


def way(partq: Partq) -> str | None:
    (found,) = partq.json(*LIST)
    kind: str | None = found["ownership"]
    return kind


# --- listing ----------------------------------------------------------------------------------------------------------


def test_each_group_is_listed_with_what_it_has_not_acknowledged(group: Group) -> None:
    group.create("audit", ownership="store")
    group.bind()
    audit, billing = group.partq.json(*LIST)
    assert audit == {
        "group": "audit",
        "since_sequence": 4,
        "ownership": "store",
        "unacknowledged": 40,
        "oldest": billing["oldest"],
        "changed_s": None,
        "flows": None,
        "problems": [],
    }
    assert (billing["group"], billing["unacknowledged"]) == ("billing", 30)
    assert billing["oldest"] == group.partq.browse("orders")[0]["timestamp"]
    assert 120 <= billing["changed_s"] < 180
    shown = [line.split() for line in group.partq(*LIST).stdout.splitlines()]
    assert shown[2][:4] == ["audit", "4", "store", "40"]
    assert shown[2][-1] == "never"
    assert shown[3][-3:][1:] == ["s", "ago"]
    group.create("single", ownership="none")
    listed = group.partq.json(*LIST, "--ownership", "store")
    assert [each["flows"] for each in listed] == [[], ["billing-1"], None], "of its own groups alone"
    assert "billing-1" in group.partq(*LIST, "--ownership", "store").stdout


# --- removing ---------------------------------------------------------------------------------------------------------


def test_a_group_is_removed_for_good_and_one_made_again_at_once(group: Group) -> None:
    done = {"queue": "orders", "group": "billing", "removed": True, "checkpoints": 2}
    assert group.partq.json(*REMOVE, "--yes") == done
    assert names(group.partq) == []
    group.create("billing")
    assert group.partq.json(*REMOVE, "--yes") == {**done, "checkpoints": 0}, "its tombstones are young, and nobody's"
    group.partq("queue", "trim", "orders", "--before", "2100-01-01T00:00:00Z")
    assert group.partq.json("queue", "describe", "orders")["messages"] == 0, "nothing is held back any more"


def test_the_same_command_finishes_what_was_cut_off(group: Group) -> None:
    """After the head, and before what the ownership has of the group."""
    group.bind(bound=False)
    group.forget()
    beside = (*REMOVE, "--ownership", "store")
    assert "what is left of group 'billing'" in group.partq.misuse(*beside)
    assert "Removed what was left of group 'billing'" in group.partq(*beside, "--yes").stdout
    for words in (beside, REMOVE):
        assert "has no group 'billing' (its groups: none yet)" in group.partq.error(*words, "--yes")


def test_what_was_just_changed_may_be_in_use(group: Group) -> None:
    group.age(-100, 1)  # 20 s ago
    for words in ((*REMOVE, "--yes"), (*ALTER, "--ownership", "store")):
        said = group.partq.error(*words)
        assert re.search(r"checkpoint 1 \(flow 'billing-1'\) was changed [2-5][0-9] s ago, less than 60 s", said), said
    assert "may be in use" in group.partq.error(*REMOVE, "--yes", "--ownership", "store"), "which knows nothing of it"
    assert "from now on" in group.partq(*ALTER, "--ownership", "store", "--force").stdout
    assert way(group.partq) == "store"
    group.partq(*REMOVE, "--yes", "--force")
    assert names(group.partq) == []


def test_a_flow_that_died_is_no_obstacle(group: Group) -> None:
    """Its heartbeat stands still for the rest of its session timeout; the checkpoints' age does not matter then."""
    group.partq(*ALTER, "--ownership", "store")
    group.bind()
    group.age(-110)
    group.partq(*ALTER, "--ownership", "none")
    assert (way(group.partq), group.flows) == ("none", []), "looked at without being named, and dropped"
    group.partq(*ALTER, "--ownership", "store", "--force")
    group.bind()
    group.partq(*REMOVE, "--yes", "--ownership", "store")
    assert (names(group.partq), group.flows) == ([], [])


def test_a_live_flow_keeps_its_group_as_it_is(partq: Partq) -> None:
    """One that beats; when it has left, the group can be changed."""
    queue = api.create_queue("orders", partitions=2, store=partq.url)
    queue.create_group("billing", ownership="store")
    to_none = (*ALTER, "--ownership", "none", "--from", "store")
    with queue.consumer("billing", flow="a", ownership="store", session_timeout_s=5) as consumer:
        bound = threading.Thread(target=consumer.poll)
        bound.start()
        wait_until(lambda: partq.json(*LIST, "--ownership", "store")[0]["flows"] == ["a"], "the flow")
        for words in (to_none, (*to_none, "--force"), (*REMOVE, "--yes", "--ownership", "store")):
            said = partq.error(*words)
            assert "is in use by flow 'a' (instance " in said
            assert "stop its query" in said
        assert way(partq) == "store"
        consumer.stop()
        bound.join()
    partq(*to_none)
    assert way(partq) == "none"


# --- how a group is shared --------------------------------------------------------------------------------------------


def test_a_group_is_shared_by_a_redis_from_now_on_and_its_checkpoints_stay(alone: Group) -> None:
    assert alone.partq.json(*ALTER, "--ownership", "rediss://h:6380/1") == {
        "queue": "orders",
        "group": "billing",
        "ownership": "redis",
        "was": "none",
        "changed": True,
    }
    found = alone.partq.json("checkpoints", "orders", "--group", "billing")["partitions"]
    assert [(each["acknowledged"], each["flow"], each["epoch"]) for each in found] == [(5, "billing-1", 1)] * 2
    said = alone.partq(*ALTER, "--ownership", "redis://elsewhere:6379/0").stdout
    assert "has ownership=redis already. Which Redis that is, is not written down." in said
    assert re.search(r"^billing .* redis ", alone.partq(*LIST).stdout, re.MULTILINE)


def test_what_a_redis_shares_is_changed_unseen_only_by_force(alone: Group) -> None:
    partq = alone.partq
    partq(*ALTER, "--ownership", AWAY)
    said = partq.error(*ALTER, "--ownership", "none")
    assert "which alone knows whether one of its flows lives: name it (--from redis://host:port/db)" in said
    assert "127.0.0.1:1" in partq.error(*ALTER, "--ownership", "none", "--from", AWAY), "asked, and did not answer"
    assert "127.0.0.1:1" in partq.error(*ALTER, "--ownership", "none", PARTQ_OWNERSHIP=AWAY)
    assert "name it (--ownership redis://host:port/db)" in partq.error(*REMOVE, "--yes")
    assert way(partq) == "redis"
    partq(*ALTER, "--ownership", "none", "--force", PARTQ_OWNERSHIP=AWAY)
    assert way(partq) == "none"
    partq(*ALTER, "--ownership", AWAY, "--force")
    partq(*REMOVE, "--yes", "--force")
    assert names(partq) == []


@pytest.mark.parametrize(
    "command",
    [(*REMOVE, "--yes"), STATUS, ("checkpoints", "rewind", "orders", "--group", "billing", "--to", "0", "--yes")],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_command_that_is_given_another_ownership_is_refused(alone: Group, command: tuple[str, ...]) -> None:
    said = alone.partq.error(*command, "--ownership", "store")
    assert "group 'billing' of queue 'orders' has ownership=none (one query has all of it), not ownership=store" in said
    assert f"partq group alter orders --group billing --ownership store --store {alone.partq.url}" in said
    assert alone.offsets() == {0: 5, 1: 5}
    alone.partq(*command, PARTQ_OWNERSHIP=AWAY)  # may be meant for other groups


def test_status_looks_where_the_group_is_shared(alone: Group) -> None:
    def notes() -> str:
        return " ".join(alone.partq.json(*STATUS)["notes"])

    assert "one query has all of the group" in notes()
    assert "holds back" not in notes()
    alone.partq(*ALTER, "--ownership", "store")
    alone.bind()
    assert "no coordinator leads this group" in notes()
    alone.partq(*ALTER, "--ownership", AWAY, "--force")
    assert "name the place where ownership is kept" in notes()
    alone.create("silent", start=2, ownership="none")
    alone.take(0, group="silent")
    silent = alone.partq.json("status", "orders", "--group", "silent")
    assert "the group holds back every message since its start" in " ".join(silent["notes"])
