"""Damage in a real Redis, where a document is a value and its version: half of one, versions that say nothing,
documents that lie at another place, and who goes on from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from partq_spark.base.errors import Corrupt, Fenced
from partq_spark.group.codec import decode_state, encode_state
from partq_spark.group.model import FlowRecord, GroupKey, Lease, OwnershipRecord
from partq_spark.group.ownership import Ownership, StateDocument
from tests.group.ownership.conftest import KEY, a_record, delivery
from tests.group.ownership.redis_servers import STORE_ID, command, open_redis
from tests.group.test_damage import OWNER, RECORD, STATE, InRedis
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[InRedis]:
    made = InRedis(redis_server)
    yield made
    made.close()


def bound(redis: InRedis) -> FlowRecord:
    redis.open().bind(KEY, RECORD, replaces=None)
    return RECORD


def test_nobody_goes_on_from_a_damaged_heartbeat(redis: InRedis) -> None:
    """Its readers are refused; the flow that wrote it writes it anew, from what it knows itself."""
    store = redis.open()
    record = RECORD
    store.bind(KEY, record, replaces=None)
    store.swap_state(KEY, encode_state(STATE, 0.0), token="t1", expected=None)
    where = redis.hash("beats")
    good = redis.raw.hget(where, "billing-1")
    assert good is not None
    name, instance = "billing-1", OWNER.instance

    def writes(store: Ownership) -> dict[str, Callable[[], object]]:
        return {
            "beat": lambda: store.beat(KEY, name, instance),
            "deliver": lambda: store.deliver(KEY, name, instance, {2: delivery(9)}, state_token="t1"),
            "report": lambda: store.report(KEY, name, instance, {2: delivery(9)}),
            "note": lambda: store.note(KEY, name, instance, "x"),
            "unbind": lambda: store.unbind(KEY, name, instance),
            "forget": lambda: store.forget_flow(KEY, name, instance, state_token="t1"),
            "bind": lambda: store.bind(KEY, record, replaces=None),
        }

    for at in (len('{"instance":"'), good.index(b'"bound":"') + 9, -3):  # instance, bound, checksum
        bad = bytearray(good)
        bad[at] ^= 1
        for what in writes(store):
            redis.raw.hset(where, name, bytes(bad))
            with pytest.raises(Corrupt, match=r"Redis key partq:.*:beats, field billing-1 .*damaged"):
                writes(redis.open())[what]()
            assert redis.raw.hget(where, name) == bytes(bad), what
        for what in ("beat", "report"):
            redis.raw.hset(where, name, bytes(bad))
            writes(store)[what]()
            found = redis.open().read_flow(KEY, name)
            assert found is not None
            assert found[1].instance == instance, "the damage is gone"
    redis.raw.delete(where)  # as is advised
    with pytest.raises(Fenced):
        store.beat(KEY, name, instance)
    store.bind(KEY, record, replaces=None)
    assert store.beat(KEY, name, instance) == "t1"


def test_a_record_that_lies_at_another_flow_or_instance_is_refused(redis: InRedis) -> None:
    mine, record = redis.open(), RECORD
    mine.bind(KEY, record, replaces=None)
    other = a_record("billing-2")
    mine.bind(KEY, other, replaces=None)
    where = redis.hash("flows")
    line = redis.raw.hget(where, f"billing-1/{record.instance}")
    assert line is not None
    redis.raw.hset(where, f"billing-2/{other.instance}", line)
    with pytest.raises(Corrupt, match="flows"):
        redis.open().read_flows(KEY)


def test_what_redis_cli_shows_is_for_people(redis: InRedis) -> None:
    mine = redis.open()
    bound(redis)
    mine.report(KEY, "billing-1", OWNER.instance, {1: delivery(41, 41)})
    body = (redis.raw.hget(redis.hash("flows"), f"billing-1/{OWNER.instance}") or b"").decode()
    assert '"deliveries":{"1":[1,41,41],"17":[1,3,0]}' in body
    beat = (redis.raw.hget(redis.hash("beats"), "billing-1") or b"").decode()
    checksum = '"checksum":"[0-9a-f]{16}"'
    words = rf'{{"instance":"{OWNER.instance}","bound":"1","record":"\w+",{checksum}}}'
    assert re.fullmatch(words, beat)
    version = (redis.raw.hget(redis.hash("beats"), "billing-1 version") or b"").decode()
    assert re.fullmatch(r"[0-9a-f]{16} \d{13}", version)


@pytest.mark.parametrize("half", ["", " version"], ids=["value", "version"])
def test_half_a_document_is_none(redis: InRedis, half: str) -> None:
    """A person removed the value, or the version, and not both."""
    mine, record = redis.open(), RECORD
    mine.bind(KEY, record, replaces=None)
    lease = Lease(token="l", name="n", beat=0)
    mine.swap_state(KEY, encode_state(STATE, 0.0), token="t1", expected=None)
    mine.take_lease(KEY, lease, expected=None)
    claim = OwnershipRecord(key=KEY, partition=0, owner=None, epoch=1, version="", modified="")
    mine.claim_ownership([claim])
    for name, field in {
        "state": "state",
        "leader": "leader",
        "beats": "billing-1",
        "flows": f"billing-1/{record.instance}",
        "ownership": "0",
    }.items():
        assert redis.raw.hdel(redis.hash(name), field + half) == 1
    for store in (redis.open(), mine):  # who knew the token, too
        assert store.read_state(KEY) is None
        assert store.read_state(KEY, known="t1") is None
        assert store.read_lease(KEY) is None
        assert store.read_flow(KEY, "billing-1") is None
        assert store.read_flows(KEY) == {}
        assert store.list_ownership(KEY) == {}
    if half:
        with pytest.raises(Fenced):
            mine.beat(KEY, "billing-1", record.instance)
    else:  # it writes anew what is its own
        assert mine.beat(KEY, "billing-1", record.instance) is None
    again = a_record()
    mine.bind(KEY, again, replaces=None)
    mine.take_lease(KEY, lease, expected=None)
    mine.swap_state(KEY, encode_state(STATE, 0.0), token="t2", expected=None)
    assert mine.beat(KEY, "billing-1", again.instance) == "t2"
    assert mine.claim_ownership([claim])
    assert redis.open().read_flows(KEY) == {"billing-1": again}


@pytest.mark.parametrize("bad", [b"", b"x", b"\xff 1", b"0123456789abcdef 12x", b"0123456789abcdef "])
def test_a_damaged_version_is_another_version(redis: InRedis, bad: bytes) -> None:
    """It has no checksum, because nobody decides by it: everybody reads on, and the next write mends it."""
    mine, record = redis.open(), RECORD
    mine.bind(KEY, record, replaces=None)
    mine.swap_state(KEY, encode_state(STATE, 0.0), token="t1", expected=None)
    lease = Lease(token="l", name="n", beat=0)
    mine.take_lease(KEY, lease, expected=None)
    redis.raw.hset(redis.hash("state"), "state version", bad)
    redis.raw.hset(redis.hash("leader"), "leader version", bad)
    found = redis.open().read_state(KEY)
    assert isinstance(found, StateDocument)
    assert found.token == "t1"
    assert mine.renew_lease(KEY, replace(lease, beat=1)).state_token == "t1"
    assert mine.beat(KEY, "billing-1", record.instance) == "t1"
    mine.swap_state(KEY, encode_state(STATE, 0.0), token="t2", expected="t1")
    version = redis.raw.hget(redis.hash("state"), "state version")
    assert version is not None
    assert re.fullmatch(rb"[0-9a-f]{16} \d{13}", version)


def test_a_state_that_is_none_stops_neither_the_leader_nor_heartbeats(redis: InRedis) -> None:
    """The leader meets a token that is not its own, cannot read the state, and begins anew in its place."""
    mine, record = redis.open(), RECORD
    mine.bind(KEY, record, replaces=None)
    mine.swap_state(KEY, encode_state(STATE, 0.0), token="t1", expected=None)
    lease = Lease(token="l", name="n", beat=0)
    mine.take_lease(KEY, lease, expected=None)
    redis.raw.hset(redis.hash("state"), mapping={"state": b"[]", "state version": b"0123456789abcdef 1"})
    for store in (redis.open(), mine):
        assert store.beat(KEY, "billing-1", record.instance) not in (None, "t1")
        assert not store.deliver(KEY, "billing-1", record.instance, {}, state_token="t1")
    token = mine.renew_lease(KEY, replace(lease, beat=1)).state_token
    found = redis.open().read_state(KEY)
    assert isinstance(found, StateDocument)
    assert found.token == token != "t1"
    with pytest.raises(Corrupt, match="the state"):
        decode_state(found.body, 0.0, "the state")
    mine.swap_state(KEY, encode_state(STATE, 0.0), token="t2", expected=token)
    assert mine.beat(KEY, "billing-1", record.instance) == "t2"


def test_an_ownership_record_under_no_number_is_refused_by_name(redis: InRedis) -> None:
    mine = redis.open()
    claim = OwnershipRecord(key=KEY, partition=0, owner=None, epoch=1, version="", modified="")
    mine.claim_ownership([claim])
    where = redis.hash("ownership")
    for half in ("", " version"):
        redis.raw.hset(where, f"zero{half}", redis.raw.hget(where, f"0{half}") or b"")
    with pytest.raises(Corrupt, match="field zero"):
        redis.open().list_ownership(KEY)


@pytest.mark.parametrize("key", ["state", "flows", "beats", "leader", "ownership"])
def test_a_key_of_another_type_is_corrupt(redis_server: RedisServer, key: str) -> None:
    group = GroupKey("default", "orders", f"foreign-{key}")
    store = open_redis(redis_server)
    command(redis_server, "SET", f"partq:{{{STORE_ID}/{group}}}:{key}", "x")
    reads: dict[str, Callable[[], object]] = {
        "state": lambda: store.read_state(group),
        "flows": lambda: store.read_flows(group),
        "beats": lambda: store.read_flows(group),
        "leader": lambda: store.read_lease(group),
        "ownership": lambda: store.list_ownership(group),
    }
    if key == "flows":
        with pytest.raises(Corrupt, match="partq did not write"):
            store.bind(group, a_record(), replaces=None)
    else:
        with pytest.raises(Corrupt, match="partq did not write"):
            reads[key]()
    store.drop_group(group)
    assert not reads[key]()
