"""What is written down comes back as it was, always in the same bytes, and anything else is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.base.json_documents import checksum
from partq_spark.group.codec import decode_lease, decode_record, decode_state, encode_lease, encode_record, encode_state
from partq_spark.group.model import (
    AccessType,
    Delivery,
    Flow,
    FlowRecord,
    GroupSettings,
    GroupState,
    Lease,
    Owner,
    Partition,
    Phase,
    RebalanceStatus,
)

_whole = st.integers(0, 2**62)
_seconds = st.integers(0, 10**9).map(lambda ms: ms / 1000)
_text = st.text(st.characters(codec="utf-8"), max_size=8)
_owners = st.builds(Owner, _text, _text)


@st.composite
def states(draw: st.DrawFn) -> GroupState:
    """Any state that the types allow, sensible or not, at a clock of 1000 s."""
    deadlines = st.none() | st.integers(0, 10**7).map(lambda ms: 1000 + ms / 1000)
    partition = st.builds(
        Partition,
        partition=st.just(0),
        phase=st.sampled_from(Phase),
        epoch=_whole,
        owner=st.none() | _owners,
        to=st.none() | _owners,
        to_epoch=_whole,
        deadline_s=deadlines,
        reports_lost=st.booleans(),
        removed=st.booleans(),
    )
    partitions = draw(st.dictionaries(_whole, partition, max_size=5))
    flow = st.builds(
        Flow, name=st.just(""), instance=_text, bound=st.booleans(), since=_whole, active=st.booleans(), updates=_whole
    )
    flows = draw(st.dictionaries(_text, flow, max_size=5))
    return draw(
        st.builds(
            GroupState,
            queue_id=_text,
            incarnation=_text,
            settings=st.builds(
                GroupSettings,
                rebalance_delay_s=_seconds,
                max_handoff_time_s=_seconds,
                access_type=st.sampled_from(AccessType),
            ),
            partitions=st.just({number: replace(one, partition=number) for number, one in partitions.items()}),
            flows=st.just({name: replace(one, name=name) for name, one in flows.items()}),
            retired=st.dictionaries(_whole, _whole, max_size=5),
            status=st.sampled_from(RebalanceStatus),
            holddown_until_s=deadlines,
            trigger=st.booleans(),
            altered=st.booleans(),
            binds=_whole,
        )
    )


_deliveries = st.dictionaries(
    _whole, st.builds(Delivery, epoch=_whole, delivered=_whole, acknowledged=_whole), max_size=5
)
_records = st.builds(
    FlowRecord,
    flow=_text,
    instance=_text,
    queue_id=_text,
    incarnation=_text,
    bound=st.booleans(),
    session_timeout_s=_seconds,
    mapping=st.dictionaries(_whole, _whole, max_size=5),
    deliveries=_deliveries,
    former=st.lists(_text, max_size=3).map(tuple),
)
_leases = st.builds(
    Lease,
    token=_text,
    name=_text,
    beat=_whole,
    timers=st.dictionaries(_text, _seconds, max_size=5),
    state_token=_text,
)


def a_state() -> GroupState:
    """Something of everything."""
    first, second = Owner("billing-1", "aa"), Owner("billing-2", "bb")
    return GroupState(
        queue_id="q1",
        incarnation="life",
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


@given(states())
def test_a_state_comes_back_as_it_was(state: GroupState) -> None:
    body = encode_state(state, 1000.0)
    back = decode_state(body, 1000.0, "here")
    assert encode_state(back, 1000.0) == body
    assert back.flows == state.flows
    assert back.retired == state.retired
    assert list(back.partitions) == sorted(state.partitions)
    for number, partition in state.partitions.items():
        found = back.partitions[number]
        assert found.deadline_s == pytest.approx(partition.deadline_s, abs=1e-6)
        assert replace(found, deadline_s=None) == replace(partition, deadline_s=None)
    assert back.holddown_until_s == pytest.approx(state.holddown_until_s, abs=1e-6)
    assert replace(back, partitions={}, holddown_until_s=None) == replace(state, partitions={}, holddown_until_s=None)


@given(_records)
def test_a_record_comes_back_as_it_was(record: FlowRecord) -> None:
    assert decode_record(encode_record(record), "here") == record


@given(_leases)
def test_a_lease_comes_back_as_it_was(lease: Lease) -> None:
    assert decode_lease(encode_lease(lease), "here") == lease


def test_the_same_value_gives_the_same_bytes_whatever_the_order_of_its_maps() -> None:
    state = a_state()
    turned = replace(
        state,
        partitions=dict(sorted(state.partitions.items(), reverse=True)),
        flows=dict(sorted(state.flows.items(), reverse=True)),
    )
    assert encode_state(turned, 7.0) == encode_state(state, 7.0)


@pytest.mark.conformance("OWN-05")
def test_deadlines_go_by_what_remains_and_never_by_the_clock_of_another_process() -> None:
    state = replace(a_state(), holddown_until_s=105.0)
    body = encode_state(state, 100.0)
    back = decode_state(body, 5_000_000.0, "here")
    assert back.partitions[1].deadline_s == 5_000_002.5
    assert back.holddown_until_s == 5_000_005.0
    assert encode_state(back, 5_000_000.0) == body


def test_what_was_due_is_due_at_once() -> None:
    back = decode_state(encode_state(a_state(), 110.0), 50.0, "here")
    assert back.partitions[1].deadline_s == 50.0


@given(st.data())
def test_one_flipped_bit_anywhere_is_noticed(data: st.DataObject) -> None:
    body = bytearray(encode_state(a_state(), 100.0))
    at = data.draw(st.integers(0, len(body) * 8 - 1))
    body[at // 8] ^= 1 << at % 8
    with pytest.raises(Corrupt, match="state of group default/orders/billing"):
        decode_state(bytes(body), 100.0, "state of group default/orders/billing")


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"null", b"[1]", b'{"xxh3":"', b'{"xxh3":"0123456789abcdef",}', b"\xff" * 90]
)
def test_anything_else_is_refused_by_name(body: bytes) -> None:
    for decode in (decode_record, decode_lease, lambda body, where: decode_state(body, 0.0, where)):
        with pytest.raises(Corrupt, match="this very thing"):
            decode(body, "this very thing")


def test_a_document_cut_anywhere_is_refused() -> None:
    body = encode_state(a_state(), 100.0)
    for end in range(len(body)):
        with pytest.raises(Corrupt):
            decode_state(body[:end], 100.0, "here")


def test_one_kind_is_not_taken_for_another() -> None:
    lease = encode_lease(Lease(token="t", name="n", beat=1))
    with pytest.raises(Corrupt, match="here is damaged: it does not begin or end as a state does"):
        decode_state(lease, 0.0, "here")


SETTINGS = {"rebalance_delay_s": 5.0, "max_handoff_time_s": 3.0, "access_type": "exclusive"}


def altered(changes: dict[str, object]) -> bytes:
    """A state with other fields, and a checksum that matches."""
    raw = json.loads(encode_state(a_state(), 100.0))["state"] | changes
    body = json.dumps(raw, separators=(",", ":")).encode()
    return b'{"xxh3":"%s","state":%s}' % (checksum(body).encode(), body)


def test_altering_as_such_is_no_damage() -> None:
    assert decode_state(altered({}), 100.0, "here") == a_state()
    decode_state(altered({"settings": SETTINGS}), 100.0, "here")


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"partitions": [[0, "owned", 1, 0], [0, "owned", 2, 0]]},
        {"partitions": [[0, "owned", 1, 2]]},
        {"partitions": [[0, "owned", 1, -2]]},
        {"partitions": [[0, "owned", -1, 0]]},
        {"partitions": [[0, "owned", "1", 0]]},
        {"partitions": [[0, "owned", True, 0]]},
        {"partitions": [[0, "taken", 1, 0]]},
        {"partitions": [[0, "owned"]]},
        {"partitions": {"0": 1}},
        {"flows": [["a", "b", 1, 1, False, 0]]},
        {"flows": [["a", "b", True, 1, False, 0]] * 2},
        {"retired": [[1, 1], [1, 2]]},
        {"status": "Idle"},
        {"settings": SETTINGS | {"access_type": "shared"}},
        {"holddown_left_s": -1},
        {"holddown_left_s": "1"},
        {"settings": SETTINGS | {"rebalance_delay_s": None}},
        {"trigger": 0},
        {"altered": 0},
        {"binds": 1.5},
        {"queue_id": None},
        {"owners": [["a"]]},
    ],
)
def test_what_no_writer_could_have_meant_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(Corrupt, match=r"^here "):
        decode_state(altered(changes), 100.0, "here")


def test_a_newer_format_says_that_versions_are_mixed() -> None:
    with pytest.raises(Corrupt, match=r"here has format 2, this partq reads format 1.*one version of partq"):
        decode_state(altered({"format": 2}), 100.0, "here")


@pytest.mark.parametrize("endless_s", [float("inf"), float("nan")])
def test_a_time_without_end_cannot_be_written(endless_s: float) -> None:
    with pytest.raises(Invalid, match="finite"):
        encode_lease(Lease(token="t", name="n", beat=1, timers={"holddown": endless_s}))
    with pytest.raises(Invalid, match="finite"):
        encode_state(replace(a_state(), holddown_until_s=endless_s), 0.0)
    with pytest.raises(Invalid, match="finite"):
        encode_state(replace(a_state(), settings=GroupSettings(max_handoff_time_s=endless_s)), 0.0)
