"""The meter: a proxy before Azurite, Azure's emulator, that counts the requests of this process or another one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from tools.cost.requests import Counts, Kind, kind_of
from tools.proxy import Proxy, Seen
from tools.servers import Azurite

CREDENTIALS: Final = "AZURE_STORAGE_CONNECTION_STRING"


def counted(seen: Iterable[Seen], part: str = "") -> Counts:
    """The requests whose path has `part`."""
    found = dict.fromkeys(Kind, 0)
    for each in seen:
        if part in each.path:
            found[kind_of(each.method, each.path)] += 1
    return Counts(**found)


class Meter:
    """A proxy before an Azurite. Stores that are told apart have containers of their own."""

    def __init__(self, azurite: Azurite, proxy: Proxy) -> None:
        self._proxy = proxy
        endpoint = f"http://127.0.0.1:{proxy.port}/{azurite.account}"
        self.credentials = azurite.connection_string_with(azurite.key, endpoint)
        """For the variable of this name, of the processes that are to be counted."""

    def begin(self) -> None:
        """Forget what was counted."""
        self._proxy.seen.clear()

    def counts(self, url: str = "", part: str = "") -> Counts:
        """Since then; by the store with this URL, for objects whose path has `part`."""
        container = "/" + url.removeprefix("azure://").partition("/")[0]
        return counted([each for each in list(self._proxy.seen) if container in each.path], part)


@contextmanager
def metered(azurite: Azurite) -> Iterator[Meter]:
    """A meter for the length of a `with` block."""
    with Proxy(azurite.port).running() as proxy:
        yield Meter(azurite, proxy)


@contextmanager
def counting_here(meter: Meter) -> Iterator[None]:
    """What this process asks for meanwhile goes by the meter."""
    before = os.environ.get(CREDENTIALS)
    os.environ[CREDENTIALS] = meter.credentials
    try:
        yield
    finally:
        if before is None:
            del os.environ[CREDENTIALS]
        else:
            os.environ[CREDENTIALS] = before
