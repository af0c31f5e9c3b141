"""What every kind of documents promises besides right answers, of which `ownership/test_ownership` has an oracle. What
`--ownership` may say; a secret in it is refused and never repeated. Several stores share one Redis: the id that each
keeps tells their groups apart, whatever people call the store.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.base.json_documents import sealed
from partq_spark.group.documents import Announce, Audience, DocumentOperation, Documents, Load, Remove, Swap
from partq_spark.group.documents.urls import NAME, known_id, parse_ownership, store_id
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import open_ownership
from partq_spark.objects import ObjectStore, open_store
from partq_spark.objects.api import UNCHANGED, Document
from partq_spark.objects.local import LocalStore
from tests.group.ownership.conftest import KEY, begin, token_of
from tests.log.queues import once
from tests.objects.conftest import memory_store
from tests.support.documents import MemoryDocuments, MemoryServer
from tests.support.way import Hooked
from tools.servers import RedisServer

FIELDS = {"instance": "i1", "count": "7"}
OTHER = GroupKey(KEY.namespace, KEY.queue, "billing-2")

Open = Callable[[GroupKey | None], Documents]

_KINDS = [
    "memory",
    "objects-local",
    pytest.param("redis", marks=pytest.mark.redis),
]


@pytest.fixture(params=_KINDS)
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens another user of one store that is empty."""
    server, opened = MemoryServer(), list[Documents]()
    objects: ObjectStore = LocalStore(str(tmp_path))

    def open_one(group: GroupKey | None = None) -> Documents:
        if request.param == "memory":
            opened.append(MemoryDocuments(server, group=group))
        else:
            url = request.getfixturevalue("redis_server").url if request.param == "redis" else "store"
            opened.append(open_ownership(url, store=objects, group=group).documents)
        return opened[-1]

    yield open_one
    for documents in opened:
        documents.close()


def test_a_version_is_replaced_and_removed_by_its_own_token_alone(opening: Open) -> None:
    """All in one call, each whatever became of those before. The same value again is another version."""
    documents, name = opening(None), "beats/a"
    (first,) = documents.ask(KEY, Swap(name, FIELDS, None))
    (token,) = documents.ask(KEY, Swap(name, FIELDS, first))
    assert first is not None
    assert token not in (None, first)
    another = {"instance": "i2"}
    steps: list[tuple[DocumentOperation[Any], object]] = [
        *((Swap(name, another, first), None), (Swap(name, another, None), None), (Remove(name, first), False)),
        *((Load(name, known=token), UNCHANGED), (Remove(name, token), True), (Load(name), None)),
        *((Remove(name, first), True), (Swap(name, another, first), None)),
    ]
    assert documents.ask(KEY, *(step for step, _ in steps)) == tuple(answer for _, answer in steps)


@pytest.mark.conformance("OWN-02")
def test_of_many_that_swap_one_version_one_wins(opening: Open) -> None:
    users = [opening(None) for _ in range(4)]
    expected: str | None = None
    for _ in range(4):
        with ThreadPoolExecutor(len(users)) as pool:
            bodies = [b'{"by":%d}' % number for number in range(len(users))]
            asked = zip(users, bodies, strict=True)
            swaps = [pool.submit(user.ask, KEY, Swap("leader", body, expected)) for user, body in asked]
        (expected,) = [token for swap in swaps if (token := swap.result()[0])]
        assert users[0].ask(KEY, Load("leader", known=expected)) == (UNCHANGED,)


def test_all_users_see_one_life_and_a_place_that_a_person_finds(opening: Open) -> None:
    first, second = opening(None), opening(None)
    assert first.lives == second.lives == 0
    for words in ("default/orders/billing", "beats"):
        assert words in first.where(KEY, "beats/a")


def test_news_reach_those_they_are_for(opening: Open) -> None:
    doer, coordinator, flow, stranger = opening(None), opening(None), opening(KEY), opening(OTHER)
    waiting = (coordinator, flow, stranger)
    if None in [(each.wait(0.05), each.wait(0.05))[1] for each in waiting]:
        return  # nobody is told: everybody has to look, and knows it

    def heard() -> list[bool]:
        until_s = time.monotonic() + 5
        found = [False, False, False]
        while not any(found) and time.monotonic() < until_s:
            found = [KEY in (each.wait(0.1) or ()) for each in waiting]
        return found

    doer.ask(KEY, Announce(Audience.FLOWS))
    assert heard() == [False, True, False]
    doer.ask(KEY, Announce(Audience.COORDINATORS))
    assert heard() == [True, False, False]


# --- what `--ownership` may say ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://localhost", "redis://localhost:6379/0"),
        ("  REDIS://redis.example.com:7000/3/ ", "redis://redis.example.com:7000/3"),
        ("rediss://10.0.0.1:6380/15", "rediss://10.0.0.1:6380/15"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("rediss://h:1/0?ssl_ca_certs=/etc/ca%20x.pem", "rediss://h:1/0?ssl_ca_certs=/etc/ca%20x.pem"),
        (
            "rediss://h?ssl_keyfile=/k.pem&ssl_ca_certs=/ca.pem&ssl_certfile=/c.pem",
            "rediss://h:6379/0?ssl_ca_certs=/ca.pem&ssl_certfile=/c.pem&ssl_keyfile=/k.pem",
        ),
    ],
)
def test_a_redis_has_one_way_to_be_written(given: str, canonical: str) -> None:
    parsed = parse_ownership(given)
    assert str(parsed) == canonical
    assert parse_ownership(canonical) == parsed


