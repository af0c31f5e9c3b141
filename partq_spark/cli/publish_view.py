"""How `partq publish` says how it ended, for people and for machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partq_spark.cli import output

if TYPE_CHECKING:
    from partq_spark.log.fanout import Outcome
    from partq_spark.log.publish import Published


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """What was read."""

    messages: int
    without_key: int
    source: str
    meaning: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """How it ended. Without a topic there is one outcome at most."""

    namespace: str
    topic: str | None
    publish_id: str | None
    staged: Staged | None  # None: this publish id had been published before anything was read
    outcomes: list[Outcome]  # none: there was nothing to publish, or nobody to attract it
    took_s: float

    @property
    def added(self) -> list[Outcome]:
        """The queues that got something."""
        return [each for each in self.outcomes if each.published is not None and not each.published.duplicate]

    @property
    def unattracted(self) -> int:
        """Messages that went nowhere."""
        return self.staged.messages if self.topic is not None and self.staged and not self.outcomes else 0


def print_report(report: Report, as_json: bool) -> None:
    """Say it."""
    if as_json:
        output.print_json(_json(report) if report.topic is None else _json_of_topic(report, report.topic))
        return
    staged = report.staged
    if staged is not None and not staged.messages:
        output.say(f"No messages in {staged.source}: nothing was published.")
        return
    if staged is not None and report.unattracted:
        topic = report.topic or ""
        output.say(
            f"No queue of namespace {report.namespace!r} attracts {topic}: {output.plural(staged.messages, 'message')} "
            f"went nowhere. Let one: partq queue subscribe NAME {topic}"
        )
    if staged is not None and report.added:
        output.say(
            f"Published {output.plural(staged.messages, 'message')} from {staged.source} {_where_to(report)} in "
            f"{report.took_s:.1f} s{f': {staged.meaning}' if staged.meaning else ''}."
        )
        if report.topic is not None:
            width = max(len(each.queue.name) for each in report.added)
            for each in report.added:
                rows = each.published.rows if each.published is not None else 0
                output.say(f"  {each.queue.name.ljust(width)}  {output.plural(rows, 'message')}")
    for queue, published in report.outcomes:
        if published is None:
            output.say(f"{queue} was deleted meanwhile: nothing went there.")
        elif published.duplicate:
            output.say(
                f"Already published: {report.publish_id!r} came to {queue} at {output.when(published.time_us)} UTC. "
                "Nothing was added."
            )
    if staged is not None and report.added and staged.without_key:
        output.say(f"{output.plural(staged.without_key, 'message')} without a key went to random partitions.")


def _where_to(report: Report) -> str:
    if report.topic is None:
        return f"to {report.added[0].queue}"
    return f"with topic {report.topic} to {output.plural(len(report.added), 'queue')}"


def _json(report: Report) -> dict[str, output.Json]:
    published = report.outcomes[0].published if report.outcomes else None
    return _json_of_queue(published, without_key=report.staged.without_key if report.added and report.staged else 0)


def _json_of_topic(report: Report, topic: str) -> dict[str, output.Json]:
    staged = report.staged
    return {
        "topic": topic,
        "messages": staged.messages if staged and report.added else 0,
        "without_key": staged.without_key if staged and report.added else 0,
        "unattracted": report.unattracted,
        "queues": [{"queue": queue.name, **_json_of_queue(published)} for queue, published in report.outcomes],
    }


def _json_of_queue(published: Published | None, **counted: int) -> dict[str, output.Json]:
    from partq_spark.base.timestamps import format_rfc3339

    per_partition = published.per_partition if published is not None else {}
    return {
        "published": published is not None and not published.duplicate,
        "already_published": published is not None and published.duplicate,
        "messages": sum(per_partition.values()),
        **counted,
        "partitions": [{"partition": p, "messages": rows} for p, rows in per_partition.items()],
        "sequence": None if published is None else published.sequence,
        "timestamp": None if published is None else format_rfc3339(published.time_us),
    }
