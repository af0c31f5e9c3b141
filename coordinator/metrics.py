"""Which metrics a coordinator has, each beside what it is of, and their samples, from one picture of what it knows.
Pure.

`figures` takes the picture when somebody asks; what is counted meanwhile is described where that is done (`measuring`).
Labels are bounded: what is beyond the bounds is told in sums, and how much that is, in `partq_metrics_left_out`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from coordinator.health import Status
from coordinator.measuring import (
    EVENTS,
    HOUSEKEEPING,
    OWNERSHIP_CALLS,
    OWNERSHIP_ERRORS,
    PAUSE,
    STORE_CALLS,
    STORE_ERRORS,
    Handoffs,
    Tally,
)
from partq_spark import __version__
from partq_spark.base.metrics import Distribution, Metric, Sample, counter, gauge
from partq_spark.group.model import GroupKey, GroupState, Partition, PartitionStatus, Phase, RebalanceStatus
from partq_spark.group.status import partition_status
from partq_spark.log.model import Head

T = TypeVar("T")

MOST_QUEUES: Final = 200
MOST_GROUPS: Final = 200
MOST_PARTITIONS: Final = 2000
"""Of all groups together: a group's partitions have series of their own, or none of them has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupFigures:
    """One group that this coordinator leads. By partition, as far as it is known: how many messages are not
    acknowledged (`lags`), and how long ago the oldest of them was published (`ages_s`, 0 without lag).
    """

    key: GroupKey
    state: GroupState
    lags: Mapping[int, int]
    ages_s: Mapping[int, float]
    handoffs: Handoffs


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """All that a coordinator tells at one moment. `queues`: the samples of each. `followed`: groups that it sees and
    does not lead.
    """

    name: str
    namespace: str
    status: Status
    queues: Mapping[str, Sequence[Sample]]
    groups: Sequence[GroupFigures]
    followed: Sequence[GroupKey]
    tally: Tally


# --- which there are --------------------------------------------------------------------------------------------------

_GROUP: Final = ("namespace", "queue", "group")
_QUEUE: Final = ("namespace", "queue")
_PARTITION: Final = (*_GROUP, "partition")

INFO: Final = gauge(
    "partq_coordinator_info", "1; version, name and namespace of this coordinator.", ("version", "name", "namespace")
)
PROCESS: Final[Mapping[Metric, Callable[[Status], float]]] = {
    gauge("partq_coordinator_ready", "1 while it does its work, as /readyz says."): lambda now: now.ready,
    gauge("partq_coordinator_last_round_age_seconds", "Since it last did a round."): lambda now: now.looked_s,
    gauge("partq_coordinator_groups", "Groups that it sees."): lambda now: now.groups,
    gauge("partq_coordinator_leading_groups", "Groups that it leads."): lambda now: now.leading,
    gauge("partq_coordinator_failing_groups", "Groups whose last step failed."): lambda now: now.failing,
    gauge("partq_coordinator_housekeeper", "1 if it is the housekeeper of its namespace."): lambda now: now.housekeeper,
}
LEFT_OUT: Final = gauge(
    "partq_metrics_left_out", "Queues, groups, partitions without series of their own: too many.", ("what",)
)
AGES_UNKNOWN: Final = gauge(
    "partq_group_lag_seconds_unknown", "Partitions with a lag whose oldest message could not be looked up."
)

QUEUES: Final[Mapping[Metric, Callable[[Head], float | None]]] = {
    gauge("partq_queue_partitions", "The partition count.", _QUEUE): lambda head: head.partitions,
    gauge("partq_queue_messages", "Messages that can be read.", _QUEUE): lambda head: head.messages,
    counter("partq_queue_published_messages_total", "Messages published, ever.", _QUEUE): lambda head: sum(head.next),
    counter(
        "partq_queue_head_changes_total", "Changes of the queue's head, ever: publishes, and few others.", _QUEUE
    ): lambda head: head.sequence,
    gauge("partq_queue_stored_bytes", "Stored (compressed) bytes of what can be read.", _QUEUE): lambda head: (
        head.stored_bytes
    ),
    gauge("partq_queue_quota_bytes", "The quota, where there is one.", _QUEUE): lambda head: head.config.quota_bytes,
    gauge("partq_queue_groups", "Consumer groups of the queue, however they are shared.", _QUEUE): lambda head: len(
        head.groups
    ),
}

GROUP_LEADER: Final = gauge(
    "partq_group_leader", "1 from the coordinator that leads the group, 0 from those that see it.", _GROUP
)


def _pause(group: GroupFigures) -> Distribution | None:
    """Thirteen series, and most groups are quiet."""
    pause = group.handoffs.pause()
    return pause if any(pause.counts) else None


GROUPS: Final[Mapping[Metric, Callable[[GroupFigures], float | Distribution | None]]] = {
    GROUP_LEADER: lambda _: 1,
    gauge(
        "partq_group_stuck_partitions", "Partitions whose checkpoint cannot be rewritten for their new owner.", _GROUP
    ): lambda group: sum(bool(each.stuck) for each in group.state.partitions.values()),
    gauge("partq_group_lag_messages", "Messages that are not acknowledged, of all partitions.", _GROUP): lambda group: (
        sum(group.lags.values()) if group.lags else None
    ),
    gauge(
        "partq_group_lag_seconds", "Age of the oldest message that is not acknowledged; 0 without lag.", _GROUP
    ): lambda group: max(group.ages_s.values(), default=None),
    PAUSE: _pause,
    counter(
        "partq_group_redelivered_messages_total",
        "Messages that come again, marked, because of a handoff or loss: at most so many.",
        _GROUP,
    ): lambda group: group.handoffs.redelivered,
}


