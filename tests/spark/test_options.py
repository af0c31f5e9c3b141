"""The options of the Spark source and sink: which role takes which, what each takes and refuses, and what contradicts
itself. What a user sees of a refusal, and when, is in `test_refusals`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import partq
from partq_spark.spark import options
from partq_spark.spark.options import MOST

Parse = Callable[..., Any]

STORE = "file:///stores/here"
BASE = {"queue": "orders", "store": STORE}
SECRET = "hunter2"
WHEN = "2026-11-20T09:30:00Z"
ROLES: dict[str, Parse] = {
    "load": options.source_options,
    "batch source": options.batch_source_options,
    "stream source": options.stream_source_options,
    "batch sink": options.batch_sink_options,
    "stream sink": options.stream_sink_options,
}
SINKS = [options.batch_sink_options, options.stream_sink_options]
SOURCES = {"load", "batch source", "stream source"}

ALLOWED: dict[str, tuple[str, set[str]]] = {
    "queue": ("orders", {*ROLES}),
    "store": (STORE, {*ROLES}),
    "namespace": ("shop", {*ROLES}),
    "retryTimeout": ("3s", {*ROLES}),
    "includeHeaders": ("true", {*ROLES}),
    "startingOffsets": ("earliest", SOURCES),
    "startingTimestamp": (WHEN, SOURCES),
    "failOnDataLoss": ("false", SOURCES),
    "maxMessagesPerTrigger": ("10", {"load", "stream source"}),
    "maxBytesPerTrigger": ("64m", {"load", "stream source"}),
    "maxDeliveredUnackedMsgsPerFlow": ("10", {"load", "stream source"}),
    "pollInterval": ("50ms", {"load", "stream source"}),
    "group": ("billing", {"load", "stream source"}),
    "endingOffsets": ("latest", {"load", "batch source"}),
    "endingTimestamp": (WHEN, {"load", "batch source"}),
    "topic": ("a/b", {"batch sink", "stream sink"}),
    "compression": ("zstd", {"batch sink", "stream sink"}),
    "failOnUnattractedTopic": ("true", {"batch sink", "stream sink"}),
    "txnAppId": ("job", {"batch sink"}),
    "txnVersion": ("7", {"batch sink"}),
    "checkpointlocation": ("/x", {"stream sink"}),  # Spark puts both there
    "queryname": ("x", {"stream sink"}),
    "maxOffsetsPerTriger": ("77", set()),
}
"""Every option with a value, and the roles that take it. Spark's `.load()` does not tell which source it is."""

GROUP = {
    "ownership": "store",
    "flow": "left",
    "ackMode": "auto",
    "checkpointInterval": "1s",
    "sessionTimeout": "10s",
    "maxPollInterval": "1m",
    "checkpoints": "store",
}
WITH = {
    "txnAppId": {"txnVersion": "1"},
    "txnVersion": {"txnAppId": "job"},
    "failOnUnattractedTopic": {"topic": "a/b"},
    **{name: {"group": "billing", "ownership": "store"} for name in GROUP},
}
"""What an option needs beside it."""
ALLOWED |= {name: (value, {"load", "stream source"}) for name, value in GROUP.items()}


def source(**more: str) -> Any:
    return options.source_options({**BASE, **more})


def sink(**more: str) -> Any:
    return options.batch_sink_options({**BASE, **more})


def stream(**more: str) -> Any:
    return options.stream_source_options({**BASE, **more})


def refused(parse: Parse, *words: str, **more: str) -> None:
    """It is not taken, and each of the words is said."""
    with pytest.raises(partq.Invalid) as caught:
        parse({**BASE, **more})
    for word in words:
        assert word in str(caught.value)


# --- what stands where ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ALLOWED)
def test_each_role_takes_its_options_however_they_are_spelt_and_names_any_other(name: str, role: str) -> None:
    parse, (value, roles) = ROLES[role], ALLOWED[name]
    if role in roles:
        without = {each: said for each, said in (BASE | WITH.get(name, {})).items() if each != name}
        found = parse({**without, name: value})
        assert parse({**without, name.upper(): value}) == found
        if name in WITH:  # none of them says anything alone
            refused(parse, "option", **{name: value})
    else:
        others = "retryTimeout" if not roles else ""  # an option that nobody has: what there is is told
        refused(parse, repr(name), repr(value), others, **{name: value})


@pytest.mark.parametrize("role", ROLES)
def test_a_queue_must_be_named_once_by_a_good_name_in_a_store_with_an_absolute_url(role: str) -> None:
    parse = ROLES[role]
    with pytest.raises(partq.Invalid, match="no queue was named"):
        parse({"store": STORE})
    refused(parse, "'orders'", "'bills'", path="bills")
    for name in ("a/b", "_x", ".x", "-x", "ä", "x" * 64, "a b", "../x"):
        for option in ("queue", "namespace"):
            refused(parse, f"{option} name {name!r} is not allowed", **{option: name})
    for store in ("file:data", "file:./data", "data", "/data", "gs://bucket", "s3://", "file://", "file:///"):
        refused(parse, "store", store=store)


