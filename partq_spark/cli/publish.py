"""`partq publish`: everything in a file, or on standard input, becomes one publish to a queue, or to each of those that
attract its topic: all of it or nothing, for each of them. How that is reported is `publish_view`'s.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from partq_spark.base.errors import Invalid
from partq_spark.cli import output
from partq_spark.cli.arguments import (
    NAME,
    Checked,
    Target,
    checked,
    json_option,
    target_options,
    wrong_use,
)
from partq_spark.cli.publish_view import Report, Staged, print_report
from partq_spark.cli.sources import STANDARD_INPUT, drain_standard_input, kind_of, open_source
from partq_spark.cli.topic_commands import TOPIC
from partq_spark.log.model import DEFAULT_MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from partq_spark.log.fanout import Outcome, Plan, StagedFor
    from partq_spark.log.publish import Identity
    from partq_spark.log.queue import Queue
    from partq_spark.objects import ObjectStore


def _publish_id(text: str) -> str:
    # Half a surrogate, what Python makes of an argument that is not UTF-8, is not printable and has no bytes.
    if not text.isprintable() or not 1 <= len(text.encode()) <= 255:
        raise Invalid(f"{text[:60]!r} is not allowed: give 1 to 255 bytes of printable text")
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What is known before anything is read. `known`: the queues that have this publish id already."""

    plan: Plan
    queues: Mapping[str, Queue]
    publish_id: str | None
    identity: Identity | None
    known: list[Outcome]

    @property
    def is_done(self) -> bool:
        """Whether all have it, so that nothing need be read."""
        return bool(self.known) and len(self.known) == len(self.plan.destinations)


@click.command("publish")
@click.argument("name", type=NAME, required=False)
@click.option("--topic", type=TOPIC, metavar="TOPIC", help="Publish to every queue that attracts it, instead of NAME.")
@click.option("--fail-unattracted", is_flag=True, help="With --topic: an error if no queue attracts it.")
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
    name: str | None,
    topic: str | None,
    fail_unattracted: bool,
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

    With --topic they go to every queue that attracts it (partq queue subscribe), all or nothing for each: with a
    --publish-id a repetition completes what was cut off.
    """
    to = _checked_use(name, topic, fail_unattracted)
    if path != STANDARD_INPUT:
        checked(lambda: kind_of(path))
    elif sys.stdin.isatty():
        output.say('Reading JSON lines, {"key": "a", "value": "text"}; Ctrl-D ends.', err=True)
    begun_s = time.monotonic()
    staged: Staged | None = None
    segments: list[StagedFor] = []
    with target.store() as store:
        try:
            prepared = _prepare(target, store, to, publish_id, by_topic=topic is not None)
            if topic is not None and fail_unattracted and not prepared.plan.destinations:
                raise Invalid(
                    f"no queue of namespace {target.namespace!r} attracts {topic}: nothing was published; let one with "
                    f"`partq queue subscribe NAME {topic}`"
                )
            if not prepared.is_done:
                staged, segments = _stage(store, prepared.plan, path, key_column, whole_rows, seed=publish_id)
            elif path == STANDARD_INPUT:
                drain_standard_input()
        except KeyboardInterrupt:
            raise click.ClickException("interrupted: nothing was published") from None
        with _uninterrupted(publish_id):
            report = Report(
                namespace=target.namespace,
                topic=topic,
                publish_id=publish_id,
                staged=staged,
                outcomes=prepared.known if staged is None else _commit(prepared, segments),
                took_s=time.monotonic() - begun_s,
            )
            print_report(report, as_json)


def _checked_use(name: str | None, topic: str | None, fail_unattracted: bool) -> str:
    """Where to: the queue, or the topic."""
    if name is not None and topic is not None:
        wrong_use("NAME and --topic exclude each other: the topic says which queues get the messages.")
    if topic is None and fail_unattracted:
        wrong_use("--fail-unattracted is for --topic: leave it out.")
    return name or topic or wrong_use("nothing says where to: give the queue's NAME, or --topic.")


def _prepare(target: Target, store: ObjectStore, to: str, publish_id: str | None, *, by_topic: bool) -> Prepared:
    """Where the messages go, and who has this publish id already."""
    from partq_spark.log import fanout, writers
    from partq_spark.log.publish import Identity, Published
    from partq_spark.log.queue import Effects, Queue
    from partq_spark.log.subscriptions import Namespace

    effects = Effects(retry_timeout_s=target.retry_timeout_s)
    if by_topic:
        queues = {queue.name: queue for queue in Namespace(store, target.namespace, effects).queues()}
        plan = fanout.plan_topic(target.namespace, queues.values(), to)
    else:
        queues = {to: Queue(store, target.namespace, to, effects)}
        plan = fanout.plan_queue(queues[to])
    if publish_id is None:
        return Prepared(plan=plan, queues=queues, publish_id=None, identity=None, known=[])
    identity = Identity.of_publish_id(publish_id)
    known = []
    for destination in plan.destinations:
        queue = queues[destination.stage.queue]
        earlier = queue.settled(lambda _: writers.last_batch(queue, identity.writer))  # noqa: B023 (called at once)
        if earlier is not None:
            done = Published(sequence=earlier.sequence, time_us=earlier.time_us, rows=0, duplicate=True, conflicts=0)
            known.append(fanout.Outcome(queue, done))
    return Prepared(plan=plan, queues=queues, publish_id=publish_id, identity=identity, known=known)


def _stage(
    store: ObjectStore, plan: Plan, path: str, key_column: str | None, whole_rows: bool, *, seed: str | None
) -> tuple[Staged, list[StagedFor]]:
    from partq_spark.cli.messages import check
    from partq_spark.cli.progress import Bar
    from partq_spark.log.fanout import Fan
    from partq_spark.log.names import new_id

    messages = without_key = 0
    limits = [destination.stage.max_message_bytes for destination in plan.destinations]
    most_bytes = min(limits, default=DEFAULT_MAX_MESSAGE_BYTES)
    with (
        open_source(path, key_column=key_column, whole_rows=whole_rows, max_message_bytes=most_bytes) as source,
        Bar(f"publishing {Path(source.name).name}") as bar,
        Fan(store, plan, seed=f"{seed or new_id()}/0/0", headers=source.headers) as fan,
    ):
        for chunk in source.chunks():
            check(chunk, source, most_bytes)
            fan.add(chunk.batch)
            messages += chunk.batch.num_rows
            without_key += chunk.batch.column("key").null_count
            bar.update(messages, *source.progress())
        segments, _ = fan.finish()
    return Staged(messages=messages, without_key=without_key, source=source.name, meaning=source.meaning), segments


def _commit(prepared: Prepared, segments: list[StagedFor]) -> list[Outcome]:
    from partq_spark.log.fanout import publish_all
    from partq_spark.log.names import new_id

    return publish_all(
        prepared.queues.__getitem__, [segments], prepared.identity, seed=f"{prepared.publish_id or new_id()}/0"
    )


@contextmanager
def _uninterrupted(publish_id: str | None) -> Iterator[None]:
    """Let Ctrl-C wait until the swap is done and reported: the outcome is known then, and never before. A second Ctrl-C
    ends the waiting, for a store that does not answer.
    """

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        output.say("Publishing is about to end; interrupt again to give up waiting.", err=True)

    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        again = "repeat it with the same --publish-id" if publish_id else "look with `partq browse` before repeating it"
        raise click.ClickException(f"interrupted while publishing: it may be done or not; {again}") from None
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
