"""Damage: a flipped bit in each byte of every document that decides something, in a file and in a real Redis, and what
is of another make. What is read is the same value or `Corrupt`, which names it; nobody goes on from what is damaged;
and what the message advises mends it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis

from partq_spark.base.errors import Corrupt
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.codec import decode_state, encode_state
from partq_spark.group.model import GroupSettings, GroupState, Lease, Owner, OwnershipRecord
from partq_spark.group.ownership import Ownership, StateDocument
from partq_spark.log import admin
from partq_spark.log.queue import QueueLog
from partq_spark.objects.local import LocalStore
from tests.group.ownership.conftest import KEY, a_record, delivery
from tests.group.ownership.redis_servers import STORE_ID, open_redis
from tests.support.ownership import in_objects
from tests.support.servers import RedisServer

OWNER: Final = Owner("billing-1", "0123456789abcdef")
QUEUE_ID: Final = "00aa00aa00aa00aa"
RECORD: Final = replace(a_record(p1=delivery(40, 33), p17=delivery(3)), instance=OWNER.instance)
LEASE: Final = Lease(token="0123456789abcdef", name="pod-1", beat=17, timers={"holddown": 4.25}, state_token="fedc")
STATE: Final = GroupState(queue_id="q", incarnation="life", settings=GroupSettings(), partitions={}, flows={})
CLAIM: Final = OwnershipRecord(key=KEY, partition=12, owner=OWNER, epoch=7, version="", modified="")
STATE_TOKEN: Final = "0123456789abcdef"
FOREIGN: Final = (b"", b"x", b"{}", b"[]", b"\xff\xfe", b"instance i1 count 3")
_STEP: Final = re.compile(r"restore|remove|delete")


class Files:
    """A group whose documents are files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = LocalStore(str(folder))

    def open(self) -> Ownership:
        """A user who remembers nothing."""
        return in_objects(self.objects)

    def path(self, name: str) -> Path:
        return self.folder / f"{KEY}/ownership/{name.removeprefix('ownership/')}"

    def read(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def put(self, name: str, content: bytes) -> None:
        self.path(name).write_bytes(content)

    def named(self, name: str) -> str:
        return f"{KEY}/ownership/{name.removeprefix('ownership/')}"

    def as_advised(self, said: str) -> None:
        name = re.findall(rf"{KEY}/ownership/[\w./-]+", said)[-1]
        assert self.objects.delete(name), said


class InRedis:
    """A group in a Redis whose bits can be turned."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.raw: Any = Redis(port=server.port, decode_responses=False)  # its types know nothing of that
        self._opened: list[Ownership] = []
        self.open().drop_group(KEY)

    def open(self) -> Ownership:
        if not self._opened:
            self._opened.append(open_redis(self.server))
        return Ownership(self._opened[0]._documents)

    def hash(self, name: str) -> bytes:
        return f"partq:{{{STORE_ID}/{KEY}}}:{name.partition('/')[0]}".encode()

    def field(self, name: str) -> str:
        return name.partition("/")[2] or name

    def read(self, name: str) -> bytes:
        return bytes(self.raw.hget(self.hash(name.removesuffix(" version")), self.field(name)))

    def put(self, name: str, content: bytes) -> None:
        self.raw.hset(self.hash(name.removesuffix(" version")), self.field(name), content)

    def named(self, name: str) -> str:
        return f"{KEY}}}:{name.partition('/')[0]}"

    def as_advised(self, said: str) -> None:
        found = re.search(r"\((HDEL [^)]+) removes it\)", said)
        assert found is not None, said
        assert self.raw.execute_command(*shlex.split(found[1])) == 2

    def close(self) -> None:
        self.open().drop_group(KEY)
        self._opened[0].close()
        self.raw.close()


Place = Files | InRedis


@pytest.fixture(params=["file", pytest.param("redis", marks=pytest.mark.redis)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "file":
        yield Files(tmp_path / "store")
        return
    made = InRedis(request.getfixturevalue("redis_server"))
    yield made
    made.close()


def begin(place: Place) -> Ownership:
    """Everything that is not there is made; what cannot be read is said."""
    store = place.open()
    if store.read_state(KEY) is None:
        store.swap_state(KEY, encode_state(STATE, 0.0), token=STATE_TOKEN, expected=None)
    if store.read_lease(KEY) is None:
        store.take_lease(KEY, LEASE, expected=None)
    if "billing-1" not in store.read_flows(KEY):
        store.bind(KEY, RECORD, replaces=None)
    if 12 not in store.list_ownership(KEY):
        assert store.claim_ownership([CLAIM])
    assert state(place) == STATE
    return store


def state(place: Place) -> GroupState:
    found = place.open().read_state(KEY)
    assert isinstance(found, StateDocument)
    return decode_state(found.body, 0.0, place.open()._documents.where(KEY, "state"))


def lease(place: Place) -> object:
    found = place.open().read_lease(KEY)
    return found and found.lease


def flow(place: Place) -> object:
    found = place.open().read_flow(KEY, "billing-1")
    return found and (found[0], found[1].instance)


def flows(place: Place) -> object:
    return place.open().read_flows(KEY)


def beats(place: Place) -> object:
    return {name: beat.instance for name, beat in place.open().read_beats(KEY).items()}


def owners(place: Place) -> object:
    """Without versions, which only tell whether one was claimed since."""
    return {number: replace(each, version="") for number, each in place.open().list_ownership(KEY).items()}


BODY = f"flows/billing-1/{OWNER.instance}"
READS: dict[str, tuple[Callable[[Place], object], ...]] = {
    "state": (state,),  # where its token is flipped, everybody reads the same state again
    "leader": (lease,),
    "beats/billing-1": (flow, flows, beats),
    BODY: (flow, flows),
    "ownership/12": (owners,),
}


def attempt(read: Callable[[], object]) -> tuple[object, str | None]:
    """What is read, or what `Corrupt` says."""
    try:
        return read(), None
    except Corrupt as problem:
        return None, str(problem)


def flips(good: bytes) -> Iterator[bytes]:
    """Each byte with one of its bits turned."""
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        yield bytes(bad)


@pytest.mark.slow
@pytest.mark.parametrize("name", READS)
def test_a_flipped_bit_or_what_is_of_another_make_is_never_taken_for_something_else(place: Place, name: str) -> None:
    begin(place)
    good = place.read(name)
    for read in READS[name]:
        expected, refused = read(place), 0
        for bad in (*flips(good), *FOREIGN):
            place.put(name, bad)
            found, said = attempt(lambda: read(place))  # noqa: B023 - at once
            if said is None:
                assert found == expected, bad
            else:
                assert place.named(name) in said, said
                assert _STEP.search(said), f"no next step: {said}"
                refused += 1
        place.put(name, good)
        assert read(place) == expected
        assert refused > 0.6 * len(good)


@pytest.mark.parametrize("name", READS)
def test_what_is_named_can_be_removed_and_everything_begins_anew(place: Place, name: str) -> None:
    """As the message advises, as often as it does."""
    begin(place)
    good = place.read(name)
    place.put(name, good[:-20] + bytes([good[-20] ^ 1]) + good[-19:])
    removed = 0
    while (said := attempt(lambda: begin(place))[1]) is not None:
        assert removed < 3, said
        if removed == 0:
            assert place.named(name) in said
        place.as_advised(said)
        removed += 1
    assert removed
    begin(place)


@pytest.mark.parametrize("what", ["owned", "rewound", "head"])
def test_a_flipped_bit_of_a_checkpoint_or_a_head_is_never_taken_for_something_else(tmp_path: Path, what: str) -> None:
    objects = LocalStore(str(tmp_path / "store"))
    made = CheckpointStore(objects, KEY, QUEUE_ID)
    name = "default/orders/billing/checkpoint/3"
    reads: list[Callable[[], object]] = [lambda: made.list_checkpoints()[3]]
    if what == "head":
        name = "default/orders/_head.json"
        admin.create_group(admin.create_queue(objects, "default", "orders", 2), "billing", [0, 0])
        reads = [lambda: QueueLog(objects, "default", "orders").refresh()]
    else:
        made.fence(3, to=OWNER, epoch=5, start=1000, delivered=1010)
        reads.append(lambda: (found := made.read(3)) and replace(found, etag=None))
        if what == "rewound":
            made.rewind(3, 7, fence=True, delivered=1020)
    path = tmp_path / "store" / name
    good = path.read_bytes()
    for read in reads:
        expected, refused = read(), 0
        for bad in flips(good):
            path.write_bytes(bad)
            found, said = attempt(read)
            if said is None:
                assert found == expected, bad
            else:
                assert name in said
                assert _STEP.search(said), f"no next step: {said}"
                refused += 1
        path.write_bytes(good)
        assert refused > 0.8 * len(good), "all but an ETag's"
