"""The meter: a proxy before a storage service that counts the requests of this process or another one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest import mock

from tools.cost.requests import Counts, Kind, kind_of
from tools.proxy import Proxy, Seen
from tools.servers import Azurite, S3Server


def counted(seen: Iterable[Seen], part: str = "") -> Counts:
    """The requests whose path has `part`."""
    found = dict.fromkeys(Kind, 0)
    for each in seen:
        if part in each.path:
            found[kind_of(each.method, each.path)] += 1
    return Counts(**found)


class Meter:
    """A proxy before a server. Stores that are told apart have containers of their own."""

    def __init__(self, server: Azurite | S3Server, proxy: Proxy) -> None:
        self._proxy = proxy
        self.variables = server.variables(proxy.port)
        """Of the processes that are to be counted."""

    def begin(self) -> None:
        """Forget what was counted."""
        self._proxy.seen.clear()

    def counts(self, url: str = "", part: str = "") -> Counts:
        """Since then; by the store with this URL, for objects whose path has `part`."""
        container = "/" + "".join(url.split("/")[2:3])
        return counted([each for each in list(self._proxy.seen) if container in each.path], part)


@contextmanager
def metered(server: Azurite | S3Server) -> Iterator[Meter]:
    """A meter for the length of a `with` block."""
    with Proxy(server.port).running() as proxy:
        yield Meter(server, proxy)


@contextmanager
def counting_here(meter: Meter) -> Iterator[None]:
    """What this process asks for meanwhile goes by the meter."""
    with mock.patch.dict(os.environ, meter.variables):
        yield
