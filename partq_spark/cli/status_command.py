"""`partq status`: reads what the stores say of a group, and shows it once or, with `--watch`, again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from partq_spark.base.errors import Unavailable
from partq_spark.cli import output, status_view
from partq_spark.cli.arguments import Target, group_option, json_option, queue_argument, target_options

if TYPE_CHECKING:
    from partq_spark.group.checkpoints import Checkpoint
    from partq_spark.group.model import FlowRecord, GroupKey
    from partq_spark.group.status import GroupView, Seen
    from partq_spark.group.stores.api import OwnershipStore
    from partq_spark.log.model import Head
    from partq_spark.log.queue import Queue

WATCH_S = 1.0


@click.command("status")
@queue_argument
@group_option
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@json_option
@target_options
def status(target: Target, name: str, group: str, watch: bool, as_json: bool) -> None:
    """Show which flow has which partition, and why one does not flow.

    Offsets are exclusive ends: the next message to come. `delivered` is what was handed to the flow's micro-batches,
    `acknowledged` what its checkpoint has. Without --ownership only the checkpoints are shown. --json with --watch
    prints one document per line.
    """
    with (
        target.queue(name) as queue,
        target.for_group(queue.refresh(), group).group_ownership(queue.store) as ownership,
    ):
        while True:
            try:
                _show(look(queue, ownership, group), as_json=as_json, clear=watch and sys.stdout.isatty())
            except Unavailable as error:
                if not watch:
                    raise
                output.say(f"partq: {error}", err=True)
            if not watch:
                return
            time.sleep(WATCH_S)
            if not as_json and not sys.stdout.isatty():
                output.say()


def _show(view: GroupView, *, as_json: bool, clear: bool) -> None:
    if as_json:
        output.print_json(status_view.document(view))
        return
    if clear:
        click.clear()
    status_view.print_group(view)


def look(queue: Queue, ownership: OwnershipStore | None, group: str) -> GroupView:
    """One look at everything: the lease first, so that its timers are never older than what they belong to."""
    from partq_spark.group.checkpoints import CheckpointStore
    from partq_spark.group.model import GroupKey
    from partq_spark.group.status import view
    from partq_spark.log.admin import group_of

    head = queue.refresh()
    since = group_of(queue, head, group).since_sequence
    key = GroupKey(queue.namespace, queue.name, group)
    checkpoints, damaged = CheckpointStore(queue.store, key, head.queue_id, since=since).list_readable()
    seen = _seen(key, head, ownership, checkpoints)
    return view(replace(seen, damaged={number: str(problem) for number, problem in damaged.items()}))


def _seen(key: GroupKey, head: Head, ownership: OwnershipStore | None, checkpoints: Mapping[int, Checkpoint]) -> Seen:
    from partq_spark.group import codec
    from partq_spark.group.status import Seen
    from partq_spark.group.stores.api import StateDocument
    from partq_spark.log.model import group_start

    nothing = Seen(
        key=key,
        ends=head.next,
        starts=[group_start(head.groups[key.group], partition) for partition in range(len(head.next))],
        layout_partitions=head.partitions,
        checkpoints=checkpoints,
        head=head,
        kept=ownership is not None,
        ownership=head.groups[key.group].ownership,
    )
    if ownership is None:
        return nothing
    lease = ownership.read_lease(key)
    found = ownership.read_state(key)
    state = codec.decode_state(found.body, 0.0, f"state of group {key}") if isinstance(found, StateDocument) else None
    if state is not None and state.queue_id != head.queue_id:
        state = None  # of a queue that was deleted: no coordinator has come by since
    records = {flow: record for flow, record in ownership.read_flows(key).items() if record.queue_id == head.queue_id}
    return replace(
        nothing,
        state=state,
        state_token=found.token if isinstance(found, StateDocument) else None,
        state_age_s=found.age_s if isinstance(found, StateDocument) else 0.0,
        records=records,
        beats_age_s=_beats(ownership, key, records),
        lease=lease.lease if lease else None,
        lease_age_s=lease.age_s if lease else None,
    )


def _beats(ownership: OwnershipStore, key: GroupKey, records: Mapping[str, FlowRecord]) -> dict[str, float]:
    return {flow: max(beat.age_s, 0.0) for flow, beat in ownership.read_beats(key).items() if flow in records}
