"""The options of the Spark source and sink: what is allowed where, and their values as typed, frozen settings. No
pyspark.

Names are case-insensitive. An option that is unknown, malformed or contradicts another is refused here, with its name,
its value and what is allowed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from partq_spark.base.effects import parse_rfc3339
from partq_spark.base.errors import Invalid
from partq_spark.group.documents.urls import canonical_ownership, default_ownership
from partq_spark.log.destinations import checked_topic
from partq_spark.log.names import checked_name
from partq_spark.log.queue import NamespaceAddress, QueueAddress
from partq_spark.objects.urls import canonical_url, default_store
from partq_spark.query.settings import Boundary, GroupOptions, SourceOptions

COMMON = ("queue", "path", "store", "namespace", "retryTimeout", "includeHeaders")
SHARED_ONLY = ("sessionTimeout", "maxPollInterval")  # with an ownership other than none
GROUP_ONLY = ("ownership", "checkpoints", "flow", "ackMode", "checkpointInterval", *SHARED_ONLY)
LIMITS = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "maxDeliveredUnackedMsgsPerFlow")
STREAM_SOURCE_ONLY = ("group", *GROUP_ONLY, *LIMITS, "pollInterval")
BATCH_SOURCE_ONLY = ("endingOffsets", "endingTimestamp")
STARTING = ("startingOffsets", "startingTimestamp")
SOURCE = (*COMMON, *STARTING, *BATCH_SOURCE_ONLY, *STREAM_SOURCE_ONLY, "failOnDataLoss")
SINK = (*COMMON, "topic", "failOnUnattractedTopic", "compression")
BATCH_SINK_ONLY = ("txnAppId", "txnVersion")
# Spark puts these among a streaming sink's options itself (spark-traps.md 8).
FROM_SPARK = ("checkpointLocation", "queryName")

MANUAL_IN_HAND = 10_000  # messages: what an application may leave unacknowledged unless it says otherwise


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkOptions:
    """The options of a batch or stream sink. `transaction` is (txnAppId, txnVersion).

    `queue` is None only where messages have topics: then it gets those without.
    """

    where: NamespaceAddress
    queue: str | None
    topic: str | None  # of all messages, instead of a column topic
    fail_on_unattracted: bool
    compression: str
    include_headers: bool
    transaction: tuple[str, int] | None


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of `spark.read` or `spark.readStream`, which Spark does not tell apart at `.load()`. Raises
    `Invalid`.
    """
    return _source(GivenOptions(options, SOURCE, "source"))


def batch_source_options(options: Mapping[str, str]) -> SourceOptions:
    """`source_options`, refusing what only a stream has. Raises `Invalid`."""
    given = GivenOptions(options, SOURCE, "source")
    given.refuse(STREAM_SOURCE_ONLY, "is for streams (spark.readStream), this is a batch read")
    return _source(given)


def stream_source_options(options: Mapping[str, str]) -> SourceOptions:
    """`source_options`, refusing what only a batch read has. Raises `Invalid`."""
    given = GivenOptions(options, SOURCE, "source")
    given.refuse(BATCH_SOURCE_ONLY, "is for batch reads (spark.read), a stream has no end")
    return _source(given)


def _source(given: GivenOptions) -> SourceOptions:
    group = _group(given)
    bound = given.count("maxDeliveredUnackedMsgsPerFlow")
    return SourceOptions(
        target=_target(given),
        group=group,
        start=_place(given, "startingOffsets", "startingTimestamp"),
        end=_place(given, "endingOffsets", "endingTimestamp") or Boundary(edge="latest"),
        max_messages=given.count("maxMessagesPerTrigger"),
        max_bytes=given.size("maxBytesPerTrigger"),
        max_delivered_unacked=MANUAL_IN_HAND if bound is None and group is not None and group.manual_acks else bound,
        fail_on_data_loss=given.bool("failOnDataLoss", True),
        include_headers=given.bool("includeHeaders", False),
        poll_interval_s=given.duration_s("pollInterval", least_s=0.0, most_s=60.0),
    )


def _group(given: GivenOptions) -> GroupOptions | None:
    name = given.text("group")
    if name is None:
        given.refuse(GROUP_ONLY, "is for a consumer group, and none is named", "give the option group, or leave it out")
        return None
    if name.startswith("_"):
        raise Invalid(f"option group={name!r} is not allowed: names that begin with '_' are the queue's own")
    ownership = _ownership(given)
    if ownership == "none":
        given.refuse(SHARED_ONLY, "is for flows that share a group, and with ownership=none one query has all of it")
    ack_mode = given.choice("ackMode", ("auto", "manual"), "auto")
    checkpoints = given.choice("checkpoints", ("store", "none"), "store")
    if checkpoints == "none":
        given.refuse(("checkpointInterval",), "is for checkpoints=store, this query keeps none")
    flow = given.text("flow")
    if ack_mode == "manual" and flow is None:
        raise Invalid(
            "option ackMode='manual' needs the option flow: the application names the flow for which it acknowledges"
        )
    if ack_mode == "manual" and checkpoints == "none":
        raise Invalid(
            "options ackMode='manual' and checkpoints='none' contradict each other: an acknowledgement is kept in a "
            "checkpoint, leave one of them out"
        )
    timeout_s = given.duration_s("sessionTimeout", least_s=5.0, most_s=3600.0)
    return GroupOptions(
        name=checked_name("group", name),
        ownership=ownership,
        keep_offsets=checkpoints == "store",
        flow=checked_name("flow", flow) if flow is not None else None,
        checkpoint_interval_s=given.duration_s("checkpointInterval", least_s=0.0, most_s=3600.0),
        session_timeout_s=10.0 if timeout_s is None else timeout_s,
        max_poll_interval_s=given.duration_s("maxPollInterval", least_s=1.0, most_s=7 * 24 * 3600.0),
        manual_acks=ack_mode == "manual",
    )


