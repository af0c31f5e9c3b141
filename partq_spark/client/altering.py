"""Changing a queue's settings, columns and partition count: what is asked for is checked, then done in one swap; or, in
a dry run, only looked at: which partitions would come and go, how many keys would move, and what each group has to
acknowledge first. A setting that is not given stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from types import EllipsisType
from typing import Any, Final, Generic, Literal, TypeVar

from msgspec import structs

from partq_spark.base.errors import Invalid, Unavailable, WrongUse
from partq_spark.client.arguments import checked, columns_from, opened_ownership, ownership_url, settings_of
from partq_spark.client.describing import QueueDescription, queue_description
from partq_spark.client.handle import Handle
from partq_spark.group.lifecycle import GroupProgress, announce, progress_of
from partq_spark.log import admin, layouts, tree
from partq_spark.log.model import Head, at
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.columns import Columns
from partq_spark.log.settings import QueueConfig, Value, check_settings
from partq_spark.query import limits

T = TypeVar("T")

SAMPLE_MESSAGES: Final = 10_000
SAMPLE_BYTES: Final = 64 * 1024 * 1024
"""Of messages; keys lie beside values, so a sample reads both."""

_log = logging.getLogger("partq.client")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change(Generic[T]):
    """What has a name (a setting as in `QueueConfig`, `partitions`, a column), as it was and is to be."""

    name: str
    from_: T
    to: T


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaAlteration:
    """How a queue's columns changed, or would: the DDL before and after; those that were `added`, as DDL, and those
    that were `widened`, by their types in Spark's words.
    """

    from_: str
    to: str
    added: tuple[str, ...]
    widened: tuple[Change[str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeySample:
    """The keys of some of the newest messages: `keys_that_move` of the `keys` have another partition under the new
    count.
    """

    messages: int
    without_key: int
    keys: int
    keys_that_move: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Drain:
    """A partition of which a group has something left that was published before the change."""

    partition: int
    acknowledged: int
    end: int  # of what was published before
    messages: int  # left, without those that have been trimmed


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPlan:
    """What one group has to acknowledge `first`, `messages` in all, and what `waits` for what until then: what is
    published after the change to a partition is delivered when these others are acknowledged.

    `unreadable_checkpoints`: partitions whose checkpoint cannot be read; they count from where the group begins.
    """

    group: str
    messages: int
    first: tuple[Drain, ...]
    waits: Mapping[int, tuple[int, ...]]
    unreadable_checkpoints: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Alteration:
    """What altering a queue did, or with `dry_run` would do.

    `partitions` is None where the count was not given, `schema` where no columns were, `sample` is looked at in a dry
    run only. `groups` is what each group has to acknowledge first if the count changes; None if that could not be read
    once the change was made. `description` is the queue as it is now.
    """

    queue: str
    dry_run: bool
    settings: tuple[Change[Value], ...]
    schema: SchemaAlteration | None
    partitions: Change[int] | None
    sample: KeySample | None
    groups: tuple[GroupPlan, ...] | None
    description: QueueDescription


def require_same(queue: QueueLog, found: Head, partitions: int, config: QueueConfig) -> None:
    """A guard: `exist_ok` makes no other queue of one that is there."""
    wanted = {"partitions": partitions, **asdict(config)}
    there = {"partitions": found.partitions, **asdict(found.config)}
    differ = [f"{name}={there[name]!r}, not {value!r}" for name, value in wanted.items() if there[name] != value]
    if differ:
        raise Invalid(f"{queue} exists already with {'; '.join(differ)}: ask for what it has, or alter it")


def require_columns(queue: QueueLog, present: Columns | None, wanted: Columns | None) -> None:
    """A guard: columns are added and widened, and never changed by naming others."""
    if present is None and wanted is None:
        return
    from partq_spark.log.schema.versions import check_same

    check_same(present, wanted, queue.name)


@checked
class Altering(Handle):
    """The part of `Queue` that changes what it is."""

    def alter(
        self,
        *,
        partitions: int | None = None,
        add_column: str | None = None,
        widen: str | None = None,
        schema: Any = None,
        dry_run: bool = False,
        ownership: str | None = None,
        rebalance_delay_s: float | EllipsisType = ...,
        max_handoff_time_s: float | EllipsisType = ...,
        access_type: Literal["non-exclusive", "exclusive"] | EllipsisType = ...,
        max_message_bytes: int | EllipsisType = ...,
        retention_s: float | EllipsisType | None = ...,
        quota_bytes: int | EllipsisType | None = ...,
    ) -> Alteration:
        """Change the partition count, columns and settings, those that are given, in one swap, while everything runs.
        Settings are those of `create_queue`; None takes away `retention_s` or `quota_bytes`, and what is left out
        (`...`) stays. With `dry_run` it is only said what would change and what would wait for what. Coordinators hear
        of it at once by a Redis as `ownership`.

        Of a typed queue: `add_column` is the DDL of new columns (`"coupon STRING"`), which are null in the messages
        that are there; `widen` names columns with wider types (`"count BIGINT"`). Streaming queries go on with the
        columns that they loaded; one that keeps whole rows or a widened column in Spark's state must name its columns
        with `.schema()` before it is started again. `schema` are all columns: if the queue does not have them, it is
        said what to do.

        Raises `Invalid` for what is out of its range or could lose or change a value, and where nothing is given.
        """
        settings = settings_of(locals())
        check_settings(settings)
        alters_columns = add_column is not None or widen is not None
        if partitions is None and not settings and not alters_columns and schema is None:
            raise WrongUse("nothing to alter: give partitions, columns to add or to widen, or at least one setting")
        wanted = columns_from(schema, None)
        queue = self._opened()
        sample: KeySample | None = None
        groups: tuple[GroupPlan, ...] | None = ()
        with opened_ownership(ownership_url(ownership), queue.store) as place:
            before = queue.refresh()
            if wanted is not None:
                present = before.columns
                require_columns(queue, None if present is None else structs.replace(present, key=None), wanted)
            if dry_run:
                after = before
                if alters_columns:
                    after = replace(after, columns=admin.altered_columns(before, add_column, widen))
                if partitions is not None:
                    after = layouts.resized(after, admin.checked_partitions(partitions))
                    sample = _sample(queue, after.partitions)
                    groups = group_plans(queue, after)
            else:
                after = admin.alter_queue(queue, partitions=partitions, add_columns=add_column, widen=widen, **settings)
                if place is not None:
                    announce(queue, place)
        if not dry_run and before.partitions != after.partitions:
            try:
                groups = group_plans(queue, after)
            except (Unavailable, KeyboardInterrupt) as error:  # the queue has been altered, which is what counts
                groups, why = None, str(error) or "interrupted"
                _log.warning("%s was altered; what its groups have left cannot be read now: %s", queue, why)
        changed = None
        if before.columns is not None and after.columns is not None and (alters_columns or schema is not None):
            changed = _column_changes(before.columns, after.columns)
        return Alteration(
            queue=queue.name,
            dry_run=dry_run,
            settings=tuple(
                Change(name=name, from_=getattr(before.config, name), to=value) for name, value in settings.items()
            ),
            schema=changed,
            partitions=None
            if partitions is None
            else Change(name="partitions", from_=before.partitions, to=after.partitions),
            sample=sample,
            groups=groups,
            description=queue_description(before if dry_run else after, queue.store.url),
        )


def _column_changes(before: Columns, after: Columns) -> SchemaAlteration:
    """From one version of a queue's columns to a later one."""
    return SchemaAlteration(
        from_=before.ddl,
        to=after.ddl,
        added=tuple(str(column) for column in after.columns if column.since > before.version),
        widened=tuple(
            Change(name=column.name, from_=column.type_at(before.version), to=column.type)
            for column in after.columns
            if column.since <= before.version and column.type_at(before.version) != column.type
        ),
    )