# --- what a value may be ----------------------------------------------------------------------------------------------

AT = source(startingTimestamp=WHEN).start
TAKEN: list[tuple[dict[str, str], str, Any]] = [
    *(
        ({}, name, default)
        for name, default in (
            *(("group", None), ("start", None), ("max_messages", None), ("max_bytes", None), ("end.edge", "latest")),
            *(("max_delivered_unacked", None), ("poll_interval_s", None), ("include_headers", False)),
            *(("fail_on_data_loss", True), ("target.retry_timeout_s", 120.0), ("target.namespace", "default")),
        )
    ),
    ({"path": "Orders"}, "target.queue", "orders"),
    ({"namespace": "Shop"}, "target.namespace", "shop"),
    ({"store": "file:///stores//here/x/.."}, "target.store", STORE),
    ({"store": "azure://container/prefix/"}, "target.store", "azure://container/prefix"),
    *(({"failOnDataLoss": text}, "fail_on_data_loss", text == "TRUE") for text in ("TRUE", "False", " false ")),
    *(({"maxMessagesPerTrigger": text}, "max_messages", n) for text, n in (("1", 1), (" 20 ", 20), (str(MOST), MOST))),
    *(
        ({"maxBytesPerTrigger": text}, "max_bytes", size)
        for text, size in (("1", 1), ("1b", 1), ("2k", 2048), ("2KB", 2048), ("64m", 64 << 20), ("1 g", 1 << 30))
    ),
    *(
        ({"pollInterval": text}, "poll_interval_s", seconds)
        for text, seconds in (("0s", 0.0), ("50ms", 0.05), ("1.5s", 1.5), ("1 s", 1.0), ("1m", 60.0))
    ),
    ({"startingOffsets": "LATEST"}, "start.edge", "latest"),
    ({"startingOffsets": f'{{"0": 0, "12": {MOST}}}'}, "start.offsets", {0: 0, 12: MOST}),
    ({"endingOffsets": "earliest"}, "end.edge", "earliest"),
    ({"endingTimestamp": "2026-11-20T10:30:00+01:00"}, "end", AT),
    ({"startingTimestamp": WHEN}, "start.time_us", 1_795_167_000_000_000),
]


@pytest.mark.parametrize(("given_options", "name", "value"), TAKEN, ids=str)
def test_values_that_are_taken(given_options: dict[str, str], name: str, value: Any) -> None:
    found = source(**given_options)
    for each in name.split("."):
        found = getattr(found, each)
    assert found == (pytest.approx(value) if isinstance(value, float) else value)


BAD = {
    "failOnDataLoss": ("give true or false", ["yes", "1", "0", "truee", "none"]),
    "includeHeaders": ("give true or false", ["yes", "1"]),
    "maxMessagesPerTrigger": ("", ["0", "-1", "1.5", "many", "1e3", "1_000", "٣", str(MOST + 1), "9" * 5000]),
    "maxBytesPerTrigger": ("", ["0", "0m", "-1", "1.5m", "m", "1x", "1mm", "9000000t", "9" * 5000]),
    "maxDeliveredUnackedMsgsPerFlow": ("", ["0"]),
    "retryTimeout": ("ms, s, m, h", ["5", "-1s", "s", "1 day", "nan s", "25h", "1S"]),
    "pollInterval": ("ms, s, m, h", ["100", "61s", "1m1s", "fast"]),
    "startingOffsets": (
        "earliest, latest, or JSON naming every partition",
        [
            *("newest", "12", "[1, 2]", "{}", "{", '"earliest"', "null", "true"),
            *('{"0": -1}', '{"0": 1.0}', '{"0": true}', '{"0": null}', '{"0": "1"}', '{"a": 1}', '{"-1": 1}'),
            *('{"": 1}', '{"0": 1, "0": 2}', '{"0": 1, "00": 2}', '{"0": {"1": 2}}', "[" * 100_000),
        ],
    ),
    "endingOffsets": ("earliest, latest, or JSON naming every partition", ["newest"]),
    "startingTimestamp": ("", ["2026-11-20", "2026-11-20T09:30:00", "yesterday", "1795167000", "2026-13-01T00:00:00Z"]),
    "endingTimestamp": ("", ["yesterday"]),
}


@pytest.mark.parametrize("name", BAD)
def test_values_that_are_refused_with_what_is_allowed(name: str) -> None:
    allowed, texts = BAD[name]
    for text in texts:
        refused(options.source_options, f"{name}={text!r} is not allowed", allowed, **{name: text})
    for blank in ("", "  "):  # mostly a variable that was not set; a default in its place might be another store
        refused(options.source_options, f"{name!r} is empty", **{name: blank})


# --- sinks ------------------------------------------------------------------------------------------------------------


