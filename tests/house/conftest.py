"""What counts requests to a store: shared by the tests of what things cost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.cost.document import COST, read_tables
from tools.cost.meter import Meter, counting_here, metered
from tools.cost.requests import Counts
from tools.servers import Azurite, S3Server


@pytest.fixture(scope="module")
def stated() -> dict[str, Counts]:
    return read_tables(COST.read_text(encoding="utf-8"))


ON_AZURE = pytest.param("azurite", marks=pytest.mark.azurite)


@pytest.fixture(params=[ON_AZURE, pytest.param("s3_server", marks=pytest.mark.s3)])
def server(request: pytest.FixtureRequest) -> Azurite | S3Server:
    found: Azurite | S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def here(server: Azurite | S3Server) -> Iterator[Meter]:
    with metered(server) as meter, counting_here(meter):
        yield meter


@pytest.fixture
def there(server: Azurite | S3Server) -> Iterator[Meter]:
    with metered(server) as meter:
        yield meter
