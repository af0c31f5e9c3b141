"""What partq takes from the environment of the process that makes a source or runs a command. Pure: the caller hands in
the environment; tasks never call this (the interface: a store is resolved once, on the driver).
"""

from __future__ import annotations

from collections.abc import Mapping

from partq_spark.errors import Invalid
from partq_spark.flow.stores.urls import canonical_ownership
from partq_spark.objects.urls import LocalUrl, canonical_url


def default_store(environ: Mapping[str, str]) -> str:
    """The store's URL where neither an option nor `--store` names one, in canonical form.

    `PARTQ_STORE` if it is set and not empty, else `file://$HOME/.partq`. Raises `Invalid`, naming the variable.
    """
    given = environ.get("PARTQ_STORE", "").strip()
    if given:
        try:
            return canonical_url(given)
        except Invalid as error:
            raise Invalid(f"the environment variable PARTQ_STORE is not usable: {error}") from None
    home = environ.get("HOME", "").rstrip("/")
    if not home.startswith("/"):
        raise Invalid(
            f"no store was named, and HOME={environ.get('HOME', '')!r} is no directory to keep one in: give the store "
            "(file:///absolute/dir or azure://container/prefix), or set PARTQ_STORE"
        )
    return canonical_url(str(LocalUrl(folder=f"{home}/.partq")))


def default_ownership(environ: Mapping[str, str]) -> str:
    """Where ownership is kept if neither an option nor `--ownership` says so: `PARTQ_OWNERSHIP`, else `none`.

    Raises `Invalid`, naming the variable.
    """
    given = environ.get("PARTQ_OWNERSHIP", "").strip()
    try:
        return canonical_ownership(given) if given else "none"
    except Invalid as error:
        raise Invalid(f"the environment variable PARTQ_OWNERSHIP is not usable: {error}") from None
