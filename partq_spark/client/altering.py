"""Creating a queue and changing its settings, columns and partition count: what is asked for is checked, then done in
one swap.

A setting that is not given stays as it is. What a change means for groups is worked out in `resizing`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from msgspec import structs

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.client import describing, resizing, schemas
from partq_spark.client.addresses import opened_ownership, ownership_url
from partq_spark.client.describing import QueueDescription
from partq_spark.client.resizing import CountChange, GroupPlan, KeySample
from partq_spark.client.schemas import SchemaAlteration
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import HEAD, Ownership
from partq_spark.log import admin
from partq_spark.log.model import Head, QueueConfig
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.columns import Columns

_log = logging.getLogger("partq.client")


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingChange:
    """A setting by its name in `QueueConfig`, as it was and is to be."""

    setting: str
    from_: float | int | str | None
    to: float | int | str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Alteration:
    """What altering a queue did, or with `dry_run` would do.

    `partitions` is None where the count was not given, `schema` where no columns were, `sample` is looked at in a dry
    run only. `groups` is what each group has to acknowledge first if the count changes; None if that could not be read
    once the change was made. `description` is the queue as it is now.
    """

    queue: str
    dry_run: bool
    settings: tuple[SettingChange, ...]
    schema: SchemaAlteration | None
    partitions: CountChange | None
    sample: KeySample | None
    groups: tuple[GroupPlan, ...] | None
    description: QueueDescription


def checked_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their names in `QueueConfig`. Raises `Invalid` for one that is out of its range."""
    admin.checked_config(replace(QueueConfig(), **given))  # each has a range of its own, so this needs no queue
    return dict(given)


def create(queue: QueueLog, partitions: int, config: QueueConfig, *, columns: Columns | None, exist_ok: bool) -> Head:
    """The new queue's head; `columns` make it a typed one. Raises `Invalid` if there is one, unless `exist_ok` and it
    is as this one would be.
    """
    partitions = admin.checked_partitions(partitions)
    try:
        timeout_s = queue.retry_timeout_s
        made = admin.create_queue(
            queue.store,
            queue.namespace,
            queue.name,
            partitions,
            config,
            queue.effects,
            columns=columns,
            retry_timeout_s=timeout_s,
        )
    except Invalid:
        found = queue.look() if exist_ok else None
        if found is None:
            raise
        _require_same(queue, found, partitions, config)
        try:
            _require_columns(queue, found.columns, columns)
        except Invalid as error:
            raise Invalid(f"{queue} exists already with other columns: {error}") from None
        return found
    return made.head


def _require_same(queue: QueueLog, found: Head, partitions: int, config: QueueConfig) -> None:
    """A guard: `exist_ok` makes no other queue of one that is there."""
    wanted: dict[str, object] = {"partitions": partitions}
    there: dict[str, object] = {"partitions": found.partitions}
    for each in fields(QueueConfig):
        wanted[each.name], there[each.name] = getattr(config, each.name), getattr(found.config, each.name)
    differ = [f"{name}={there[name]!r}, not {value!r}" for name, value in wanted.items() if there[name] != value]
    if differ:
        raise Invalid(f"{queue} exists already with {'; '.join(differ)}: ask for what it has, or alter it")


def _require_columns(queue: QueueLog, present: Columns | None, wanted: Columns | None) -> None:
    """A guard: columns are added and widened, and never changed by naming others."""
    if present is None and wanted is None:
        return
    from partq_spark.log.schema.versions import check_same

    check_same(present, wanted, queue.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What a queue is to become; None for what stays. `add_column` and `widen` are DDL. `schema` is all of the columns:
    a queue has them already, or it is said what to do.
    """

    partitions: int | None = None
    add_column: str | None = None
    widen: str | None = None
    schema: Any = None
    settings: Mapping[str, Any]

    @property
    def alters_columns(self) -> bool:
        return self.add_column is not None or self.widen is not None


def alter(queue: QueueLog, wish: Wish, *, dry_run: bool, ownership: str | None) -> Alteration:
    """Raises `Invalid` as `log.admin.alter_queue`, and where nothing is given."""
    settings = checked_settings(wish.settings)
    partitions = wish.partitions
    if partitions is None and not settings and not wish.alters_columns and wish.schema is None:
        raise Invalid("nothing to alter: give partitions, add_column, widen or at least one setting")
    wanted = schemas.columns_from(wish.schema, None)
    with opened_ownership(ownership_url(ownership), queue.store) as place:
        before = queue.refresh()
        if wanted is not None:
            present = before.columns
            _require_columns(queue, None if present is None else structs.replace(present, key=None), wanted)
        if dry_run:
            return _planned(queue, before, wish)
        head = admin.alter_queue(
            queue, partitions=partitions, add_columns=wish.add_column, widen=wish.widen, **settings
        )
        if place is not None:
            announce(queue, place)
    resized = before.partitions != head.partitions
    return Alteration(
        queue=queue.name,
        dry_run=False,
        settings=_changes(before, settings),
        schema=_schema_change(before, head.columns, wish),
        partitions=None if partitions is None else resizing.count_change(before.partitions, head.partitions),
        sample=None,
        groups=_groups(queue, head) if resized else (),
        description=describing.queue_description(head, queue.store.url),
    )


def _planned(queue: QueueLog, head: Head, wish: Wish) -> Alteration:
    columns = admin.altered_columns(head, wish.add_column, wish.widen) if wish.alters_columns else head.columns
    plan = (
        None if wish.partitions is None else resizing.planned_resize(queue, admin.checked_partitions(wish.partitions))
    )
    return Alteration(
        queue=queue.name,
        dry_run=True,
        settings=_changes(head, wish.settings),
        schema=_schema_change(head, columns, wish),
        partitions=None if plan is None else plan.partitions,
        sample=None if plan is None else plan.sample,
        groups=() if plan is None else plan.groups,
        description=describing.queue_description(head, queue.store.url),
    )


def _changes(before: Head, settings: Mapping[str, Any]) -> tuple[SettingChange, ...]:
    return tuple(
        SettingChange(setting=name, from_=getattr(before.config, name), to=value) for name, value in settings.items()
    )


def _schema_change(before: Head, after: Columns | None, wish: Wish) -> SchemaAlteration | None:
    if before.columns is None or after is None or not (wish.alters_columns or wish.schema is not None):
        return None
    return schemas.alteration(before.columns, after)


def _groups(queue: QueueLog, head: Head) -> tuple[GroupPlan, ...] | None:
    try:
        return resizing.group_plans(queue, head)
    except Unavailable as error:  # the queue has been altered, which is what counts
        _log.warning("%s was altered; what its groups have left cannot be read now: %s", queue, error)
        return None


def announce(queue: QueueLog, ownership: Ownership) -> None:
    """Tell coordinators to look at the queue's head."""
    with suppress(Unavailable):  # they look by themselves, too
        ownership.announce(GroupKey(queue.namespace, queue.name, HEAD))
