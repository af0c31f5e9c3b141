"""Damage: a flipped bit in each byte of every document that decides something, in a file and in a real Redis, and what
is of another make. What is read is the same value or `Corrupt`, which names it; nobody goes on from what is damaged;
and what the message advises mends it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis

from partq_spark.base.errors import Corrupt, Fenced, Invalid
from partq_spark.base.json_documents import sealed
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.codec import decode_state, encode_state
from partq_spark.group.model import Checkpoint, GroupSettings, GroupState, Lease, OwnershipRecord
from partq_spark.group.ownership import Ownership, StateDocument
from partq_spark.objects.api import Document
from partq_spark.objects.local import LocalStore
from tests.group.ownership.conftest import KEY, ME, RECORD, token_of, verbs
from tests.group.ownership.redis_servers import STORE_ID, open_redis
from tests.group.test_checkpoints import A1, B1, QUEUE_ID, Lossy, checkpoints_in
from tests.objects.conftest import memory_store, service_store
from tests.support.ownership import in_objects
from tools.servers import RedisServer

LEASE: Final = Lease(token="l", name="pod-1", beat=17, timers={"holddown": 4.25}, state_token="fedc")
STATE: Final = GroupState(queue_id="q", settings=GroupSettings(), partitions={}, flows={})
CLAIM: Final = OwnershipRecord(partition=12, owner=A1, epoch=7)
BEAT: Final = "beats/billing-1"
FOREIGN: Final = (b"", b"x", b"{}", b"[]", b"\xff\xfe", b"instance i1 count 3")
NOBODY: Final = 65534
_STEP: Final = re.compile(r"restore|remove|delete")


class Files:
    """A group whose documents are files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = LocalStore(str(folder))

    def open(self) -> Ownership:
        """A user who remembers nothing."""
        return in_objects(self.objects)

    def named(self, name: str) -> str:
        return f"{KEY}/{name}" if name.startswith(("ownership/", "checkpoint/")) else f"{KEY}/ownership/{name}"

    def read(self, name: str) -> bytes:
        return (self.folder / self.named(name)).read_bytes()

    def put(self, name: str, content: bytes) -> None:
        (self.folder / self.named(name)).write_bytes(content)

    def as_advised(self, said: str) -> None:
        name = re.findall(rf"{KEY}/ownership/[\w./-]+", said)[-1]
        assert next(self.objects.list(name), None) is not None, said
        self.objects.delete(name)


class InRedis:
    """A group in a Redis whose bits can be turned."""

    def __init__(self, server: RedisServer) -> None:
        self.raw: Any = Redis(port=server.port, decode_responses=False)  # its types know nothing of that
        self._documents = open_redis(server).documents
        self._documents.drop(KEY)

    def open(self) -> Ownership:
        return Ownership(self._documents)

    def named(self, name: str) -> str:
        return f"partq:{{{STORE_ID}/{KEY}}}:{name.partition('/')[0].removesuffix(' version')}"

    def field(self, name: str) -> str:
        return name.partition("/")[2] or name

    def read(self, name: str) -> bytes:
        return bytes(self.raw.hget(self.named(name), self.field(name)))

    def put(self, name: str, content: bytes) -> None:
        self.raw.hset(self.named(name), self.field(name), content)

    def as_advised(self, said: str) -> None:
        found = re.search(r"\((HDEL [^)]+) removes it\)", said)
        assert found is not None, said
        assert self.raw.execute_command(*shlex.split(found[1])) == 2

    def close(self) -> None:
        self._documents.drop(KEY)
        self._documents.close()
        self.raw.close()


Place = Files | InRedis


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[InRedis]:
    made = InRedis(redis_server)
    yield made
    made.close()