def test_compression_and_transactions() -> None:
    written = sink()
    assert (written.compression, written.transaction, written.include_headers) == ("lz4", None, False)
    assert written.where.target("orders") == source().target
    for text in ("none", "lz4", "zstd", "LZ4"):
        assert sink(compression=text).compression == text.lower()
    refused(options.batch_sink_options, "compression='gzip' is not allowed: give none, lz4 or zstd", compression="gzip")
    assert sink(txnAppId="job", txnVersion="0").transaction == ("job", 0)
    assert sink(txnAppId="ä" * 127, txnVersion=str(MOST)).transaction == ("ä" * 127, MOST)
    refused(options.batch_sink_options, "1 to 255 bytes", txnAppId="ä" * 128, txnVersion="1")
    refused(options.batch_sink_options, "option 'txnVersion' is missing", txnAppId="job")
    refused(options.batch_sink_options, "option 'txnAppId' is missing", txnVersion="1")
    for version in ("-1", "1.0", "one", str(MOST + 1), "9" * 5000):
        refused(options.batch_sink_options, f"txnVersion={version!r} is not", txnAppId="job", txnVersion=version)


@pytest.mark.conformance("DIS-07")
@pytest.mark.parametrize("parse", SINKS)
def test_with_a_topic_no_queue_need_be_named(parse: Parse) -> None:
    strict = {"store": STORE, "failOnUnattractedTopic": "true"}
    for given_options, by_column, found in (
        (strict | {"Topic": "orders/eu"}, False, (None, "orders/eu", True)),
        (strict, True, (None, None, True)),
        (BASE | {"topic": "orders/eu"}, True, ("orders", "orders/eu", False)),
        ({"path": "Orders", "store": STORE}, True, ("orders", None, False)),
    ):
        made = parse(given_options, topic_column=by_column)
        assert (made.queue, made.topic, made.fail_on_unattracted) == found
    refused(parse, "'failOnUnattractedTopic' (value 'true') is for", failOnUnattractedTopic="true")
    for topic, place in (("a//b", "level 2 is empty"), ("a/*", "level 2 ('*') holds '*'"), (">", "holds '>'")):
        refused(parse, f"option topic {topic!r} is not allowed", place, topic=topic)


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_has_defaults_its_ownership_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARTQ_OWNERSHIP", raising=False)
    found = stream(group="Billing", flow="Left").group
    assert (found.name, found.flow, found.ownership, found.keep_offsets) == ("billing", "left", "none", True)
    assert (found.manual_acks, found.checkpoint_interval_s) == (False, None)
    assert (found.session_timeout_s, found.max_poll_interval_s) == (10.0, None)
    assert stream(group="billing", **GROUP).group.max_poll_interval_s == 60.0
    assert stream(group="billing", ownership="redis://Host").group.ownership == "redis://Host:6379/0"
    assert not stream(group="billing", checkpoints="none").group.keep_offsets
    monkeypatch.setenv("PARTQ_OWNERSHIP", "redis://host:7000/3")
    assert stream(group="billing", sessionTimeout="7s").group.ownership == "redis://host:7000/3"
    assert stream(group="billing", ownership="none").group.ownership == "none"
    assert stream().group is None, "without a group it says nothing"

    by_hand = {"group": "billing", "ackMode": "MANUAL", "flow": "left"}
    found = stream(**by_hand)
    assert (found.group.manual_acks, found.max_delivered_unacked) == (True, 10_000), "what is in hand has a bound"
    assert stream(**by_hand, maxDeliveredUnackedMsgsPerFlow="7").max_delivered_unacked == 7


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
        *(
            ({f"{edge}Offsets": "earliest", f"{edge}Timestamp": WHEN}, f"and {edge}Timestamp='{WHEN}' contradict")
            for edge in ("starting", "ending")
        ),
    ],
)
def test_what_contradicts_itself_is_refused(more: dict[str, str], said: str) -> None:
    refused(options.source_options, said, **{"group": "billing", **more})


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, SECRET) for name in ("accountKey", "password", "sas_token", "apiSecret")),
        ("connectionString", f"AccountName=a;AccountKey={SECRET}"),
        ("endpoint", f"AccountName=a;AccountKey={SECRET}"),
        ("ownership", f"redis://user:{SECRET}@host/0"),
        ("ownership", f"rediss://:{SECRET}@host/0"),
        ("store", f"azure://user:{SECRET}@container/x"),
        ("store", f"azure://container/x?sig={SECRET}"),
        ("store", f"DefaultEndpointsProtocol=https;AccountKey={SECRET}"),
    ],
)
def test_what_may_be_secret_is_not_repeated(role: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTQ_OWNERSHIP", f"redis://:{SECRET}@host")
    for more in ({name: value}, {name: value, "group": "billing"}):
        with pytest.raises(partq.Invalid) as caught:
            ROLES[role]({**BASE, **more})
        assert SECRET not in str(caught.value)
