"""Where partq looks when it is not told: the default store. Pure; the environment is an argument."""

from __future__ import annotations

from collections.abc import Mapping

from partq_spark.errors import Invalid


def default_store(environ: Mapping[str, str]) -> str:
    """`PARTQ_STORE`, else `file://$HOME/.partq`. Raises `Invalid` if neither variable is set."""
    store = environ.get("PARTQ_STORE", "").strip()
    if store:
        return store
    home = environ.get("HOME", "").strip()
    if not home:
        raise Invalid(
            "no store was named, and neither PARTQ_STORE nor HOME is set: give a store such as file:///var/lib/partq"
        )
    return f"file://{home.rstrip('/')}/.partq"