@pytest.fixture(params=["file", pytest.param("redis", marks=pytest.mark.redis)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "file":
        return Files(tmp_path / "store")
    made: InRedis = request.getfixturevalue("redis")
    return made


def begin(place: Place) -> Ownership:
    """Everything that is not there is made; what cannot be read is said. A flow is bound, and its process leads."""
    store = place.open()
    if store.read_state(KEY) is None:
        store.swap_state(KEY, encode_state(STATE, 0.0), token="t1", expected=None)
    if store.read_lease(KEY) is None:
        store.take_lease(KEY, LEASE, expected=None)
    if "billing-1" not in store.read_flows(KEY):
        store.bind(KEY, RECORD, replaces=None)
    if 12 not in store.list_ownership(KEY):
        assert store.claim_ownership(KEY, [CLAIM])
    assert state(place) == STATE
    return store


def state(place: Place) -> GroupState:
    found = place.open().read_state(KEY)
    assert isinstance(found, StateDocument)
    return decode_state(found.body, 0.0, place.open().documents.where(KEY, "state"))


READS: Final[dict[str, tuple[Callable[[Any], object], ...]]] = {
    "state": (state,),  # where its token is flipped, everybody reads the same state again
    "leader": (lambda place: (found := place.open().read_lease(KEY)) and found.value,),
    BEAT: (
        lambda place: (found := place.open().read_flow(KEY, "billing-1")) and found.value,
        lambda place: place.open().read_flows(KEY),  # by way of `look_at_flows`
    ),
    # without versions, which only tell whether one was claimed since
    "ownership/12": (lambda place: [replace(each, version="") for each in place.open().list_ownership(KEY).values()],),
}


def attempt(read: Callable[[], object]) -> tuple[object, str | None]:
    """What is read, or what `Corrupt` says."""
    try:
        return read(), None
    except Corrupt as problem:
        return None, str(problem)


def listed(checkpoints: CheckpointStore) -> Mapping[int, Checkpoint]:
    found, damaged = checkpoints.list_readable()
    for problem in damaged.values():
        raise problem
    return found


def is_never_taken_for_something_else(place: Place, name: str, read: Callable[[Any], object]) -> None:
    """Each byte with one of its bits turned, and what is of another make. Only what nobody decides by may change."""
    good, expected, refused = place.read(name), read(place), 0
    for bad in (*(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :] for at in range(len(good))), *FOREIGN):
        place.put(name, bad)
        found, said = attempt(lambda: read(place))
        if said is None:
            assert found == expected, bad
        else:
            assert place.named(name) in said
            assert _STEP.search(said), f"no next step: {said}"
            refused += 1
    place.put(name, good)
    assert read(place) == expected, "it is restored"
    assert refused > 0.6 * len(good)


@pytest.mark.slow
@pytest.mark.parametrize("name", READS)
def test_a_flipped_bit_or_what_is_of_another_make_is_never_taken_for_something_else(place: Place, name: str) -> None:
    begin(place)
    for read in READS[name]:
        is_never_taken_for_something_else(place, name, read)


@pytest.mark.parametrize("rewound", [False, True])
def test_nor_that_of_a_checkpoint(tmp_path: Path, rewound: bool) -> None:
    place = Files(tmp_path / "store")
    made = CheckpointStore(place.objects, KEY, QUEUE_ID)
    held = made.fence(3, to=A1, epoch=5, start=1000)
    made.write(held, offset=1000, may_reach=1010, marked=0, origin=None, swap=False)
    if rewound:
        made.rewind(3, 7)
    is_never_taken_for_something_else(place, "checkpoint/3", lambda _: listed(made)[3])
    is_never_taken_for_something_else(
        place, "checkpoint/3", lambda _: (found := made.read(3)) and replace(found, etag=None)
    )


@pytest.mark.parametrize("name", READS)
def test_what_is_named_can_be_removed_and_everything_begins_anew(place: Place, name: str) -> None:
    """As the message advises, as often as it does."""
    begin(place)
    good = place.read(name)
    place.put(name, good[:-20] + bytes([good[-20] ^ 1]) + good[-19:])
    removed = 0
    while (said := attempt(lambda: begin(place))[1]) is not None:
        assert removed < 3, said
        place.as_advised(said)
        removed += 1
    assert removed
    begin(place)


# --- in Redis, where a document is a value and its version ------------------------------------------------------------


@pytest.mark.redis
def test_nobody_goes_on_from_a_damaged_heartbeat(redis: InRedis) -> None:
    """Its readers are refused; the flow that wrote it writes it anew, from what it knows itself."""
    mine = begin(redis)
    good = redis.read(BEAT)
    for at in (len('{"instance":"'), good.index(b'"bound":"') + 9, -3):  # instance, bound, checksum
        bad = bytearray(good)
        bad[at] ^= 1
        for what in ("beat", "unbind", "forget_flow", "bind"):
            redis.put(BEAT, bytes(bad))
            with pytest.raises(Corrupt, match=r"Redis key partq:.*:beats, field billing-1 .*damaged"):
                verbs(redis.open())[what]()
            assert redis.read(BEAT) == bytes(bad), what
        bad[at] ^= 0x80  # nor UTF-8 then
        redis.put(BEAT, bytes(bad))
        assert list(redis.open().look_at_flows(KEY).damaged) == ["billing-1"], "it alone"
        mine.beat(KEY, RECORD)
        assert redis.open().look_at_flows(KEY).beats["billing-1"].value.instance == ME, "the damage is gone"


@pytest.mark.redis
def test_a_claim_under_no_number_is_refused(redis: InRedis) -> None:
    begin(redis)
    for half in ("", " version"):
        redis.put(f"ownership/twelve{half}", redis.read(f"ownership/12{half}"))
    with pytest.raises(Corrupt, match="field twelve"):
        redis.open().list_ownership(KEY)


@pytest.mark.redis
@pytest.mark.parametrize("half", ["", " version"], ids=["value", "version"])
def test_half_a_document_is_none(redis: InRedis, half: str) -> None:
    """A person removed the value, or the version, and not both."""
    mine = begin(redis)
    for name in ("state", "leader", BEAT, "ownership/12"):
        assert redis.raw.hdel(redis.named(name), redis.field(name) + half) == 1
    for store in (redis.open(), mine):  # who knew the token, too
        assert store.read_state(KEY) is store.read_state(KEY, known="t1") is None
        assert (store.read_lease(KEY), store.read_flow(KEY, "billing-1")) == (None, None)
        assert (store.read_flows(KEY), store.list_ownership(KEY)) == ({}, {})
    begin(redis)
    assert list(redis.open().read_flows(KEY)) == ["billing-1"]


@pytest.mark.redis
@pytest.mark.parametrize("bad", [b"", b"x", b"\xff 1", b"0123456789abcdef 12x", b"0123456789abcdef "])
def test_a_damaged_version_is_another_version(redis: InRedis, bad: bytes) -> None:
    """It has no checksum, because nobody decides by it: everybody reads on, and the next write mends it."""
    mine = begin(redis)
    for name in ("state", "leader"):
        redis.put(f"{name} version", bad)
    assert token_of(redis.open()) == "t1"
    assert mine.renew_lease(KEY, replace(LEASE, beat=18)).state_token == mine.beat(KEY, RECORD) == "t1"
    mine.swap_state(KEY, b"{}", token="t2", expected="t1")
    assert re.fullmatch(rb"[0-9a-f]{16} \d{13}", redis.read("state version"))


@pytest.mark.redis
@pytest.mark.parametrize("name", ["state", "beats", "leader", "ownership"])
def test_a_key_of_another_type_is_corrupt(redis: InRedis, name: str) -> None:
    redis.raw.set(redis.named(name), "x")
    with pytest.raises(Corrupt, match="partq did not write"):
        begin(redis)
    redis.open().drop_group(KEY)
    begin(redis)


# --- checkpoints, which are blobs with metadata -----------------------------------------------------------------------


@pytest.fixture(params=["local", pytest.param("azure", marks=pytest.mark.azurite)])
def real(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lossy]:
    local = request.param == "local"
    made = LocalStore(str(tmp_path)) if local else service_store(request.getfixturevalue("azurite"), monkeypatch)
    yield Lossy(made)
    made.close()


@pytest.mark.conformance("CHK-01", "CHK-02", "CHK-05")
def test_a_checkpoint_is_an_empty_blob_with_metadata_and_one_listing_gives_all(real: Lossy) -> None:
    checkpoints = checkpoints_in(real)
    assert listed(checkpoints) == {}
    assert checkpoints.read(7) is None
    made = {p: checkpoints.fence(p, to=A1, epoch=3, start=40) for p in (11, 7, 0)}
    found = real.store.load("default/orders/billing/checkpoint/7")
    assert isinstance(found, Document)
    assert found.body == b""
    assert found.metadata == {
        "epoch": "3",
        "flow": "a",
        "instance": "1111",
        "offset": "40",
        "queue_id": QUEUE_ID,
        "since": "0",
        "redelivered_below": "0",
        "may_reach": "40",
        "updated": "2026-11-18T11:06:40.000000Z",
        "checksum": "808a83145dee31d3",
    }
    late = made[7]

    def acknowledged(held: Checkpoint) -> Checkpoint:
        return checkpoints.write(held, offset=41, may_reach=45, marked=0, origin=None, swap=False)

    made[7] = acknowledged(checkpoints.fence(7, to=B1, epoch=4, start=None))
    with pytest.raises(Fenced):
        acknowledged(late)
    for name in ("notes", "07", "1/x"):  # no partition's name
        real.store.swap(f"default/orders/billing/checkpoint/{name}", {"epoch": "1"}, expected=None)
    real.calls.clear()
    all_found = listed(checkpoints)
    assert real.calls == {"list": 1}
    assert all_found == {p: replace(each, etag=None) for p, each in made.items()}
    assert list(all_found) == [0, 7, 11]


WHOLE: Final = {"epoch": "1", "redelivered_below": "0", "may_reach": "0", "queue_id": QUEUE_ID, "since": "0"}


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        *((sealed(WHOLE | {"epoch": epoch}), f"'epoch' is '{epoch}'") for epoch in ("one", "-1", "01", "1" * 20)),
        *((sealed({k: WHOLE[k] for k in WHOLE if k != key}), f"'{key}' is missing") for key in WHOLE if key != "epoch"),
        *((sealed(WHOLE | {"publish": each}), f"'publish' is '{each}'") for each in ("7", "7:x:token")),
        (sealed(WHOLE | {"since": "-3"}), "'since' is '-3'"),
        (sealed(WHOLE | {"flow": "a"}), "'instance' is missing"),
        (sealed(WHOLE | {"offset": "1.5"}), "'offset' is '1.5'"),
        (WHOLE, "damaged, or was edited by hand.*its key 'checksum' is missing"),
        (sealed(WHOLE) | {"offset": "2000"}, "damaged, or was edited by hand.*restore the blob.*delete it"),
        (sealed(WHOLE) | {"more": "1"}, "damaged, or was edited by hand.*restore the blob.*delete it"),
    ],
)
def test_what_was_edited_by_hand_is_refused_and_both_steps_mend_it(metadata: dict[str, str], complaint: str) -> None:
    store = memory_store()
    checkpoints = checkpoints_in(store)
    name = checkpoints.name_of(4)
    checkpoints.fence(4, to=None, epoch=7, start=1000)
    good = store.load(name)
    assert isinstance(good, Document)
    etag = store.swap(name, metadata, expected=good.etag)
    nobody_writes_over_it = lambda: checkpoints.fence(4, to=A1, epoch=8, start=0)  # noqa: E731
    for act in (lambda: checkpoints.read(4), lambda: listed(checkpoints), nobody_writes_over_it):
        with pytest.raises(Corrupt, match=f"{name}.*{complaint}"):
            act()
    assert list(checkpoints.list_readable()[1]) == [4]
    store.swap(name, good.metadata, expected=etag)
    assert listed(checkpoints)[4].offset == 1000
    store.delete(name)
    assert checkpoints.fence(4, to=A1, epoch=8, start=30).offset == 30


def test_one_that_may_not_be_read_is_told_and_hides_no_others() -> None:
    # Pytest's own folders may not be entered by a user without rights, as which root has to look here.
    folder, root = Path(tempfile.mkdtemp(prefix="partq-test-")), os.geteuid() == 0
    folder.chmod(0o777)
    if root:
        os.seteuid(NOBODY)
    try:
        checkpoints = CheckpointStore(LocalStore(str(folder / "store")), KEY, QUEUE_ID)
        for partition in (0, 1):
            checkpoints.fence(partition, to=A1, epoch=1, start=0)
        (folder / "store" / checkpoints.name_of(1)).chmod(0)
        found, damaged = checkpoints.list_readable()
        assert (list(found), list(damaged)) == ([0], [1])
        assert "checkpoint/1 cannot be read: " in str(damaged[1])
        assert not root or f"{NOBODY}" in str(damaged[1]), "who may not"
        with pytest.raises(Invalid):
            checkpoints.read(1)
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(folder)
