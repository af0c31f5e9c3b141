"""Documents with a right checksum that somebody wrote who did not know the format: `Corrupt` by name, nothing raw. Each
value of a document with something of everything in it is replaced by each of many others, and each field left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.group import codec as flow_codec
from partq_spark.group.model import (
    Delivery,
    FlowRecord,
    Lease,
)
from partq_spark.log import codec, tree
from partq_spark.log.model import (
    ChunkRef,
    Entry,
    Group,
    Layout,
    Marked,
    Marks,
    QueueConfig,
    Slice,
    WriterPage,
    WriterRecord,
)
from tests.group.test_codec import a_state
from tests.log.queues import empty_head

OTHERS: tuple[object, ...] = (None, True, 0, -1, 1.5, 1e999, 2**64, "", "x", [], [None], {}, {"x": 1}, [[1]])

REF = ChunkRef(
    name="chunk-0-000000000001-0123456789abcdef.json",
    xxh3="0" * 16,
    level=0,
    first_sequence=1,
    last_sequence=2,
    first_time_us=1,
    last_time_us=2,
    rows=(3, 2),
    bytes=100,
    slices=2,
    coarsest=2,
    holds=4,
)
ENTRY = Entry(
    sequence=2,
    token="00112233445566ff",
    writer="query",
    batch=7,
    time_us=123,
    generation=0,
    headers=False,
    segments=("a.arrow", "b.arrow"),
    slices=(Slice(0, 0, 64, 100, 3, 3, "0" * 16), Slice(1, 1, 164, 100, 2, 2, "1" * 16)),
    first=(1, 120),
)
RECORD = WriterRecord(batch=7, owner="q", token=ENTRY.token, sequence=2, time_us=123)
HEAD = replace(
    empty_head(2),
    config=QueueConfig(retention_s=60.0, quota_bytes=10**9),
    layouts=(
        Layout(generation=0, partitions=1, since_sequence=0, begin=(0,)),
        Layout(generation=1, partitions=2, since_sequence=1, begin=(1, 0)),
    ),
    next=(6, 4),
    earliest=(1, 0),
    groups={"billing": Group(since_sequence=1, start=(0, 0), rewinds=1)},
    writers={"query": RECORD},
    writer_pages=(WriterPage(name="page", xxh3="0" * 16, level=0, writers=1, last_time_us=1),),
    subscriptions=("eu/>",),
    tree=(REF,),
    tree_begin=(0, 0),
    entries=(ENTRY,),
)


def mutated(raw: Any) -> Iterator[Any]:
    """`raw` with one value replaced, or one item left out, everywhere in turn."""
    yield from OTHERS
    if isinstance(raw, dict):
        for key in raw:
            yield {other: value for other, value in raw.items() if other != key}
            for value in mutated(raw[key]):
                yield {**raw, key: value}
    elif isinstance(raw, list):
        for at in range(len(raw)):
            yield [*raw[:at], *raw[at + 1 :]]
            for value in mutated(raw[at]):
                yield [*raw[:at], value, *raw[at + 1 :]]


def sealed(kind: str, body: bytes) -> bytes:
    return b'{"xxh3":"' + codec.checksum(body).encode() + b'","' + kind.encode() + b'":' + body + b"}"


def use_head(document: bytes) -> None:
    """Read it, and do what everybody does with a head."""
    head = codec.decode_head(document, "here")
    assert head.partitions >= 1
    assert head.messages <= 2**64
    assert head.stored_bytes >= 0
    wanted = {p: (head.earliest[p], head.next[p]) for p in range(head.partitions)}
    tree.view(head, wanted)
    assert codec.decode_head(codec.encode_head(head), "here") == head


def check(documents: Iterator[bytes], use: Callable[[bytes], object], named: str) -> None:
    refused = total = 0
    for document in documents:
        total += 1
        problem = problem_of(use, document)
        if problem is not None:
            assert isinstance(problem, Corrupt | Invalid), f"{problem!r} of {document!r}"
            assert named in str(problem), document
            assert any(word in str(problem) for word in ("restore", "remove", "delete", "install", "use one version"))
            refused += 1
    assert refused > total / 2


def problem_of(use: Callable[[bytes], object], document: bytes) -> Exception | None:
    try:
        use(document)
    except Exception as error:  # noqa: BLE001 - which ones are allowed the caller says
        return error
    return None


def test_a_head() -> None:
    body = json.loads(codec.encode_head(HEAD))["head"]
    use_head(sealed("head", json.dumps(body).encode()))
    check((sealed("head", json.dumps(each).encode()) for each in mutated(body)), use_head, "here")


def chunk_ref(data: bytes, level: int = 0) -> ChunkRef:
    return replace(REF, xxh3=codec.checksum(data), level=level)


@pytest.mark.parametrize("wanted", [None, {0: (0, 9), 1: (0, 9)}])
def test_a_chunk_of_entries(wanted: codec.Wanted | None) -> None:
    raw = json.loads(codec.encode_entries([ENTRY]))
    documents = (json.dumps(each).encode() for each in mutated(raw))
    check(documents, lambda data: codec.decode_entries(data, chunk_ref(data), wanted), REF.name)


def test_a_chunk_of_references_a_page_of_writers_and_marks() -> None:
    raw = json.loads(codec.encode_refs([REF]))
    documents = (json.dumps(each).encode() for each in mutated(raw))
    check(documents, lambda data: codec.decode_refs(data, chunk_ref(data, 1)), REF.name)

    raw = json.loads(codec.encode_writers({"query": RECORD}))
    documents = (json.dumps(each).encode() for each in mutated(raw))
    page = HEAD.writer_pages[0]
    check(documents, lambda data: codec.decode_writers(data, replace(page, xxh3=codec.checksum(data))), "page")

    raw = json.loads(codec.encode_marks(Marks(rounds=(Marked(time_us=1, names=("a/b", "a/c", "d")),))))["marks"]
    documents = (sealed("marks", json.dumps(each).encode()) for each in mutated(raw))
    check(documents, lambda data: codec.decode_marks(data, "here"), "here")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"format":1' + b"0" * 5000 + b"}", b"NaN"])
def test_what_is_no_json_at_all(body: bytes) -> None:
    with pytest.raises((Corrupt, Invalid), match="here"):
        codec.decode_head(sealed("head", body), "here")
    with pytest.raises((Corrupt, Invalid), match=REF.name):
        codec.decode_entries(body, chunk_ref(body))


def flow_documents(document: bytes) -> Iterator[bytes]:
    raw = json.loads(document)
    del raw["xxh3"]
    for each in mutated(raw):
        if isinstance(each, dict):
            rest = json.dumps(each, separators=(",", ":")).encode()
            yield b'{"xxh3":"%s",%s' % (codec.checksum(rest).encode(), rest[1:])


def test_a_groups_state_a_record_and_a_lease() -> None:
    check(
        flow_documents(flow_codec.encode_state(a_state(), 100.0)),
        lambda body: flow_codec.encode_state(flow_codec.decode_state(body, 100.0, "here"), 100.0),
        "here",
    )
    record = FlowRecord(
        flow="billing-1",
        instance="aa",
        queue_id="q",
        incarnation="life",
        bound=True,
        session_timeout_s=10.0,
        mapping={1: 2},
        deliveries={1: Delivery(epoch=2, delivered=4, acknowledged=3)},
        former=("bb",),
    )
    check(
        flow_documents(flow_codec.encode_record(record)),
        lambda body: flow_codec.encode_record(flow_codec.decode_record(body, "here")),
        "here",
    )
    lease = Lease(token="t", name="n", beat=1, timers={"holddown": 4.0}, state_token="s")
    check(
        flow_documents(flow_codec.encode_lease(lease)),
        lambda body: flow_codec.encode_lease(flow_codec.decode_lease(body, "here")),
        "here",
    )
