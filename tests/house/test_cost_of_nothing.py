"""What docs/cost.md says of a month in which nothing is published (OBS-05). In a file of its own: it waits, alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.conftest import ON_AZURE
from tools.cost import idle
from tools.cost.document import COST, dollars_on_s3
from tools.cost.meter import Meter
from tools.cost.prices import load_prices
from tools.cost.requests import Counts, Kind
from tools.servers import Azurite, RedisServer, S3Server

MOST_S = 25.0
"""What is measured over so long may differ from the month's figure by one request of each kind, and by a machine that
is too busy to ask in time.
"""


@pytest.mark.parametrize(
    "server", [ON_AZURE, pytest.param("s3_server", marks=[pytest.mark.s3, pytest.mark.nightly])], indirect=True
)
@pytest.mark.redis
@pytest.mark.alone
@pytest.mark.timeout(150)
@pytest.mark.conformance("OBS-05")
def test_a_month_of_nothing_asks_for_what_the_document_says(
    server: Azurite | S3Server,
    redis_server: RedisServer,
    here: Meter,
    there: Meter,
    tmp_path: Path,
    stated: dict[str, Counts],
) -> None:
    found = idle.idle(server, redis_server, here, there, tmp_path, MOST_S)
    on_s3, prices = dollars_on_s3(COST.read_text(encoding="utf-8")), load_prices()
    for what, a_second in found.items():
        if isinstance(server, S3Server):
            some = prices.dollars(Counts(writes=3)) * idle.MONTH_S / MOST_S
            assert prices.dollars(a_second.times(idle.MONTH_S)) == pytest.approx(on_s3[what], rel=0.2, abs=some)
            continue
        for kind in Kind:
            seen = MOST_S * float(getattr(a_second, kind))
            expected = MOST_S * float(getattr(stated[what], kind)) / idle.MONTH_S
            # What comes every 10 s or more seldom may fall into the interval once more than on average.
            assert seen <= 1.1 * expected + 3, f"{what}: {seen:g} {kind} in {MOST_S:g} s, {expected:.1f} are stated"
            assert seen >= 0.6 * expected - 3, f"{what}: {seen:g} {kind} in {MOST_S:g} s, {expected:.1f} are stated"
