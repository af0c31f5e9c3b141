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

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(EVIL)

    monkeypatch.setattr("partq_spark.log.connect.Namespace.queues", broken)
    failed = orders("queue", "list", code=1, PARTQ_DEBUG="1")
    assert "Traceback" in failed.stderr
    assert _harmless(failed.stderr)


def test_the_log_and_the_progress_bar_on_a_terminal(tmp_path: Path) -> None:
    """What a store says of its objects while a command runs, and the name of a file that is published."""
    program = (
        "import sys, logging\n"
        "from partq_spark.cli import arguments, output\n"
        "output._SHOWN_AFTER_S = 0\n"
        "@arguments.command('send')\n"
        "def command():\n"
        "    logging.getLogger('partq.objects').warning('%s was not swept', sys.argv[1])\n"
        "    print('-' * 9, file=sys.stderr)\n"
        "    with output.ProgressBar(f'publishing [red]{sys.argv[1][-15:]}') as bar:\n"
        "        bar.update(1, 1, 2)\n"
        "    yield from ()\n"
        "command([], standalone_mode=False)\n"
    )
    ours, theirs = pty.openpty()
    try:
        words = [sys.executable, "-c", program, str(tmp_path / f"store{EVIL}")]
        subprocess.run(words, stderr=theirs, check=True, timeout=60)
        log, bar = os.read(ours, 65_536).decode().replace("\r\n", "\n").split("-" * 9)
    finally:
        os.close(ours)
        os.close(theirs)
    assert "was not swept" in log
    assert _harmless(log)
    assert "publishing [red]\\x1b]0;title\\x07" in bar
    assert EVIL not in bar  # the bar itself moves the cursor
