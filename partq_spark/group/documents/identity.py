"""Which object store this is: a random id in the store itself, so that several stores can share one Redis.

A store's address does not tell: machines mount one folder at several places, and one container's name exists in many
accounts. The id is equal for all who use the store, whatever they call it. A copy of a store has the same one.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from partq_spark.base.errors import Conflict, Corrupt, Invalid, Unavailable
from partq_spark.group.checksums import check_sealed, sealed
from partq_spark.objects.api import Document, ObjectStore

NAME: Final = "_store"
"""The object, beside the namespaces: none has a name that begins with '_'."""

_KEY: Final = "store_id"
_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_REPAIR: Final = (
    "restore it from a copy, or end all coordinators and queries that keep the ownership of this store in Redis and"
    " remove it: the next one makes a new one"
)
_TRIES: Final = 3


def store_id(store: ObjectStore) -> str:
    """The store's id, made now if it has none. Raises `Corrupt`, `Invalid` if it may not be made, `Unavailable`."""
    for _ in range(_TRIES):
        found = known_id(store)
        if found is not None:
            return found
        made = secrets.token_hex(8)
        try:
            store.swap(NAME, sealed({_KEY: made}), expected=None)
        except Conflict:
            continue  # somebody else was faster, or it is this one, whose answer was lost
        except Invalid as error:
            raise Invalid(
                f"store {store.url} has no id yet, by which Redis tells it from others, and it cannot be made: {error}"
            ) from error
        return made
    raise Unavailable(f"the id of store {store.url} came and went {_TRIES} times while it was looked at: try again")


def known_id(store: ObjectStore) -> str | None:
    """The store's id; None if it has none yet. Raises `Corrupt`, `Unavailable`."""
    found = store.load(NAME)
    if not isinstance(found, Document):
        return None
    what = f"the id of store {store.url} (object {NAME})"
    check_sealed(found.metadata, what, _REPAIR)
    value = found.metadata.get(_KEY, "")
    if _ID.fullmatch(value) is None:
        raise Corrupt(f"{what} is {value[:40]!a}, not 16 hex digits; {_REPAIR}")
    return value
