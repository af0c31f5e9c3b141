"""What every kind of documents promises besides right answers, of which `ownership/test_ownership` has an oracle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from partq_spark.group.documents import Announce, Audience, DocumentOperation, Documents, Load, Remove, Swap
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import open_ownership
from partq_spark.objects import ObjectStore
from partq_spark.objects.api import UNCHANGED
from partq_spark.objects.local import LocalStore
from tests.group.ownership.conftest import KEY
from tests.support.documents import MemoryDocuments, MemoryServer

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
    assert token not in (None, first)
    another = {"instance": "i2"}
    steps: list[tuple[DocumentOperation[Any], object]] = [
        *((Swap(name, another, first), None), (Swap(name, another, None), None), (Remove(name, first), False)),
        *((Load(name, known=token), UNCHANGED), (Remove(name, token), True), (Load(name), None)),
        *((Remove(name, first), True), (Remove(name, None), True), (Swap(name, another, first), None)),
    ]
    assert documents.ask(KEY, *(step for step, _ in steps)) == tuple(answer for _, answer in steps)
    documents.ask(KEY, Swap(name, FIELDS, None))
    removed: list[DocumentOperation[Any]] = [Remove(name, None), Load(name)]
    assert documents.ask(KEY, *removed) == (True, None)


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
