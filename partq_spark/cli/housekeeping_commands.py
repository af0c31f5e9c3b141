"""`partq queue trim`, `compact` and `collect`: a queue's housekeeping on request, which the coordinator does by itself;
and `resolve`, which only a person can say.
"""

from __future__ import annotations

import json

import click

from partq_spark.base import words
from partq_spark.base.errors import Invalid
from partq_spark.cli import output
from partq_spark.cli.arguments import (
    SECONDS,
    TIME,
    Checked,
    Refused,
    Where,
    json_option,
    queue_argument,
    where_options,
    wrong_use,
)
from partq_spark.client import words as sayings

_DAY_S = 86_400.0  # the default grace


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
@click.option("--before", "before", type=TIME, metavar="RFC3339", help="Everything published before this time.")
@click.option(
    "--before-offsets",
    type=Checked("json", _offsets),
    metavar="JSON",
    help='Everything below these offsets; partitions that are not named keep all.  Example: {"0": 12}',
)
@json_option
@where_options
def trim(where: Where, name: str, before: str | None, before_offsets: dict[int, int] | None, as_json: bool) -> None:
    """Make old messages unreadable, for every reader and for good.

    What a group has not acknowledged stays: its checkpoints say how far it is, its start where there is none. The
    stored bytes are given back later, by `partq queue collect`.
    """
    if (before is None) == (before_offsets is None):
        wrong_use("give either --before or --before-offsets.")
    queue = where.queue(name)
    done = queue.trim(before_offsets if before is None else before)  # type: ignore[arg-type]  # one of them is given
    if as_json:
        output.print_json(output.document(done))
        return
    output.say(f"Trimmed {words.plural(done.trimmed, 'message')} of {queue}; {done.messages:,} can still be read.")
    if done.held_back:
        output.say(f"Held back: {sayings.held_back_in_words(done.held_back)}.")
    if done.trimmed:
        output.say(f"The space is given back by: partq queue collect {name}")


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
@where_options
def compact(where: Where, name: str, min_age_s: float | None, as_json: bool) -> None:
    """Join small stored pieces into large ones, so that reading many small publishes is as fast as reading one.

    Messages keep their offsets and times. Goes on until nothing is worth it; the space of what was joined is given back
    later, by `partq queue collect`. A publish whose outcome is unknown for longer than --min-age cannot be told from
    one that failed any more.
    """
    queue = where.queue(name)
    done = queue.compact(min_age_s=min_age_s)
    if as_json:
        output.print_json(output.document(done))
        return
    if not done.steps:
        output.say(f"Nothing of {queue} is worth compacting: what is old enough lies in large pieces already.")
        return
    output.say(
        f"Compacted {words.plural(done.messages, 'message')} of {queue}: {words.plural(done.slices_before, 'slice')} "
        f"({words.size(done.bytes_before)}) became {done.slices:,} ({words.size(done.bytes)})."
    )
    if not done.finished:
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
@where_options
def collect(where: Where, name: str, grace_s: float | None, as_json: bool) -> None:
    """Delete stored objects that nothing needs: what was trimmed, and what publishes that never ended left behind.

    Works in rounds, so run it from time to time: an object is marked by one round and deleted by a later one, at least
    one grace after. A publish that takes longer than the grace is refused at its end, and must be repeated.
    """
    queue = where.queue(name)
    done = queue.collect(grace_s=grace_s)
    if as_json:
        output.print_json(output.document(done))
        return
    output.say(f"Deleted {words.plural(done.deleted, 'object')} ({words.size(done.deleted_bytes)}) of {queue}.")
    if done.temporary:
        files = words.plural(done.temporary, "temporary file")
        output.say(f"Removed {files} of writers that died, in the whole store.")
    if not done.deleted and not done.marked:
        output.say("Nothing was due: with regular rounds an object goes two graces after it was needed last.")
    if done.marked:
        grace_s = _DAY_S if grace_s is None else grace_s
        wait = f"{grace_s / 3600:g} h" if grace_s >= 3600 else words.seconds(grace_s)
        output.say(f"Marked {words.plural(done.marked, 'object')}: a round at least {wait} from now deletes them.")


@click.command("resolve")
@queue_argument
@click.option("--writer", metavar="NAME", required=True, help="The query's id or the txnAppId, as the refusal says.")
@click.option("--batch", type=click.IntRange(min=0), metavar="N", required=True, help="The first batch.")
@click.option(
    "--as",
    "what",
    type=click.Choice(["published", "new"]),
    required=True,
    help="published: skip them, as their rows are there.  new: publish them once more, at least once.",
)
@click.option("--yes", is_flag=True, help="Really say so.")
@json_option
@where_options
def resolve(where: Where, name: str, writer: str, batch: int, what: str, yes: bool, as_json: bool) -> None:
    """Say what batches are that were refused because their writer has used their numbers for other rows.

    It counts for batch N and later ones up to the writer's last, in every queue of the namespace that has them, until
    the writer publishes something that is new. Restart the query after it. Describe shows who said what.
    """
    queue = where.queue(name)
    if not yes:
        queue.describe()  # says that there is no such queue
        effect = "their rows are skipped" if what == "published" else "their rows are published once more"
        raise Refused(
            f"this would say that batch {batch} and later ones of writer {writer!r} are {what}: {effect}. Add --yes to "
            "do so."
        )
    done = queue.resolve(writer=writer, batch=batch, published=what == "published")
    if as_json:
        output.print_json(output.document(done))
        return
    effect = "skipped as published before" if done.published else "published once more"
    output.say(
        f"Batch {done.batch} and later ones of writer {done.writer!r}, up to its last, are {effect} in "
        f"{words.plural(len(done.queues), 'queue')} ({', '.join(done.queues)}). Start the query again."
    )
    if done.unreadable:
        output.say(f"Not said in queues that cannot be read: {', '.join(done.unreadable)}.")
