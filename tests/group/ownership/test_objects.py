"""Ownership as objects: as it lies in the store, what each verb costs, and what happens when somebody else steps in
between two requests, a heartbeat lands late, or a process ends half-way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.base.json_documents import checksum_of
from partq_spark.group.documents import ObjectDocuments
from partq_spark.group.model import Lease, OwnershipRecord
from partq_spark.group.ownership import Ownership
from partq_spark.objects import Document
from tests.group.ownership.conftest import KEY, RECORD, begin, verbs
from tests.group.test_checkpoints import Lossy
from tests.log.queues import lost, once
from tests.objects.conftest import memory_store
from tests.support.memory_store import MemoryStore
from tests.support.ownership import in_objects
from tests.support.way import Hooked

FOLDER = f"{KEY}/ownership/"
LEASE = Lease(token="l", name="n", beat=0)
CLAIM = OwnershipRecord(partition=12, owner=None, epoch=7)


@pytest.fixture
def recorded() -> Hooked:
    return Hooked(memory_store())


@pytest.fixture
def flow(recorded: Hooked) -> Ownership:
    """Its flow is bound, and there is a state."""
    made = in_objects(recorded)
    begin(made)
    return made


@pytest.fixture
def leader(recorded: Hooked) -> Ownership:
    return in_objects(recorded)


def test_names_and_fields_are_those_of_seed_004() -> None:
    """A claim and a heartbeat are blobs without a body, so that one listing tells of all."""
    objects = memory_store()
    store = in_objects(objects)
    store.bind(KEY, RECORD, replaces=None)
    claimed = store.claim_ownership(KEY, [CLAIM])[12]
    beat, found = (objects.load(FOLDER + name) for name in ("beats/billing-1", "12"))
    assert isinstance(beat, Document)
    assert isinstance(found, Document)
    assert (beat.body, found.body, found.etag) == (b"", b"", claimed.version)
    assert beat.metadata
    assert found.metadata == {
        "namespace": "default",
        "queue": "orders",
        "group": "billing",
        "partition": "12",
        "epoch": "7",
        "modified": claimed.modified,
        "claim": found.metadata["claim"],
        "checksum": checksum_of(found.metadata),
    }


def test_a_claim_that_says_the_same_at_the_same_time_is_another_one(recorded: Hooked) -> None:
    first, second = (Ownership(ObjectDocuments(recorded), Effects(time_us=lambda: 7)) for _ in range(2))
    claimed = first.claim_ownership(KEY, [CLAIM])
    assert second.claim_ownership(KEY, [CLAIM]) == {}
    assert second.list_ownership(KEY) == claimed


@pytest.mark.conformance("OWN-02")
def test_a_claim_whose_answer_is_lost_counts_as_not_claimed_until_it_is_listed(recorded: Hooked) -> None:
    recorded.after = once("swap", "11", lost)
    store = in_objects(recorded)
    with pytest.raises(Unavailable):
        store.claim_ownership(KEY, [replace(CLAIM, partition=p) for p in (10, 11, 12)])
    found = store.list_ownership(KEY)
    assert list(found) == [10, 11]
    assert list(store.claim_ownership(KEY, [found[11]])) == [11]


def test_ages_grow_until_a_document_is_written_again() -> None:
    now_s = [100.0]
    store = in_objects(MemoryStore(clock=lambda: now_s[0], rng=Random()))
    store.take_lease(KEY, LEASE, expected=None)

    def age_s() -> float:
        found = store.read_lease(KEY, aged=True)
        assert found is not None
        return found.age_s

    assert age_s() == 0
    now_s[0] += 50
    assert age_s() == 50
    store.renew_lease(KEY, replace(LEASE, beat=1))
    assert age_s() == 0


def test_what_each_verb_costs(recorded: Hooked, flow: Ownership, leader: Ownership) -> None:
    leader.take_lease(KEY, LEASE, expected=None)
    flow.beat(KEY, RECORD)
    leader.renew_lease(KEY, replace(LEASE, beat=1))
    heart, look = "swap beats/billing-1", "load state"
    costs: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: flow.beat(KEY, RECORD), [heart, look]),
        (lambda: flow.read_state(KEY, known="t1"), [look]),
        (lambda: leader.renew_lease(KEY, replace(LEASE, beat=2)), ["swap leader", "list beats/", look]),
        (lambda: leader.read_flows(KEY), ["list beats/"]),
        (lambda: flow.swap_state(KEY, b"{}", token="t2", expected="t1"), ["swap state"]),
    ]
    for act, expected in costs:
        recorded.calls.clear()
        act()
        assert [f"{kind} {name.removeprefix(FOLDER)}" for kind, name in recorded.calls] == expected


# --- somebody steps in ------------------------------------------------------------------------------------------------


def test_a_renewal_that_lands_late_does_not_cost_the_lease(recorded: Hooked, leader: Ownership) -> None:
    """It comes between the reading of the lease and the next renewal."""
    line, late = in_objects(recorded), replace(LEASE, beat=1)
    leader.take_lease(KEY, LEASE, expected=None)
    recorded.before = once("swap", "leader", lost)
    with pytest.raises(Unavailable):
        leader.renew_lease(KEY, late)
    recorded.before = once("swap", "leader", lambda: line.renew_lease(KEY, late))
    leader.renew_lease(KEY, replace(LEASE, beat=2))
    found = line.read_lease(KEY)
    assert found is not None
    assert found.value.beat == 2


def test_a_beat_that_counts_was_written_since_its_call_began() -> None:
    """Else the flow takes itself for alive for longer than others who watch its heartbeat."""
    away = Lossy(memory_store())
    flow, leader = in_objects(away), in_objects(away)
    begin(flow)
    away.losses.extend(["late", "request"])
    for name in ("beat", "beat"):
        with pytest.raises(Unavailable):
            verbs(flow)[name]()
    away.late.popleft()()
    landed = leader.look_at_flows(KEY).beats["billing-1"].token
    flow.beat(KEY, RECORD)
    assert leader.look_at_flows(KEY).beats["billing-1"].token != landed
