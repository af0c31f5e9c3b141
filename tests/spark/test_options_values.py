"""What single options take and what they refuse: values, places in a queue, transactions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.query.settings import Boundary
from partq_spark.spark import options
from partq_spark.spark.option_values import MOST
from tests.spark.option_cases import (
    BASE,
    refused,
    sink,
    source,
)

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
        ("earliest", Boundary(edge="earliest")),
        ("LATEST", Boundary(edge="latest")),
        ('{"0": 12, "1": 7}', Boundary(offsets={0: 12, 1: 7})),
    ],
)
def test_offsets(text: str, place: Boundary) -> None:
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
    assert source(startingOffsets=text).start == Boundary(offsets=offsets)


def test_timestamps() -> None:
    at = Boundary(time_us=1_795_167_000_000_000)
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
