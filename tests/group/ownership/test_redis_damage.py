"""Every single-bit flip of every value in Redis that decides something: what is read is the same value, or `Corrupt`,
which names the key; nobody goes on from what is damaged; and with the key removed everybody begins anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from partq_spark.base.errors import Corrupt, Fenced
from partq_spark.group.codec import decode_state, encode_state
from partq_spark.group.model import FlowRecord, GroupKey, GroupSettings, GroupState, Lease, Owner, OwnershipRecord
from partq_spark.group.ownership import Ownership, StateDocument
from tests.group.ownership.conftest import a_record, delivery
from tests.group.ownership.redis_servers import open_redis
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis

OWNER = Owner("billing-1", "0123456789abcdef")
STATE = GroupState(queue_id="q", incarnation="life", settings=GroupSettings(), partitions={}, flows={})


class Damaged:
    """A group in a Redis whose bits can be turned."""

    def __init__(self, server: RedisServer, name: str) -> None:
        self.key = GroupKey("default", "orders", name)
        self.store: Ownership = open_redis(server)
        self.raw: Any = Redis(port=server.port, decode_responses=False)  # its types know nothing of that
        self.store.drop_group(self.key)

    def reader(self) -> Ownership:
        """A user who remembers nothing."""
        return Ownership(self.store._documents)

    def hash(self, name: str) -> bytes:
        (found,) = [key for key in self.raw.keys("*") if self.holds(key, name)]
        return bytes(found)

    def holds(self, key: bytes, name: str) -> bool:
        return key.endswith(f"{self.key}}}:{name}".encode())

    def flips(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Field and damaged value, each in turn; whole again afterwards."""
        where = self.hash(name)
        for field, good in self.raw.hgetall(where).items():
            for at in range(len(good) * 8):
                bad = bytearray(good)
                bad[at // 8] ^= 1 << at % 8
                self.raw.hset(where, field, bytes(bad))
                yield field, bytes(bad)
            self.raw.hset(where, field, good)

    def close(self) -> None:
        self.store.close()
        self.raw.close()


@pytest.fixture
def group(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Damaged]:
    made = Damaged(redis_server, re.sub(r"\W+", "-", request.node.name.removeprefix("test_")))
    yield made
    made.store.drop_group(made.key)
    made.close()


def attempt(read: Callable[[], object]) -> tuple[object, str | None]:
    """What is read, or what `Corrupt` says."""
    try:
        return read(), None
    except Corrupt as problem:
        return None, str(problem)


def check(group: Damaged, name: str, *reads: Callable[[], object]) -> int:
    """How many flips were refused."""
    good = [read() for read in reads]
    refused = 0
    for field, bad in group.flips(name):
        for read, expected in zip(reads, good, strict=True):
            found, said = attempt(read)
            if said is None:
                assert found == expected, (field, bad)
            else:
                assert f"{group.key}}}:{name}" in said, said
                assert "remove" in said
                refused += 1
    assert [read() for read in reads] == good
    return refused


def bound(group: Damaged) -> FlowRecord:
    record = replace(a_record(p1=delivery(40, 33), p17=delivery(3)), instance=OWNER.instance)
    group.store.bind(group.key, record, replaces=None)
    return record


def test_flows_and_their_deliveries(group: Damaged) -> None:
    bound(group)

    def all_flows() -> object:
        return group.reader().read_flows(group.key)

    def one() -> object:
        found = group.reader().read_flow(group.key, "billing-1")
        return found and (found[0], found[1].instance)

    def beats() -> object:
        return {name: beat.instance for name, beat in group.reader().read_beats(group.key).items()}

    assert check(group, "flows", all_flows, one) > 4000
    assert check(group, "beats", all_flows, one, beats) > 1900


def test_a_record_that_lies_at_another_flow_or_instance_is_refused(group: Damaged) -> None:
    record = bound(group)
    other = a_record("billing-2")
    group.store.bind(group.key, other, replaces=None)
    where = group.hash("flows")
    line = group.raw.hget(where, f"billing-1/{record.instance}")
    assert line is not None
    group.raw.hset(where, f"billing-2/{other.instance}", line)
    with pytest.raises(Corrupt, match="flows"):
        group.reader().read_flows(group.key)


def test_what_redis_cli_shows_is_for_people(group: Damaged) -> None:
    bound(group)
    group.store.report(group.key, "billing-1", OWNER.instance, {1: delivery(41, 41)})
    body = (group.raw.hget(group.hash("flows"), f"billing-1/{OWNER.instance}") or b"").decode()
    assert '"deliveries":{"1":[1,41,41],"17":[1,3,0]}' in body
    beat = (group.raw.hget(group.hash("beats"), "billing-1") or b"").decode()
    checksum = '"checksum":"[0-9a-f]{16}"'
    words = rf'{{"instance":"{OWNER.instance}","bound":"1","record":"\w+",{checksum}}}'
    assert re.fullmatch(words, beat)
    version = (group.raw.hget(group.hash("beats"), "billing-1 version") or b"").decode()
    assert re.fullmatch(r"[0-9a-f]{16} \d{13}", version)


def test_nobody_goes_on_from_a_damaged_heartbeat(group: Damaged) -> None:
    """Its readers are refused; the flow that wrote it writes it anew, from what it knows itself."""
    record = bound(group)
    group.store.swap_state(group.key, encode_state(STATE, 0.0), token="t1", expected=None)
    where = group.hash("beats")
    good = group.raw.hget(where, "billing-1")
    assert good is not None
    name, instance = "billing-1", OWNER.instance

    def writes(store: Ownership) -> dict[str, Callable[[], object]]:
        return {
            "beat": lambda: store.beat(group.key, name, instance),
            "deliver": lambda: store.deliver(group.key, name, instance, {2: delivery(9)}, state_token="t1"),
            "report": lambda: store.report(group.key, name, instance, {2: delivery(9)}),
            "note": lambda: store.note(group.key, name, instance, "x"),
            "unbind": lambda: store.unbind(group.key, name, instance),
            "forget": lambda: store.forget_flow(group.key, name, instance, state_token="t1"),
            "bind": lambda: store.bind(group.key, record, replaces=None),
        }

    for at in (len('{"instance":"'), good.index(b'"bound":"') + 9, -3):  # instance, bound, checksum
        bad = bytearray(good)
        bad[at] ^= 1
        for what in writes(group.store):
            group.raw.hset(where, name, bytes(bad))
            with pytest.raises(Corrupt, match=r"Redis key partq:.*:beats, field billing-1 .*damaged"):
                writes(group.reader())[what]()
            assert group.raw.hget(where, name) == bytes(bad), what
        for what in ("beat", "report"):
            group.raw.hset(where, name, bytes(bad))
            writes(group.store)[what]()
            found = group.reader().read_flow(group.key, name)
            assert found is not None
            assert found[1].instance == instance, "the damage is gone"
    group.raw.delete(where)  # as is advised
    with pytest.raises(Fenced):
        group.store.beat(group.key, name, instance)
    group.store.bind(group.key, record, replaces=None)
    assert group.store.beat(group.key, name, instance) == "t1"


def test_a_lease(group: Damaged) -> None:
    lease = Lease(token="0123456789abcdef", name="pod-1", beat=17, timers={"holddown": 4.25}, state_token="fedc")
    group.store.take_lease(group.key, lease, expected=None)

    def read() -> object:
        found = group.reader().read_lease(group.key)
        return found and found.lease

    assert check(group, "leader", read) > 1100
    group.raw.delete(group.hash("leader"))
    group.store.take_lease(group.key, lease, expected=None)


def test_a_state(group: Damaged) -> None:
    """Its token only tells one version from another: where that is flipped, everybody reads the same state again."""
    group.store.swap_state(group.key, encode_state(STATE, 0.0), token="0123456789abcdef", expected=None)

    def read() -> object:
        found = group.store.read_state(group.key)
        assert isinstance(found, StateDocument)
        return decode_state(found.body, 0.0, f"{{{group.key}}}:state, remove")

    assert check(group, "state", read) > 1500


def test_an_ownership_record(group: Damaged) -> None:
    claim = OwnershipRecord(key=group.key, partition=12, owner=OWNER, epoch=7, version="", modified="")
    claimed = group.store.claim_ownership([claim])[12]

    def read() -> object:
        """Without its version, which only tells whether it was claimed since."""
        return {number: replace(each, version="") for number, each in group.store.list_ownership(group.key).items()}

    assert check(group, "ownership", read) > 400
    for bad in (b"flipped 1", b"x"):
        group.raw.hset(group.hash("ownership"), "12 version", bad)
        assert group.store.claim_ownership([claimed]) == {}
        found = group.store.list_ownership(group.key)[12]
        claimed = group.store.claim_ownership([found])[12]
        assert group.store.list_ownership(group.key) == {12: claimed}


def removals(said: str) -> list[str]:
    """The words of the command that a message names."""
    found = re.search(r'\((HDEL "[^"]+" "[^"]+" "[^"]+") removes it\)', said)
    assert found is not None, said
    return [word.strip('"') for word in re.findall(r'HDEL|"[^"]+"', found[1])]


def test_a_message_names_the_command_that_removes_the_document(group: Damaged) -> None:
    record = bound(group)
    where, field = group.hash("flows"), f"billing-1/{record.instance}"
    group.raw.hset(where, field, b"{}")
    _, said = attempt(lambda: group.reader().read_flows(group.key))
    assert said is not None
    assert group.raw.execute_command(*removals(said)) == 2
    assert group.reader().read_flows(group.key) == {}
    group.raw.hset(group.hash("beats"), "billing-1", b"{}")
    _, said = attempt(lambda: group.reader().read_beats(group.key))
    assert said is not None
    assert group.raw.execute_command(*removals(said)) == 2
    assert group.reader().read_beats(group.key) == {}


@pytest.mark.parametrize("half", ["", " version"], ids=["value", "version"])
def test_half_a_document_is_none(group: Damaged, half: str) -> None:
    """A person removed the value, or the version, and not both."""
    record = bound(group)
    lease = Lease(token="l", name="n", beat=0)
    group.store.swap_state(group.key, encode_state(STATE, 0.0), token="t1", expected=None)
    group.store.take_lease(group.key, lease, expected=None)
    claim = OwnershipRecord(key=group.key, partition=0, owner=None, epoch=1, version="", modified="")
    group.store.claim_ownership([claim])
    for name, field in {
        "state": "state",
        "leader": "leader",
        "beats": "billing-1",
        "flows": f"billing-1/{record.instance}",
        "ownership": "0",
    }.items():
        assert group.raw.hdel(group.hash(name), field + half) == 1
    for store in (group.reader(), group.store):  # who knew the token, too
        assert store.read_state(group.key) is None
        assert store.read_state(group.key, known="t1") is None
        assert store.read_lease(group.key) is None
        assert store.read_flow(group.key, "billing-1") is None
        assert store.read_flows(group.key) == {}
        assert store.list_ownership(group.key) == {}
    if half:
        with pytest.raises(Fenced):
            group.store.beat(group.key, "billing-1", record.instance)
    else:  # it writes anew what is its own
        assert group.store.beat(group.key, "billing-1", record.instance) is None
    again = a_record()
    group.store.bind(group.key, again, replaces=None)
    group.store.take_lease(group.key, lease, expected=None)
    group.store.swap_state(group.key, encode_state(STATE, 0.0), token="t2", expected=None)
    assert group.store.beat(group.key, "billing-1", again.instance) == "t2"
    assert group.reader().claim_ownership([claim])
    assert group.reader().read_flows(group.key) == {"billing-1": again}


@pytest.mark.parametrize("bad", [b"", b"x", b"\xff 1", b"0123456789abcdef 12x", b"0123456789abcdef "])
def test_a_damaged_version_is_another_version(group: Damaged, bad: bytes) -> None:
    """It has no checksum, because nobody decides by it: everybody reads on, and the next write mends it."""
    record = bound(group)
    group.store.swap_state(group.key, encode_state(STATE, 0.0), token="t1", expected=None)
    lease = Lease(token="l", name="n", beat=0)
    group.store.take_lease(group.key, lease, expected=None)
    group.raw.hset(group.hash("state"), "state version", bad)
    group.raw.hset(group.hash("leader"), "leader version", bad)
    found = group.reader().read_state(group.key)
    assert isinstance(found, StateDocument)
    assert found.token == "t1"
    assert group.store.renew_lease(group.key, replace(lease, beat=1)).state_token == "t1"
    assert group.store.beat(group.key, "billing-1", record.instance) == "t1"
    group.store.swap_state(group.key, encode_state(STATE, 0.0), token="t2", expected="t1")
    version = group.raw.hget(group.hash("state"), "state version")
    assert version is not None
    assert re.fullmatch(rb"[0-9a-f]{16} \d{13}", version)


def test_a_state_that_is_none_stops_neither_the_leader_nor_heartbeats(group: Damaged) -> None:
    """The leader meets a token that is not its own, cannot read the state, and begins anew in its place."""
    record = bound(group)
    group.store.swap_state(group.key, encode_state(STATE, 0.0), token="t1", expected=None)
    lease = Lease(token="l", name="n", beat=0)
    group.store.take_lease(group.key, lease, expected=None)
    group.raw.hset(group.hash("state"), mapping={"state": b"[]", "state version": b"0123456789abcdef 1"})
    for store in (group.reader(), group.store):
        assert store.beat(group.key, "billing-1", record.instance) not in (None, "t1")
        assert not store.deliver(group.key, "billing-1", record.instance, {}, state_token="t1")
    token = group.store.renew_lease(group.key, replace(lease, beat=1)).state_token
    found = group.store.read_state(group.key)
    assert isinstance(found, StateDocument)
    assert found.token == token != "t1"
    with pytest.raises(Corrupt, match="the state"):
        decode_state(found.body, 0.0, "the state")
    group.store.swap_state(group.key, encode_state(STATE, 0.0), token="t2", expected=token)
    assert group.store.beat(group.key, "billing-1", record.instance) == "t2"


def test_an_ownership_record_under_no_number_is_refused_by_name(group: Damaged) -> None:
    claim = OwnershipRecord(key=group.key, partition=0, owner=None, epoch=1, version="", modified="")
    group.store.claim_ownership([claim])
    where = group.hash("ownership")
    for half in ("", " version"):
        group.raw.hset(where, f"zero{half}", group.raw.hget(where, f"0{half}") or b"")
    with pytest.raises(Corrupt, match="field zero"):
        group.store.list_ownership(group.key)
