"""Which object store this is: a random id in the store itself, so that several stores can share one Redis.

A store's address does not tell: machines mount one folder at several places, and one container's name exists in many
accounts. The id is equal for all who use the store, whatever they call it. A copy of a store has the same one.
"""

from __future__ import annotations

import re
from typing import Final

from partq_spark.base.effects import store_effects
from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.group.checksums import check_sealed, sealed
from partq_spark.objects.api import Document, ObjectStore
from partq_spark.objects.register import Register, few_tries

NAME: Final = "_store"
"""The object, beside the namespaces: none has a name that begins with '_'."""

_KEY: Final = "store_id"
_TRIES: Final = 2
"""A caller goes on trying by its own bound; the second try is for an object that another process made meanwhile."""
_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_REPAIR: Final = (
    "restore it from a copy, or end all coordinators and queries that keep the ownership of this store in Redis and"
    " remove it: the next one makes a new one"
)


def store_id(store: ObjectStore) -> str:
    """The store's id, made now if it has none. Raises `Corrupt`, `Invalid` if it may not be made, `Unavailable`."""
    register = _register(store)
    if (found := register.read()) is not None:
        return found
    effects = store_effects()
    try:
        # Another's may be there by now, or one's own, whose answer was lost: it is the same to everybody.
        return register.change(lambda found: found or effects.token(), few_tries(effects, _TRIES), known=True)
    except Invalid as error:
        raise Invalid(
            f"store {store.url} has no id yet, by which Redis tells it from others, and it cannot be made: {error}"
        ) from error


def known_id(store: ObjectStore) -> str | None:
    """The store's id; None if it has none yet. Raises `Corrupt`, `Unavailable`."""
    return _register(store).read()


def _register(store: ObjectStore) -> Register[str]:
    what = f"the id of store {store.url} (object {NAME})"
    return Register(
        store,
        NAME,
        what=what,
        decode=lambda found: _decoded(found, what),
        encode=lambda made: sealed({_KEY: made}),
    )


def _decoded(found: Document, what: str) -> str:
    check_sealed(found.metadata, what, _REPAIR)
    value = found.metadata.get(_KEY, "")
    if _ID.fullmatch(value) is None:
        raise Corrupt(f"{what} is {value[:40]!a}, not 16 hex digits; {_REPAIR}")
    return value