def _by_status(group: GroupFigures) -> Mapping[str, int]:
    counts = Counter(partition_status(group.state, each) for each in group.state.partitions.values())
    return {status: counts[status] for status in PartitionStatus}


def _flows(group: GroupFigures) -> Mapping[str, int]:
    counts = {"active": 0, "inactive": 0, "unbound": 0}
    for flow in group.state.flows.values():
        counts["unbound" if not flow.bound else "active" if flow.active else "inactive"] += 1
    return counts


GROUP_COUNTS: Final[Mapping[Metric, Callable[[GroupFigures], Mapping[Any, int]]]] = {
    gauge(
        "partq_group_rebalance_status", "1 for the status that the group has, else 0.", (*_GROUP, "status")
    ): lambda group: {status: group.state.status is status for status in RebalanceStatus},
    gauge("partq_group_partitions", "Partitions of the group in each status.", (*_GROUP, "status")): _by_status,
    gauge(
        "partq_group_flows", "Flows of the group: active, inactive (bound, no partitions), unbound.", (*_GROUP, "state")
    ): _flows,
    counter(
        "partq_group_handoffs_total",
        "Partitions that changed hands, or were about to: drained, forced, lost (with their flow), kept, other.",
        (*_GROUP, "outcome"),
    ): lambda group: group.handoffs.ended,
}
"""What is told in parts, by the value of the last label."""

LAG: Final = gauge("partq_group_partition_lag_messages", "Messages that are not acknowledged.", _PARTITION)
LAG_S: Final = gauge(
    "partq_group_partition_lag_seconds",
    "Age of the oldest message that is not acknowledged; 0 without lag.",
    _PARTITION,
)
EPOCH: Final = gauge("partq_group_partition_epoch", "How often the partition changed hands.", _PARTITION)

METRICS: Final = (
    INFO, *PROCESS, EVENTS, *HOUSEKEEPING.values(), LEFT_OUT, AGES_UNKNOWN, *QUEUES, *GROUPS, *GROUP_COUNTS,
    LAG, LAG_S, EPOCH, STORE_CALLS, STORE_ERRORS, OWNERSHIP_CALLS, OWNERSHIP_ERRORS,
)  # fmt: skip


# --- what they say ----------------------------------------------------------------------------------------------------


def samples(picture: Picture) -> Iterator[Sample]:
    """Everything, in the order of `METRICS` as far as it is of one thing."""
    yield Sample(INFO, (__version__, picture.name, picture.namespace), 1)
    yield from _of(PROCESS, (), picture.status)
    yield Sample(AGES_UNKNOWN, (), sum(len(each.lags.keys() - each.ages_s.keys()) for each in picture.groups))
    yield from picture.tally.samples()
    for queue in sorted(picture.queues)[:MOST_QUEUES]:
        yield from picture.queues[queue]
    groups = sorted(picture.groups, key=lambda each: each.key)
    left = MOST_PARTITIONS
    without = 0
    for group in groups[:MOST_GROUPS]:
        yield from _group(group)
        partitions = group.state.partitions
        if len(partitions) > left:
            without += len(partitions)
            continue
        left -= len(partitions)
        for partition in partitions.values():
            yield from _partition(group, partition)
    without += sum(len(group.state.partitions) for group in groups[MOST_GROUPS:])
    for key in sorted(picture.followed)[:MOST_GROUPS]:
        yield Sample(GROUP_LEADER, key, 0)
    for what, count in (
        ("queues", max(len(picture.queues) - MOST_QUEUES, 0)),
        ("groups", max(len(groups) - MOST_GROUPS, 0)),
        ("partitions", without),
    ):
        yield Sample(LEFT_OUT, (what,), count)


def queue_samples(head: Head) -> list[Sample]:
    """Of one queue, as its head was seen last."""
    return list(_of(QUEUES, (head.namespace, head.queue), head))


def _of(
    metrics: Mapping[Metric, Callable[[T], float | Distribution | None]], labels: tuple[str, ...], seen: T
) -> Iterator[Sample]:
    """What is known of it."""
    for metric, look in metrics.items():
        value = look(seen)
        if value is not None:
            yield Sample(metric, labels, value)


def _group(group: GroupFigures) -> Iterator[Sample]:
    yield from _of(GROUPS, group.key, group)
    for metric, count in GROUP_COUNTS.items():
        for part, value in count(group).items():
            yield Sample(metric, (*group.key, str(part)), value)


def _partition(group: GroupFigures, partition: Partition) -> Iterator[Sample]:
    number = partition.partition
    labels = (*group.key, str(number))
    if number in group.lags:
        yield Sample(LAG, labels, group.lags[number])
    if number in group.ages_s:
        yield Sample(LAG_S, labels, group.ages_s[number])
    yield Sample(EPOCH, labels, partition.to_epoch if partition.phase is Phase.FENCING else partition.epoch)
