"""No text of a store, a file or an argument steers the terminal, wherever a command shows it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import written
from tests.cli.test_refusals import EVIL
from tests.support.command_line import Partq, json_lines


def _harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_messages_and_columns(orders: Partq) -> None:
    row = {"key": EVIL, "value": f"v{EVIL}", "headers": {f"h{EVIL}": f"w{EVIL}"}}
    orders("publish", "orders", stdin=json_lines([row]))
    assert _harmless(orders("browse", "orders").stdout)
    again = orders("browse", "orders", "--json").stdout
    assert _harmless(again)
    orders("publish", "orders", stdin=again)
    assert orders.messages("orders") == [(EVIL, f"v{EVIL}")] * 2
    orders("queue", "create", "rows", "--partitions", 1, "--schema", f"`a{EVIL}` STRING")
    orders("publish", "rows", stdin=json_lines([{f"a{EVIL}": EVIL}]))
    orders("queue", "subscribe", "orders", f"a/{EVIL}")
    for arguments in (
        *(("browse", "rows"), ("queue", "describe", "rows"), ("queue", "describe", "orders")),
        *(("queue", "subscriptions"), ("queue", "subscriptions", "orders")),
    ):
        assert _harmless(orders(*arguments).stdout + orders(*arguments, "--json").stdout)


def test_files_and_traces(orders: Partq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = written(tmp_path / "table.csv", f"a{EVIL},b\n1,2\n")
    twice = written(tmp_path / "twice.csv", f"a{EVIL},a{EVIL}\n1,2\n")
    named = written(tmp_path / f"{EVIL}.jsonl", '{"value": "x"}\n')
    for code, file, words in (
        (1, table, ("--key-column", "c")),
        (1, twice, ()),
        (0, table, ("--key-column", f"a{EVIL}")),
        (0, named, ()),
        (2, tmp_path / f"{EVIL}.none", ()),
    ):
        assert _harmless(orders("publish", "orders", "--file", file, *words, code=code).output)

    def broken(*_: object) -> None:
        raise RuntimeError(EVIL)

    monkeypatch.setattr("partq_spark.log.admin.list_queues", broken)
    failed = orders("queue", "list", code=1, PARTQ_DEBUG="1")
    assert "Traceback" in failed.stderr
    assert _harmless(failed.stderr)


def _on_a_terminal(program: str, argument: str) -> str:
    """What a Python program says on standard error, where that is a terminal."""
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", program, argument], stderr=theirs, check=True, timeout=60)
        return os.read(ours, 65_536).decode().replace("\r\n", "\n")
    finally:
        os.close(ours)
        os.close(theirs)


def test_lines_of_the_log_on_a_terminal(tmp_path: Path) -> None:
    """What a store says of its objects while a command runs, on a real terminal."""
    store = tmp_path / f"store{EVIL[:-1]}"
    program = (
        "import sys, logging\n"
        "from partq_spark.cli import arguments\n"
        "@arguments.where_options\n"
        "def command(where):\n"
        "    logging.getLogger('partq.objects').warning('%s was not swept', sys.argv[1])\n"
        "command(store=None, namespace='default', ownership=None, retry_timeout=0.0)\n"
    )
    said = _on_a_terminal(program, str(store))
    assert "was not swept" in said
    assert _harmless(said)


def test_the_name_of_a_file_in_a_progress_bar() -> None:
    program = (
        "import sys\n"
        "from partq_spark.cli import progress_bar\n"
        "progress_bar._SHOWN_AFTER_S = 0\n"
        "with progress_bar.Bar(f'publishing {sys.argv[1]}') as bar:\n"
        "    bar.update(1, 1, 2)\n"
    )
    said = _on_a_terminal(program, f"[red]{EVIL}")
    assert "publishing [red]\\x1b]0;title\\x07" in said
    assert EVIL not in said  # the bar itself moves the cursor
