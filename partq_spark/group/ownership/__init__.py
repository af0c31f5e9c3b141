"""Who has what in a group that several share, and who lives: one implementation (`store`) over a group's documents.

Here is how a program opens it. What it is kept in is `group.documents`' business. Importing this package imports
neither Redis' client nor any SDK.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from partq_spark.base.errors import Invalid
from partq_spark.group.documents.api import Documents, Reincarnated
from partq_spark.group.documents.urls import PASSWORD, USERNAME, parse_ownership
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership.encoding import HEAD, Pulse, Seen, StateDocument
from partq_spark.group.ownership.store import Ownership
from partq_spark.objects import ObjectStore

__all__ = [
    "HEAD",
    "Ownership",
    "Pulse",
    "Reincarnated",
    "Seen",
    "StateDocument",
    "import_client",
    "open_ownership",
]


def open_ownership(
    url: str,
    *,
    store: ObjectStore | None = None,
    group: GroupKey | None = None,
    environ: Mapping[str, str] = os.environ,
    around: Callable[[Documents], Documents] = lambda documents: documents,
) -> Ownership:
    """The ownership kept at `redis://host:port/db`, `rediss://host:port/db?ssl_ca_certs=/path/ca.pem`, or `store`,
    which keeps it as objects in the given `store`, the one with the queues. In Redis its id tells its groups from those
    of other stores; the first process that uses Redis with a store gives it one.

    A flow names its `group`, and then waits only for news of that group's state; a coordinator does not. User and
    password of Redis come from PARTQ_REDIS_USERNAME and PARTQ_REDIS_PASSWORD in `environ`. Its calls are bounded
    (`RedisClient`); objects take what their store takes, so give one that does not try again for long
    (`open_store(url, retry_timeout_s=0)`).

    `around` may put something in between that counts calls.

    Nothing is connected yet, except that Redis' package is imported. Raises `Invalid` for any other URL, for one that
    carries a user or password, and where Redis' package is not installed.
    """
    parsed = parse_ownership(url)
    if parsed is None:
        from partq_spark.group.documents.objects import ObjectDocuments

        if store is None:
            raise Invalid("ownership 'store' is kept beside the queue, and no store was given: name one with --store")
        return Ownership(around(ObjectDocuments(store)))
    username, password = environ.get(USERNAME, ""), environ.get(PASSWORD, "")
    if username and not password:
        raise Invalid(f"ownership {parsed}: {USERNAME} is set and {PASSWORD} is not: set both, or none")
    try:
        from partq_spark.group.documents.redis import RedisDocuments
        from partq_spark.group.documents.redis_client import RedisClient
    except ModuleNotFoundError as error:
        raise Invalid(
            f"ownership {parsed} needs the package {error.name}: install it with `pip install partq[redis]`"
        ) from None
    if store is None:
        raise Invalid(f"ownership {parsed} tells stores apart, and no store was given: name one with --store")
    client = RedisClient(parsed, username=username, password=password)
    return Ownership(around(RedisDocuments(client, store, group=group)))


def import_client(url: str) -> None:
    """Import what `open_ownership` will need: Redis' package takes a tenth of a second, which another thread may spare
    the first who joins. A wrong URL or a missing package is for `open_ownership` to tell.
    """
    with suppress(Invalid, ImportError):
        if parse_ownership(url) is not None:
            import partq_spark.group.documents.redis  # noqa: F401
