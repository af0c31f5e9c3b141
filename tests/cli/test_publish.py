"""`partq publish`: what files and standard input become, what is refused, and that it is one publish or none."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partq_spark.cli import messages as messages_module
from partq_spark.cli import publish as publish_module
from partq_spark.log.partitioner import partition_of
from tests.cli.conftest import Partq, json_lines


def written(path: Path, content: str | bytes) -> Path:
    """`path` with this content; gzipped if its name says so."""
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def nothing_is_published(partq: Partq) -> bool:
    shown = partq.json("queue", "describe", "orders")
    return bool(shown["messages"] == 0 and shown["head"]["sequence"] == 1)


# --- standard input ---------------------------------------------------------------------------------------------------


def test_standard_input_is_json_lines(orders: Partq) -> None:
    rows = [{"key": "a", "value": "text"}, {"key": None, "value": ""}, {"value": "x"}, {"key": "", "value": "y"}]
    done = orders("publish", "orders", stdin=json_lines(rows))
    assert done.stdout.startswith("Published 4 messages from standard input to queue 'orders'")
    assert "2 messages without a key went to random partitions." in done.stdout
    assert orders.messages("orders") == [("a", "text"), (None, ""), (None, "x"), ("", "y")]


@pytest.mark.parametrize(
    ("value", "published"),
    [
        ({"b": 1, "a": [1.5, None, "é"]}, '{"b":1,"a":[1.5,null,"é"]}'),
        ([1, 2], "[1,2]"),
        (17, "17"),
        (10**30, "1" + "0" * 30),
        (True, "true"),
        ({}, "{}"),
        ("naïve \u2028\u2029\x85 \U0001f6e9", "naïve \u2028\u2029\x85 \U0001f6e9"),
    ],
)
def test_a_value_that_is_no_string_becomes_compact_json(orders: Partq, value: object, published: str) -> None:
    orders("publish", "orders", stdin=json_lines([{"value": value}]))
    assert orders.messages("orders") == [(None, published)]


@pytest.mark.parametrize(
    ("key", "text"), [(17, "17"), (-2.5, "-2.5"), (10**20, "1" + "0" * 20), (True, "true"), ("é", "é")]
)
def test_a_number_as_key_becomes_its_text(orders: Partq, key: object, text: str) -> None:
    orders("publish", "orders", stdin=json_lines([{"key": key, "value": "x"}]))
    assert orders.messages("orders") == [(text, "x")]


def test_headers_are_an_object_or_a_list(orders: Partq) -> None:
    rows = [
        {"value": "a", "headers": {"trace": "1", "empty": None}},
        {
            "value": "b",
            "headers": [{"key": "raw", "value": "//8=", "value_encoding": "base64"}, {"key": "t", "value": "x"}],
        },
        {"value": "c", "headers": []},
        {"value": "d"},
    ]
    orders("publish", "orders", stdin=json_lines(rows))
    assert [each["headers"] for each in orders.browse("orders")] == [
        [{"key": "trace", "value": "1"}, {"key": "empty", "value": None}],
        [{"key": "raw", "value": "//8=", "value_encoding": "base64"}, {"key": "t", "value": "x"}],
        [],
        None,
    ]


def test_what_browse_prints_can_be_published_again(orders: Partq) -> None:
    rows = [
        {"key": "a", "value": "text\n\u0000", "headers": {"h": "1"}},
        {"value": "/wA=", "value_encoding": "base64"},
        {"key": "b", "value": "text", "value_encoding": "text"},
    ]
    orders("publish", "orders", stdin=json_lines(rows))
    orders("queue", "create", "copy", "--partitions", 1)
    orders("publish", "copy", stdin=orders("browse", "orders", "--json").stdout)

    def contents(queue: str) -> list[dict[str, Any]]:
        return [{name: each[name] for name in each if name != "timestamp"} for each in orders.browse(queue)]

    assert contents("copy") == contents("orders")
    assert contents("copy")[1]["value_encoding"] == "base64"


def test_blank_lines_a_missing_last_line_end_and_a_byte_order_mark_do_no_harm(orders: Partq) -> None:
    orders("publish", "orders", stdin=b'\xef\xbb\xbf{"value":"a"}\r\n\n  \n{"value":"b"}')
    assert orders.messages("orders") == [(None, "a"), (None, "b")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense", "is no JSON (Expecting value: line 1 column 1 (char 0)): write one object per line"),
        ('{"value": NaN}', "is no JSON (NaN is no JSON number)"),
        ('{"value": "a"} {"value": "b"}', "is no JSON (Extra data"),
        ('[{"value": "a"}]', "is a JSON array: write one object per line, for example with `jq -c '.[]'`"),
        ('"a"', "is no JSON object"),
        ('{"key": "a"}', "has no value: every message needs one"),
        ('{"key": "a", "value": null}', "has no value: every message needs one"),
        ('{"valu": "a"}', "has no value"),
        ('{"value": "a", "topic": "t"}', "has 'topic', which is no part of a message"),
        ('{"key": {"a": 1}, "value": "a"}', "has an object for its key 'key'"),
        ('{"key": [1], "value": "a"}', "has a list for its key 'key'"),
        ('{"value": "!", "value_encoding": "base64"}', "has a value that is no base64"),
        (
            '{"value": 1, "value_encoding": "base64"}',
            "has a number or boolean for its value, and value_encoding=base64",
        ),
        ('{"value": "a", "value_encoding": "hex"}', "has value_encoding='hex': give base64"),
        ('{"value": "a", "headers": "h"}', "has a string for its headers"),
        ('{"value": "a", "headers": [1]}', "has a header that is none"),
        ('{"value": "a", "headers": [{"key": "h", "val": "x"}]}', "has a header with 'val'"),
        (r'{"value": "\ud800"}', "has half of a surrogate pair in its value"),
        (r'{"key": "\ud800", "value": "a"}', "has half of a surrogate pair in its key"),
        ('{"value": {"a": 1e999}}', "has a value that cannot be written as JSON"),
        ("[" * 100_000, "is no JSON (maximum recursion depth"),
        ('{"value": ' + "9" * 5000 + "}", "is no JSON (Exceeds the limit"),
    ],
    ids=lambda value: value[:30],
)
def test_a_bad_line_is_named_and_nothing_is_published(orders: Partq, line: str, reason: str) -> None:
    message = orders.error("publish", "orders", stdin='{"value":"good"}\n\n' + line + '\n{"value":"good"}\n')
    assert message.startswith(f"standard input line 3 {reason}")
    assert nothing_is_published(orders)


@pytest.mark.parametrize("line", ['{"key": "a"}', '{"key": "a", "valu": "b"}', "{}"])
def test_a_slip_of_the_pen_on_standard_input_is_not_taken_for_a_row(orders: Partq, line: str) -> None:
    """In a file, lines without a value are rows; here that must be asked for."""
    message = orders.error("publish", "orders", stdin=line + "\n")
    assert message.startswith("standard input line 1 has no value")
    assert nothing_is_published(orders)
    orders("publish", "orders", "--whole-rows", stdin=line + "\n")
    assert [value for _, value in orders.messages("orders")] == [line]


def test_bytes_that_are_not_utf8_are_named_by_their_line(orders: Partq) -> None:
    message = orders.error("publish", "orders", stdin=b'{"value":"a"}\n{"value":"\xff"}\n')
    assert message.startswith("standard input line 2 is not UTF-8 (byte 0xff at 10)")
    assert nothing_is_published(orders)


@pytest.mark.conformance("DIS-04")
def test_a_key_of_256_bytes_is_refused_in_bytes_not_characters(orders: Partq) -> None:
    rows = [{"key": "é" * 127 + "a", "value": "x"}, {"key": "é" * 128, "value": "x"}]
    message = orders.error("publish", "orders", stdin=json_lines(rows))
    assert message.startswith("the key of standard input line 2 has 256 bytes in UTF-8, at most 255 are allowed")
    assert nothing_is_published(orders)
    orders("publish", "orders", stdin=json_lines(rows[:1]))


def test_a_message_beyond_the_limit_is_refused_with_its_line(orders: Partq) -> None:
    orders("queue", "alter", "orders", "--max-message-bytes", 100)
    exact = {"key": "k" * 10, "value": "v" * 60, "headers": {"h" * 10: "w" * 20}}
    rows = [{"value": "a"}] * 3 + [exact]
    orders("publish", "orders", stdin=json_lines(rows))
    message = orders.error("publish", "orders", stdin=json_lines([*rows, {**exact, "key": "k" * 11}]))
    assert message.startswith("the message of standard input line 5 has 101 bytes, the queue takes 100")
    assert "--max-message-bytes" in message
    assert len(orders.browse("orders")) == 4


def test_a_line_without_an_end_is_refused_in_bounded_memory(orders: Partq) -> None:
    orders("queue", "alter", "orders", "--max-message-bytes", 10)
    message = orders.error("publish", "orders", stdin='{"value":"' + "x" * 1_100_000)
    assert message.startswith("standard input line 1 has more than 1,048,636 bytes")


def test_no_messages_is_no_error_and_no_publish(orders: Partq) -> None:
    assert orders("publish", "orders").stdout == "No messages in standard input: nothing was published.\n"
    assert orders.json("publish", "orders") == {
        "published": False,
        "already_published": False,
        "messages": 0,
        "without_key": 0,
        "partitions": [],
        "sequence": None,
        "timestamp": None,
    }
    assert nothing_is_published(orders)


# --- one publish ------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("DIS-08")
def test_many_messages_are_one_publish_with_one_timestamp(partq: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partq_spark.cli.json_source.CHUNK_ROWS", 100)
    partq("queue", "create", "orders", "--partitions", 4)
    rows = [{"key": f"k{i % 10}", "value": str(i)} for i in range(1000)]
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
    """Or whoever writes it would die of a broken pipe, and the whole pipeline fail."""
    orders("publish", "orders", "--publish-id", "p", stdin='{"value":"a"}\n')
    stdin = io.BytesIO(b'{"value":"a"}\n' * 10)
    orders("publish", "orders", "--publish-id", "p", stdin=stdin)  # type: ignore[arg-type]  # CliRunner takes files too
    assert stdin.read() == b""


def test_two_who_publish_under_one_id_at_once_leave_one_copy(orders: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one publishes while this one has staged, but not yet swapped."""
    commit = publish_module._commit
    rows = json_lines([{"value": "a"}])
    monkeypatch.setattr(
        publish_module,
        "_commit",
        lambda *a: (
            monkeypatch.setattr(publish_module, "_commit", commit),
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
    commit: Callable[..., Any] = publish_module._commit

    def interrupted(*arguments: Any) -> Any:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
        return commit(*arguments)

    monkeypatch.setattr(publish_module, "_commit", interrupted)


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


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "A.JSON", "a.b.jsonl.gz", "a.json.gz"])
def test_json_lines_files(orders: Partq, tmp_path: Path, name: str) -> None:
    orders("publish", "orders", "--file", written(tmp_path / name, '{"key":"a","value":"1"}\n{"value":"2"}\n'))
    assert orders.messages("orders") == [("a", "1"), (None, "2")]


