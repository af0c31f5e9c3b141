"""`partq publish` is one publish or none: repetitions under an id, bad rows at the end, and Ctrl-C."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from partq_spark.base.errors import Invalid
from partq_spark.client.files import messages as messages_module
from partq_spark.client.files.messages import CHUNK_BYTES
from partq_spark.client.publication import Publication
from partq_spark.log.partitioner import partition_of
from partq_spark.spark import options as options_module
from partq_spark.spark.writer import PartqBatchWriter
from tests.cli.conftest import Partq, json_lines, nothing_is_published, written

# --- one publish ------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("DIS-08")
def test_many_messages_are_one_publish_with_one_timestamp(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 4)
    padding = " " * (3 * CHUNK_BYTES // 1000)  # a few chunks
    rows = [{"key": f"k{i % 10}", "value": str(i) + padding} for i in range(1000)]
    done = partq.json("publish", "orders", stdin=json_lines(rows))
    assert (done["published"], done["messages"], done["without_key"]) == (True, 1000, 0)
    found = partq.browse("orders")
    assert {each["timestamp"] for each in found} == {done["timestamp"]}
    assert partq.json("queue", "describe", "orders")["head"]["sequence"] == done["sequence"] == 2
    for each in found:
        assert each["partition"] == partition_of(each["key"].encode(), 4)
    for key in {each["key"] for each in found}:
        values = [int(each["value"]) for each in found if each["key"] == key]
        assert values == sorted(values)
        assert len(values) == 100
    counted = {p["partition"]: p["messages"] for p in done["partitions"]}
    assert counted == {p: len([each for each in found if each["partition"] == p]) for p in counted}


@pytest.mark.conformance("DIS-08")
def test_a_bad_row_at_the_end_of_much_leaves_nothing_visible_and_no_object(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 4)
    rows = [{"key": f"k{i}", "value": "x" * 100} for i in range(20_000)]
    message = partq.error("publish", "orders", stdin=json_lines([*rows, {"key": "bad"}]))
    assert message.startswith("standard input line 20001 has no value")
    assert nothing_is_published(partq)
    assert list(partq.store.rglob("_segments/**/*.*")) == []


@pytest.mark.conformance("DIS-09")
def test_a_publish_id_makes_a_repetition_do_nothing_and_say_so(orders: Partq) -> None:
    rows = json_lines([{"value": "a"}, {"value": "b"}])
    first = orders.json("publish", "orders", "--publish-id", "import 7", stdin=rows)
    assert (first["published"], first["already_published"]) == (True, False)
    orders("publish", "orders", "--publish-id", "another", stdin=rows)
    again = orders.json("publish", "orders", "--publish-id", "import 7", stdin=rows)
    assert again == {
        "published": False,
        "already_published": True,
        "messages": 0,
        "without_key": 0,
        "partitions": [],
        "sequence": first["sequence"],
        "timestamp": first["timestamp"],
    }
    text = orders("publish", "orders", "--publish-id", "import 7", stdin=rows).stdout
    assert text.startswith("Already published: 'import 7' came to queue 'orders'")
    assert text.endswith("Nothing was added.\n")
    assert [value for _, value in orders.messages("orders")] == ["a", "b", "a", "b"]


def test_a_repetition_does_not_even_look_at_the_file(orders: Partq, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "key,value\na,b\n")
    orders("publish", "orders", "--publish-id", "p", "--file", path)
    written(path, "nothing, that\nis a, csv, file\n")
    assert orders.json("publish", "orders", "--publish-id", "p", "--file", path)["already_published"] is True


def test_a_repetition_reads_its_input_to_the_end(orders: Partq) -> None:
    """Or the program that writes it would die of a broken pipe, and the whole pipeline fail."""
    orders("publish", "orders", "--publish-id", "p", stdin='{"value":"a"}\n')
    stdin = io.BytesIO(b'{"value":"a"}\n' * 10)
    orders("publish", "orders", "--publish-id", "p", stdin=stdin)  # type: ignore[arg-type]  # CliRunner takes files too
    assert stdin.read() == b""


def test_two_who_publish_under_one_id_at_once_leave_one_copy(orders: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one publishes while this one has staged, but not yet swapped."""
    commit = Publication.commit
    rows = json_lines([{"value": "a"}])
    monkeypatch.setattr(
        Publication,
        "commit",
        lambda *a: (
            monkeypatch.setattr(Publication, "commit", commit),
            orders("publish", "orders", "--publish-id", "p", stdin=rows),
            commit(*a),
        )[-1],
    )
    assert orders.json("publish", "orders", "--publish-id", "p", stdin=rows)["already_published"] is True
    assert orders.messages("orders") == [(None, "a")]