def _ownership(given: GivenOptions) -> str:
    text = given.text("ownership")
    if text is None:
        return default_ownership(os.environ)
    try:
        return canonical_ownership(text)
    except Invalid as error:
        raise Invalid(f"option ownership is not usable: {error}") from None


def batch_sink_options(options: Mapping[str, str], *, topic_column: bool = False) -> SinkOptions:
    """The options of `df.write`; `topic_column` says whether the rows have that column. Raises `Invalid`."""
    given = GivenOptions(options, (*SINK, *BATCH_SINK_ONLY), "batch sink")
    app, version = given.text("txnAppId"), given.text("txnVersion")
    if (app is None) != (version is None):
        missing = "txnVersion" if version is None else "txnAppId"
        raise Invalid(
            f"option {missing!r} is missing: txnAppId and txnVersion make a write idempotent together, give both"
        )
    transaction = None
    if app is not None and version is not None:
        if not app or len(app.encode()) > 255:
            raise Invalid(f"option txnAppId={app!r} is not allowed: give 1 to 255 bytes")
        if not WHOLE.fullmatch(version) or int(version) > MOST:
            raise Invalid(
                f"option txnVersion={version!r} is not allowed: give a whole number from 0, larger for each new write"
            )
        transaction = (app, int(version))
    return _sink(given, transaction, topic_column)


def stream_sink_options(options: Mapping[str, str], *, topic_column: bool = False) -> SinkOptions:
    """The options of `df.writeStream`; `topic_column` as for a batch. Raises `Invalid`."""
    given = GivenOptions(options, (*SINK, *BATCH_SINK_ONLY, *FROM_SPARK), "stream sink")
    given.refuse(BATCH_SINK_ONLY, "is for batch writes; a stream is idempotent by its own query id and batch")
    return _sink(given, None, topic_column)


def _sink(given: GivenOptions, transaction: tuple[str, int] | None, topic_column: bool) -> SinkOptions:
    compression = given.choice("compression", ("none", "lz4", "zstd"), "lz4")
    topic, queue = given.text("topic"), _queue(given)
    if topic is not None:
        try:
            checked_topic(topic)
        except Invalid as error:
            raise Invalid(f"option {error}") from None
    elif not topic_column:
        given.refuse(
            ("failOnUnattractedTopic",),
            "is for messages with topics, and these have none",
            "give the option topic or a column topic, or leave it out",
        )
        if queue is None:
            raise Invalid(
                'no queue was named, and no topic: give .option("queue", "orders") or .save("orders"), or '
                f'.option("topic", "orders/eu") or a column topic{_about_tables(given)}'
            )
    return SinkOptions(
        where=_where(given),
        queue=queue,
        topic=topic,
        fail_on_unattracted=given.bool("failOnUnattractedTopic", False),
        compression=compression,
        include_headers=given.bool("includeHeaders", False),
        transaction=transaction,
    )


def _target(given: GivenOptions) -> QueueAddress:
    queue = _queue(given)
    if queue is None:
        raise Invalid(f'no queue was named: give .option("queue", "orders") or .load("orders"){_about_tables(given)}')
    return _where(given).target(queue)


def _about_tables(given: GivenOptions) -> str:
    """Without any option it may be a table of Spark's catalog."""
    return f"; if this is a table: {USE_A_VIEW}" if given.names.keys() <= {*FROM_SPARK} else ""


def _queue(given: GivenOptions) -> str | None:
    queue, path = given.text("queue"), given.text("path")
    if queue is not None and path is not None and queue.lower() != path.lower():
        raise Invalid(f"option queue={queue!r} and the path {path!r} name two queues: give one of them")
    name = queue or path
    return checked_name("queue", name) if name else None


def _where(given: GivenOptions) -> NamespaceAddress:
    timeout_s = given.duration_s("retryTimeout", least_s=0.0, most_s=24 * 3600.0)
    return NamespaceAddress(
        store=canonical_url(given.text("store") or default_store(os.environ)),
        namespace=checked_name("namespace", given.text("namespace") or "default"),
        retry_timeout_s=120.0 if timeout_s is None else timeout_s,
    )


