"""Object stores: the contract (`api`), a local directory, Azure Blob, S3, and `open_store`, which picks by URL.

Importing this package imports no SDK. Stores are not pickled: every process opens its own by the same URL.
"""

from __future__ import annotations

import os

from partq_spark.base.errors import Invalid
from partq_spark.objects.api import (
    UNCHANGED,
    Document,
    ObjectInfo,
    ObjectStore,
    ObjectWriter,
    Unchanged,
)
from partq_spark.objects.local import LocalStore
from partq_spark.objects.retrying import Retrying
from partq_spark.objects.urls import LocalUrl, canonical_url, default_folder, parse_url

__all__ = [
    "UNCHANGED",
    "Document",
    "ObjectInfo",
    "ObjectStore",
    "ObjectWriter",
    "Unchanged",
    "canonical_url",
    "open_store",
]


def open_store(url: str, *, retry_timeout_s: float = 120.0) -> ObjectStore:
    """The store at `file:///absolute/dir`, `azure://container/prefix` or `s3://bucket/prefix`, for this process.

    An unavailable store is tried again for `retry_timeout_s` seconds (0: never), except by swaps. Raises `Invalid`
    for any other URL, for one that carries a user, password or query, and for a service without credentials or its
    packages.
    """
    parsed = parse_url(url)
    if isinstance(parsed, LocalUrl):
        private = parsed.folder == default_folder(os.environ)
        return Retrying(LocalStore(parsed.folder, private=private), retry_timeout_s)
    store: ObjectStore
    try:  # an SDK takes 0.3 s, and is an optional extra
        if parsed.scheme == "azure":
            from partq_spark.objects.azure import AzureStore

            store = AzureStore(parsed, retry_timeout_s=retry_timeout_s)
        else:
            from partq_spark.objects.s3 import S3Store

            store = S3Store(parsed, retry_timeout_s=retry_timeout_s)
    except ModuleNotFoundError as error:
        raise Invalid(
            f"store {parsed} needs the package {error.name}: install it with `pip install partq[{parsed.scheme}]`"
        ) from error
    return Retrying(store, retry_timeout_s)