@pytest.mark.parametrize("publish_id", ["", "x" * 256, "a\nb"])
def test_a_bad_publish_id_is_wrong_use(orders: Partq, publish_id: str) -> None:
    assert "1 to 255 bytes" in orders.misuse("publish", "orders", f"--publish-id={publish_id}", stdin='{"value":"a"}')


def test_messages_without_a_key_go_where_their_publish_id_says(partq: Partq) -> None:
    rows = json_lines({"value": str(i)} for i in range(200))
    placed = []
    for queue in ("a", "b"):
        partq("queue", "create", queue, "--partitions", 8)
        partq("publish", queue, "--publish-id", "same", stdin=rows)
        placed.append(sorted((each["value"], each["partition"]) for each in partq.browse(queue)))
    assert placed[0] == placed[1]
    assert len({partition for _, partition in placed[0]}) == 8


# --- interrupts -------------------------------------------------------------------------------------------------------


def interrupting(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let Ctrl-C come `times` times when everything is staged and the swap is about to be made."""
    commit: Callable[..., Any] = Publication.commit

    def interrupted(*arguments: Any) -> Any:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
        return commit(*arguments)

    monkeypatch.setattr(Publication, "commit", interrupted)


def test_ctrl_c_while_reading_publishes_nothing_and_says_so(orders: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    check = messages_module.check

    def interrupted(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        check(*arguments)

    monkeypatch.setattr(messages_module, "check", interrupted)
    assert orders.error("publish", "orders", stdin='{"value":"a"}\n') == "interrupted: nothing was published"
    assert nothing_is_published(orders)
    assert list(orders.store.rglob("_segments/**/*.*")) == []


def test_ctrl_c_during_the_swap_waits_until_the_outcome_is_known(
    orders: Partq, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupting(monkeypatch, times=1)
    done = orders("publish", "orders", stdin='{"value":"a"}\n')
    assert done.stdout.startswith("Published 1 message ")
    assert "interrupt again to give up waiting" in done.stderr
    assert orders.messages("orders") == [(None, "a")]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_during_the_swap_does_not_pretend_to_know(
    orders: Partq, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupting(monkeypatch, times=2)
    failed = orders("publish", "orders", code=1, stdin='{"value":"a"}\n').stderr
    assert "it may be done or not; look with `partq browse` before repeating it" in failed
    failed = orders("publish", "orders", "--publish-id", "p", code=1, stdin='{"value":"a"}\n').stderr
    assert "repeat it with the same --publish-id" in failed


# --- names of different kinds -----------------------------------------------------------------------------------------


def batch_write(partq: Partq, app: str, version: int, value: bytes) -> None:
    """What `df.write` with `txnAppId` and `txnVersion` does in task and driver, without a JVM."""
    given = {"path": "orders", "store": partq.url, "txnappid": app, "txnversion": str(version)}
    schema = StructType().add("value", BinaryType())
    writer = PartqBatchWriter(options_module.batch_sink_options(given), schema)
    rows = pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], ["value"])
    writer.commit([writer.write(iter([rows]))])


@pytest.mark.conformance("DIS-09")
def test_a_publish_id_is_no_repetition_of_a_transaction_with_its_name(orders: Partq) -> None:
    batch_write(orders, "nightly", 7, b"by Spark")
    done = orders.json("publish", "orders", "--publish-id", "nightly", stdin=json_lines([{"value": "by hand"}]))
    assert (done["published"], done["already_published"]) == (True, False)
    with pytest.raises(Invalid, match="writer 'nightly' was refused"):
        batch_write(orders, "nightly", 0, b"the number of the id, and lower than the transaction's last")
    batch_write(orders, "weekly", 0, b"the first")
    orders("publish", "orders", "--publish-id", "weekly", stdin=json_lines([{"value": "the other first"}]))
    assert [value for _, value in orders.messages("orders")] == ["by Spark", "by hand", "the first", "the other first"]
    again = orders.json("publish", "orders", "--publish-id", "nightly", stdin=json_lines([{"value": "by hand"}]))
    assert again["already_published"]