def _place(given: GivenOptions, offsets: str, timestamp: str) -> Boundary | None:
    by_offset, by_time = given.text(offsets), given.text(timestamp)
    if by_offset is not None and by_time is not None:
        raise Invalid(
            f"options {offsets}={by_offset!r} and {timestamp}={by_time!r} contradict each other: give one of them"
        )
    if by_time is not None:
        try:
            return Boundary(time_us=parse_rfc3339(by_time))
        except Invalid as error:
            raise Invalid(f"option {timestamp}={by_time!r} is not allowed: {error}") from None
    if by_offset is None:
        return None
    if by_offset.lower() == "earliest":
        return Boundary(edge="earliest")
    if by_offset.lower() == "latest":
        return Boundary(edge="latest")
    return Boundary(offsets=_offsets(offsets, by_offset))


def _offsets(name: str, text: str) -> dict[int, int]:
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        pairs = None
    found: dict[int, int] = {}
    for partition, offset in pairs if isinstance(pairs, _Pairs) else ():
        # type() and not isinstance: true is an int to Python, and 1.0 none
        if not WHOLE.fullmatch(partition) or int(partition) in found or type(offset) is not int or offset < 0:
            found = {}
            break
        found[int(partition)] = offset
    if not found:
        raise Invalid(
            f"option {name}={text!r} is not allowed: give earliest, latest, or JSON naming every partition once, such "
            'as {"0": 12, "1": 7}'
        )
    return found


class _Pairs(list[tuple[str, object]]):
    """A JSON object as it was written, with its repeated keys."""


# --- options as the user wrote them ----------------------------------------------------------------------------------

MOST = (1 << 63) - 1  # what Spark and the log can count
WHOLE = re.compile(r"[0-9]{1,19}")

_DURATION = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"([0-9]{1,19})\s*([kmgt]?)b?", re.IGNORECASE)
_UNIT_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}

# What may be a credential: of an option that does not exist nobody knows what it would hold.
_SECRET_NAME = re.compile(r"key|secret|passw|token|credential|connection|account|sas|sig|auth", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"@|[?&;]|key=|secret|passw|token|signature", re.IGNORECASE)


USE_A_VIEW = (
    "Spark passes the options of a table of its catalog neither to readers nor to writers; use CREATE TEMPORARY VIEW "
    "name USING partq OPTIONS (queue '...', store '...') to read, .write or .writeStream to publish"
)


class GivenOptions:
    """The options as the user wrote them, found by lower-cased name."""

    def __init__(self, options: Mapping[str, str], allowed: tuple[str, ...], role: str) -> None:
        spelled = {name.lower(): name for name in allowed}
        if any(name.lower() == "provider" for name in options):  # the catalog's, at CREATE TABLE
            raise Invalid(f"CREATE TABLE ... USING partq makes no table that works: {USE_A_VIEW}")
        self.names: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in spelled:
                raise Invalid(
                    f"option {name!r} (value {_shown(name, value)}) is unknown to the partq {role}: allowed are "
                    f"{', '.join(allowed)}"
                )
            # An empty value is mostly a variable that is not set; a default in its place might be another store.
            if not str(value).strip():
                raise Invalid(f"option {spelled[name.lower()]!r} is empty: give a value, or leave it out")
            self.names[spelled[name.lower()]] = str(value).strip()

    def text(self, name: str) -> str | None:
        return self.names.get(name)

    def refuse(self, names: tuple[str, ...], why: str, do: str = "leave it out") -> None:
        for name in names:
            if name in self.names:
                shown = _shown(name, self.names[name])
                raise Invalid(f"option {name!r} (value {shown}) {why}: {do}")

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name) or default
        if value.lower() not in allowed:
            others, last = ", ".join(allowed[:-1]), allowed[-1]
            raise Invalid(f"option {name}={value!r} is not allowed: give {others} or {last}")
        return value.lower()

    def bool(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def count(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not WHOLE.fullmatch(value) or not 1 <= int(value) <= MOST:
            raise Invalid(f"option {name}={value!r} is not allowed: give a whole number from 1 to {MOST}")
        return int(value)

    def size(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        match = _SIZE.fullmatch(value)
        size = int(match[1]) * _UNIT_BYTES[match[2].lower()] if match else 0
        if not 1 <= size <= MOST:
            raise Invalid(
                f"option {name}={value!r} is not allowed: give bytes from 1 to {MOST}, such as 1048576 or 64m"
            )
        return size

    def duration_s(self, name: str, *, least_s: float, most_s: float) -> float | None:
        value = self.text(name)
        if value is None:
            return None
        match = _DURATION.fullmatch(value)
        seconds = float(match[1]) * _UNIT_S[match[2]] if match else -1.0
        if not least_s <= seconds <= most_s:
            raise Invalid(
                f"option {name}={value!r} is not allowed: give a time with its unit (ms, s, m, h), "
                f"from {least_s:g}s to {most_s:g}s, such as 500ms or 2m"
            )
        return seconds


def _shown(name: str, value: str) -> str:
    """The value for a message, unless it may be a secret."""
    if _SECRET_NAME.search(name) or _SECRET_VALUE.search(str(value)):
        return "not shown, it may hold a secret"
    return repr(value)
