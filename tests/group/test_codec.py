"""What is particular to a group's documents: deadlines, and what a state may not contradict. That each comes back as it
was, and no damage is taken for anything else, is shown for all documents alike in `tests/log/test_codec.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from partq_spark.base.errors import Corrupt
from partq_spark.base.json_documents import CHECKSUM, checksum, sealed
from partq_spark.group.codec import decode_state, encode_state
from partq_spark.group.documents import Found
from partq_spark.group.model import Flow, GroupSettings, GroupState, Owner, Partition, Phase, Progress, RebalanceStatus
from partq_spark.group.ownership.flows import decode_flow, encode_flow
from tests.group.ownership.conftest import a_record


def a_state() -> GroupState:
    """Something of everything."""
    first, second = Owner("billing-1", "aa"), Owner("billing-2", "bb")
    return GroupState(
        queue_id="q1",
        settings=GroupSettings(),
        partitions={
            0: Partition(partition=0, phase=Phase.OWNED, epoch=3, owner=first),
            1: Partition(partition=1, phase=Phase.PAUSED, epoch=1, owner=first, to=second, deadline_s=102.5),
            2: Partition(partition=2),
        },
        flows={
            "billing-1": Flow(name="billing-1", instance="aa", bound=True, since=1, active=True),
            "billing-2": Flow(name="billing-2", instance="bb", bound=True, since=2),
        },
        retired={7: 12},
        status=RebalanceStatus.REBALANCING,
        holddown_until_s=None,
        binds=2,
    )


@pytest.mark.parametrize(
    "more",
    [{"to": Owner("ü", "cc")}, {"to_epoch": 2}, {"deadline_s": 101.0}, {"drained": True}, {"removed": True}],
    ids=lambda more: next(iter(more)),
)
def test_a_partition_where_one_thing_is_going_on_is_written_as_a_whole(more: dict[str, object]) -> None:
    partition = replace(Partition(partition=5), **more)  # type: ignore[arg-type]
    state = replace(a_state(), partitions={5: partition})
    assert decode_state(encode_state(state, 100.0), 100.0, "here") == state


@pytest.mark.conformance("OWN-05")
def test_deadlines_go_by_what_remains_and_never_by_the_clock_of_another_process() -> None:
    state = replace(a_state(), holddown_until_s=105.0)
    body = encode_state(state, 100.0)
    back = decode_state(body, 5_000_000.0, "here")
    assert back.partitions[1].deadline_s == 5_000_002.5
    assert back.holddown_until_s == 5_000_005.0
    assert encode_state(back, 5_000_000.0) == body
    due = decode_state(encode_state(state, 110.0), 50.0, "here")
    assert (due.partitions[1].deadline_s, due.holddown_until_s) == (50.0, 50.0), "what was due is due at once"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"partitions": {"0": ["owned", 1, 2]}}, "a partition is owned by number 2 of 2 owners"),
        ({"partitions": {"0": ["lost", 1, 0]}}, r"Invalid enum value 'lost'.*found 'lost'"),
        ({"format": 2}, r"has format 2, this partq reads format 1.*one version of partq"),
    ],
)
def test_what_a_state_contradicts_is_named(changes: dict[str, object], words: str) -> None:
    """Under a right checksum."""
    body = json.dumps(json.loads(encode_state(a_state(), 100.0))["state"] | changes, separators=(",", ":")).encode()
    with pytest.raises(Corrupt, match=f"^here .*{words}"):
        decode_state(b'{"xxh3":"%s","state":%s}' % (checksum(body).encode(), body), 100.0, "here")


THOUSAND = {number: 1 + number % 97 for number in range(1000)}


def found(fields: dict[str, str]) -> Found:
    return Found("billing-1", "t", fields, 0.0)


@example(THOUSAND, {number: (10**6 + number, 10**6) for number in THOUSAND})
@given(
    st.dictionaries(st.integers(0, 2000), st.integers(1, 9), max_size=300),
    st.dictionaries(st.integers(0, 2000), st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=300),
)
def test_what_a_flow_says_comes_back_as_it_was_and_no_field_is_changed_unnoticed(
    mapping: dict[int, int], progress: dict[int, tuple[int, int]]
) -> None:
    """Progress that does not fit comes to the flow at the next epoch, marked, and is nothing that people miss."""
    said = replace(
        a_record(),
        mapping=mapping,
        progress={number: Progress(*each) for number, each in progress.items()},
        closes=len(mapping),
        note="slow" if mapping else "",
    )
    fields = encode_flow(said)
    assert sum(map(len, fields.values())) < 8000, "an object's metadata has no more room"
    has_room = fields.get("progress") != "-"
    assert decode_flow(found(fields), "it") == replace(said, progress=said.progress if has_room else None)
    for name in fields:
        with pytest.raises(Corrupt):
            decode_flow(found({**fields, name: fields[name] + "1"}), "it")


@pytest.mark.parametrize("wrong", [{"timeout": "soon"}, {"mapping": "0"}, {"progress": "0:1"}, {"closes": ""}])
def test_a_heartbeat_that_somebody_else_wrote_is_corrupt_by_name(wrong: dict[str, str]) -> None:
    fields = {name: text for name, text in encode_flow(a_record()).items() if name != CHECKSUM}
    with pytest.raises(Corrupt, match="it is no heartbeat that partq wrote: remove it, its flow binds anew"):
        decode_flow(found(sealed({**fields, **wrong})), "it")