@pytest.mark.parametrize("name", ["a.csv", "A.CSV", "a.csv.gz"])
def test_csv_files_with_a_value_hold_messages(orders: Partq, tmp_path: Path, name: str) -> None:
    content = 'value,key\r\nplain,a\r\n"two\nlines, ""quoted""",\r\n\r\n007,1.50\r\n'
    orders("publish", "orders", "--file", written(tmp_path / name, content))
    assert orders.messages("orders") == [("a", "plain"), (None, 'two\nlines, "quoted"'), ("1.50", "007")]


def test_parquet_files_with_a_value_hold_messages(orders: Partq, tmp_path: Path) -> None:
    headers = pa.array([[("h", b"\xff")], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    path = parquet(
        tmp_path / "a.parquet",
        key=pa.array([17, None], pa.int64()),
        value=[b"\xff\x00", b""],
        headers=headers,
        offset=[1, 2],
    )
    orders("publish", "orders", "--file", path)
    first, second = orders.browse("orders")
    assert (first["key"], first["value"], first["value_encoding"]) == ("17", "/wA=", "base64")
    assert first["headers"] == [{"key": "h", "value": "/w==", "value_encoding": "base64"}]
    assert (second["key"], second["value"], second["headers"]) == (None, "", None)


def test_rows_of_any_other_table_become_json(orders: Partq, tmp_path: Path) -> None:
    content = 'tail,flight,delay,origin,note\nN1,15,-3.50,JFK,"say ""hi"""\n,007,1e5,EWR,\n'
    done = orders("publish", "orders", "--file", written(tmp_path / "a.csv", content), "--key-column", "tail")
    assert done.stdout.startswith(f"Published 2 messages from {tmp_path}/a.csv to queue 'orders'")
    assert done.stdout.splitlines()[0].endswith(": each row as a JSON object, key from 'tail'.")
    assert orders.messages("orders") == [
        ("N1", '{"tail":"N1","flight":15,"delay":-3.50,"origin":"JFK","note":"say \\"hi\\""}'),
        (None, '{"tail":null,"flight":"007","delay":"1e5","origin":"EWR","note":null}'),
    ]


def test_rows_of_parquet_become_json_by_their_types(orders: Partq, tmp_path: Path) -> None:
    path = parquet(
        tmp_path / "a.parquet",
        id=pa.array([1, 2], pa.int64()),
        price=pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
        tags=pa.array([["a", "b"], None], pa.list_(pa.string())),
    )
    orders("publish", "orders", "--file", path, "--key-column", "id")
    assert orders.messages("orders") == [
        ("1", '{"id":1,"price":1.50,"tags":["a","b"]}'),
        ("2", '{"id":2,"price":null,"tags":null}'),
    ]


def test_rows_of_json_lines_are_published_as_they_stand(orders: Partq, tmp_path: Path) -> None:
    lines = '{"id": 7, "price": 1.50}\n  {"price":2,   "id":null}  \n'
    orders("publish", "orders", "--file", written(tmp_path / "a.jsonl", lines), "--key-column", "id")
    assert orders.messages("orders") == [("7", '{"id": 7, "price": 1.50}'), (None, '{"price":2,   "id":null}')]


def test_a_column_named_key_is_the_key_unless_another_is_named(orders: Partq, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "key,id,x\na,b,c\n")
    orders("publish", "orders", "--file", path)
    orders("publish", "orders", "--file", path, "--key-column", "id")
    assert [key for key, _ in orders.messages("orders")] == ["a", "b"]


def test_the_key_column_works_with_a_value_column_too(orders: Partq, tmp_path: Path) -> None:
    orders("publish", "orders", "--file", written(tmp_path / "a.csv", "id,value\n1,x\n"), "--key-column", "id")
    orders("publish", "orders", "--key-column", "id", stdin='{"id":2,"value":"y"}\n')
    assert orders.messages("orders") == [("1", "x"), ("2", "y")]


def test_a_table_that_could_be_meant_in_two_ways_is_refused_with_the_way_out(orders: Partq, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "sensor,value,unit\ns1,20.5,C\n")
    message = orders.error("publish", "orders", "--file", path, "--key-column", "sensor")
    assert "'unit' is no part of a message: give --whole-rows" in message
    orders("publish", "orders", "--file", path, "--key-column", "sensor", "--whole-rows")
    orders("publish", "orders", "--whole-rows", stdin='{"key":"s2","value":1}\n')
    assert orders.messages("orders") == [
        ("s1", '{"sensor":"s1","value":20.5,"unit":"C"}'),
        ("s2", '{"key":"s2","value":1}'),
    ]


@pytest.mark.parametrize(
    ("name", "content", "options", "reason"),
    [
        ("a.csv", "a,b\n1,2\n1,2,3\n", [], "line 3 has 3 fields, the first line names 2 columns"),
        ("a.csv", 'a,b\n"x\ny",2\n1\n', [], "line 4 has 1 fields"),
        ("a.csv", 'a,b\n1,2\n"open,3\n4,5\n', [], "line 3 is no CSV (unexpected end of data)"),
        ("a.csv", 'a,b\n"x"y,2\n', [], "line 2 is no CSV"),
        ("a.csv", "key,value\na,\n", [], "line 2 has no value"),
        ("a.csv", "", [], "is empty: the first line of a CSV file names its columns"),
        ("a.csv", "a,a\n1,2\n", [], "names the column 'a' twice"),
        ("a.csv", "a,b\n1,2\n", ["--key-column", "c"], "has no column 'c' (--key-column), it has a, b"),
        ("a.csv", "key,value,headers\na,b,c\n", [], "has a column 'headers': CSV cannot hold them"),
        ("a.csv", "key,value\n" + "x" * 256 + ",b\n", [], "line 2 has 256 bytes in UTF-8"),
        ("a.csv", b"a,b\n1,2\n\xff,2\n", [], "line 3 is not UTF-8"),
        ("a.jsonl", '{"a":1}\n{"b":1}\n', ["--key-column", "a"], "line 2 has no 'a' (--key-column)"),
        ("a.jsonl", '{"a":1}\n', ["--key-column", "b"], "line 1 has no column 'b'"),
        ("a.jsonl", '{"value":"a"}\n{"a":1}\n', [], "line 2 has no value"),
        ("a.parquet", "PAR1 no", [], "is no Parquet file that can be read"),
    ],
)
def test_a_bad_file_is_named_and_nothing_is_published(
    orders: Partq, tmp_path: Path, name: str, content: str | bytes, options: list[str], reason: str
) -> None:
    path = written(tmp_path / name, content)
    message = orders.error("publish", "orders", "--file", path, *options)
    assert f"{path} " in message
    assert reason in message
    assert nothing_is_published(orders)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"value": [1, 2]}, "has a column 'value' of type int64"),
        ({"value": ["a", None]}, "row 2 has no value"),
        ({"key": [b"\xff"], "value": ["a"]}, "has keys in 'key' that are not UTF-8"),
        ({"key": [["a"]], "value": ["a"]}, "column 'key' has type list<"),
        ({"value": ["a"], "headers": ["x"]}, "has a column 'headers' of type string"),
        ({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}, "column 'm' has type map<"),
    ],
)
def test_columns_of_the_wrong_type_are_named(
    orders: Partq, tmp_path: Path, columns: dict[str, Any], reason: str
) -> None:
    message = orders.error("publish", "orders", "--file", parquet(tmp_path / "a.parquet", **columns))
    assert reason in message
    assert nothing_is_published(orders)


