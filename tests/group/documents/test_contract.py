"""Contract of every kind of documents: steps in order, each on its condition, and what a call promises."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from partq_spark.group.documents.api import (
    Announce,
    Audience,
    Documents,
    Found,
    Listed,
    Listing,
    Load,
    Names,
    Remove,
    Swap,
)
from partq_spark.group.documents.memory import MemoryDocuments, MemoryServer
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import open_ownership
from partq_spark.objects import open_store
from partq_spark.objects.api import UNCHANGED
from partq_spark.objects.azure_access import CONNECTION_STRING
from tests.group.ownership.redis_servers import an_object_store
from tests.support.servers import Azurite, RedisServer

KEY = GroupKey("default", "orders", "billing")
OTHER = GroupKey("default", "orders", "billing-2")
BODY, FIELDS = b'{"x":1}', {"instance": "i1", "count": "7"}

Open = Callable[[GroupKey | None], Documents]

_KINDS = [
    "memory",
    "objects-local",
    pytest.param("objects-azure", marks=pytest.mark.azurite),
    pytest.param("redis", marks=pytest.mark.redis),
]


@pytest.fixture(params=_KINDS)
def opening(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens another user of one store that is empty."""
    kind: str = request.param
    opened: list[Documents] = []
    make: Open
    if kind == "memory":
        server = MemoryServer()
        make = lambda group: MemoryDocuments(server, group=group)  # noqa: E731
    elif kind == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        beside = an_object_store()
        make = lambda group: open_ownership(redis.url, store=beside, group=group)._documents  # noqa: E731
    else:
        url = f"file://{tmp_path}/store"
        if kind == "objects-azure":
            azurite: Azurite = request.getfixturevalue("azurite")
            monkeypatch.setenv(CONNECTION_STRING, azurite.connection_string)
            url = azurite.fresh_url()
        store = open_store(url, retry_timeout_s=0)
        make = lambda group: open_ownership("store", store=store, group=group)._documents  # noqa: E731

    def open_one(group: GroupKey | None = None) -> Documents:
        opened.append(make(group))
        return opened[-1]

    yield open_one
    for documents in opened:
        documents.close()


@pytest.fixture
def documents(opening: Open) -> Documents:
    """One user."""
    return opening(None)


def written(documents: Documents, name: str, value: bytes | dict[str, str] = BODY, expected: str | None = None) -> str:
    """Its token."""
    (token,) = documents.ask(KEY, Swap(name, value, expected))
    assert token
    return token


def loaded(documents: Documents, name: str) -> Found:
    """What is there."""
    (found,) = documents.ask(KEY, Load(name, aged=True))
    assert isinstance(found, Found)
    return found


@pytest.mark.parametrize(("name", "value"), [("state", BODY), ("flows/a/i1", BODY), ("beats/a", FIELDS)])
def test_a_document_is_read_as_it_was_written(opening: Open, name: str, value: bytes | dict[str, str]) -> None:
    writer = opening(None)
    assert writer.ask(KEY, Load(name), Load(name, known="t")) == (None, None)
    token = written(writer, name, value)
    for reader in (writer, opening(None)):
        found = loaded(reader, name)
        assert (found.name, found.token, found.value) == (name, token, value)
        assert 0 <= found.age_s < 30
        assert reader.ask(KEY, Load(name, known=token)) == (UNCHANGED,)
        assert reader.ask(OTHER, Load(name)) == (None,)


def test_a_swap_needs_the_token_that_is_there(documents: Documents) -> None:
    assert documents.ask(KEY, Swap("state", BODY, "t0")) == (None,)
    first = written(documents, "state", b'{"n":1}')
    for wrong in (None, "t0"):
        assert documents.ask(KEY, Swap("state", b'{"n":2}', wrong)) == (None,)
    assert loaded(documents, "state").value == b'{"n":1}'
    second = written(documents, "state", b'{"n":3}', first)
    assert second != first
    assert documents.ask(KEY, Swap("state", b'{"n":4}', first)) == (None,)
    assert loaded(documents, "state").token == second


def test_steps_are_done_in_order_and_the_first_condition_that_does_not_hold_ends_them(documents: Documents) -> None:
    token = written(documents, "state")
    answers = documents.ask(KEY, Swap("beats/a", FIELDS, None), Load("beats/a"), Load("state", known=token))
    assert answers[0]
    assert isinstance(answers[1], Found)
    assert answers[1].token == answers[0]
    assert answers[2] is UNCHANGED
    refused = documents.ask(KEY, Swap("flows/a/i1", BODY, None), Swap("beats/a", {"x": "y"}, "t0"), Listing("beats"))
    assert refused[0]
    assert refused[1:] == (None, Listed())
    assert documents.ask(KEY, Remove("state", "t0"), Remove("beats/a", None)) == (False, False)
    assert loaded(documents, "beats/a").token == answers[0]


def test_an_optional_step_ends_nothing(documents: Documents) -> None:
    swaps = [Swap(f"ownership/{number}", FIELDS, "t0" if number == 1 else None, optional=True) for number in range(3)]
    answers = documents.ask(KEY, *swaps)
    assert [answer is not None for answer in answers] == [True, False, True]


