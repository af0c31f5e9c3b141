"""Several stores share one Redis: the id that each keeps tells their groups apart, whatever people call the store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from partq_spark.base.errors import Conflict, Corrupt, Invalid
from partq_spark.group.checksums import sealed
from partq_spark.group.documents.identity import NAME, known_id, store_id
from partq_spark.group.model import Lease
from partq_spark.group.ownership import open_ownership
from partq_spark.objects import open_store
from partq_spark.objects.api import Document
from partq_spark.objects.azure_access import CONNECTION_STRING
from tests.group.ownership.conftest import KEY, a_record, together
from tests.group.ownership.redis_servers import an_object_store, command
from tests.support.servers import Azurite, RedisServer, running


def test_the_first_gives_the_store_an_id_and_everybody_finds_it() -> None:
    store = an_object_store()
    assert known_id(store) is None
    made = store_id(store)
    assert re.fullmatch("[0-9a-f]{16}", made)
    assert store_id(store) == known_id(store) == made
    assert store_id(an_object_store()) != made


def test_many_at_once_agree(tmp_path: Path) -> None:
    found: list[str] = []
    together(lambda _: found.append(store_id(open_store(f"file://{tmp_path}/store"))), 8)
    assert len(set(found)) == 1


def test_a_store_that_is_reached_by_another_path_is_the_same(tmp_path: Path) -> None:
    made = store_id(open_store(f"file://{tmp_path}/store"))
    (tmp_path / "mounted").symlink_to(tmp_path / "store")
    assert store_id(open_store(f"file://{tmp_path}/mounted")) == made


@pytest.mark.parametrize("how", ["checksum", "shape", "bytes"])
def test_a_damaged_id_is_refused_with_what_to_do(how: str) -> None:
    store = an_object_store()
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


def test_who_may_not_make_the_id_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    store = an_object_store()

    def refuse(*_: object, **__: object) -> str:
        raise Invalid("not allowed")

    monkeypatch.setattr(store, "swap", refuse)
    with pytest.raises(Invalid, match=r"has no id yet, by which Redis tells it from others.*not allowed"):
        store_id(store)


@pytest.mark.redis
def test_equal_groups_of_two_stores_share_nothing(redis_server: RedisServer) -> None:
    """Queues and groups of the same names, and the housekeepers of the same namespace."""
    one, other = (open_ownership(redis_server.url, store=an_object_store()) for _ in range(2))
    flow = open_ownership(redis_server.url, store=an_object_store(), group=KEY)
    for store in (one, other, flow):
        assert store.wait_news(5) is None
        store.incarnation()
    one.swap_state(KEY, b"{}", token="t1", expected=None)
    one.bind(KEY, a_record(), replaces=None)
    one.take_lease(KEY, Lease(token="l", name="n", beat=0), expected=None)
    assert other.read_state(KEY) is None
    assert other.read_flows(KEY) == {}
    assert other.read_lease(KEY) is None
    other.take_lease(KEY, Lease(token="m", name="n", beat=0), expected=None)
    assert one.wait_news(5) == frozenset({KEY})
    assert other.wait_news(0.2) == flow.wait_news(0.2) == frozenset()
    other.drop_group(KEY)
    assert set(one.read_flows(KEY)) == {"billing-1"}
    with pytest.raises(Conflict):
        one.swap_state(KEY, b"{}", token="t2", expected=None)
    for store in (one, other, flow):
        store.close()


@pytest.mark.redis
def test_keys_begin_as_the_interface_says() -> None:
    objects = an_object_store()
    with running(RedisServer()) as server:
        store = open_ownership(server.url, store=objects)
        store.swap_state(KEY, b"{}", token="t1", expected=None)
        assert f"partq:{{{store_id(objects)}/{KEY}}}:state" in command(server, "KEYS", "*")
        store.close()


@pytest.mark.azurite
def test_on_azure_it_is_a_small_blob(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONNECTION_STRING, azurite.connection_string)
    url = azurite.fresh_url()
    made = store_id(open_store(url, retry_timeout_s=0))
    assert store_id(open_store(url, retry_timeout_s=0)) == made
    assert [info.name for info in open_store(url).list("")] == [NAME]
    assert list(open_store(url).list_folders("")) == []
