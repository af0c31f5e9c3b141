"""How the documents of logs and groups are written: each comes back as it was, no damage is read as something else, and
what somebody wrote with a right checksum who did not know the format is `Corrupt` by name, nothing raw.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec import structs

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.base.json_documents import checksum
from partq_spark.group import codec as flow_codec
from partq_spark.group.model import Lease
from partq_spark.log import codec
from partq_spark.log.codec import Marked, Marks
from partq_spark.log.model import Chunk, ChunkRef, Entry, Group, Layout, Resolution, Slice, WriterPage, WriterRecord
from partq_spark.log.schema.versions import columns_of, schema_from, with_added, with_widened
from partq_spark.log.settings import QueueConfig
from tests.group.test_codec import a_state
from tests.log.queues import empty_head

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
    batch=2**62,
    time_us=123,
    generation=0,
    headers=False,
    segments=("a.arrow", "b.arrow"),
    slices=(Slice(0, 0, 64, 100, 3, 3, "0" * 16), Slice(1, 1, 164, 100, 2, 2, "1" * 16)),
    first=(1, 120),
)


RECORD = WriterRecord(batch=7, owner="q", token=ENTRY.token, sequence=2, time_us=123, sum="2" * 16)


PAGE = WriterPage(name="page", xxh3="0" * 16, level=0, writers=1, last_time_us=1, lines=1, bytes=1)


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
    writer_pages=(PAGE,),
    resolutions=(
        Resolution(writer='"größe"\\', batch=7, published=True, token=ENTRY.token, time_us=123, by="ops@host"),
    ),
    subscriptions=("eu/>", "订单/*"),
    tree=(REF,),
    tree_begin=(0, 0),
    entries=(ENTRY,),
)


COLUMNS = with_added(
    with_widened(columns_of(schema_from("id INT NOT NULL, `a name` STRING"), "id"), "id BIGINT"), "tags ARRAY<STRING>"
)


TYPED = replace(HEAD, columns=COLUMNS, entries=(structs.replace(ENTRY, schema_version=2),))


MARKS = Marks(rounds=(Marked(time_us=1, names=("a/b", "a/c", "d")),))


LEASE = Lease(token="t", name="n", beat=1, timers={"holddown": 4.0}, state_token="s")


STATE = replace(a_state(), holddown_until_s=101.0)
STATE = replace(STATE, partitions={**STATE.partitions, 1: replace(STATE.partitions[1], stuck="no answer")})


def sealed(kind: str, body: bytes) -> bytes:
    return b'{"xxh3":"' + checksum(body).encode() + b'","' + kind.encode() + b'":' + body + b"}"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A document with something of everything in it. `kind`: under which name its body stands beside its own checksum;
    else a reference has that. `name`: what a refusal must say.
    """

    value: Any
    write: Callable[[Any], bytes]
    read: Callable[[bytes, bytes], Any]
    kind: str = ""
    name: str = "here"

    def of(self, body: bytes) -> bytes:
        """The document with another body, under a right checksum."""
        return sealed(self.kind, body) if self.kind else body

    @property
    def raw(self) -> Any:
        """What is in it."""
        document = json.loads(self.write(self.value))
        return document[self.kind] if self.kind else document


def own(kind: str, value: Any, write: Callable[..., bytes], read: Callable[..., Any], *given: float) -> Kind:
    """With its own checksum."""
    return Kind(
        value=value, write=lambda each: write(each, *given), read=lambda data, _: read(data, *given, "here"), kind=kind
    )


HEADS = own("head", HEAD, codec.HEAD.seal, codec.HEAD.open)


