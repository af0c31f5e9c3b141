"""Contract of every kind of documents: any operations have the answers of a plain dictionary; and what a call promises
besides.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.group.documents.api import (
    LISTED,
    Announce,
    Audience,
    DocumentOperation,
    Documents,
    Found,
    Listing,
    Load,
    Remove,
    Swap,
    Value,
    Written,
)
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import open_ownership
from partq_spark.objects import ObjectStore
from partq_spark.objects.api import UNCHANGED
from partq_spark.objects.local import LocalStore
from tests.group.ownership.conftest import KEY
from tests.objects.conftest import azure_store
from tests.support.documents import MemoryDocuments, MemoryServer
from tests.support.properties import examples

OTHER = GroupKey(KEY.namespace, KEY.queue, "billing-2")
FIELDS = {"instance": "i1", "count": "7"}

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
    server, opened = MemoryServer(), list[Documents]()
    objects: ObjectStore = LocalStore(str(tmp_path))
    if request.param == "objects-azure":
        objects = azure_store(request.getfixturevalue("azurite"), monkeypatch)

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


NAMES: Final = ("state", "leader", "beats/a", "beats/b", "ownership/3", "ownership/12")
Told = dict[str, tuple[str, Value]]
"""The oracle: token and value of each document of a group."""


def an_operation(draw: Random, told: Told) -> DocumentOperation[Any]:
    """Mostly with the token that is there; each value is another one."""
    name = draw.choice(NAMES)
    token = told[name][0] if name in told else None
    expected = draw.choice([token, token, token, None, "t0"])
    serial = f"{draw.random()}"
    value: Written = (
        {"instance": "i1", "n": serial} if name.partition("/")[0] in LISTED else f'{{"n":{serial}}}'.encode()
    )
    return draw.choice(
        [
            *[Swap(name, value, expected)] * 4,
            *(Load(name), Load(name, known=expected, aged=True), Remove(name, expected)),
            Listing(draw.choice(LISTED)),
        ]
    )


def check(told: Told, operations: Sequence[DocumentOperation[Any]], answers: Sequence[Any]) -> None:
    """They are done in order, whatever became of those before."""
    for operation, answer in zip(operations, answers, strict=True):
        token, value = told.get(getattr(operation, "name", ""), (None, b""))
        below = f"{getattr(operation, 'folder', '')}/"
        if isinstance(operation, Swap):
            fits = operation.expected == token
            assert bool(answer) is fits
            if fits:
                assert answer != token
                told[operation.name] = (answer, operation.value)
        elif isinstance(operation, Remove):
            assert answer is (token is None or operation.expected in (None, token))
            if answer:
                told.pop(operation.name, None)
        elif isinstance(operation, Load):
            if token is None or token == operation.known:
                assert answer is (None if token is None else UNCHANGED)
            else:
                assert (answer.name, answer.token, plain(answer)) == (operation.name, token, value)
                assert 0 <= answer.age_s < 30
        else:
            there = {name: each for name, each in told.items() if name.startswith(below)}
            assert {found.name: (found.token, plain(found)) for found in answer} == there
            assert all(0 <= found.age_s < 30 for found in answer)


def plain(found: Found) -> Written:
    """Fields may come as text."""
    is_text = found.name.partition("/")[0] in LISTED and not isinstance(found.value, Mapping)
    return json.loads(found.value) if is_text else found.value  # type: ignore[arg-type,return-value]


def test_any_operations_of_several_users_have_the_answers_of_a_dictionary(opening: Open) -> None:
    users = [opening(None) for _ in range(3)]

    @examples(3)
    @given(st.integers(0, 2**32))
    def operations(seed: int) -> None:
        draw = Random(seed)
        groups: dict[GroupKey, Told] = {KEY: {}, OTHER: {}}
        for group in groups:
            users[0].drop(group)  # which takes no other with it
        for _ in range(40):
            group = draw.choice([KEY, KEY, OTHER])
            asked = [an_operation(draw, groups[group]) for _ in range(draw.randrange(1, 4))]
            check(groups[group], asked, draw.choice(users).ask(group, *asked))
        users[0].drop(KEY)
        groups[KEY].clear()
        everything: list[DocumentOperation[Any]] = [*map(Load, NAMES), *map(Listing, LISTED)]
        for group, told in groups.items():
            check(told, everything, users[1].ask(group, *everything))

    operations()


def test_the_same_value_again_is_another_version_with_the_same_contents(opening: Open) -> None:
    """What a heartbeat is, and how a leader tells that it says nothing new."""
    documents = opening(None)
    token, before = documents.ask(KEY, Swap("beats/a", FIELDS, None), Listing("beats"))
    _, now = documents.ask(KEY, Swap("beats/a", FIELDS, token), Listing("beats"))
    assert [(each.name, each.value) for each in now] == [(each.name, each.value) for each in before]
    assert now[0].token != before[0].token


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
