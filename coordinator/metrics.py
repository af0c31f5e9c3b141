"""Which metrics a coordinator has, and their samples, from one frozen picture of what it knows. Pure.

`figures` takes the picture when somebody asks. Labels are bounded: what is beyond the bounds is told in sums, and how
much that is, in `partq_metrics_left_out`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from coordinator.handoffs import PAUSE, Outcome
from coordinator.health import Status
from coordinator.measuring import OWNERSHIP_CALLS, OWNERSHIP_ERRORS, STORE_CALLS, STORE_ERRORS
from partq_spark.base.metrics import Distribution, Metric, Sample
from partq_spark.group.model import GroupKey, PartitionStatus, RebalanceStatus

MOST_QUEUES: Final = 200
MOST_GROUPS: Final = 200
MOST_PARTITIONS: Final = 2000
"""Of all groups together: a group's partitions have series of their own, or none of them has."""

FLOW_STATES: Final = ("active", "inactive", "unbound")
_GROUP: Final = ("namespace", "queue", "group")
_QUEUE: Final = ("namespace", "queue")


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionFigures:
    """One partition of a group; None: not known."""

    partition: int
    status: PartitionStatus
    epoch: int
    lag: int | None
    lag_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupFigures:
    """One group that this coordinator leads. `flows`: how many are in each of `FLOW_STATES`."""

    key: GroupKey
    status: RebalanceStatus
    partitions: Sequence[PartitionFigures]
    stuck: int
    flows: Mapping[str, int]
    handoffs: Mapping[Outcome, int]
    pause: Distribution
    redelivered: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueFigures:
    """One queue, as its head was seen last. `published`: messages ever; `changes`: of the head, ever."""

    namespace: str
    queue: str
    partitions: int
    messages: int
    published: int
    changes: int
    stored_bytes: int
    quota_bytes: int | None
    groups: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFigures:
    """Calls of one store, by operation."""

    durations: Mapping[str, Distribution] = field(default_factory=dict)
    errors: Mapping[tuple[str, ...], int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """All that a coordinator tells at one moment."""

    version: str
    name: str
    namespace: str
    status: Status
    queues: Sequence[QueueFigures] = ()
    groups: Sequence[GroupFigures] = ()
    followed: Sequence[GroupKey] = ()  # groups that it sees and does not lead
    events: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    housekeeping: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    store: CallFigures = CallFigures()
    ownership: CallFigures = CallFigures()
    ages_unknown: int = 0  # partitions with a lag of which the age could not be found out


def _gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name=name, kind="gauge", help=text, labels=labels)


def _counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name=name, kind="counter", help=text, labels=labels)


INFO: Final = _gauge(
    "partq_coordinator_info", "1; version, name and namespace of this coordinator.", ("version", "name", "namespace")
)
READY: Final = _gauge("partq_coordinator_ready", "1 while it does its work, as /readyz says.")
LOOKED: Final = _gauge("partq_coordinator_last_round_age_seconds", "Since it last did a round.")
GROUPS: Final = _gauge("partq_coordinator_groups", "Groups that it sees.")
LEADING: Final = _gauge("partq_coordinator_leading_groups", "Groups that it leads.")
FAILING: Final = _gauge("partq_coordinator_failing_groups", "Groups whose last step failed.")
HOUSEKEEPER: Final = _gauge("partq_coordinator_housekeeper", "1 if it is the housekeeper of its namespace.")
EVENTS: Final = _counter(
    "partq_coordinator_events_total", "Decisions and troubles: lines of the log, printed or not, by event.", ("event",)
)
TIDIED: Final = {
    what: _counter(f"partq_housekeeping_{what}_total", f"What this coordinator did as the housekeeper: {text}.")
    for what, text in (
        ("trimmed_messages", "messages that became unreadable by retention"),
        ("compacted_messages", "messages whose slices were joined"),
        ("compacted_bytes", "bytes written for that"),
        ("deleted_objects", "objects that nothing referred to"),
        ("deleted_bytes", "bytes of these"),
        ("removed_temporary_files", "what writers that died had left"),
    )
}
LEFT_OUT: Final = _gauge(
    "partq_metrics_left_out", "Queues, groups, partitions without series of their own: too many.", ("what",)
)