KINDS = {
    "head": HEADS,
    "typed head": replace(HEADS, value=TYPED),
    "chunk": Kind(
        value=Chunk(chunks=(REF,), entries=(ENTRY,)),
        write=codec.encode_chunk,
        read=lambda data, meant: codec.decode_chunk(data, structs.replace(REF, xxh3=checksum(meant))),
        name=REF.name,
    ),
    "writers": Kind(
        value={"query": RECORD},
        write=codec.encode_writers,
        read=lambda data, meant: codec.decode_writers(data, structs.replace(PAGE, xxh3=checksum(meant))),
        kind="line",
        name="page",
    ),
    "marks": own("marks", MARKS, codec.MARKS.seal, codec.MARKS.open),
    "state": own("state", STATE, flow_codec.encode_state, flow_codec.decode_state, 100.0),
    "lease": own("lease", LEASE, flow_codec.encode_lease, flow_codec.decode_lease),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def problem_of(kind: Kind, document: bytes, meant: bytes | None = None) -> Exception | None:
    """`meant`: what a reference has the checksum of, where the document has none of its own."""
    try:
        kind.read(document, document if meant is None else meant)
    except Exception as error:  # noqa: BLE001 - which ones are allowed the caller says
        return error
    return None


def is_said(kind: Kind, document: bytes) -> bool:
    """Whether it is refused by name, with what to do. Fails if something else comes of it."""
    problem = problem_of(kind, document)
    assert problem is None or isinstance(problem, Corrupt | Invalid), f"{problem!r} of {document!r}"
    assert problem is None or kind.name in str(problem), document
    remedies = ("restore", "remove", "delete", "install", "use one version")
    assert problem is None or any(word in str(problem) for word in remedies), str(problem)
    return problem is not None


# --- what is written, and damage --------------------------------------------------------------------------------------


def test_a_document_comes_back_as_it_was(kind: Kind) -> None:
    document = kind.write(kind.value)
    found = kind.read(document, document)
    assert found == kind.value
    assert kind.write(found) == document
    assert not kind.kind or {*json.loads(document)} == {"xxh3", kind.kind}, "which a person can read"


def test_every_flipped_bit_and_every_missing_end_is_noticed(kind: Kind) -> None:
    document = kind.write(kind.value)
    for bit in range(8 * len(document)):
        damaged = bytearray(document)
        damaged[bit // 8] ^= 1 << bit % 8
        assert isinstance(problem_of(kind, bytes(damaged), document), Corrupt), bit
    for length in range(len(document) - (kind.name == "page")):
        assert isinstance(problem_of(kind, document[:length], document), Corrupt), length


@pytest.mark.parametrize("version", ["3", '"one"', "null", "true", "1.0"])
def test_a_newer_format_is_refused_by_name(kind: Kind, version: str) -> None:
    problem = problem_of(kind, kind.of(b'{"format":' + version.encode() + b',"other":1}'))
    assert isinstance(problem, Invalid if kind.name != "here" or kind.kind in {"head", "marks"} else Invalid | Corrupt)
    assert re.search(rf"{kind.name}.* has format .*reads format \d", str(problem))


# --- a right checksum, and not what is meant --------------------------------------------------------------------------


# Paths in the documents, where not what stands there alone is allowed: null; to be left out; -1; nothing below 1.
NULLABLE = (
    r"\.config\.(retention_s|quota_bytes)|.*\.(writer|first|holds)|\.writers\.\w+\.1|\.groups\.\w+\.3|\.holddown_left_s"
)
NULLABLE += r"|\.partitions\.\d+\.5|\.columns(\.key)?|.*\.schema_version"


OPTIONAL = r"\.columns(\.(key|version|columns\.\d+\.(nullable|since|former)))?|.*\.schema_version"
OPTIONAL += r"|\.timers|\.state_token|\.flows\.\d+\.[45]"


OPTIONAL += r"|\.config\.\w+|.*\.(first|holds)|\.groups\.\w+\.[23]|\.partitions\.\d+\.[3-9]"


OR_NOBODY = r"\.partitions\.\d+\.[23]"


POSITIVE = r"\.layouts\.\d+\.1|\.writer_pages\.\d+\.5|.*\.schema_version"
POSITIVE += r"|\.columns\.version|\.columns\.columns\.\d+\.(since|former\.\d+\.1)"


FIELDS = r"|\.config|\.(entries|tree|chunks|rounds)\.\d+"  # objects with these fields, and lists of so many values


VALUES = r"\.floor|\.(layouts|writer_pages|resolutions|owners|flows|partitions)\.\d+|\.(groups|writers)\.\w+"
VALUES += r"|.*\.slices\.\d+|.*\.first|\.(tree|chunks)\.\d+\.(sequence|time_us)"


NUMBERED = r"\.(retired|mapping|deliveries)"  # objects whose keys are partitions


def wrong(raw: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """`raw` with one value that its field may not have, or without one that has to be there, everywhere in turn."""
    number = type(raw) in (int, float)
    others: list[object] = [-2 if re.fullmatch(OR_NOBODY, path) else -1, 2**64, 1e300] if number else [0]
    others += [each for each in (True, "x", [None], {"x": None}) if type(each) is not type(raw)]
    others += [1.5] * (type(raw) is int) + [0] * bool(re.fullmatch(POSITIVE, path))
    others += [None] * (not re.fullmatch(NULLABLE, path))
    for other in others:
        yield f"{path} = {other!r}", other
    if isinstance(raw, dict) and re.fullmatch(NUMBERED, path):
        for other in ("-1", "x", "9223372036854775808", "1.0"):
            yield f"{path} with {other!r}", {other: next(iter(raw.values()))}
    if isinstance(raw, dict | list):
        for key in list(raw) if isinstance(raw, dict) else range(len(raw)):
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


def test_every_value_of_another_type_or_beyond_its_range_is_refused(kind: Kind) -> None:
    assert problem_of(kind, kind.of(json.dumps(kind.raw).encode())) is None
    bodies = ((what, json.dumps(each).encode()) for what, each in wrong(kind.raw))
    assert [what for what, body in bodies if not is_said(kind, kind.of(body))] == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"format":1' + b"0" * 5000 + b"}", b"NaN", b'{"\xed\xa0\x80":0}']
)
def test_what_is_no_json_at_all_is_refused(kind: Kind, body: bytes) -> None:
    assert is_said(kind, kind.of(body))


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
        ("format", 1, "not the fields of format 1: they are those of format 2"),
        ("entries.0.schema_version", 4, "entry 2 has version 4 of the queue's columns"),
        ("entries.0.schema_version", None, "entry 2 has version 0 of the queue's columns"),
        ("columns.columns.0.name", "tags", "two columns have one name"),
        ("columns.key", "name", "the key column 'name' is none of the columns"),
        ("columns.columns.2.since", 4, "the versions of column 'tags' do not rise up to 3"),
        ("columns.columns.0.former", [["INT", 3]], "the versions of column 'id' do not rise up to 3"),
    ],
)
def test_what_a_head_contradicts_is_named(path: str, value: object, words: str) -> None:
    head = changed(KINDS["typed head"].raw, path.split("."), value)
    problem = problem_of(HEADS, HEADS.of(json.dumps(head).encode()))
    assert isinstance(problem, Corrupt)
    assert words in str(problem)


def changed(raw: Any, path: list[str], value: object) -> Any:
    key: Any = path[0] if isinstance(raw, dict) else int(path[0])
    return with_value(raw, key, value if len(path) == 1 else changed(raw[key], path[1:], value))