@pytest.mark.parametrize(
    "given",
    [
        *("", "none", "redis", "redis:", "redis:///0", "redis://", "redis://h:0/0", "redis://h:65536/0"),
        *("redis://h:x/0", "redis://h:1/x", "redis://h:1/0/1", "redis://h:1/-1", "redis://h h:1/0", "http://h:1/0"),
        *("unix:///tmp/redis.sock", "file:///tmp", "memory:", "localhost:6379", "redis://h:1/0#x", "redis://h,g:1/0"),
        *("redis://h:1/0?ssl_ca_certs=/ca.pem", "rediss://h:1/0?ssl_ca_certs=ca.pem", "rediss://h:1/0?ssl_ca_certs="),
        *("rediss://h:1/0?ssl_cert_reqs=none", "rediss://h:1/0?ssl_check_hostname=false", "rediss://h:1/0?x"),
        "rediss://h:1/0?ssl_ca_certs=/a&ssl_ca_certs=/b",
        # a secret is not repeated
        *("redis://hunter2@h:1/0", "redis://:hunter2@h:1/0", "rediss://user:hunter2@h:1/0", "redis:hunter2@h"),
        *("redis://h:1/0?password=hunter2", "rediss://h:1/0?password=hunter2", "rediss://h:1/0?ssl_ca_certs=hunter2"),
        *("redis://h:1/hunter2", "redis://h:hunter2/0", "hunter2", "redis://h:1/0#hunter2"),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed_and_no_secret_is_repeated(given: str) -> None:
    with pytest.raises(Invalid, match=r"^ownership ") as caught:
        open_ownership(given)
    said = str(caught.value)
    assert re.search(r"redis://host:port/db|host:port/0|PEM file|write it in full|PARTQ_REDIS_PASSWORD", said)
    assert "hunter2" not in said + repr(caught.value.__cause__)
    assert "PARTQ_REDIS_PASSWORD" in said or "@" not in given or "//" not in given


@pytest.mark.parametrize(
    ("given", "environ", "says"),
    [
        *((given, {}, "--store") for given in ("store", "Store", " store ")),  # ownership beside the queue
        ("redis://h", {"PARTQ_REDIS_USERNAME": "billing"}, "PARTQ_REDIS_PASSWORD is not"),
    ],
)
def test_what_is_missing_is_named(given: str, environ: dict[str, str], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        open_ownership(given, environ=environ)


def test_the_package_is_imported_only_when_it_is_needed_and_without_it_the_extra_is_named() -> None:
    """What cannot be imported ahead is left to who opens it."""
    code = """
import sys
from partq_spark.base.errors import Invalid
from partq_spark.group.ownership import import_client, open_ownership
for url in ("none", "store", "redis:/wrong"):
    import_client(url)
print([name for name in sys.modules if name.split('.')[0] in ('redis', 'azure', 'pyspark', 'asyncio')])
sys.modules["redis"] = None
import_client("redis://localhost:6379/0")
try:
    open_ownership("redis://localhost:6379/0")
except Invalid as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert re.fullmatch(r"\[\]\n.*needs the package redis.*pip install partq\[redis\].*\n", done.stdout)
    assert done.stderr == ""


# --- the id of a store ------------------------------------------------------------------------------------------------


def test_many_at_once_agree_on_an_id_by_whatever_path_they_reach_the_store(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    (tmp_path / "store").mkdir()
    (tmp_path / "mounted").symlink_to(tmp_path / "store")
    assert known_id(store) is None
    found = [store_id(memory_store())]
    with ThreadPoolExecutor(8) as pool:
        found += pool.map(lambda n: store_id(open_store(f"file://{tmp_path}/{('store', 'mounted')[n % 2]}")), range(8))
    other, made = found[0], known_id(store)
    assert found[1:] == [made] * 8
    assert re.fullmatch("[0-9a-f]{16}", made or "")
    assert made != other
    assert [info.name for info in store.list("")] == [NAME]
    assert list(store.list_folders("")) == [], "it is no namespace"


@pytest.mark.parametrize("how", ["checksum", "shape", "bytes"])
def test_a_damaged_id_is_refused_with_what_to_do(how: str) -> None:
    store = memory_store()
    store_id(store)
    found = store.load(NAME)
    assert isinstance(found, Document)
    if how == "bytes":
        store.swap(NAME, b"{}", expected=found.etag)
    else:
        after = {**found.metadata, "store_id": "0" * 15 + "x"}
        store.swap(NAME, sealed(after) if how == "shape" else after, expected=found.etag)
    with pytest.raises(Corrupt, match=f"object {NAME}.*restore it from a copy, or end all coordinators"):
        store_id(store)


def test_who_may_not_make_the_id_is_told() -> None:
    def refuse() -> None:
        raise Invalid("not allowed")

    store = Hooked(memory_store())
    store.before = once("swap", NAME, refuse)
    with pytest.raises(Invalid, match=r"has no id yet, by which Redis tells it from others.*not allowed"):
        store_id(store)


@pytest.mark.redis
def test_equal_groups_of_two_stores_share_nothing(redis_server: RedisServer) -> None:
    """Nor do their news."""
    one, other = (open_ownership(redis_server.url, store=memory_store()) for _ in range(2))
    flow = open_ownership(redis_server.url, store=memory_store(), group=KEY)
    for store in (one, other, flow):
        assert store.wait_news(5) is None
    begin(one)
    assert (other.read_state(KEY), other.read_flows(KEY)) == (None, {})
    assert one.wait_news(5) == frozenset({KEY})
    assert other.wait_news(0.2) == flow.wait_news(0.2) == frozenset()
    other.drop_group(KEY)
    assert (token_of(one), list(one.read_flows(KEY))) == ("t1", ["billing-1"])
    for store in (one, other, flow):
        store.close()
