"""`partq queue trim`, `compact` and `collect`: a queue's housekeeping by hand, whatever the coordinator does of it."""

from __future__ import annotations

import json

import click

from partq_spark.base.errors import Invalid
from partq_spark.cli import output, queue_view
from partq_spark.cli.arguments import (
    SECONDS,
    TIME,
    Checked,
    Target,
    json_option,
    queue_argument,
    target_options,
    wrong_use,
)

MOST_STEPS = 1000  # of one command: some 60 million slices


def _offsets(text: str) -> dict[int, int]:
    refused = Invalid(
        f'{text!r} is not allowed: give JSON that names partitions and offsets, such as {{"0": 12, "1": 7}}'
    )
    try:
        raw = json.loads(text)
    except ValueError:
        raise refused from None
    if not isinstance(raw, dict) or not raw:
        raise refused
    for partition, offset in raw.items():
        # type() and not isinstance: true is an int to Python
        if not partition.isascii() or not partition.isdigit() or type(offset) is not int or offset < 0:
            raise refused
    return {int(partition): offset for partition, offset in raw.items()}


@click.command("trim")
@queue_argument
@click.option("--before", "before_us", type=TIME, metavar="RFC3339", help="Everything published before this time.")
@click.option(
    "--before-offsets",
    type=Checked("json", _offsets),
    metavar="JSON",
    help='Everything below these offsets; partitions that are not named keep all.  Example: {"0": 12}',
)
@json_option
@target_options
def trim(
    target: Target, name: str, before_us: int | None, before_offsets: dict[int, int] | None, as_json: bool
) -> None:
    """Make old messages unreadable, for every reader and for good.

    What a group has not acknowledged stays: its checkpoints say how far it is, its start where there is none. The
    stored bytes are given back later, by `partq queue collect`.
    """
    from partq_spark.group import retention

    if (before_us is None) == (before_offsets is None):
        wrong_use("give either --before or --before-offsets.")
    with target.queue(name) as found:
        head = found.refresh()
        if before_us is not None:
            asked = found.offsets_at(before_us)
        else:
            asked = _complete(before_offsets or {}, len(head.next), str(found))
        done = retention.trim(found, asked)
        after = found.head
    if as_json:
        output.print_json(
            {
                "queue": name,
                "trimmed": done.trimmed,
                "messages": after.messages,
                "held_back": queue_view.held_back(done.held_back),
                "partitions": [
                    {"partition": p, "earliest": earliest, "next": after.next[p]}
                    for p, earliest in enumerate(after.earliest)
                ],
            }
        )
        return
    output.say(f"Trimmed {output.plural(done.trimmed, 'message')} of {found}; {after.messages:,} can still be read.")
    if done.held_back:
        output.say(f"Held back: {queue_view.held_back_words(done.held_back)}.")
    if done.trimmed:
        output.say(f"The space is given back by: partq queue collect {name}")


def _complete(given: dict[int, int], partitions: int, queue: str) -> tuple[int, ...]:
    unknown = [partition for partition in sorted(given) if partition >= partitions]
    if unknown:
        raise Invalid(f"--before-offsets names partition {unknown[0]}, {queue} has partitions 0 to {partitions - 1}")
    return tuple(given.get(partition, 0) for partition in range(partitions))


@click.command("compact")
@queue_argument
@click.option(
    "--min-age",
    "min_age_s",
    type=SECONDS,
    metavar="S",
    help="Leave alone what was published within so many seconds.  [default: 300]",
)
@json_option
@target_options
def compact(target: Target, name: str, min_age_s: float | None, as_json: bool) -> None:
    """Join small stored pieces into large ones, so that reading many small publishes is as fast as reading one.

    Messages keep their offsets and times. Goes on until nothing is worth it; the space of what was joined is given back
    later, by `partq queue collect`. A publish whose outcome is unknown for longer than --min-age cannot be told from
    one that failed any more.
    """
    from partq_spark.log import compaction

    min_age_s = compaction.MIN_AGE_S if min_age_s is None else min_age_s
    steps: list[compaction.Compacted] = []
    with target.queue(name) as found:
        found.refresh()
        while len(steps) < MOST_STEPS:
            done = compaction.compact(found, min_age_s=min_age_s)
            if done is None:
                break
            steps.append(done)
    before, after = sum(step.slices_before for step in steps), sum(step.slices for step in steps)
    bytes_before, bytes_after = sum(step.bytes_before for step in steps), sum(step.bytes for step in steps)
    messages = sum(step.messages for step in steps)
    if as_json:
        output.print_json(
            {
                "queue": name,
                "steps": len(steps),
                "messages": messages,
                "slices_before": before,
                "slices": after,
                "bytes_before": bytes_before,
                "bytes": bytes_after,
                "segments": sum(step.segments for step in steps),
            }
        )
        return
    if not steps:
        output.say(f"Nothing of {found} is worth compacting: what is old enough lies in large pieces already.")
        return
    output.say(
        f"Compacted {output.plural(messages, 'message')} of {found}: {output.plural(before, 'slice')} "
        f"({output.size(bytes_before)}) became {after:,} ({output.size(bytes_after)})."
    )
    if len(steps) == MOST_STEPS:
        output.say("There may be more: run it again.")
    output.say(f"The space of what was joined is given back by: partq queue collect {name}")


@click.command("collect")
@queue_argument
@click.option(
    "--grace",
    "grace_s",
    type=SECONDS,
    metavar="S",
    help="Seconds for which a slow publish or reader may still need an object.  [default: 86400, a day]",
)
@json_option
@target_options
def collect(target: Target, name: str, grace_s: float | None, as_json: bool) -> None:
    """Delete stored objects that nothing needs: what was trimmed, and what publishes that never ended left behind.

    Works in rounds, so run it from time to time: an object is marked by one round and deleted by a later one, at least
    one grace after. A publish that takes longer than the grace is refused at its end, and must be repeated.
    """
    from partq_spark.log import housekeeping

    grace_s = housekeeping.GRACE_S if grace_s is None else grace_s
    with target.queue(name) as found:
        found.refresh()
        done = housekeeping.collect(found, grace_s=grace_s)
        # Of all queues in the store, so never younger than a day, whatever this queue's grace: a file that is swept
        # from under its writer makes that writer fail.
        temporary = found.store.sweep_temporary(max(grace_s, housekeeping.GRACE_S))
    if as_json:
        output.print_json(
            {
                "queue": name,
                "deleted": done.deleted,
                "deleted_bytes": done.deleted_bytes,
                "marked": done.marked,
                "floor_sequence": done.floor_sequence,
                "temporary": temporary,
            }
        )
        return
    output.say(f"Deleted {output.plural(done.deleted, 'object')} ({output.size(done.deleted_bytes)}) of {found}.")
    if temporary:
        output.say(f"Removed {output.plural(temporary, 'temporary file')} of writers that died, in the whole store.")
    if not done.deleted and not done.marked:
        output.say("Nothing was due: with regular rounds an object goes two graces after it was needed last.")
    if done.marked:
        wait = f"{grace_s / 3600:g} h" if grace_s >= 3600 else output.seconds(grace_s)
        output.say(f"Marked {output.plural(done.marked, 'object')}: a round at least {wait} from now deletes them.")
