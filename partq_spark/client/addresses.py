"""From what a caller names (a store, a namespace, an ownership) to what the log and the groups work with.

What is not given comes from the environment, read when it is asked for. Stores are opened once per process and shared;
an ownership is opened for one question and closed after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from partq_spark.base.errors import Invalid
from partq_spark.base.retry import LONGEST_WAIT_S
from partq_spark.base.timestamps import parse_rfc3339, unix_us
from partq_spark.log.connect import NamespaceAddress
from partq_spark.log.groups import group_kind, require_ownership
from partq_spark.log.model import Head
from partq_spark.log.names import checked_name
from partq_spark.objects.urls import canonical_url, default_store

if TYPE_CHECKING:
    from partq_spark.group.ownership import Ownership
    from partq_spark.objects.api import ObjectStore
    from partq_spark.query.settings import Boundary


def address(store: str | None, namespace: str, retry_timeout_s: float) -> NamespaceAddress:
    """A namespace of a store. `store` None: `$PARTQ_STORE`, else `file://$HOME/.partq`. Raises `Invalid`."""
    if not 0 <= retry_timeout_s <= LONGEST_WAIT_S:  # refuses nan too
        raise Invalid(
            f"retry_timeout_s={retry_timeout_s!r} is not allowed: give seconds from 0 to {LONGEST_WAIT_S:.0f}"
        )
    return NamespaceAddress(
        store=default_store(os.environ) if store is None else canonical_url(store),
        namespace=checked_name("namespace", namespace),
        retry_timeout_s=float(retry_timeout_s),
    )


def time_us(time: datetime | str) -> int:
    """Unix time in microseconds. Raises `Invalid` for a text that is no RFC 3339, and a `datetime` without a zone."""
    return parse_rfc3339(time) if isinstance(time, str) else unix_us(time)


def place(given: str | datetime | Mapping[int, int]) -> Boundary:
    """Where to begin or end in a queue: `earliest`, `latest`, a time or offsets. Raises `Invalid` as `time_us`."""
    from partq_spark.query.settings import Boundary

    match given:
        case "latest":
            return Boundary(edge="latest")
        case "earliest":
            return Boundary(edge="earliest")
        case str() | datetime():
            return Boundary(time_us=time_us(given))
        case _:
            return Boundary(offsets=given)


def ownership_url(given: str | None) -> str:
    """Where ownership is kept: as given, else as `$PARTQ_OWNERSHIP` says, else `none`. Raises `Invalid`."""
    from partq_spark.group.documents import urls

    return urls.default_ownership(os.environ) if given is None else urls.canonical_ownership(given)


def ownership_for(head: Head, group: str, given: str | None, store_url: str) -> str:
    """The ownership by which this group is shared, `none` if no address is known. What the environment says may be
    meant for other groups, so what does not fit is left out. Raises `Invalid` if what was given does not fit.
    """
    url = ownership_url(given)
    found = head.groups.get(group)
    if found is None or found.ownership in (None, group_kind(url)):
        return url
    if given is not None:
        require_ownership(head, group, url, store=store_url)
    return "store" if found.ownership == "store" else "none"


@contextmanager
def opened_ownership(url: str, store: ObjectStore) -> Iterator[Ownership | None]:
    """Where the groups' ownership is kept; None for `none`. Raises `Invalid` as `open_ownership` does."""
    if url == "none":
        yield None
        return
    from partq_spark.group.ownership import open_ownership

    ownership = open_ownership(url, store=store)
    try:
        yield ownership
    finally:
        ownership.close()