def test_a_damaged_or_cut_off_gzip_file_is_refused(orders: Partq, tmp_path: Path) -> None:
    whole = gzip.compress(json_lines({"value": str(i)} for i in range(5000)).encode())
    for content in (whole[: len(whole) // 2], whole[:50] + b"\x00\x00\x00\x00" + whole[54:], b"no gzip"):
        path = tmp_path / "a.jsonl.gz"
        path.write_bytes(content)
        assert f"{path} cannot be read after line" in orders.error("publish", "orders", "--file", path)
    assert nothing_is_published(orders)


@pytest.mark.parametrize("name", ["a.txt", "a", "a.parquet.gz", "a.gz", ".csv"])
def test_an_unknown_kind_of_file_is_wrong_use(orders: Partq, tmp_path: Path, name: str) -> None:
    message = orders.misuse("publish", "orders", "--file", written(tmp_path / name, "x"))
    assert ".csv, .jsonl, .ndjson or .json" in message


def test_a_file_that_is_not_there_is_wrong_use(orders: Partq, tmp_path: Path) -> None:
    assert "does not exist" in orders.misuse("publish", "orders", "--file", tmp_path / "none.csv")
    assert "is a directory" in orders.misuse("publish", "orders", "--file", tmp_path)


def test_a_parquet_file_is_read_in_batches_of_bounded_bytes(
    orders: Partq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partq_spark.cli.table_source.CHUNK_BYTES", 10_000)
    sizes: list[int] = []
    check = messages_module.check

    def watched(chunk: messages_module.Chunk, *rest: Any) -> None:
        sizes.append(chunk.batch.nbytes)
        check(chunk, *rest)

    monkeypatch.setattr(messages_module, "check", watched)
    values = [os.urandom(1000) for _ in range(200)]
    orders("publish", "orders", "--file", parquet(tmp_path / "a.parquet", value=values))
    assert max(sizes) <= 12_000
    assert len(orders.browse("orders")) == 200


def test_json_reports_are_complete(orders: Partq, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,x\n1,2\n,3\n")
    done = json.loads(orders("publish", "orders", "--file", path, "--key-column", "id", "--json").stdout)
    assert (done["published"], done["already_published"], done["messages"], done["without_key"]) == (True, False, 2, 1)
    assert done["partitions"] == [{"partition": 0, "messages": 2}]
    assert done["sequence"] == 2
    assert done["timestamp"] == orders.browse("orders")[0]["timestamp"]