QUEUE_PARTITIONS: Final = _gauge("partq_queue_partitions", "The partition count.", _QUEUE)
QUEUE_MESSAGES: Final = _gauge("partq_queue_messages", "Messages that can be read.", _QUEUE)
QUEUE_PUBLISHED: Final = _counter("partq_queue_published_messages_total", "Messages published, ever.", _QUEUE)
QUEUE_CHANGES: Final = _counter(
    "partq_queue_head_changes_total", "Changes of the queue's head, ever: publishes, and few others.", _QUEUE
)
QUEUE_BYTES: Final = _gauge("partq_queue_stored_bytes", "Stored (compressed) bytes of what can be read.", _QUEUE)
QUEUE_QUOTA: Final = _gauge("partq_queue_quota_bytes", "The quota, where there is one.", _QUEUE)
QUEUE_GROUPS: Final = _gauge("partq_queue_groups", "Consumer groups of the queue, however they are shared.", _QUEUE)

GROUP_LEADER: Final = _gauge(
    "partq_group_leader", "1 from the coordinator that leads the group, 0 from those that see it.", _GROUP
)
GROUP_STATUS: Final = _gauge(
    "partq_group_rebalance_status", "1 for the status that the group has, else 0.", (*_GROUP, "status")
)
GROUP_PARTITIONS: Final = _gauge(
    "partq_group_partitions", "Partitions of the group in each status.", (*_GROUP, "status")
)
GROUP_STUCK: Final = _gauge(
    "partq_group_stuck_partitions", "Partitions whose checkpoint cannot be rewritten for their new owner.", _GROUP
)
GROUP_FLOWS: Final = _gauge(
    "partq_group_flows", "Flows of the group: active, inactive (bound, no partitions), unbound.", (*_GROUP, "state")
)
GROUP_LAG: Final = _gauge("partq_group_lag_messages", "Messages that are not acknowledged, of all partitions.", _GROUP)
GROUP_LAG_S: Final = _gauge(
    "partq_group_lag_seconds", "Age of the oldest message that is not acknowledged; 0 without lag.", _GROUP
)
HANDOFFS: Final = _counter(
    "partq_group_handoffs_total",
    "Partitions that changed hands, or were about to: drained, forced, lost (with their flow), kept, other.",
    (*_GROUP, "outcome"),
)
REDELIVERED: Final = _counter(
    "partq_group_redelivered_messages_total", "Messages that came again, marked, because of a handoff or loss.", _GROUP
)

_PARTITION: Final = (*_GROUP, "partition")
LAG: Final = _gauge("partq_group_partition_lag_messages", "Messages that are not acknowledged.", _PARTITION)
LAG_S: Final = _gauge(
    "partq_group_partition_lag_seconds",
    "Age of the oldest message that is not acknowledged; 0 without lag.",
    _PARTITION,
)
EPOCH: Final = _gauge("partq_group_partition_epoch", "How often the partition changed hands.", _PARTITION)
AGES_UNKNOWN: Final = _gauge(
    "partq_group_lag_seconds_unknown", "Partitions with a lag whose oldest message could not be looked up."
)

METRICS: Final = (
    INFO, READY, LOOKED, GROUPS, LEADING, FAILING, HOUSEKEEPER, EVENTS, *TIDIED.values(), LEFT_OUT,
    QUEUE_PARTITIONS, QUEUE_MESSAGES, QUEUE_PUBLISHED, QUEUE_CHANGES, QUEUE_BYTES, QUEUE_QUOTA, QUEUE_GROUPS,
    GROUP_LEADER, GROUP_STATUS, GROUP_PARTITIONS, GROUP_STUCK, GROUP_FLOWS, GROUP_LAG, GROUP_LAG_S, AGES_UNKNOWN,
    HANDOFFS, PAUSE, REDELIVERED, LAG, LAG_S, EPOCH,
    STORE_CALLS, STORE_ERRORS, OWNERSHIP_CALLS, OWNERSHIP_ERRORS,
)  # fmt: skip