# --- what a change of the partition count means ----------------------------------------------------------------------


def group_plans(queue: QueueLog, head: Head) -> tuple[GroupPlan, ...]:
    """What every group of `head` has left of earlier layouts, by its checkpoints; `head` may be one that is to come."""
    return tuple(_group_plan(progress_of(queue, name, head), name) for name in sorted(head.groups))


def _group_plan(progress: GroupProgress, group: str) -> GroupPlan:
    """What is left of the earlier layouts for a group."""
    head = progress.head
    # How far it is in every partition, as those see it who wait for it.
    done = {partition: max(offset, at(head.earliest, partition)) for partition, offset in progress.done_of_all.items()}
    ends: dict[int, int] = {}
    for left in layouts.unfinished(head, done).values():
        for partition, end in left.items():
            ends[partition] = max(end, ends.get(partition, 0))
    # Of what comes after the change: as if everything that lies in the partitions now had been delivered.
    waits = layouts.waits(head, done, {partition: at(head.next, partition) for partition in range(head.partitions)})
    first = tuple(
        Drain(partition=partition, acknowledged=done[partition], end=end, messages=end - done[partition])
        for partition, end in sorted(ends.items())
    )
    return GroupPlan(
        group=group,
        messages=sum(each.messages for each in first),
        first=first,
        waits={partition: tuple(sorted(wait.waits_for)) for partition, wait in sorted(waits.items())},
        unreadable_checkpoints=tuple(sorted(progress.damaged)),
    )


def _sample(queue: QueueLog, partitions: int) -> KeySample:
    """What of the newest messages' keys moves if the queue gets so many partitions."""
    from partq_spark.log.partitioner import partition_of

    def look(head: Head) -> KeySample:
        distinct: set[bytes] = set()
        messages = without_key = 0
        for key in _newest_keys(queue, head):
            messages += 1
            if key is None:
                without_key += 1
            else:
                distinct.add(key)
        moving = sum(partition_of(key, head.partitions) != partition_of(key, partitions) for key in distinct)
        return KeySample(messages=messages, without_key=without_key, keys=len(distinct), keys_that_move=moving)

    return queue.settled(look)


def _newest_keys(queue: QueueLog, head: Head) -> Iterator[bytes | None]:
    """The keys of the newest messages of every partition, in proportion to what it holds."""
    import pyarrow as pa

    from partq_spark.log.reading import RangeReader
    from partq_spark.log.schema.forms import keys_of

    shares = limits.split(
        {partition: end - at(head.earliest, partition) for partition, end in enumerate(head.next)}, SAMPLE_MESSAGES
    )
    wanted = {partition: (head.next[partition] - share, head.next[partition]) for partition, share in shares.items()}
    size_bytes = 0
    for piece in RangeReader(queue, head.queue_id, tree.view(head, wanted), fail_on_data_loss=False).pieces():
        yield from keys_of(piece.batch, head.columns).cast(pa.binary()).to_pylist()
        size_bytes += piece.batch.nbytes
        if size_bytes >= SAMPLE_BYTES:
            return
