"""What programs, the command line and the demo use to reach queues, groups and messages. No pyspark.

The names of `partq` are listed here, each with the module that it lives in, which is imported when the name is used for
the first time: importing this package, and so starting the command line, costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from partq_spark.base.errors import Conflict, Corrupt, Fenced, Invalid, PartqError, Unavailable
    from partq_spark.client.acknowledge import Acknowledger, Held, InHand, KeySequences
    from partq_spark.client.altering import Alteration, SettingChange
    from partq_spark.client.consumer import Batch, Consumer
    from partq_spark.client.describing import (
        DamagedQueue,
        GroupStart,
        HeadDescription,
        KnownLayout,
        LogDescription,
        PartitionDescription,
        PresentLayout,
        QueueDescription,
        QueueSummary,
    )
    from partq_spark.client.groups import GroupAlteration, GroupRemoval
    from partq_spark.client.maintaining import Collection, Compaction, Deleted, KeptOffsets, Trimmed
    from partq_spark.client.messages import Header, Message
    from partq_spark.client.outgoing import Published
    from partq_spark.client.progress import (
        DamagedCheckpoint,
        GroupCheckpoints,
        PartitionCheckpoint,
        PartitionRewind,
        Rewind,
        RewindUnfinished,
    )
    from partq_spark.client.publication import PartitionMessages, Publication, PublishReport, QueuePublish
    from partq_spark.client.publisher import Publisher
    from partq_spark.client.queue import Queue
    from partq_spark.client.queues import create_queue, list_queues, open_queue, topic_publication
    from partq_spark.client.resizing import CountChange, Drain, GroupPlan, Sample, Wait
    from partq_spark.client.topics import QueueSubscriptions, SubscriptionChange, list_subscriptions
    from partq_spark.group.lifecycle import GroupSummary
    from partq_spark.group.model import PartitionStatus, RebalanceStatus
    from partq_spark.group.retention import HeldBack
    from partq_spark.group.status import CoordinatorView, FlowView, GroupView, HandoffView, PartitionView
    from partq_spark.log.model import QueueConfig

__all__ = [
    "Acknowledger",
    "Alteration",
    "Batch",
    "Collection",
    "Compaction",
    "Conflict",
    "Consumer",
    "CoordinatorView",
    "Corrupt",
    "CountChange",
    "DamagedCheckpoint",
    "DamagedQueue",
    "Deleted",
    "Drain",
    "Fenced",
    "FlowView",
    "GroupAlteration",
    "GroupCheckpoints",
    "GroupPlan",
    "GroupRemoval",
    "GroupStart",
    "GroupSummary",
    "GroupView",
    "HandoffView",
    "HeadDescription",
    "Header",
    "Held",
    "HeldBack",
    "InHand",
    "Invalid",
    "KeptOffsets",
    "KeySequences",
    "KnownLayout",
    "LogDescription",
    "Message",
    "PartitionCheckpoint",
    "PartitionDescription",
    "PartitionMessages",
    "PartitionRewind",
    "PartitionStatus",
    "PartitionView",
    "PartqError",
    "PresentLayout",
    "Publication",
    "PublishReport",
    "Published",
    "Publisher",
    "Queue",
    "QueueConfig",
    "QueueDescription",
    "QueuePublish",
    "QueueSubscriptions",
    "QueueSummary",
    "RebalanceStatus",
    "Rewind",
    "RewindUnfinished",
    "Sample",
    "SettingChange",
    "SubscriptionChange",
    "Trimmed",
    "Unavailable",
    "Wait",
    "create_queue",
    "list_queues",
    "list_subscriptions",
    "open_queue",
    "topic_publication",
]

_HOMES: Final = {
    "partq_spark.base.errors": ("Conflict", "Corrupt", "Fenced", "Invalid", "PartqError", "Unavailable"),
    "partq_spark.client.acknowledge": ("Acknowledger", "Held", "InHand", "KeySequences"),
    "partq_spark.client.altering": ("Alteration", "SettingChange"),
    "partq_spark.client.consumer": ("Batch", "Consumer"),
    "partq_spark.client.describing": (
        "DamagedQueue",
        "GroupStart",
        "HeadDescription",
        "KnownLayout",
        "LogDescription",
        "PartitionDescription",
        "PresentLayout",
        "QueueDescription",
        "QueueSummary",
    ),
    "partq_spark.client.groups": ("GroupAlteration", "GroupRemoval"),
    "partq_spark.client.maintaining": ("Collection", "Compaction", "Deleted", "KeptOffsets", "Trimmed"),
    "partq_spark.client.messages": ("Header", "Message"),
    "partq_spark.client.progress": (
        "DamagedCheckpoint",
        "GroupCheckpoints",
        "PartitionCheckpoint",
        "PartitionRewind",
        "Rewind",
        "RewindUnfinished",
    ),
    "partq_spark.client.publication": ("PartitionMessages", "Publication", "PublishReport", "QueuePublish"),
    "partq_spark.client.publisher": ("Publisher",),
    "partq_spark.client.queue": ("Queue",),
    "partq_spark.client.queues": ("create_queue", "list_queues", "open_queue", "topic_publication"),
    "partq_spark.client.resizing": ("CountChange", "Drain", "GroupPlan", "Sample", "Wait"),
    "partq_spark.client.outgoing": ("Published",),
    "partq_spark.client.topics": ("QueueSubscriptions", "SubscriptionChange", "list_subscriptions"),
    "partq_spark.group.lifecycle": ("GroupSummary",),
    "partq_spark.group.model": ("PartitionStatus", "RebalanceStatus"),
    "partq_spark.group.retention": ("HeldBack",),
    "partq_spark.group.status": ("CoordinatorView", "FlowView", "GroupView", "HandoffView", "PartitionView"),
    "partq_spark.log.model": ("QueueConfig",),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker knows the names from above, and no others

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            later = ": it comes with a later version" if name == "supervise" else ""
            raise AttributeError(f"partq has no {name!r}{later}")
        found = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
        return found
