"""What docs/cost.md says that things ask for is what a proxy before Azurite counts, and before S3 (OBS-05); its prices,
its table.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tools.cost import deeds, idle
from tools.cost.document import COST, dollars_on_s3
from tools.cost.meter import Meter
from tools.cost.prices import IDLE_GOAL, MILLION_GOAL, load_prices
from tools.cost.requests import Counts, Kind, kind_of
from tools.servers import Azurite, RedisServer, S3Server


@pytest.mark.slow
@pytest.mark.conformance("OBS-05")
def test_programs_ask_as_the_document_says(server: Azurite | S3Server, here: Meter, stated: dict[str, Counts]) -> None:
    made = partial(deeds.made, server)
    assert deeds.publishing(here, made(), 10_000, 2) == stated[deeds.PUBLISH]
    assert deeds.publishing(here, made(), 100, 2) == stated[deeds.PUBLISH]
    assert deeds.publishing_from_spark(here, made()) == stated[deeds.PUBLISH_SPARK]
    assert deeds.reading(here, made(), 1000, 3) == stated[deeds.READ]
    alone = deeds.reading(here, made(), 1000, group=deeds.GROUP, ownership="none")
    assert alone == stated[deeds.READ_ALONE]
    assert deeds.checkpointing(here, made()) == stated[deeds.CHECKPOINT]
    assert deeds.looking(here, made()) == stated[deeds.LOOK] == Counts(reads=1)
    alone = deeds.looking(here, made(), group=deeds.GROUP, ownership="none")
    assert abs(alone.reads - 1) < 0.11, "a look may be divided between two triggers"
    assert replace(alone, reads=0) == Counts()


@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.conformance("OBS-05")
def test_a_shared_flow_asks_for_what_the_document_says(
    server: Azurite | S3Server,
    redis_server: RedisServer,
    here: Meter,
    there: Meter,
    tmp_path: Path,
    stated: dict[str, Counts],
) -> None:
    url = deeds.made(server)
    with deeds.coordinated(tmp_path, url, redis_server.url, there):
        # A session that is over because the machine is slow is claimed again, which is not what is counted here.
        found = deeds.reading(here, url, 1000, group=deeds.GROUP, ownership=redis_server.url, sessionTimeout="1h")
        assert found == stated[deeds.READ_REDIS]
    url = deeds.made(server)
    with deeds.coordinated(tmp_path, url, "store", there):
        found = deeds.reading(here, url, 1000, group=deeds.GROUP, ownership="store", sessionTimeout="1h")
        looks = found.reads - stated[deeds.READ_OBJECTS].reads  # at the group's state, of a batch that takes long
        assert replace(found, reads=found.reads - looks) == stated[deeds.READ_OBJECTS]
        assert 0 <= looks <= 2
        assert deeds.beating(here, url) == stated[deeds.BEAT]


def test_every_request_has_a_class_of_azures_table_or_is_refused() -> None:
    for method, path, kind in (
        ("GET", "/account/container/blob", Kind.READ),
        ("GET", "/account/container?restype=container&comp=list&prefix=a", Kind.LIST),
        ("PUT", "/account/container?restype=container", Kind.LIST),
        ("PUT", "/account/container/blob?comp=blocklist", Kind.WRITE),
        ("HEAD", "/account/container/blob", Kind.OTHER),
        ("DELETE", "/account/container/blob", Kind.DELETE),
        ("POST", "/bucket/key?uploads=", Kind.WRITE),
        ("GET", "/bucket?list-type=2&prefix=a", Kind.LIST),
        ("GET", "/bucket?uploads=&prefix=a", Kind.LIST),
    ):
        assert kind_of(method, path) is kind
    with pytest.raises(ValueError, match=r"PUT /a/c/b\?comp=lease has no class yet"):
        kind_of("PUT", "/a/c/b?comp=lease")


def test_the_documents_dollars_are_the_tables(stated: dict[str, Counts]) -> None:
    """A change of the prices needs the document written again."""
    prices = load_prices()
    each = replace(prices, per_10000={"writes": 0.5, "lists": 1, "reads": 0.1, "others": 2, "deletes": 0})
    counts = Counts(writes=10_000, lists=5_000, reads=20_000, others=100, deletes=7)
    assert each.dollars(counts) == pytest.approx(0.5 + 0.5 + 0.2 + 0.02)
    text = COST.read_text(encoding="utf-8")
    for name in (idle.NO_GROUP, idle.ALONE, idle.REDIS):
        (line,) = [row for row in text.splitlines() if row.startswith(f"| {name} |")]
        assert float(line.split("|")[-3]) == pytest.approx(prices.dollars(stated[name]), abs=0.01)
        assert prices.dollars(stated[name]) <= IDLE_GOAL
    assert prices.dollars(stated["10,000 a batch: together"]) <= MILLION_GOAL
    on_s3 = dollars_on_s3(text)
    assert max(on_s3[name] for name in (idle.NO_GROUP, idle.ALONE, idle.REDIS)) <= IDLE_GOAL
    assert on_s3["10,000 a batch: together"] <= MILLION_GOAL