def samples(picture: Picture) -> Iterator[Sample]:
    """Everything, in the order of `METRICS` as far as it is of one thing."""
    yield from _process(picture)
    queues = sorted(picture.queues, key=lambda each: (each.namespace, each.queue))
    groups = sorted(picture.groups, key=lambda each: each.key)
    for queue in queues[:MOST_QUEUES]:
        yield from _queue(queue)
    left = MOST_PARTITIONS
    without = 0
    for group in groups[:MOST_GROUPS]:
        yield from _group(group)
        if len(group.partitions) > left:
            without += len(group.partitions)
            continue
        left -= len(group.partitions)
        for partition in group.partitions:
            yield from _partition(group.key, partition)
    without += sum(len(group.partitions) for group in groups[MOST_GROUPS:])
    for key in sorted(picture.followed)[:MOST_GROUPS]:
        yield Sample(GROUP_LEADER, key, 0)
    for what, count in (
        ("queues", max(len(queues) - MOST_QUEUES, 0)),
        ("groups", max(len(groups) - MOST_GROUPS, 0)),
        ("partitions", without),
    ):
        yield Sample(LEFT_OUT, (what,), count)


def _process(picture: Picture) -> Iterator[Sample]:
    status = picture.status
    yield Sample(INFO, (picture.version, picture.name, picture.namespace), 1)
    yield Sample(READY, (), int(status.ready))
    yield Sample(LOOKED, (), status.looked_s)
    yield Sample(GROUPS, (), status.groups)
    yield Sample(LEADING, (), status.leading)
    yield Sample(FAILING, (), status.failing)
    yield Sample(HOUSEKEEPER, (), int(status.housekeeper))
    yield Sample(AGES_UNKNOWN, (), picture.ages_unknown)
    for event, count in picture.events.items():
        yield Sample(EVENTS, event, count)
    for what, metric in TIDIED.items():
        yield Sample(metric, (), picture.housekeeping.get((what,), 0))
    for calls, durations, errors in (
        (picture.store, STORE_CALLS, STORE_ERRORS),
        (picture.ownership, OWNERSHIP_CALLS, OWNERSHIP_ERRORS),
    ):
        for operation, distribution in calls.durations.items():
            yield Sample(durations, (operation,), distribution)
        for labels, count in calls.errors.items():
            yield Sample(errors, labels, count)


def _queue(queue: QueueFigures) -> Iterator[Sample]:
    labels = (queue.namespace, queue.queue)
    yield Sample(QUEUE_PARTITIONS, labels, queue.partitions)
    yield Sample(QUEUE_MESSAGES, labels, queue.messages)
    yield Sample(QUEUE_PUBLISHED, labels, queue.published)
    yield Sample(QUEUE_CHANGES, labels, queue.changes)
    yield Sample(QUEUE_BYTES, labels, queue.stored_bytes)
    if queue.quota_bytes is not None:
        yield Sample(QUEUE_QUOTA, labels, queue.quota_bytes)
    yield Sample(QUEUE_GROUPS, labels, queue.groups)


def _group(group: GroupFigures) -> Iterator[Sample]:
    yield Sample(GROUP_LEADER, group.key, 1)
    for status in RebalanceStatus:
        yield Sample(GROUP_STATUS, (*group.key, str(status)), int(group.status is status))
    for each in PartitionStatus:
        count = sum(partition.status is each for partition in group.partitions)
        yield Sample(GROUP_PARTITIONS, (*group.key, str(each)), count)
    yield Sample(GROUP_STUCK, group.key, group.stuck)
    for state in FLOW_STATES:
        yield Sample(GROUP_FLOWS, (*group.key, state), group.flows.get(state, 0))
    known = [partition.lag for partition in group.partitions if partition.lag is not None]
    if known:
        yield Sample(GROUP_LAG, group.key, sum(known))
    ages = [partition.lag_s for partition in group.partitions if partition.lag_s is not None]
    if ages:
        yield Sample(GROUP_LAG_S, group.key, max(ages))
    for outcome in Outcome:
        yield Sample(HANDOFFS, (*group.key, str(outcome)), group.handoffs.get(outcome, 0))
    if any(group.pause.counts):  # thirteen series, and most groups are quiet
        yield Sample(PAUSE, group.key, group.pause)
    yield Sample(REDELIVERED, group.key, group.redelivered)


def _partition(key: GroupKey, partition: PartitionFigures) -> Iterator[Sample]:
    labels = (*key, str(partition.partition))
    if partition.lag is not None:
        yield Sample(LAG, labels, partition.lag)
    if partition.lag_s is not None:
        yield Sample(LAG_S, labels, partition.lag_s)
    yield Sample(EPOCH, labels, partition.epoch)
