"""`partq publish`: everything in a file, or on standard input, becomes one publish: all of it or nothing."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from partq_spark.cli import output
from partq_spark.cli.arguments import Checked, Target, checked, json_option, queue_argument, target_options
from partq_spark.cli.sources import STANDARD_INPUT, drain_standard_input, kind_of, open_source
from partq_spark.errors import Invalid

if TYPE_CHECKING:
    from partq_spark.log.publish import Identity, Published, Stage, StagedSegment
    from partq_spark.log.queue import Queue


def _publish_id(text: str) -> str:
    if not 1 <= len(text.encode()) <= 255 or not text.isprintable():
        raise Invalid(f"{text[:60]!r} is not allowed: give 1 to 255 bytes of printable text")
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """What was read and lies in the store, not yet published."""

    segment: StagedSegment | None  # None: no message
    messages: int
    without_key: int
    source: str
    meaning: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """How it ended, for people and machines."""

    queue: str
    publish_id: str | None
    staged: Staged | None  # None: this publish id had been published before anything was read
    published: Published | None  # None: there was nothing to publish
    took_s: float


@click.command("publish")
@queue_argument
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    metavar="FILE",
    default=STANDARD_INPUT,
    help=".csv, .jsonl, .ndjson or .json (each also with .gz), or .parquet.  [default: standard input, JSON lines]",
)
@click.option("--key-column", metavar="COLUMN", help="The column that holds the key.  [default: key, if there is one]")
@click.option("--whole-rows", is_flag=True, help="Publish each row as a JSON object, also if it has a column 'value'.")
@click.option(
    "--publish-id",
    type=Checked("id", _publish_id),
    metavar="ID",
    help="Publish at most once under this name, however often it is repeated.",
)
@json_option
@target_options
def publish(
    target: Target,
    name: str,
    path: str,
    key_column: str | None,
    whole_rows: bool,
    publish_id: str | None,
    as_json: bool,
) -> None:
    """Publish messages from a file or standard input, all at once or not at all.

    Standard input is JSON lines: {"key": "a", "value": "text"}. A value is a string, or any other JSON, which is
    published as compact text. Without a key, or with null, a message goes to a random partition.

    A table with a column 'value' holds messages: key, value, headers. In any other table each row is published as a
    JSON object, and --key-column says which column is the key. Numbers as keys become their text.
    """
    if path != STANDARD_INPUT:
        checked(lambda: kind_of(path))
    elif sys.stdin.isatty():
        click.echo('Reading JSON lines, {"key": "a", "value": "text"}; Ctrl-D ends.', err=True)
    begun_s = time.monotonic()
    staged: Staged | None = None
    with target.queue(name) as queue:
        try:
            stage, identity, done = _prepare(queue, publish_id)
            if done is None:
                staged = _stage(queue, stage, path, key_column, whole_rows, seed=publish_id)
            elif path == STANDARD_INPUT:
                drain_standard_input()
        except KeyboardInterrupt:
            raise click.ClickException("interrupted: nothing was published") from None
        with _uninterrupted(publish_id):
            if staged is not None and staged.segment is not None:
                done = _commit(queue, stage, staged.segment, identity)
            _print(
                Report(
                    queue=str(queue),
                    publish_id=publish_id,
                    staged=staged,
                    published=done,
                    took_s=time.monotonic() - begun_s,
                ),
                as_json,
            )


def _prepare(queue: Queue, publish_id: str | None) -> tuple[Stage, Identity | None, Published | None]:
    """What staging needs; and how it ended, if this publish id is known already: then nothing need be read at all."""
    from partq_spark.log import writers
    from partq_spark.log.publish import Identity, Published, stage_for

    stage = stage_for(queue)
    if publish_id is None:
        return stage, None, None
    earlier = queue.settled(lambda _: writers.last_batch(queue, publish_id))
    identity = Identity(writer=publish_id, batch=0)
    if earlier is None:
        return stage, identity, None
    known = Published(sequence=earlier.sequence, time_us=earlier.time_us, rows=0, duplicate=True, conflicts=0)
    return stage, identity, known


def _stage(
    queue: Queue, stage: Stage, path: str, key_column: str | None, whole_rows: bool, *, seed: str | None
) -> Staged:
    from partq_spark.cli.messages import check
    from partq_spark.cli.progress import Bar
    from partq_spark.log.names import new_id
    from partq_spark.log.segment import Stager

    messages = without_key = 0
    with (
        open_source(
            path, key_column=key_column, whole_rows=whole_rows, max_message_bytes=stage.max_message_bytes
        ) as source,
        Bar(f"publishing {Path(source.name).name}") as bar,
        Stager(queue.store, stage, seed=f"{seed or new_id()}/0/0", headers=source.headers) as stager,
    ):
        for chunk in source.chunks():
            check(chunk, source, stage.max_message_bytes)
            stager.add(chunk.batch)
            messages += chunk.batch.num_rows
            without_key += chunk.batch.column("key").null_count
            bar.update(messages, *source.progress())
        segment = stager.finish()
    return Staged(
        segment=segment, messages=messages, without_key=without_key, source=source.name, meaning=source.meaning
    )


def _commit(queue: Queue, stage: Stage, segment: StagedSegment, identity: Identity | None) -> Published:
    from partq_spark.log.names import new_id
    from partq_spark.log.restaging import publish_staged

    seed = identity.writer if identity else new_id()
    return publish_staged(queue, stage, [segment], identity, seed=f"{seed}/0")


@contextmanager
def _uninterrupted(publish_id: str | None) -> Iterator[None]:
    """Let Ctrl-C wait until the swap is done and reported: the outcome is known then, and never before. A second Ctrl-C
    ends the waiting, for a store that does not answer.
    """

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        click.echo("Publishing is about to end; interrupt again to give up waiting.", err=True)

    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        again = "repeat it with the same --publish-id" if publish_id else "look with `partq browse` before repeating it"
        raise click.ClickException(f"interrupted while publishing: it may be done or not; {again}") from None
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


# --- the report -------------------------------------------------------------------------------------------------------


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        output.print_json(_json(report))
        return
    staged, published = report.staged, report.published
    if published is None:
        source = staged.source if staged else "the input"
        click.echo(f"No messages in {source}: nothing was published.")
    elif published.duplicate:
        click.echo(
            f"Already published: {report.publish_id!r} came to {report.queue} at {output.when(published.time_us)} UTC. "
            "Nothing was added."
        )
    elif staged is not None:
        click.echo(
            f"Published {output.plural(staged.messages, 'message')} from {staged.source} to {report.queue} in "
            f"{report.took_s:.1f} s{f': {staged.meaning}' if staged.meaning else ''}."
        )
        if staged.without_key:
            click.echo(f"{output.plural(staged.without_key, 'message')} without a key went to random partitions.")


def _json(report: Report) -> dict[str, output.Json]:
    from partq_spark.timestamps import format_rfc3339

    published = report.published
    added = published is not None and not published.duplicate
    per_partition = published.per_partition if published is not None else {}
    return {
        "published": added,
        "already_published": published is not None and published.duplicate,
        "messages": sum(per_partition.values()),
        "without_key": report.staged.without_key if added and report.staged else 0,
        "partitions": [{"partition": p, "messages": rows} for p, rows in per_partition.items()],
        "sequence": None if published is None else published.sequence,
        "timestamp": None if published is None else format_rfc3339(published.time_us),
    }
