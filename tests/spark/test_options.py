"""The options of the Spark source and sink: where each may stand, the queue, its store, topics, and secrets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partq_spark.log.connect import NamespaceAddress, QueueAddress
from partq_spark.query.settings import Boundary, SourceOptions
from partq_spark.spark import options
from partq_spark.spark.options import SinkOptions
from tests.spark.option_cases import (
    BASE,
    BATCH_SOURCE,
    EVERYWHERE,
    GROUP,
    ROLES,
    SECRET,
    SINK,
    SINKS,
    SOURCE,
    STORE,
    STREAM_SOURCE,
    refused,
    sink,
    source,
)

# --- what stands where ------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    target = QueueAddress(store=STORE, namespace="default", queue="orders", retry_timeout_s=120.0)
    assert source() == SourceOptions(
        target=target,
        group=None,
        start=None,
        end=Boundary(edge="latest"),
        max_messages=None,
        max_bytes=None,
        max_delivered_unacked=None,
        fail_on_data_loss=True,
        include_headers=False,
        poll_interval_s=None,
    )
    assert sink() == SinkOptions(
        where=NamespaceAddress(store=STORE, namespace="default", retry_timeout_s=120.0),
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


# --- secrets ----------------------------------------------------------------------------------------------------------


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
