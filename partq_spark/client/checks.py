"""The checks of what a user may give as text: each returns the value as partq writes it, or raises `Invalid`.

They are for callers that take arguments before they do anything with them. Nothing is opened or read here.
"""

from __future__ import annotations

from partq_spark.base.words import parse_rfc3339
from partq_spark.client.arguments import address, checked_file_kind, checked_publish_id, ownership_url
from partq_spark.client.schemas import checked_ddl
from partq_spark.group.documents.urls import canonical_ownership
from partq_spark.log.admin import checked_partitions
from partq_spark.log.destinations import checked_subscription, checked_topic
from partq_spark.log.names import checked_name
from partq_spark.log.queue import NamespaceAddress
from partq_spark.objects.urls import canonical_url

__all__ = [
    "NamespaceAddress",
    "address",
    "canonical_ownership",
    "canonical_url",
    "checked_ddl",
    "checked_file_kind",
    "checked_name",
    "checked_partitions",
    "checked_publish_id",
    "checked_subscription",
    "checked_topic",
    "ownership_url",
    "parse_rfc3339",
]
