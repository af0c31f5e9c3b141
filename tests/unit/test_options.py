"""The options of the Spark source and sink: each with what it takes, what it refuses, and where it may stand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark import options
from partq_spark.errors import Invalid
from partq_spark.options import GroupOptions, Place, SinkOptions, SourceOptions, Target, Where
from partq_spark.options_given import MOST

STORE = "file:///stores/here"
BASE = {"queue": "orders", "store": STORE}

SOURCES: list[Callable[[dict[str, str]], SourceOptions]] = [
    options.source_options,
    options.batch_source_options,
    options.stream_source_options,
]
SINKS: list[Callable[[dict[str, str]], SinkOptions]] = [options.batch_sink_options, options.stream_sink_options]
ROLES = [*SOURCES, *SINKS]

EVERYWHERE = {
    "queue": "orders",
    "store": STORE,
    "namespace": "shop",
    "retryTimeout": "3s",
    "includeHeaders": "true",
}
SOURCE = {"startingOffsets": "earliest", "startingTimestamp": "2026-11-20T09:30:00Z", "failOnDataLoss": "false"}
STREAM_SOURCE = {
    "maxMessagesPerTrigger": "10",
    "maxBytesPerTrigger": "64m",
    "maxDeliveredUnackedMsgsPerFlow": "10",
    "pollInterval": "50ms",
}
BATCH_SOURCE = {"endingOffsets": "latest", "endingTimestamp": "2026-11-20T09:30:00Z"}
SINK = {"topic": "a/b", "compression": "lz4"}
GROUP = {
    "group": "billing",
    "ownership": "store",
    "flow": "left",
    "ackMode": "auto",
    "checkpointInterval": "1s",
    "sessionTimeout": "10s",
    "maxPollInterval": "1m",
    "checkpoints": "store",
}


def source(**more: str) -> SourceOptions:
    return options.source_options({**BASE, **more})


def sink(**more: str) -> SinkOptions:
    return options.batch_sink_options({**BASE, **more})


def refused(parse: Callable[[dict[str, str]], object], given_options: dict[str, str]) -> str:
    with pytest.raises(Invalid) as caught:
        parse(given_options)
    return str(caught.value)


# --- what stands where ------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    target = Target(store=STORE, namespace="default", queue="orders", retry_timeout_s=120.0)
    assert source() == SourceOptions(
        target=target,
        group=None,
        start=None,
        end=Place(edge="latest"),
        max_messages=None,
        max_bytes=None,
        max_delivered_unacked=None,
        fail_on_data_loss=True,
        include_headers=False,
        poll_interval_s=None,
    )
    assert sink() == SinkOptions(
        where=Where(store=STORE, namespace="default", retry_timeout_s=120.0),
        queue="orders",
        topic=None,
        fail_on_unattracted=False,
        compression="lz4",
        include_headers=False,
        transaction=None,
    )
    assert sink().where.target("orders") == target


@pytest.mark.parametrize("parse", ROLES)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_what_every_role_takes(parse: Callable[[dict[str, str]], object], name: str) -> None:
    parse({**BASE, name: EVERYWHERE[name]})


@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_names_are_case_insensitive(spell: Callable[[str], str]) -> None:
    wanted = {**EVERYWHERE, **STREAM_SOURCE, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    assert options.stream_source_options({spell(name): value for name, value in wanted.items()}) == (
        options.stream_source_options(wanted)
    )


@pytest.mark.parametrize("parse", ROLES)
def test_an_unknown_option_is_refused_with_name_value_and_what_is_allowed(
    parse: Callable[[dict[str, str]], object],
) -> None:
    message = refused(parse, {**BASE, "maxOffsetsPerTriger": "77"})
    assert "'maxOffsetsPerTriger'" in message
    assert "'77'" in message
    for allowed in ("queue", "store", "namespace", "retryTimeout", "includeHeaders"):
        assert allowed in message


@pytest.mark.parametrize(
    ("parse", "names"),
    [
        (options.batch_source_options, STREAM_SOURCE),
        (options.batch_source_options, GROUP),
        (options.batch_sink_options, GROUP),
        (options.batch_source_options, {**SINK, "failOnUnattractedTopic": "true"}),
        (options.stream_source_options, SINK),
        (options.stream_source_options, BATCH_SOURCE),
        (options.stream_sink_options, {"txnAppId": "job", "txnVersion": "1"}),
        (options.batch_source_options, {"compression": "lz4", "txnAppId": "job", "checkpointLocation": "/x"}),
        (options.stream_source_options, {"compression": "lz4", "txnVersion": "1", "queryName": "x"}),
        (options.batch_sink_options, {**SOURCE, **STREAM_SOURCE, **BATCH_SOURCE}),
        (options.stream_sink_options, {**SOURCE, **STREAM_SOURCE, **BATCH_SOURCE}),
    ],
)
def test_an_option_of_another_role_is_refused(parse: Callable[[dict[str, str]], object], names: dict[str, str]) -> None:
    for name, value in names.items():
        message = refused(parse, {**BASE, name: value})
        assert repr(name) in message
        assert repr(value) in message


def test_load_takes_what_either_source_takes_because_spark_does_not_tell_which() -> None:
    source(**STREAM_SOURCE, endingOffsets="latest")


def test_a_stream_sink_takes_what_spark_puts_among_its_options() -> None:
    options.stream_sink_options({**BASE, "checkpointlocation": "/x", "queryname": "publish"})


# --- the queue and its store ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parse", ROLES)
def test_the_queue_is_required(parse: Callable[[dict[str, str]], object]) -> None:
    assert "no queue was named" in refused(parse, {"store": STORE})


def test_the_path_names_the_queue_too() -> None:
    assert options.source_options({"path": "Orders", "store": STORE}).target.queue == "orders"
    assert options.source_options({"path": "Orders", "queue": "orders", "store": STORE}).target.queue == "orders"


def test_two_queues_are_one_too_many() -> None:
    message = refused(options.source_options, {**BASE, "path": "bills"})
    assert "'orders'" in message
    assert "'bills'" in message


@pytest.mark.parametrize("name", ["a/b", "_x", ".x", "-x", "ä", "x" * 64, "a b", "../x"])
@pytest.mark.parametrize("option", ["queue", "namespace"])
def test_bad_names_are_refused(option: str, name: str) -> None:
    message = refused(options.source_options, {**BASE, option: name})
    assert f"{option} name {name!r} is not allowed" in message


def test_names_are_lower_cased_at_the_edge() -> None:
    assert source(namespace="Shop").target.namespace == "shop"


def test_the_store_is_written_in_its_canonical_form() -> None:
    assert source(store="file:///stores//here/x/..").target.store == STORE
    assert source(store="azure://container/prefix/").target.store == "azure://container/prefix"


@pytest.mark.parametrize("store", ["file:data", "file:./data", "data", "/data", "s3://bucket", "file://", "file:///"])
def test_a_store_that_is_no_absolute_url_is_refused(store: str) -> None:
    assert "store" in refused(options.source_options, {**BASE, "store": store})


def test_the_default_store_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTQ_STORE", "file:///from/variable")
    assert options.source_options({"queue": "orders"}).target.store == "file:///from/variable"
    monkeypatch.delenv("PARTQ_STORE")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert options.source_options({"queue": "orders"}).target.store == "file:///home/somebody/.partq"


@pytest.mark.parametrize("name", [*EVERYWHERE, *SOURCE, *STREAM_SOURCE, *BATCH_SOURCE])
def test_an_empty_value_is_no_value(name: str) -> None:
    """It is mostly a variable that was not set; a default in its place might be another store."""
    for blank in ("", "  "):
        assert f"{name!r} is empty" in refused(options.source_options, {**BASE, name: blank})


# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("DIS-07")
@pytest.mark.parametrize("parse", SINKS)
def test_with_a_topic_no_queue_need_be_named(parse: Callable[..., SinkOptions]) -> None:
    by_option = parse({"store": STORE, "Topic": "orders/eu", "failOnUnattractedTopic": "true"})
    assert (by_option.queue, by_option.topic, by_option.fail_on_unattracted) == (None, "orders/eu", True)
    by_column = parse({"store": STORE, "failOnUnattractedTopic": "true"}, topic_column=True)
    assert (by_column.queue, by_column.topic, by_column.fail_on_unattracted) == (None, None, True)
    both = parse({**BASE, "topic": "orders/eu"}, topic_column=True)
    assert (both.queue, both.topic) == ("orders", "orders/eu")
    assert parse({"path": "Orders", "store": STORE}, topic_column=True).queue == "orders"


@pytest.mark.conformance("DIS-07")
@pytest.mark.parametrize("parse", SINKS)
@pytest.mark.parametrize(
    ("topic", "place"), [("a//b", "level 2 is empty"), ("a/*", "level 2 ('*') holds '*'"), (">", "holds '>'")]
)
def test_a_malformed_topic_is_refused(parse: Callable[..., SinkOptions], topic: str, place: str) -> None:
    message = refused(parse, {**BASE, "topic": topic})
    assert message.startswith(f"option topic {topic!r} is not allowed")
    assert place in message


@pytest.mark.parametrize("parse", SINKS)
def test_what_is_for_topics_is_refused_without_them(parse: Callable[..., SinkOptions]) -> None:
    message = refused(parse, {**BASE, "failOnUnattractedTopic": "true"})
    assert "'failOnUnattractedTopic'" in message
    assert "column topic" in message
    assert "no topic" in refused(parse, {"store": STORE})


# --- consumer groups --------------------------------------------------------------------------------------------------


def group(**more: str) -> GroupOptions:
    found = options.stream_source_options({**BASE, "group": "Billing", **more}).group
    assert found is not None
    return found


def test_a_group_has_defaults_and_its_names_are_lower_cased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARTQ_OWNERSHIP", raising=False)
    assert options.stream_source_options(BASE).group is None
    assert group(flow="Left") == GroupOptions(
        name="billing",
        ownership="none",
        keep_offsets=True,
        flow="left",
        checkpoint_interval_s=None,
        session_timeout_s=10.0,
        max_poll_interval_s=None,
    )
    assert group(ownership="redis://Host").ownership == "redis://Host:6379/0"
    assert group(**{**GROUP, "group": "billing"}).max_poll_interval_s == 60.0
    assert not group(checkpoints="none").keep_offsets


def test_the_default_ownership_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTQ_OWNERSHIP", "redis://host:7000/3")
    assert group().ownership == "redis://host:7000/3"
    assert group(sessionTimeout="7s").session_timeout_s == 7.0
    assert group(ownership="none").ownership == "none"
    assert options.stream_source_options(BASE).group is None, "without a group it says nothing"
    monkeypatch.setenv("PARTQ_OWNERSHIP", f"redis://:{SECRET}@host")
    assert SECRET not in refused(options.stream_source_options, {**BASE, "group": "billing"})


@pytest.mark.parametrize("name", [each for each in GROUP if each != "group"])
def test_what_is_for_groups_is_refused_without_one(name: str) -> None:
    message = refused(options.stream_source_options, {**BASE, name: GROUP[name]})
    assert f"'{name}'" in message
    assert "group" in message


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ownership": "none", "sessionTimeout": "9s"}, "'sessionTimeout'"),
        ({"ownership": "none", "maxPollInterval": "9s"}, "'maxPollInterval'"),
        ({"ownership": "kafka"}, "redis://host:port/db"),
        ({"ownership": "store", "sessionTimeout": "4s"}, "from 5s"),
        ({"checkpoints": "none", "checkpointInterval": "1s"}, "'checkpointInterval'"),
        ({"checkpoints": "redis"}, "give store or none"),
        ({"ackMode": "manual"}, "ackMode='manual' needs the option flow"),
        ({"ackMode": "manual", "flow": "left", "checkpoints": "none"}, "ackMode='manual' and checkpoints='none'"),
        ({"ackMode": "sometimes"}, "give auto or manual"),
        ({"flow": "no spaces"}, "flow name 'no spaces'"),
        ({"group": "_segments"}, "begin with '_'"),
        ({"maxDeliveredUnackedMsgsPerFlow": "0"}, "maxDeliveredUnackedMsgsPerFlow='0'"),
    ],
)
def test_what_contradicts_itself_in_a_group_is_refused(more: dict[str, str], said: str) -> None:
    assert said in refused(options.stream_source_options, {**BASE, "group": "billing", **more})


def test_by_hand_there_is_a_bound_for_what_is_in_hand() -> None:
    base = {**BASE, "group": "billing"}
    manual = options.stream_source_options({**base, "ackMode": "MANUAL", "flow": "left"})
    assert manual.group is not None
    assert manual.group.by_hand
    assert manual.max_delivered_unacked == 10_000
    given = {**base, "ackMode": "manual", "flow": "left", "maxDeliveredUnackedMsgsPerFlow": "7"}
    assert options.stream_source_options(given).max_delivered_unacked == 7
    assert options.stream_source_options(base).max_delivered_unacked is None


# --- secrets ----------------------------------------------------------------------------------------------------------

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accountKey", SECRET),
        ("password", SECRET),
        ("sas_token", SECRET),
        ("connectionString", f"AccountName=a;AccountKey={SECRET}"),
        ("endpoint", f"AccountName=a;AccountKey={SECRET}"),
        ("ownership", f"redis://user:{SECRET}@host/0"),
        ("ownership", f"rediss://:{SECRET}@host/0"),
        ("store", f"azure://user:{SECRET}@container/x"),
        ("store", f"azure://container/x?sig={SECRET}"),
        ("store", f"DefaultEndpointsProtocol=https;AccountKey={SECRET}"),
    ],
)
@pytest.mark.parametrize("parse", ROLES)
def test_what_may_be_a_secret_is_never_repeated(
    parse: Callable[[dict[str, str]], object], name: str, value: str
) -> None:
    assert SECRET not in refused(parse, {**BASE, name: value})


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TRUE", True), ("False", False), (" false ", False)])
def test_booleans(text: str, value: bool) -> None:
    assert source(failOnDataLoss=text).fail_on_data_loss is value
    assert source(includeHeaders=text).include_headers is value
    assert sink(includeHeaders=text).include_headers is value


@pytest.mark.parametrize("name", ["failOnDataLoss", "includeHeaders"])
@pytest.mark.parametrize("text", ["yes", "1", "0", "truee", "none"])
def test_bad_booleans(name: str, text: str) -> None:
    assert f"{name}={text!r} is not allowed: give true or false" in refused(
        options.source_options, {**BASE, name: text}
    )


@pytest.mark.parametrize(("text", "value"), [("1", 1), (" 20 ", 20), (str(MOST), MOST)])
def test_counts(text: str, value: int) -> None:
    assert source(maxMessagesPerTrigger=text).max_messages == value


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "1e3", "1_000", "٣", str(MOST + 1), "9" * 5000])
def test_bad_counts(text: str) -> None:
    message = refused(options.source_options, {**BASE, "maxMessagesPerTrigger": text})
    assert f"maxMessagesPerTrigger={text!r} is not allowed" in message


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1b", 1), ("2k", 2048), ("2KB", 2048), ("64m", 64 << 20), ("1 g", 1 << 30), ("3t", 3 << 40)],
)
def test_sizes(text: str, value: int) -> None:
    assert source(maxBytesPerTrigger=text).max_bytes == value


@pytest.mark.parametrize("text", ["0", "0m", "-1", "1.5m", "m", "1x", "1mm", "9000000t", "9" * 5000])
def test_bad_sizes(text: str) -> None:
    message = refused(options.source_options, {**BASE, "maxBytesPerTrigger": text})
    assert f"maxBytesPerTrigger={text!r} is not allowed" in message


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0.0), ("50ms", 0.05), ("1.5s", 1.5), ("1 s", 1.0), ("2m", 120.0), ("1h", 3600.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert source(retryTimeout=text).target.retry_timeout_s == pytest.approx(seconds)
    assert sink(retryTimeout=text).where.retry_timeout_s == pytest.approx(seconds)
    if seconds <= 60:
        assert source(pollInterval=text).poll_interval_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("retryTimeout", text) for text in ("5", "-1s", "s", "1 day", "nan s", "25h", "1S")),
        *(("pollInterval", text) for text in ("100", "61s", "1m1s", "fast")),
    ],
)
def test_bad_durations_name_the_unit(name: str, text: str) -> None:
    message = refused(options.source_options, {**BASE, name: text})
    assert f"{name}={text!r} is not allowed" in message
    assert "ms, s, m, h" in message


@pytest.mark.parametrize("text", ["none", "lz4", "zstd", "LZ4"])
def test_compressions(text: str) -> None:
    assert sink(compression=text).compression == text.lower()


def test_bad_compression() -> None:
    assert "compression='gzip' is not allowed: give none, lz4 or zstd" in refused(
        options.batch_sink_options, {**BASE, "compression": "gzip"}
    )


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Place(edge="earliest")),
        ("LATEST", Place(edge="latest")),
        ('{"0": 12, "1": 7}', Place(offsets={0: 12, 1: 7})),
    ],
)
def test_offsets(text: str, place: Place) -> None:
    assert source(startingOffsets=text).start == place
    assert source(endingOffsets=text).end == place


@pytest.mark.parametrize(
    "text",
    [
        *("newest", "12", "[1, 2]", "{}", "{", '"earliest"', "null", "true"),
        *('{"0": -1}', '{"0": 1.0}', '{"0": true}', '{"0": null}', '{"0": "1"}', '{"a": 1}', '{"-1": 1}', '{"": 1}'),
        *('{"0": 1, "0": 2}', '{"0": 1, "00": 2}', '{"0": {"1": 2}}', "[" * 100_000),
    ],
)
@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_bad_offsets(name: str, text: str) -> None:
    message = refused(options.source_options, {**BASE, name: text})
    assert f"{name}={text!r} is not allowed" in message
    assert "earliest, latest, or JSON naming every partition" in message


@given(st.dictionaries(st.integers(0, 2000), st.integers(0, MOST), min_size=1))
def test_offsets_are_read_as_they_were_written(offsets: dict[int, int]) -> None:
    text = "{" + ", ".join(f'"{partition}": {offset}' for partition, offset in offsets.items()) + "}"
    assert source(startingOffsets=text).start == Place(offsets=offsets)


def test_timestamps() -> None:
    at = Place(time_us=1_795_167_000_000_000)
    assert source(startingTimestamp="2026-11-20T09:30:00Z").start == at
    assert source(endingTimestamp="2026-11-20T10:30:00+01:00").end == at


@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize(
    "text", ["2026-11-20", "2026-11-20T09:30:00", "yesterday", "1795167000", "2026-13-01T00:00:00Z"]
)
def test_bad_timestamps(name: str, text: str) -> None:
    assert f"{name}={text!r} is not allowed" in refused(options.source_options, {**BASE, name: text})


@pytest.mark.parametrize("edge", ["starting", "ending"])
def test_a_place_by_offset_and_by_time_contradicts_itself(edge: str) -> None:
    both = {**BASE, f"{edge}Offsets": "earliest", f"{edge}Timestamp": "2026-11-20T09:30:00Z"}
    message = refused(options.source_options, both)
    assert f"{edge}Offsets='earliest'" in message
    assert f"{edge}Timestamp='2026-11-20T09:30:00Z'" in message
    assert "contradict" in message


# --- transactions -----------------------------------------------------------------------------------------------------


def test_a_transaction() -> None:
    assert sink(txnAppId="job", txnVersion="0").transaction == ("job", 0)
    assert sink(txnAppId="job", txnVersion=str(MOST)).transaction == ("job", MOST)


@pytest.mark.parametrize(
    ("given_one", "missing"), [({"txnAppId": "job"}, "txnVersion"), ({"txnVersion": "1"}, "txnAppId")]
)
def test_half_a_transaction_is_refused(given_one: dict[str, str], missing: str) -> None:
    assert f"option '{missing}' is missing" in refused(options.batch_sink_options, {**BASE, **given_one})


@pytest.mark.parametrize("version", ["-1", "1.0", "one", str(MOST + 1), "9" * 5000])
def test_bad_versions(version: str) -> None:
    message = refused(options.batch_sink_options, {**BASE, "txnAppId": "job", "txnVersion": version})
    assert f"txnVersion={version!r} is not allowed" in message


def test_an_application_id_has_a_limit_in_bytes() -> None:
    assert sink(txnAppId="ä" * 127, txnVersion="1").transaction == ("ä" * 127, 1)
    assert "1 to 255 bytes" in refused(options.batch_sink_options, {**BASE, "txnAppId": "ä" * 128, "txnVersion": "1"})