def test_names_are_those_of_a_folder_whatever_it_holds(documents: Documents) -> None:
    assert documents.ask(KEY, Names("flows"), Names("beats")) == ((), ())
    written(documents, "state")
    for name in ("flows/a/i1", "flows/b/i2"):
        written(documents, name)
    written(documents, "beats/a", FIELDS)
    written(documents, "ownership/3", FIELDS)
    records, beats, owned = documents.ask(KEY, Names("flows"), Names("beats"), Names("ownership"))
    assert sorted(records) == ["flows/a/i1", "flows/b/i2"]
    assert (beats, owned) == (("beats/a",), ("ownership/3",))
    assert documents.ask(OTHER, Names("flows")) == ((),)
    assert documents.ask(KEY, Swap("state", b"{}", "t0"), Names("flows")) == (None, ())


def test_a_listing_has_the_fields_of_a_folder_and_of_no_other(documents: Documents) -> None:
    assert [list(found) for found in documents.ask(KEY, Listing("beats"), Listing("ownership"))] == [[], []]
    written(documents, "state")
    written(documents, "flows/a/i1")
    for name in ("beats/a", "beats/b", "ownership/3", "ownership/12"):
        written(documents, name, {**FIELDS, "name": name})
    beats, records = documents.ask(KEY, Listing("beats", aged=True), Listing("ownership"))
    assert sorted(found.name for found in beats) == ["beats/a", "beats/b"]
    assert sorted(found.name for found in records) == ["ownership/12", "ownership/3"]
    for found in (*beats, *records):
        assert found.value == {**FIELDS, "name": found.name}
        assert 0 <= found.age_s < 30
        assert found.token == loaded(documents, found.name).token
    assert len(beats.ages_s) == 2


def test_the_same_value_again_is_another_version_with_the_same_contents(documents: Documents) -> None:
    """What a heartbeat is, and how a leader tells that it says nothing new."""
    token = written(documents, "beats/a", FIELDS)
    (before,) = documents.ask(KEY, Listing("beats"))
    written(documents, "beats/a", FIELDS, token)
    (now,) = documents.ask(KEY, Listing("beats"))
    assert (now.names, now.contents) == (before.names, before.contents)
    assert now.tokens != before.tokens


@pytest.mark.conformance("OWN-02")
def test_of_many_that_swap_one_version_one_wins(opening: Open) -> None:
    users = [opening(None) for _ in range(4)]
    expected: str | None = None
    for _ in range(4):
        with ThreadPoolExecutor(len(users)) as pool:
            bodies = [b'{"by":%d}' % number for number in range(len(users))]
            asked = zip(users, bodies, strict=True)
            swaps = [pool.submit(user.ask, KEY, Swap("leader", body, expected)) for user, body in asked]
        won = [swap.result()[0] for swap in swaps if swap.result()[0]]
        assert won == [loaded(users[0], "leader").token]
        expected = won[0]


def test_large_values_and_many_documents_are_kept(opening: Open) -> None:
    writer = opening(None)
    body = b'{"x":"' + b"\\u00e9" * 50_000 + b'"}'
    written(writer, "state", body)
    swaps = [Swap(f"ownership/{number}", FIELDS, None, optional=True) for number in range(100)]
    assert all(writer.ask(KEY, *swaps))
    assert loaded(opening(None), "state").value == body
    (found,) = opening(None).ask(KEY, Listing("ownership"))
    assert len(list(found)) == 100


def test_all_users_see_one_life_and_it_stays(opening: Open) -> None:
    first, second = opening(None), opening(None)
    life = first.incarnation()
    written(first, "state")
    assert life == second.incarnation() == first.incarnation() != ""


def test_what_was_removed_is_gone_and_may_be_made_again(documents: Documents) -> None:
    token = written(documents, "leader")
    assert documents.ask(KEY, Remove("leader", "t0")) == (False,)
    assert documents.ask(KEY, Remove("leader", token)) == (True,)
    assert documents.ask(KEY, Remove("leader", token)) == (True,)
    assert documents.ask(KEY, Load("leader")) == (None,)
    assert written(documents, "leader") != token
    assert documents.ask(KEY, Remove("leader", None), Remove("leader", None)) == (True, True)


def test_a_group_that_is_dropped_takes_no_other_with_it(documents: Documents) -> None:
    for name, value in (("state", BODY), ("leader", BODY), ("flows/a/i1", BODY), ("beats/a", FIELDS)):
        for group in (KEY, OTHER):
            assert documents.ask(group, Swap(name, value, None))[0]
    documents.drop(KEY)
    for name in ("state", "leader", "flows/a/i1", "beats/a"):
        assert documents.ask(KEY, Load(name)) == (None,)
        assert documents.ask(OTHER, Load(name)) != (None,)


def test_a_document_has_a_place_that_a_person_finds(documents: Documents) -> None:
    assert "default/orders/billing" in documents.where(KEY, "beats/a")
    assert "beats" in documents.where(KEY, "beats/a")


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
    doer.ask(KEY, Swap("state", BODY, "t0"), Announce(Audience.FLOWS))
    assert [each.wait(0.1) for each in waiting] == [frozenset()] * 3, "it was not reached"
