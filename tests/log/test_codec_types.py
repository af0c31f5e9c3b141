"""Documents with a right checksum that somebody wrote who did not know the format: `Corrupt` by name, nothing raw. Each
value of a document with something of everything in it is replaced by each of many others, and each field left out.
What is of another type than the field, or beyond its range, is refused, each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.base.json_documents import checksum
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
    Resolution,
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
    sequence=(1, 2),
    time_us=(1, 2),
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
RECORD = WriterRecord(batch=7, owner="q", token=ENTRY.token, sequence=2, time_us=123, sum="2" * 16)
SAID = Resolution(writer="query", batch=7, published=True, token=ENTRY.token, time_us=123, by="ops@host")
HEAD = replace(
    empty_head(2),
    config=QueueConfig(retention_s=60.0, quota_bytes=10**9),
    layouts=(
        Layout(generation=0, partitions=1, since_sequence=0, begin=(0,)),
        Layout(generation=1, partitions=2, since_sequence=1, begin=(1, 0)),
    ),
    next=(6, 4),
    earliest=(1, 0),
    groups={"billing": Group(since_sequence=1, start=(0, 0), rewinds=1, ownership="store")},
    writers={"query": RECORD},
    writer_pages=(WriterPage(name="page", xxh3="0" * 16, level=0, writers=1, last_time_us=1, lines=1, bytes=1),),
    resolutions=(SAID,),
    subscriptions=("eu/>",),
    tree=(REF,),
    tree_begin=(0, 0),
    entries=(ENTRY,),
)


FLOW_RECORD = FlowRecord(
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
LEASE = Lease(token="t", name="n", beat=1, timers={"holddown": 4.0}, state_token="s")
STATE = replace(a_state(), holddown_until_s=101.0)
STATE = replace(STATE, partitions={**STATE.partitions, 1: replace(STATE.partitions[1], stuck="no answer")})


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


# Paths in the documents below, where not what stands there alone is allowed: null; to be left out; -1; nothing below 1.
NULLABLE = (
    r"\.config\.(retention_s|quota_bytes)|.*\.(writer|first|holds)|\.writers\.\w+\.1|\.groups\.\w+\.3|\.holddown_left_s"
)
NULLABLE += r"|\.partitions\.\d+\.6|\.columns(\.key)?|.*\.schema_version"
OPTIONAL = r"\.columns(\.(key|version|columns\.\d+\.(nullable|since|former)))?|.*\.schema_version"
OPTIONAL += r"|\.config\.\w+|.*\.(first|holds)|\.groups\.\w+\.[23]|\.partitions\.\d+\.[4-9]"
OR_NOBODY = r"\.partitions\.\d+\.[34]"
POSITIVE = r"\.layouts\.\d+\.1|\.writer_pages\.\d+\.5|.*\.schema_version"
POSITIVE += r"|\.columns\.version|\.columns\.columns\.\d+\.(since|former\.\d+\.1)"
FIELDS = r"|\.config|\.(entries|tree|chunks|rounds)\.\d+"  # objects with these fields, and lists of so many values
VALUES = r"\.floor|\.(layouts|writer_pages|resolutions|owners|flows|partitions)\.\d+|\.(groups|writers|deliveries)\.\w+"
VALUES += r"|.*\.(slices|folders)\.\d+|.*\.first|\.(tree|chunks)\.\d+\.(sequence|time_us)"


def wrong(raw: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """`raw` with one value that its field may not have, or without one that has to be there, everywhere in turn."""
    number = type(raw) in (int, float)
    others: list[object] = [-2 if re.fullmatch(OR_NOBODY, path) else -1, 2**64, 1e300] if number else [0]
    others += [each for each in (True, "x", [None], {"x": None}) if type(each) is not type(raw)]
    others += [1.5] * (type(raw) is int) + [0] * bool(re.fullmatch(POSITIVE, path))
    others += [None] * (not re.fullmatch(NULLABLE, path))
    for other in others:
        yield f"{path} = {other!r}", other
    if isinstance(raw, dict | list):
        keys = list(raw) if isinstance(raw, dict) else range(len(raw))
        for key in keys:
            here = f"{path}.{key}"
            for what, value in wrong(raw[key], here):
                yield what, with_value(raw, key, value)
            if re.fullmatch(FIELDS if isinstance(raw, dict) else VALUES, path) and not re.fullmatch(OPTIONAL, here):
                yield f"without {here}", without(raw, key)
        if isinstance(raw, list) and re.fullmatch(VALUES, path) and not re.fullmatch(OPTIONAL, f"{path}.{len(raw)}"):
            yield f"{path} with one more", [*raw, 0]


def without(raw: Any, key: Any) -> Any:
    return {k: v for k, v in raw.items() if k != key} if isinstance(raw, dict) else [*raw[:key], *raw[key + 1 :]]


def with_value(raw: Any, key: Any, value: Any) -> Any:
    return {**raw, key: value} if isinstance(raw, dict) else [*raw[:key], value, *raw[key + 1 :]]


def check_each_is_refused(raw: Any, decode: Callable[[bytes], object]) -> None:
    decode(json.dumps(raw).encode())
    taken = []
    for what, document in wrong(raw):
        try:
            decode(json.dumps(document).encode())
        except (Corrupt, Invalid):
            continue
        taken.append(what)
    assert taken == []


def sealed(kind: str, body: bytes) -> bytes:
    return b'{"xxh3":"' + checksum(body).encode() + b'","' + kind.encode() + b'":' + body + b"}"


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


def test_every_value_of_another_type_or_beyond_its_range_is_refused_in_a_head_and_what_it_leads_to() -> None:
    head = json.loads(codec.encode_head(HEAD))["head"]
    check_each_is_refused(head, lambda body: codec.decode_head(sealed("head", body), "here"))
    leaf, node = json.loads(codec.encode_entries([ENTRY])), json.loads(codec.encode_refs([REF]))
    check_each_is_refused(leaf, lambda body: codec.decode_entries(body, chunk_ref(body)))
    check_each_is_refused(node, lambda body: codec.decode_refs(body, chunk_ref(body, 1)))
    line = json.loads(codec.encode_writers({"query": RECORD}))["line"]
    check_each_is_refused(line, lambda body: codec.decode_writer_line(sealed("line", body), HEAD.writer_pages[0], 0))
    marks = json.loads(codec.encode_marks(Marks(rounds=(Marked(time_us=1, names=("a/b", "a/c", "d")),))))["marks"]
    check_each_is_refused(marks, lambda body: codec.decode_marks(sealed("marks", body), "here"))


def test_every_value_of_another_type_or_beyond_its_range_is_refused_in_what_a_group_keeps() -> None:
    state = json.loads(flow_codec.encode_state(STATE, 100.0))["state"]
    check_each_is_refused(state, lambda body: flow_codec.decode_state(sealed("state", body), 0.0, "here"))
    record = json.loads(flow_codec.encode_record(FLOW_RECORD))["record"]
    check_each_is_refused(record, lambda body: flow_codec.decode_record(sealed("record", body), "here"))
    lease = json.loads(flow_codec.encode_lease(LEASE))["lease"]
    check_each_is_refused(lease, lambda body: flow_codec.decode_lease(sealed("lease", body), "here"))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("layouts", [], "of length >= 1 - at `$.layouts`, found []"),
        ("layouts", [[0, 0, 1, []]], "Expected `int` >= 1 - at `$.layouts[0][1]`, found 0"),
        ("layouts", [[0, 2, 1, [0]]], "layout 0 has 2 partitions and 1 first offsets"),
        ("layouts", [[0, 5, 1, [0] * 5]], "next has 2 offsets, there are 5 partitions"),
        ("next", [1], "next has 1 offsets, there are 2 partitions"),
        ("earliest", [1], "earliest has 1 offsets, there are 2 partitions"),
        ("entries.0.slices.1.0", 2, "next has 2 offsets, there are 3 partitions"),
        ("entries.0.slices.1.1", 2, "a slice is in segment 2 of entry 2, which has 2"),
        ("entries.0.segments", ["a.arrow"], "a slice is in segment 1 of entry 2, which has 1"),
        ("config.access_type", "shared", "at `$.config.access_type`, found 'shared'"),
        ("config.access_type", "exclusive\n", "at `$.config.access_type`, found 'exclusive\\n'"),
        ("groups.billing", [1, [0, 0], -2, None], "at `$.groups[...][2]`, found -2"),
    ],
)
def test_what_a_head_contradicts_is_named(path: str, value: object, words: str) -> None:
    head = changed(json.loads(codec.encode_head(HEAD))["head"], path.split("."), value)
    problem = problem_of(lambda body: codec.decode_head(sealed("head", body), "here"), json.dumps(head).encode())
    assert isinstance(problem, Corrupt)
    assert words in str(problem)


def changed(raw: Any, path: list[str], value: object) -> Any:
    key: Any = path[0] if isinstance(raw, dict) else int(path[0])
    return with_value(raw, key, value if len(path) == 1 else changed(raw[key], path[1:], value))


def test_a_chunk_with_a_slice_in_no_segment_is_refused() -> None:
    data = codec.encode_entries([structs.replace(ENTRY, segments=())])
    with pytest.raises(Corrupt, match="a slice is in segment 1 of entry 2, which has 0"):
        codec.decode_entries(data, chunk_ref(data))


def test_a_line_in_the_place_of_another_is_refused() -> None:
    line = codec.encode_writers({"query": RECORD})
    with pytest.raises(Corrupt, match="line 2 of writer page page is damaged: it is line 1; restore"):
        codec.decode_writer_line(line, HEAD.writer_pages[0], 1)


@pytest.mark.parametrize("key", ["-1", "x", "9223372036854775808", "1.0"])
def test_a_key_that_is_no_number_of_a_partition_is_refused(key: str) -> None:
    def state(body: bytes) -> object:
        return flow_codec.decode_state(body, 0.0, "here")

    def record(body: bytes) -> object:
        return flow_codec.decode_record(body, "here")

    kept, said = flow_codec.encode_state(STATE, 0.0), flow_codec.encode_record(FLOW_RECORD)
    for decode, kind, document, field in (
        (state, "state", kept, "retired"),
        (record, "record", said, "mapping"),
        (record, "record", said, "deliveries"),
    ):
        raw = json.loads(document)[kind]
        (value,) = raw[field].values()
        with pytest.raises(Corrupt, match=f"here .*{field}"):
            decode(sealed(kind, json.dumps({**raw, field: {key: value}}).encode()))


def chunk_ref(data: bytes, level: int = 0) -> ChunkRef:
    return structs.replace(REF, xxh3=checksum(data), level=level)


def test_a_chunk_of_entries() -> None:
    raw = json.loads(codec.encode_entries([ENTRY]))
    documents = (json.dumps(each).encode() for each in mutated(raw))
    check(documents, lambda data: codec.decode_entries(data, chunk_ref(data)), REF.name)


def test_a_chunk_of_references_a_page_of_writers_and_marks() -> None:
    raw = json.loads(codec.encode_refs([REF]))
    documents = (json.dumps(each).encode() for each in mutated(raw))
    check(documents, lambda data: codec.decode_refs(data, chunk_ref(data, 1)), REF.name)

    raw = json.loads(codec.encode_writers({"query": RECORD}))
    documents = (json.dumps(each).encode() for each in mutated(raw))
    page = HEAD.writer_pages[0]
    check(documents, lambda data: codec.decode_writers(data, structs.replace(page, xxh3=checksum(data))), "page")

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
    _, (kind, raw) = json.loads(document).items()
    for each in mutated(raw):
        yield sealed(kind, json.dumps(each, separators=(",", ":")).encode())


def test_a_groups_state_a_record_and_a_lease() -> None:
    check(
        flow_documents(flow_codec.encode_state(a_state(), 100.0)),
        lambda body: flow_codec.encode_state(flow_codec.decode_state(body, 100.0, "here"), 100.0),
        "here",
    )
    check(
        flow_documents(flow_codec.encode_record(FLOW_RECORD)),
        lambda body: flow_codec.encode_record(flow_codec.decode_record(body, "here")),
        "here",
    )
    check(
        flow_documents(flow_codec.encode_lease(LEASE)),
        lambda body: flow_codec.encode_lease(flow_codec.decode_lease(body, "here")),
        "here",
    )
