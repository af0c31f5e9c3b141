"""`partq publish` takes bounded memory, and is one publish or none: repetitions, bad rows at the end, Ctrl-C."""

from __future__ import annotations

import importlib
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import partq as api
from tests.cli.conftest import source, written
from tests.support.command_line import Partq, json_lines

# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[pa.RecordBatch]:
    """What a publish stages, piece by piece."""
    found: list[pa.RecordBatch] = []
    publication: Any = importlib.import_module("partq_spark.client.publication").Publication
    add_batch = publication.add_batch

    def watched(self: Any, batch: pa.RecordBatch) -> None:
        found.append(batch)
        add_batch(self, batch)

    monkeypatch.setattr(publication, "add_batch", watched)
    return found


LONG = "x" * 20_000
CHUNKED: list[tuple[str, Any, int]] = [
    # Some 10 MB in lines that are otherwise small: no part of a message is left out of the count.
    *(
        ("", json_lines([{"value": "v", **each}] * 500), 250)
        for each in (
            {"value": LONG},
            {"headers": {"h": LONG}},
            {"headers": [{"key": LONG, "value": None}]},
            {"headers": [{"key": None, "value": None}] * 200},
        )
    ),
    ("random.parquet", {"value": [os.urandom(20_000) for _ in range(600)]}, 250),
    # A thousand messages of 100 kB that a file of some kilobytes holds once, and fields without anything.
    ("once.parquet", {"value": [b"x" * 100_000] * 1000, "key": ["a"] * 1000}, 50),
    ("in.csv", ",".join(f"c{i}" for i in range(1000)) + "\n" + ("," * 999 + "\n") * 1000, 300),
]
"""A file's name (none: standard input), what is in it, and how many messages are staged at once, at most."""


@pytest.mark.parametrize(("name", "content", "most"), CHUNKED)
def test_what_goes_in_is_taken_in_chunks_of_bounded_bytes(
    orders: Partq, tmp_path: Path, chunks: list[pa.RecordBatch], name: str, content: Any, most: int
) -> None:
    given = source(tmp_path, name, content)
    done = orders.json("publish", "orders", *given["words"], stdin=given["stdin"])
    assert done["messages"] == sum(each.num_rows for each in chunks)
    assert max(each.num_rows for each in chunks) < most


# --- one publish ------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("DIS-08")
def test_a_bad_row_at_the_end_of_much_leaves_nothing_visible_and_no_object(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 4)
    rows = [{"key": f"k{i}", "value": "x" * 100} for i in range(20_000)]
    message = partq.error("publish", "orders", stdin=json_lines([*rows, {"key": "bad"}]))
    assert message.startswith("standard input line 20001 has no value")
    assert partq.is_untouched()
    assert list(partq.store.rglob("_segments/**/*.*")) == []


@pytest.mark.conformance("DIS-09")
def test_a_publish_id_makes_a_repetition_do_nothing_and_say_so(orders: Partq) -> None:
    rows = json_lines([{"value": "a"}, {"value": "b"}])
    first = orders.json("publish", "orders", "--publish-id", "import 7", stdin=rows)
    assert (first["published"], first["already_published"]) == (True, False)
    orders("publish", "orders", "--publish-id", "another", stdin=rows)
    again = orders.json("publish", "orders", "--publish-id", "import 7", stdin=rows)
    nothing = {"published": False, "already_published": True, "messages": 0, "without_key": 0, "partitions": []}
    assert again == {**first, **nothing}
    assert [value for _, value in orders.messages("orders")] == ["a", "b", "a", "b"]


def test_a_repetition_reads_its_input_to_the_end_but_does_not_look_at_it(orders: Partq, tmp_path: Path) -> None:
    """Else the program that writes it would die of a broken pipe, and the whole pipeline fail."""
    orders("publish", "orders", "--publish-id", "p", stdin='{"value":"a"}\n')
    path = written(tmp_path / "a.csv", "nothing, that\nis a, csv, file\n")
    assert orders.json("publish", "orders", "--publish-id", "p", "--file", path)["already_published"] is True
    stdin = io.BytesIO(b'{"value":"a"}\n' * 10)
    orders("publish", "orders", "--publish-id", "p", stdin=stdin)  # type: ignore[arg-type]  # CliRunner takes files too
    assert stdin.read() == b""


def staged(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Let something happen when everything is staged and the swap is about to be made."""
    commit = api.Publication.commit

    def disturbed(publication: api.Publication) -> Any:
        monkeypatch.setattr(api.Publication, "commit", commit)
        do()
        return commit(publication)

    monkeypatch.setattr(api.Publication, "commit", disturbed)


# --- interrupts -------------------------------------------------------------------------------------------------------


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_twice() -> None:
    interrupt()
    interrupt()


def test_ctrl_c_during_the_swap_waits_until_the_outcome_is_known_or_does_not_pretend_to(
    orders: Partq, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(monkeypatch, interrupt)
    done = orders("publish", "orders", stdin='{"value":"a"}\n')
    assert done.stdout.startswith("Published 1 message ")
    assert "interrupt again to give up waiting" in done.stderr
    assert orders.messages("orders") == [(None, "a")]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for more, said in (
        ((), "it may be done or not; look with `partq browse` before repeating it"),
        (("--publish-id", "p"), "repeat it with the same --publish-id"),
    ):
        staged(monkeypatch, interrupt_twice)
        assert said in orders("publish", "orders", *more, code=1, stdin='{"value":"a"}\n').stderr
