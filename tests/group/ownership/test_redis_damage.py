"""Damage in a real Redis, where a document is a value and its version: half of one, versions that say nothing,
documents that lie at another place, and who goes on from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from partq_spark.base.errors import Corrupt, Fenced
from partq_spark.group.model import Lease
from partq_spark.group.ownership import Ownership
from tests.group.ownership.conftest import KEY, a_record, delivery, token_of
from tests.group.test_damage import LEASE, OWNER, RECORD, STATE_TOKEN, InRedis, begin, state
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis

NAME, INSTANCE = "billing-1", OWNER.instance
VERSION = re.compile(rb"[0-9a-f]{16} \d{13}")


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[InRedis]:
    made = InRedis(redis_server)
    yield made
    made.close()


@pytest.fixture
def mine(redis: InRedis) -> Ownership:
    """Of a process whose flow is bound, and which leads."""
    return begin(redis)


def renewed(number: int = 1) -> Lease:
    return replace(LEASE, beat=LEASE.beat + number)


def test_nobody_goes_on_from_a_damaged_heartbeat(redis: InRedis, mine: Ownership) -> None:
    """Its readers are refused; the flow that wrote it writes it anew, from what it knows itself."""
    beat = f"beats/{NAME}"
    good = redis.read(beat)

    def writes(store: Ownership) -> dict[str, Callable[[], object]]:
        return {
            "beat": lambda: store.beat(KEY, NAME, INSTANCE),
            "report": lambda: store.report(KEY, NAME, INSTANCE, {2: delivery(9)}),
            "deliver": lambda: store.deliver(KEY, NAME, INSTANCE, {2: delivery(9)}, state_token=STATE_TOKEN),
            "note": lambda: store.note(KEY, NAME, INSTANCE, "x"),
            "unbind": lambda: store.unbind(KEY, NAME, INSTANCE),
            "forget": lambda: store.forget_flow(KEY, NAME, INSTANCE, state_token=STATE_TOKEN),
            "bind": lambda: store.bind(KEY, RECORD, replaces=None),
        }

    for at in (len('{"instance":"'), good.index(b'"bound":"') + 9, -3):  # instance, bound, checksum
        bad = bytearray(good)
        bad[at] ^= 1
        for what in writes(mine):
            redis.put(beat, bytes(bad))
            with pytest.raises(Corrupt, match=r"Redis key partq:.*:beats, field billing-1 .*damaged"):
                writes(redis.open())[what]()
            assert redis.read(beat) == bytes(bad), what
        for what in ("beat", "report"):
            redis.put(beat, bytes(bad))
            writes(mine)[what]()
            assert redis.open().read_beats(KEY)[NAME].instance == INSTANCE, "the damage is gone"
    redis.raw.delete(redis.hash(beat))  # as is advised
    with pytest.raises(Fenced):
        mine.beat(KEY, NAME, INSTANCE)
    mine.bind(KEY, RECORD, replaces=None)
    assert mine.beat(KEY, NAME, INSTANCE) == STATE_TOKEN


def test_what_lies_at_another_place_is_refused(redis: InRedis, mine: Ownership) -> None:
    """A record at another flow's, and a claim under no number."""
    other = a_record("billing-2")
    mine.bind(KEY, other, replaces=None)
    redis.put(f"flows/billing-2/{other.instance}", redis.read(f"flows/{NAME}/{INSTANCE}"))
    with pytest.raises(Corrupt, match="flows"):
        redis.open().read_flows(KEY)
    for half in ("", " version"):
        redis.put(f"ownership/twelve{half}", redis.read(f"ownership/12{half}"))
    with pytest.raises(Corrupt, match="field twelve"):
        redis.open().list_ownership(KEY)


def test_what_redis_cli_shows_is_for_people(redis: InRedis, mine: Ownership) -> None:
    mine.report(KEY, NAME, INSTANCE, {1: delivery(41, 41)})
    assert b'"deliveries":{"1":[1,41,41],"17":[1,3,0]}' in redis.read(f"flows/{NAME}/{INSTANCE}")
    words = rf'{{"instance":"{INSTANCE}","bound":"1","record":"\w+","checksum":"[0-9a-f]{{16}}"}}'
    assert re.fullmatch(words.encode(), redis.read(f"beats/{NAME}"))
    assert VERSION.fullmatch(redis.read(f"beats/{NAME} version"))


@pytest.mark.parametrize("half", ["", " version"], ids=["value", "version"])
def test_half_a_document_is_none(redis: InRedis, mine: Ownership, half: str) -> None:
    """A person removed the value, or the version, and not both."""
    for name in ("state", "leader", f"beats/{NAME}", f"flows/{NAME}/{INSTANCE}", "ownership/12"):
        assert redis.raw.hdel(redis.hash(name), redis.field(name) + half) == 1
    for store in (redis.open(), mine):  # who knew the token, too
        assert store.read_state(KEY) is store.read_state(KEY, known=STATE_TOKEN) is None
        assert (store.read_lease(KEY), store.read_flow(KEY, NAME)) == (None, None)
        assert (store.read_flows(KEY), store.list_ownership(KEY)) == ({}, {})
    if half:
        with pytest.raises(Fenced):
            mine.beat(KEY, NAME, INSTANCE)
    else:  # it writes anew what is its own
        assert mine.beat(KEY, NAME, INSTANCE) is None
        assert redis.raw.hdel(redis.hash("beats"), NAME, f"{NAME} version") == 2
    begin(redis)
    assert list(redis.open().read_flows(KEY)) == [NAME]


@pytest.mark.parametrize("bad", [b"", b"x", b"\xff 1", b"0123456789abcdef 12x", b"0123456789abcdef "])
def test_a_damaged_version_is_another_version(redis: InRedis, mine: Ownership, bad: bytes) -> None:
    """It has no checksum, because nobody decides by it: everybody reads on, and the next write mends it."""
    for name in ("state", "leader"):
        redis.put(f"{name} version", bad)
    assert token_of(redis.open()) == STATE_TOKEN
    assert mine.renew_lease(KEY, renewed()).state_token == mine.beat(KEY, NAME, INSTANCE) == STATE_TOKEN
    mine.swap_state(KEY, b"{}", token="t2", expected=STATE_TOKEN)
    assert VERSION.fullmatch(redis.read("state version"))


def test_a_state_that_is_none_stops_neither_the_leader_nor_heartbeats(redis: InRedis, mine: Ownership) -> None:
    """The leader meets a token that is not its own, cannot read the state, and begins anew in its place."""
    redis.put("state", b"[]")
    redis.put("state version", b"0123456789abcdef 1")
    for store in (redis.open(), mine):
        assert store.beat(KEY, NAME, INSTANCE) not in (None, STATE_TOKEN)
        assert not store.deliver(KEY, NAME, INSTANCE, {}, state_token=STATE_TOKEN)
    token = mine.renew_lease(KEY, renewed()).state_token
    assert token_of(redis.open()) == token != STATE_TOKEN
    with pytest.raises(Corrupt):
        state(redis)
    mine.swap_state(KEY, b"{}", token="t2", expected=token)
    assert mine.beat(KEY, NAME, INSTANCE) == "t2"


@pytest.mark.parametrize("name", ["state", "flows", "beats", "leader", "ownership"])
def test_a_key_of_another_type_is_corrupt(redis: InRedis, name: str) -> None:
    redis.raw.set(redis.hash(name), "x")
    with pytest.raises(Corrupt, match="partq did not write"):
        begin(redis)
    redis.open().drop_group(KEY)
    begin(redis)
