"""The command line as processes, for what only a process has: exit codes, pipes, terminals, signals, kills, the page's
port.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import WAIT_S, carried_out, command, run, start
from tests.support.command_line import Partq, json_lines
from tools.servers import free_port

pytestmark = pytest.mark.slow  # every process imports Arrow: half a second each

SECRET = "c2VjcmV0"


def test_a_terminal_that_knows_only_ascii_gets_escapes(orders: Partq) -> None:
    orders("publish", "orders", stdin=json_lines([{"key": "é", "value": "航"}]))
    done = run(orders.store, "browse", "orders", PYTHONIOENCODING="ascii")
    assert r"\xe9" in done.stdout
    assert r"\u822a" in done.stdout
    machine = run(orders.store, "browse", "orders", "--json", PYTHONIOENCODING="ascii")
    assert '"key": "é", "value": "航"' in machine.stdout


def test_a_reader_that_stops_reading_is_no_error_worth_a_line(orders: Partq) -> None:
    orders("publish", "orders", stdin=json_lines({"value": "x" * 100} for _ in range(5000)))
    for form in ((), ("--json",)):
        words = ("browse", "orders", *form, "--limit", 5000)
        with start(orders.store, *words, stdin=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(WAIT_S) == -signal.SIGPIPE, "as of other programs; a shell says 141"


STREAMS = [
    ("queue list >&- 2>&-", 0, ""),
    ("queue list <&-", 0, ""),
    ("browse nothing 2>&-", 1, ""),
    ("browse nothing 2>/dev/full", 1, ""),
    ("queue nothing 2>&-", 2, ""),
    ("publish orders --file messages.jsonl <&- 2>&-", 0, ""),
    ("publish orders <&-", 1, "Error: standard input is closed: "),
    ("publish orders --publish-id done <&-", 0, ""),
    ("queue --help >/dev/full", 1, "Error: OSError: [Errno 28] "),
    ("browse orders --json >/dev/full", 1, "Error: OSError: [Errno 28] "),
    ("publish orders --file messages.jsonl >/dev/full", 1, "Error: published, do not repeat it; then came OSError: "),
]


@pytest.mark.parametrize(("words", "code", "told"), STREAMS)
def test_a_stream_that_is_closed_or_full_is_told_or_not_missed(orders: Partq, words: str, code: int, told: str) -> None:
    (orders.store.parent / "messages.jsonl").write_text(json_lines([{"value": "x"}]))
    orders("publish", "orders", "--publish-id", "done", stdin=json_lines([{"value": "x"}]))
    before = files(orders.store)
    done = carried_out(orders.store, ["sh", "-c", f"exec {' '.join(command())} {words}"])
    assert (done.returncode, done.stderr[: len(told)]) == (code, told), done.stderr
    assert len(done.stderr.splitlines()) == (1 if told else 0)
    assert words.startswith("publish") or files(orders.store) == before, "nothing was written into a file of the store"


def files(store: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_publish_that_is_interrupted_publishes_nothing_and_says_so(orders: Partq, number: signal.Signals) -> None:
    process = start(orders.store, "publish", "orders")
    assert process.stdin is not None
    # More than pipe and file buffers hold: when all is written, the process has been reading.
    process.stdin.write(json_lines({"value": "x" * 1000} for _ in range(2000)).encode())
    process.stdin.flush()
    process.send_signal(number)
    _, stderr = process.communicate(timeout=WAIT_S)
    assert (process.returncode, stderr) == (1, b"Error: interrupted: nothing was published\n")
    assert orders.is_untouched()


def test_any_other_command_that_is_interrupted_ends_with_one_line_too(tmp_path: Path) -> None:
    """Interrupted while it waits for a store that takes the request and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        more = azure(silent.getsockname()[1])
        with start(tmp_path / "store", "queue", "list", "--store", "azure://box", more=more) as process:
            silent.settimeout(WAIT_S)
            request, _ = silent.accept()
            with request:
                process.send_signal(signal.SIGINT)
                _, stderr = process.communicate(timeout=WAIT_S)
    assert (process.returncode, stderr) == (1, b"Error: interrupted\n")


def azure(port: int) -> dict[str, Any]:
    """Credentials for a store at this port."""
    at = f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey={SECRET};BlobEndpoint=http://127.0.0.1:{port}/a;"
    return {"AZURE_STORAGE_CONNECTION_STRING": at}


def test_the_page_is_served_until_it_is_told_to_end(tmp_path: Path) -> None:
    with start(tmp_path / "store", "ui", "--port", 0) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        (port,) = re.findall(rb"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        with closing(HTTPConnection("127.0.0.1", int(port), timeout=WAIT_S)) as browser:
            browser.request("GET", "/news")
            shown = browser.getresponse()
            shown.read()
            browser.request("GET", "/news", headers={"If-None-Match": shown.headers["etag"]})
            browser.sock.settimeout(0.5)
            with pytest.raises(TimeoutError):  # there is nothing new
                browser.sock.recv(1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
        assert process.stderr.read() == b""


ROWS = 5000


@pytest.mark.crash
@pytest.mark.conformance("DIS-09")
def test_a_publish_that_was_killed_is_repeated_without_harm(orders: Partq, tmp_path: Path) -> None:
    """At the instants that matter, by what shows in the store: a file begun, a segment durable, the head swapped."""
    store = orders.store
    head = store / "default/orders/_head.json"

    def objects(prefix: str, suffix: str) -> int:
        """Also while they come and go."""
        found = (name for _, _, names in os.walk(store / "default/orders") for name in names)
        return sum(name.startswith(prefix) and name.endswith(suffix) for name in found)

    for number in range(3):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json_lines({"key": f"k{row % 7}", "value": f"{number}/{row}"} for row in range(ROWS)))
        before = (0, objects("0", ".arrow"), head.stat().st_ino)
        words = ("publish", "orders", "--file", path, "--publish-id", f"batch-{number}")
        with start(store, *words) as process:
            while process.poll() is None:
                if (objects(".tmp-", ""), objects("0", ".arrow"), head.stat().st_ino)[number] != before[number]:
                    break
            process.kill()
        report = orders.json(*words)
        assert report["published"] != report["already_published"]
        for left in store.rglob(".tmp-*"):
            left.unlink()  # so that the next round's first moment is its own
    values = [value for _, value in orders.messages("orders")]
    assert values == [f"{number}/{row}" for number in range(3) for row in range(ROWS)]


# --- a terminal -------------------------------------------------------------------------------------------------------


def test_long_work_shows_a_bar_on_a_terminal(orders: Partq) -> None:
    """More is written until the bar is seen."""
    chunk = json_lines({"key": "k", "value": "x" * 10} for _ in range(9000)).encode()
    ours, theirs = pty.openpty()
    shown = b""
    with start(orders.store, "publish", "orders", stderr=theirs) as process:
        os.close(theirs)
        assert process.stdin is not None
        while b"messages" not in shown:
            process.stdin.write(chunk)
            process.stdin.flush()
            if select.select([ours], [], [], 0.05)[0]:
                shown += os.read(ours, 65536)
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
    os.close(ours)
    assert b"publishing standard input" in shown


# --- Azure Blob Storage -----------------------------------------------------------------------------------------------


def test_an_unreachable_store_is_waited_for_within_a_bound_and_told_in_one_line(partq: Partq) -> None:
    at = ("--store", "azure://box/queues", "--retry-timeout", "0.2")
    said = partq.error("publish", "a", *at, stdin='{"value":"a"}\n', **azure(free_port()))
    assert "azure://box/queues" in said
    assert SECRET not in said
