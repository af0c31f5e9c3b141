"""`partq group`: what it lists, how a group is shared, what it refuses to change or remove and why, what is left then;
and commands that are given an ownership that the group does not have.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import pytest

import partq as api
from tests.cli.groups import Group
from tests.support.command_line import Partq
from tests.support.waiting import wait_until

LIST = ("group", "list", "orders")
REMOVE = ("group", "remove", "orders", "--group", "billing")
ALTER = ("group", "alter", "orders", "--group", "billing")
STATUS = ("status", "orders", "--group", "billing")
REWIND = ("checkpoints", "rewind", "orders", "--group", "billing", "--to", "0", "--yes")
AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture
def group(partq: Partq) -> Group:
    """Two partitions, each acknowledged up to 5 by billing-1 a while ago."""
    return Group(partq, {0: 5, 1: 5})


def ways(partq: Partq) -> list[str | None]:
    """How each group that there is is shared."""
    return [each["ownership"] for each in partq.json(*LIST)]


# --- listing ----------------------------------------------------------------------------------------------------------


def test_each_group_is_listed_with_what_it_has_not_acknowledged(group: Group) -> None:
    group.create("audit", ownership="store")
    group.bind()
    audit, billing = group.partq.json(*LIST)
    assert (audit["group"], audit["ownership"], audit["unacknowledged"]) == ("audit", "store", 40)
    assert (audit["changed_s"], audit["flows"], audit["problems"]) == (None, None, [])
    assert (billing["group"], billing["unacknowledged"]) == ("billing", 30)
    assert audit["oldest"] == billing["oldest"] == group.partq.browse("orders")[0]["timestamp"]
    assert 120 <= billing["changed_s"] < 180
    shown = [line.split() for line in group.partq(*LIST).stdout.splitlines()]
    assert shown[2][:4] == ["audit", "4", "store", "40"]
    assert (shown[2][-1], shown[3][-2:]) == ("never", ["s", "ago"])
    group.create("single", ownership="none")
    listed = group.partq.json(*LIST, "--ownership", "store")
    assert [each["flows"] for each in listed] == [[], ["billing-1"], None], "of its own groups alone"


# --- removing ---------------------------------------------------------------------------------------------------------


def test_a_group_is_removed_for_good_and_one_made_again_at_once(group: Group) -> None:
    done = {"queue": "orders", "group": "billing", "removed": True, "checkpoints": 2}
    assert group.partq.json(*REMOVE, "--yes") == done
    assert ways(group.partq) == []
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
        assert ways(partq) == ["store"]
        consumer.stop()
        bound.join()
    partq(*to_none)
    assert ways(partq) == ["none"]


def as_it_is(_: Group) -> None:
    """Its checkpoints are old, and it has no flow."""


def young(group: Group) -> None:
    """A checkpoint is 20 s old."""
    group.age(-100, 1)


def left_for_dead(group: Group) -> None:
    """Its checkpoints are young, but there is a heartbeat that stands still, and that says more."""
    group.bind()
    group.age(-110)


YOUNG = r"checkpoint 1 \(flow 'billing-1'\) was changed [2-5][0-9] s ago, less than 60 s"
OTHER = (
    r"group 'billing' of queue 'orders' has ownership=none \(one query has all of it\), not ownership=store.*"
    "partq group alter orders --group billing --ownership store --store file://"
)
TO_NONE = (*ALTER, "--ownership", "none")
TO_STORE = (*ALTER, "--ownership", "store")
YES = (*REMOVE, "--yes")
FROM_NOW = "from now on"

ACTS: list[tuple[str, Callable[[Group], None], tuple[str, ...], str, str | None]] = [
    ("none", as_it_is, (*ALTER, "--ownership", "rediss://h:6380/1"), FROM_NOW, "redis"),
    ("none", as_it_is, YES, "Removed group 'billing'", None),
    # What was just changed may be in use; an ownership that knows nothing of the group does not say otherwise.
    ("none", young, YES, YOUNG, "none"),
    ("none", young, TO_STORE, YOUNG, "none"),
    ("store", young, (*YES, "--ownership", "store"), "may be in use", "store"),
    ("none", young, (*TO_STORE, "--force"), FROM_NOW, "store"),
    ("none", young, (*YES, "--force"), "Removed group 'billing'", None),
    # The place where a group is shared beside the queue is looked at without being named.
    ("store", left_for_dead, TO_NONE, FROM_NOW, "none"),
    ("store", left_for_dead, (*YES, "--ownership", "store"), "Removed group 'billing'", None),
    # A Redis alone knows whether a flow lives: it is asked, or somebody forces it.
    ("redis", as_it_is, TO_NONE, r"lives: name it \(--from redis://host:port/db\)", "redis"),
    ("redis", as_it_is, (*TO_NONE, "--from", AWAY), "127.0.0.1:1", "redis"),
    ("redis", as_it_is, (f"PARTQ_OWNERSHIP={AWAY}", *TO_NONE), "127.0.0.1:1", "redis"),
    ("redis", as_it_is, YES, r"name it \(--ownership redis://host:port/db\)", "redis"),
    ("redis", as_it_is, (f"PARTQ_OWNERSHIP={AWAY}", *TO_NONE, "--force"), FROM_NOW, "none"),
    ("redis", as_it_is, (*YES, "--force"), "Removed group 'billing'", None),
    (
        *("redis", as_it_is, (*ALTER, "--ownership", "redis://elsewhere:6379/0")),
        *("has ownership=redis already. Which Redis that is, is not written down.", "redis"),
    ),
    # A command that is given another ownership is refused; what the environment says may be meant for other groups.
    *(("none", as_it_is, (*words, "--ownership", "store"), OTHER, "none") for words in (YES, STATUS, REWIND)),
    *(("none", as_it_is, (f"PARTQ_OWNERSHIP={AWAY}", *words), "", "none") for words in (STATUS, REWIND)),
]
"""How the group is shared and what is the matter with it; a command, what it says, and how the group is shared then."""


@pytest.mark.parametrize(("shared", "matter", "words", "said", "then"), ACTS)
def test_a_group_is_changed_or_removed_where_nobody_can_be_using_it(
    partq: Partq, shared: str, matter: Callable[[Group], None], words: tuple[str, ...], said: str, then: str | None
) -> None:
    group = Group(partq, {0: 5, 1: 5}, ownership=AWAY if shared == "redis" else shared)
    matter(group)
    is_done = then != shared or "already" in said or not said
    environment = {"PARTQ_OWNERSHIP": AWAY} if "=" in words[0] else {}
    done = partq(*words["=" in words[0] :], code=not is_done, **environment)
    assert re.search(said, done.output), done.output
    assert ways(partq) == [then] * (then is not None)
    assert then is None or "--to" in words or group.offsets() == {0: 5, 1: 5}
    assert group.flows == [] or not is_done


def test_status_looks_where_the_group_is_shared(partq: Partq) -> None:
    group = Group(partq, {0: 5, 1: 5}, ownership="none")

    def notes() -> str:
        return " ".join(partq.json(*STATUS)["notes"])

    assert "one query has all of the group" in notes()
    assert "holds back" not in notes()
    partq(*ALTER, "--ownership", "store")
    group.bind()
    assert "no coordinator leads this group" in notes()
    partq(*ALTER, "--ownership", AWAY, "--force")
    assert "name the place where ownership is kept" in notes()
    group.create("silent", start=2, ownership="none")
    group.take(0, group="silent")
    silent = partq.json("status", "orders", "--group", "silent")
    assert "the group holds back every message since its start" in " ".join(silent["notes"])
