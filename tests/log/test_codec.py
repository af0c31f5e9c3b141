"""How heads, chunks, pages and marks are written down, and that no damage of theirs is read as something else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from partq_spark.base.errors import Corrupt, Invalid, PartqError
from partq_spark.base.json_documents import checksum
from partq_spark.log import codec, tree
from partq_spark.log.model import (
    ChunkRef,
    Entry,
    Group,
    Head,
    Layout,
    Marked,
    Marks,
    QueueConfig,
    Resolution,
    Slice,
    StageFloor,
    WriterPage,
    WriterRecord,
)
from tests.log.queues import empty_head
from tests.support.properties import examples

NUMBERS = st.integers(0, 2**62)
SMALL = st.integers(0, 3)
TEXTS = st.text(max_size=12)
HEX = st.text("0123456789abcdef", min_size=16, max_size=16)
VECTORS = st.lists(NUMBERS, max_size=4).map(tuple)
WIDE = st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS)

SLICES = st.builds(
    Slice, partition=SMALL, segment=SMALL, start=NUMBERS, length=NUMBERS, offset=NUMBERS, rows=NUMBERS, xxh3=HEX
)
ENTRIES = st.builds(  # `SMALL` names partitions and segments, of which there are as many in every head and entry
    Entry,
    sequence=NUMBERS,
    token=HEX,
    writer=st.none() | TEXTS,
    batch=NUMBERS,
    time_us=NUMBERS,
    generation=SMALL,
    headers=st.booleans(),
    segments=st.lists(TEXTS, min_size=4, max_size=4).map(tuple),
    slices=st.lists(SLICES, max_size=4).map(tuple),
)
REFS = st.builds(
    ChunkRef,
    name=TEXTS,
    xxh3=HEX,
    level=SMALL,
    sequence=st.tuples(NUMBERS, NUMBERS),
    time_us=st.tuples(NUMBERS, NUMBERS),
    rows=VECTORS,
    bytes=NUMBERS,
    slices=NUMBERS,
    coarsest=NUMBERS,
    holds=st.none() | NUMBERS,
)
RECORDS = st.builds(
    WriterRecord, batch=NUMBERS, owner=st.none() | TEXTS, token=HEX, sequence=NUMBERS, time_us=NUMBERS, sum=HEX
)
RESOLUTIONS = st.builds(
    Resolution, writer=TEXTS, batch=NUMBERS, published=st.booleans(), token=HEX, time_us=NUMBERS, by=TEXTS
)
PAGES = st.builds(
    WriterPage, name=TEXTS, xxh3=HEX, level=SMALL, writers=SMALL, last_time_us=NUMBERS, lines=st.just(1), bytes=NUMBERS
)
HEADS = st.builds(
    Head,
    namespace=TEXTS,
    queue=TEXTS,
    queue_id=HEX,
    created_us=NUMBERS,
    sequence=NUMBERS,
    time_us=NUMBERS,
    config=st.builds(
        QueueConfig,
        rebalance_delay_s=st.floats(0, 1e6),
        max_handoff_time_s=st.floats(0, 1e6),
        access_type=st.sampled_from(["exclusive", "non-exclusive"]),
        max_message_bytes=NUMBERS,
    ),
    layouts=st.lists(
        st.builds(
            Layout, generation=SMALL, partitions=st.just(3), since_sequence=NUMBERS, begin=WIDE.map(lambda x: x[:3])
        ),
        min_size=1,
        max_size=2,
    ).map(tuple),
    next=WIDE,
    earliest=WIDE,
    groups=st.dictionaries(TEXTS, st.builds(Group, since_sequence=NUMBERS, start=VECTORS, rewinds=SMALL), max_size=2),
    writers=st.dictionaries(TEXTS, RECORDS, max_size=2),
    writer_pages=st.lists(PAGES, max_size=2).map(tuple),
    resolutions=st.lists(RESOLUTIONS, max_size=2).map(tuple),
    floor=st.builds(StageFloor, sequence=NUMBERS, next_sequence=NUMBERS, next_time_us=NUMBERS),
    trimmed_sequence=NUMBERS,
    subscriptions=st.lists(TEXTS, max_size=2).map(tuple),
    tree_begin=VECTORS,
    tree=st.lists(REFS, max_size=2).map(tuple),
    entries=st.lists(ENTRIES, max_size=2).map(tuple),
)

ENTRY = Entry(
    sequence=2,
    token="00112233445566ff",
    writer="query",
    batch=7,
    time_us=123,
    generation=0,
    headers=False,
    segments=("a.arrow",),
    slices=(Slice(0, 0, 64, 100, 0, 3, "0" * 16), Slice(1, 0, 164, 100, 5, 2, "1" * 16)),
)
HEAD = replace(
    empty_head(2),
    entries=(ENTRY,),
    next=(3, 7),
    writers={"query": WriterRecord(batch=7, owner=None, token=ENTRY.token, sequence=2, time_us=123, sum="2" * 16)},
)


def ref_to(data: bytes, level: int = 0) -> ChunkRef:
    return ChunkRef(
        name="chunk-0-000000000001-0123456789abcdef.json",
        xxh3=checksum(data),
        level=level,
        sequence=(1, 2),
        time_us=(1, 2),
        rows=(),
        bytes=0,
        slices=0,
        coarsest=0,
    )


def page_to(data: bytes) -> WriterPage:
    return WriterPage(name="page", xxh3=checksum(data), level=0, writers=1, last_time_us=1, lines=1, bytes=1)


# --- round trips ------------------------------------------------------------------------------------------------------


@examples(50)
@given(head=HEADS)
def test_a_head_comes_back_as_it_was(head: Head) -> None:
    document = codec.encode_head(head)
    assert codec.decode_head(document, "h") == head
    assert set(json.loads(document)) == {"xxh3", "head"}  # what a document of a store must be, and a person can read


@examples(30)
@given(entries=st.lists(ENTRIES, max_size=4), refs=st.lists(REFS, max_size=4))
def test_chunks_come_back_as_they_were(entries: list[Entry], refs: list[ChunkRef]) -> None:
    leaf, node = codec.encode_entries(entries), codec.encode_refs(refs)
    assert codec.decode_entries(leaf, ref_to(leaf)) == tuple(entries)
    assert codec.decode_refs(node, ref_to(node, 1)) == tuple(refs)


PATHS = st.lists(st.one_of(TEXTS, st.builds("{}/{}".format, st.sampled_from(["a/b", "c", ""]), TEXTS))).map(tuple)


@examples(30)
@given(
    writers=st.dictionaries(TEXTS, RECORDS, max_size=3),
    marks=st.builds(Marks, rounds=st.lists(st.builds(Marked, time_us=NUMBERS, names=PATHS)).map(tuple)),
)
def test_pages_and_marks_come_back_as_they_were(writers: dict[str, WriterRecord], marks: Marks) -> None:
    page = codec.encode_writers(writers)
    assert codec.decode_writers(page, page_to(page)) == writers
    assert codec.decode_marks(codec.encode_marks(marks), "m") == marks


def test_a_mark_takes_about_forty_bytes() -> None:
    paths = tuple(f"default/orders/_segments/0011223344556677/{n:012}-{n:016x}.arrow" for n in range(1000))
    assert len(codec.encode_marks(Marks(rounds=(Marked(time_us=1, names=paths),)))) < 40_000


@examples(50)
@given(
    entries=st.lists(ENTRIES, max_size=4),
    wanted=st.dictionaries(SMALL, st.tuples(NUMBERS, NUMBERS), max_size=3),
)
def test_a_chunk_gives_the_wanted_slices_alone(entries: list[Entry], wanted: dict[int, tuple[int, int]]) -> None:
    data = codec.encode_entries(entries)
    expected = []
    for entry in entries:
        spans = [(piece, wanted.get(piece.partition, (0, 0))) for piece in entry.slices]
        kept = tuple(piece for piece, (start, to) in spans if piece.offset < to and piece.end > start)
        if kept:
            expected.append(structs.replace(entry, slices=kept))
    found = (tree.only(entry, wanted) for entry in codec.decode_entries(data, ref_to(data)))
    assert tuple(entry for entry in found if entry.slices) == tuple(expected)


# --- damage -----------------------------------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_head_is_noticed() -> None:
    document = codec.encode_head(HEAD)
    for bit in range(8 * len(document)):
        damaged = bytearray(document)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match="h is damaged"):
            codec.decode_head(bytes(damaged), "h")


def test_every_flipped_bit_of_a_chunk_is_noticed() -> None:
    data = codec.encode_entries([ENTRY])
    ref = ref_to(data)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match=ref.name):
            codec.decode_entries(bytes(damaged), ref)
        with pytest.raises(Corrupt):
            codec.decode_refs(bytes(damaged), ref)
        with pytest.raises(Corrupt):
            codec.decode_writers(bytes(damaged), page_to(data))


def test_every_truncation_is_noticed() -> None:
    document, data, marks = (
        codec.encode_head(HEAD),
        codec.encode_entries([ENTRY]),
        codec.encode_marks(Marks(rounds=(Marked(time_us=1, names=("a",)),))),
    )
    for length in range(len(document)):
        with pytest.raises(Corrupt):
            codec.decode_head(document[:length], "h")
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            codec.decode_entries(data[:length], ref_to(data))
    for length in range(len(marks)):
        with pytest.raises(Corrupt, match="delete it"):
            codec.decode_marks(marks[:length], "m")


def test_one_document_is_not_taken_for_another() -> None:
    with pytest.raises(Corrupt):
        codec.decode_head(codec.encode_marks(Marks()), "h")
    with pytest.raises(Corrupt):
        codec.decode_marks(codec.encode_head(HEAD), "m")


@pytest.mark.parametrize("body", ['{"format":1}', '{"format":1,"namespace":[]}'])
def test_fields_that_are_missing_under_a_right_checksum_are_named(body: str) -> None:
    with pytest.raises(Corrupt, match="not the fields of format 1"):
        codec.decode_head(sealed("head", body.encode()), "h")


# --- other formats ----------------------------------------------------------------------------------------------------


def sealed(kind: str, body: bytes) -> bytes:
    return b'{"xxh3":"' + checksum(body).encode() + b'","' + kind.encode() + b'":' + body + b"}"


@pytest.mark.parametrize("ownership", [None, "none", "store", "redis"])
def test_a_head_says_how_a_group_is_shared(ownership: str | None) -> None:
    head = replace(HEAD, groups={"billing": Group(since_sequence=2, start=(0,), rewinds=1, ownership=ownership)})
    assert codec.decode_head(codec.encode_head(head), "h") == head


@pytest.mark.parametrize("version", ["3", '"one"', "null"])
def test_a_newer_format_is_refused_by_name(version: str) -> None:
    body = b'{"format":' + version.encode() + b',"other":1}'
    line, ref = sealed("line", body), ref_to(body)
    refusals: list[pytest.ExceptionInfo[PartqError]] = []
    with pytest.raises(Invalid) as caught:
        codec.decode_head(sealed("head", body), "default/orders/_head.json")
    refusals.append(caught)
    with pytest.raises(Invalid) as caught:
        codec.decode_marks(sealed("marks", body), "default/orders/_head.json")
    refusals.append(caught)
    for refusal in refusals:
        assert "default/orders/_head.json has format" in str(refusal.value)
        assert "reads format 1" in str(refusal.value)
    with pytest.raises(Invalid, match=ref.name):
        codec.decode_entries(body, ref)
    with pytest.raises(Invalid, match=ref.name):
        codec.decode_refs(body, ref)
    with pytest.raises(Invalid, match="line 1 of writer page page has format"):
        codec.decode_writers(line, page_to(line))


def test_the_estimate_of_an_entrys_size_is_close() -> None:
    # The head's limit in bytes goes by it.
    slices = tuple(Slice(p, 0, 10**7 + 10**5 * p, 10**5, 10**6, 1000, "0" * 16) for p in range(64))
    big = structs.replace(ENTRY, segments=("000000000001-0123456789abcdef.arrow",), slices=slices)
    exact = len(codec.encode_entries([big])) - len(codec.encode_entries([]))
    assert 0.7 * exact < codec.entry_bytes(big) < 1.3 * exact
