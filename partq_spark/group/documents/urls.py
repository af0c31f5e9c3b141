"""What `--ownership` and the option `ownership` may say, and the one way in which partq writes it.

Only parsing lives here; the caller hands in the environment. User and password come from the environment alone; a URL
that could carry them is refused and never repeated, because plans and logs show URLs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote

from partq_spark.base.effects import store_effects
from partq_spark.base.errors import Corrupt, Invalid, WrongUse
from partq_spark.base.json_documents import check_sealed, sealed
from partq_spark.objects.api import Document, ObjectStore
from partq_spark.objects.retrying import Register, few_tries

ALLOWED: Final = "redis://host:port/db, rediss://host:port/db or store"
USERNAME: Final = "PARTQ_REDIS_USERNAME"
PASSWORD: Final = "PARTQ_REDIS_PASSWORD"  # noqa: S105 - the name of a variable
STORE: Final = "store"

_TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_HOST = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_DATABASE = re.compile(r"/?|/(?P<db>[0-9]{1,4})/?", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisUrl:
    """A Redis database. `tls_files` has the paths that the URL names as `ssl_ca_certs`, `ssl_certfile` and
    `ssl_keyfile` (PEM), which are redis-py's names; without `ssl_ca_certs` the machine's own authorities count.
    """

    host: str
    port: int
    db: int
    tls: bool
    tls_files: tuple[tuple[str, str], ...] = field(default=())

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        query = "&".join(f"{name}={quote(path, safe='/~._-')}" for name, path in self.tls_files)
        scheme = "rediss" if self.tls else "redis"
        return f"{scheme}://{host}:{self.port}/{self.db}{'?' if query else ''}{query}"


def parse_ownership(url: str) -> RedisUrl | None:
    """The Redis that `url` names, None for `store`. Raises `Invalid`, which shows what is allowed, otherwise."""
    text = url.strip()
    if text.lower() == STORE:
        return None
    if text.lower() == "none":
        raise Invalid(f"ownership 'none' is kept nowhere, one query takes everything: to share a group, use {ALLOWED}")
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in ("redis", "rediss"):
        raise Invalid(f"ownership (not shown, it may hold a secret) is not known: use {ALLOWED}")
    address, _, query = rest.partition("?")
    if "@" in rest or "#" in rest:
        raise Invalid(
            f"ownership {scheme}://… has a user, password or fragment (not repeated: plans and logs show URLs): use"
            f" {ALLOWED}, and set {USERNAME} and {PASSWORD} in the environment"
        )
    authority, slash, path = address.partition("/")
    where, database = _HOST.fullmatch(authority), _DATABASE.fullmatch(slash + path)
    if where is None or database is None or not 0 < int(where["port"] or 6379) < 65536:
        raise Invalid(
            f"ownership {scheme}://… (not shown) does not name a host, a port from 1 to 65535 and the number of a"
            f" database: use {scheme}://host:port/0"
        )
    return RedisUrl(
        host=where["host"].strip("[]"),
        port=int(where["port"] or 6379),
        db=int(database["db"] or 0),
        tls=scheme == "rediss",
        tls_files=_tls_files(scheme, query),
    )


def canonical_ownership(text: str) -> str:
    """`none`, `store` or a Redis URL in the one way in which partq writes it. Raises `Invalid` as `parse_ownership`."""
    if text.strip().lower() == "none":
        return "none"
    parsed = parse_ownership(text)
    return STORE if parsed is None else str(parsed)


def _tls_files(scheme: str, query: str) -> tuple[tuple[str, str], ...]:
    given = parse_qsl(query, keep_blank_values=True)
    names = [name for name, _ in given]
    known = all(name in _TLS_FILES for name in names) and len(set(names)) == len(names)
    if (query and not given) or not known or (given and scheme != "rediss"):
        raise Invalid(
            f"ownership {scheme}://… has a query that is not known (not repeated: it may hold a secret): rediss:// may"
            f" have {', '.join(_TLS_FILES)}, once each, with the path of a PEM file; user and password are taken from"
            f" {USERNAME} and {PASSWORD} in the environment"
        )
    for name, path in given:
        if not path.startswith("/") or "\0" in path:
            raise Invalid(f"ownership {scheme}://… has a {name} that is no absolute path (not shown): write it in full")
    return tuple(sorted(given))


def default_ownership(environ: Mapping[str, str]) -> str:
    """Where ownership is kept if neither an option nor `--ownership` says so: `PARTQ_OWNERSHIP`, else `none`.

    Raises `WrongUse`, naming the variable.
    """
    given = environ.get("PARTQ_OWNERSHIP", "").strip()
    try:
        return canonical_ownership(given) if given else "none"
    except Invalid as error:
        raise WrongUse(f"the environment variable PARTQ_OWNERSHIP is not usable: {error}") from None


# --- which object store this is ---------------------------------------------------------------------------------------

# Which object store this is: a random id in the store itself, so that several stores can share one Redis.
#
# A store's address does not tell: machines mount one folder at several places, and one container's name exists in many
# accounts. The id is equal for all who use the store, whatever they call it. A copy of a store has the same one.


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
