"""What holds for all commands: start-up, help, where the store is, errors in one line; docs/cli.md, which has what they
say of themselves; and the session beside it, whose commands are run on one store and print what it says. No text of a
store, a file or an argument steers the terminal, wherever a command shows it.
"""

from __future__ import annotations

import importlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.cli.conftest import written
from tests.cli.processes import carried_out
from tests.cli.test_refusals import EVIL
from tests.support.command_line import Partq, commands, json_lines
from tools.from_code import COMMANDS, command_page

HEAVY = {"pyspark", "py4j", "azure", "redis", "pyarrow", "numpy", "pandas", "rich"}
SESSION = COMMANDS.with_name("cli-session.txt")
ALL = commands()


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], ["queue", "--help"], ["queue", "list", "--json", "--store", "file:///none"]],
    ids=" ".join,
)
def test_what_reads_no_message_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import json, sys\n"
        "from partq_spark.cli.main import cli\n"
        "try: cli(sys.argv[1:])\n"
        "except SystemExit: print(json.dumps(list(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True, timeout=60
    )
    assert set(json.loads(done.stdout.splitlines()[-1])) & HEAVY == set()


def test_help_says_what_there_is(partq: Partq) -> None:
    text = " ".join(partq("--help").stdout.split())
    assert "browse Look at messages without taking them." in text
    assert "partq queue create orders --partitions 8" in text
    assert partq("--version").stdout == f"partq {importlib.import_module('partq_spark').__version__}\n"
    text = " ".join(partq("queue", "list", "-h").stdout.split())
    assert "[default: $PARTQ_STORE, else file://$HOME/.partq]" in text


@pytest.mark.parametrize(("words", "command"), ALL, ids=lambda value: " ".join(value) if type(value) is tuple else "")
def test_commands_are_explained_and_print_json(words: tuple[str, ...], command: click.Command, partq: Partq) -> None:
    names = {option for parameter in command.params for option in parameter.opts}
    if words != ("ui",):  # it prints where it listens, and no more
        assert "--json" in names
    if words != ("spark-home",):  # it has nothing to do with queues
        assert {"--store", "--namespace", "--ownership"} <= names
    assert max(map(len, partq(*words, "--help").stdout.splitlines())) <= 80
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help, f"{parameter.opts} has no help"
    if words != ("demo",):  # its own first line says more
        table = partq(*words[:-1], "--help", COLUMNS="200").stdout
        summary = re.search(rf"^  {words[-1]} +(.*?)\.?$", table, re.MULTILINE)
        assert summary is not None
        first_sentence = (command.help or "").split("\n\n")[0].replace("\n", " ")
        assert first_sentence.startswith(summary[1]), "the table of commands says something else"


def test_store_and_namespace_are_found(partq: Partq) -> None:
    partq("queue", "create", "a", "--partitions", 1)
    partq("queue", "create", "b", "--partitions", 1, "--namespace", "Two")
    assert [each["queue"] for each in partq.json("queue", "list")] == ["a"]
    assert [each["queue"] for each in partq.json("queue", "list", "--namespace", "two")] == ["b"]
    partq("queue", "create", "c", "--partitions", 1, PARTQ_STORE=None, HOME=str(partq.store.parent))
    assert (partq.store.parent / ".partq/default/c/_head.json").exists()


def test_an_unexpected_exception_is_one_line_and_can_be_traced(partq: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr("partq_spark.log.admin.Namespace.queues", broken)
    assert partq.error("queue", "list") == "RuntimeError: first second (PARTQ_DEBUG=1 shows where)"
    traced = partq("queue", "list", code=1, PARTQ_DEBUG="1").stderr
    assert "Traceback" in traced
    assert "in broken" in traced


# --- docs/cli.md and docs/cli-session.txt -----------------------------------------------------------------------------


def test_the_page_has_what_the_commands_say_of_themselves() -> None:
    text = COMMANDS.read_text(encoding="utf-8")
    assert command_page(text) == text, "run scripts/docs --write"


def examples() -> list[tuple[str, str]]:
    """Every command of the session, with what is printed below it."""
    text = re.sub(r"^# .*\n", "", SESSION.read_text(encoding="utf-8"), flags=re.MULTILINE)
    parts = [part.partition("\n") for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    return [(command, output.rstrip("\n")) for command, _, output in parts]


def without_chance(text: str) -> str:
    """`text` without what differs from run to run: times, ids, where things are, sizes (compression decides)."""
    for pattern, name in (
        (r"file:///[\w/.-]+", "STORE"),
        (r"(?<=SPARK_HOME=)\S+", "FOLDER"),
        (r"\d{4}-\d\d-\d\d[ T][\d:]+(\.\d+)?Z?", "TIME"),
        (r"\b[0-9a-f]{16}\b", "ID"),
        (r"in \d+\.\d s", "in SECONDS"),
        (r"\b\d+ (s|min) ago", "AGE ago"),
        (r" *\b[\d.]+ k?B\b", " SIZE"),
    ):
        text = re.sub(pattern, name, text)
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")


@pytest.mark.slow
def test_the_examples_print_what_the_document_says(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    told = examples()
    assert len(told) > 15
    for command, expected in told:
        done = carried_out(tmp_path / "store", ["bash", "-c", f"{command} 2>&1"], PATH=path, COLUMNS="100")
        assert without_chance(done.stdout) == without_chance(expected), command


# --- what steers a terminal -------------------------------------------------------------------------------------------


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

    monkeypatch.setattr("partq_spark.log.admin.Namespace.queues", broken)
    failed = orders("queue", "list", code=1, PARTQ_DEBUG="1")
    assert "Traceback" in failed.stderr
    assert _harmless(failed.stderr)


def test_the_log_and_the_progress_bar_on_a_terminal(tmp_path: Path) -> None:
    """What a store says of its objects while a command runs, and the name of a file that is published."""
    program = (
        "import sys, logging\n"
        "from partq_spark.cli import commands, message_commands\n"
        "message_commands._SHOWN_AFTER_S = 0\n"
        "@commands.command('send')\n"
        "def command():\n"
        "    logging.getLogger('partq.objects').warning('%s was not swept', sys.argv[1])\n"
        "    print('-' * 9, file=sys.stderr)\n"
        "    with message_commands.progress(f'publishing [red]{sys.argv[1][-15:]}') as update:\n"
        "        update(1, 1, 2)\n"
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
