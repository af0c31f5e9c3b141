"""What holds for all commands: start-up, help, exit codes, errors in one line."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from partq_spark.cli import main as main_module
from partq_spark.cli.lazy import LazyGroup
from tests.cli.conftest import Partq

HEAVY = {"pyspark", "py4j", "azure", "redis", "pyarrow", "numpy", "pandas", "rich", "xxhash"}


def commands(group: LazyGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command, str]]:
    """Every command that is no group, with its words and its summary in the group's table."""
    context = click.Context(group)
    for name, lazy in group.lazy.items():
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, LazyGroup):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command, lazy.summary


ALL = list(commands(main_module.cli))


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["queue", "--help"]], ids=" ".join)
def test_version_and_help_import_nothing_heavy(arguments: list[str]) -> None:
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


def test_the_version_is_that_of_the_package(partq: Partq) -> None:
    assert partq("--version").stdout == f"partq {importlib.import_module('partq_spark').__version__}\n"


def test_help_lists_every_command_with_an_example(partq: Partq) -> None:
    text = " ".join(partq("--help").stdout.split())
    for line in (
        "queue Create, show, change and clean up queues.",
        "publish Publish messages from a file or standard input.",
        "browse Look at messages without taking them.",
        "coordinator Run the sidecar that shares partitions.",
        "demo Send real flights through a queue with Spark.",
        "partq queue create orders --partitions 8",
    ):
        assert line in text
    assert "--version" in partq("-h").stdout


@pytest.mark.parametrize(
    ("words", "command", "summary"), ALL, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_the_table_of_commands_tells_what_the_command_says(
    words: tuple[str, ...], command: click.Command, summary: str
) -> None:
    if words != ("demo",):  # its own first line says more
        first_sentence = (command.help or "").split("\n\n")[0].replace("\n", " ")
        assert first_sentence.startswith(summary.removesuffix(".")), "table and docstring differ"


@pytest.mark.parametrize(
    ("words", "command", "summary"), ALL, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_every_command_takes_the_store_and_prints_json(
    words: tuple[str, ...], command: click.Command, summary: str, partq: Partq
) -> None:
    names = {option for parameter in command.params for option in parameter.opts}
    if words != ("ui",):  # it prints where it listens, and no more
        assert "--json" in names
    if words != ("spark-home",):  # it has nothing to do with queues
        assert {"--store", "--namespace", "--ownership"} <= names
    help_text = partq(*words, "--help").stdout
    assert max(map(len, help_text.splitlines())) <= 80
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.opts} has no help"


def test_the_default_store_is_explained(partq: Partq) -> None:
    text = " ".join(partq("queue", "list", "--help").stdout.split())
    assert "[default: $PARTQ_STORE, else file://$HOME/.partq]" in text
    assert "file:///absolute/dir or azure://container/prefix" in text


# --- what is not there ------------------------------------------------------------------------------------------------


def test_an_unknown_command_is_refused_with_one_that_is_near(partq: Partq) -> None:
    assert partq.misuse("brows") == "Error: No such command 'brows'. Did you mean 'browse'?"


@pytest.mark.parametrize("given", ["redis://user:s3cret@host/0", "S3cret Password", "redis://host:6379/s3cret"])
def test_an_ownership_that_cannot_be_is_refused_without_its_secrets(partq: Partq, given: str) -> None:
    message = partq.misuse("queue", "list", "--ownership", given)
    assert "redis://host:port" in message
    assert "3cret" not in message


@pytest.mark.parametrize("given", ["none", "store", "redis://host:6379/0", "REDISS://host"])
def test_every_place_of_ownership_is_accepted(partq: Partq, given: str) -> None:
    partq("queue", "list", "--ownership", given)
    partq("queue", "list", PARTQ_OWNERSHIP=given)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("orders", "is not a URL: for this directory write file:///"),
        ("file:orders", "is relative"),
        ("s3://bucket", "scheme 's3' is not known"),
        ("azure://name:s3cret@container", "AZURE_STORAGE_CONNECTION_STRING"),
    ],
)
def test_a_bad_store_is_wrong_use(partq: Partq, url: str, shown: str) -> None:
    by_option = partq.misuse("queue", "list", "--store", url)
    assert by_option.startswith("Error: Invalid value for '--store'")
    assert shown in by_option
    by_variable = partq.misuse("queue", "list", PARTQ_STORE=url)
    assert "environment variable PARTQ_STORE" in by_variable
    assert shown in by_variable
    assert "s3cret" not in by_option + by_variable


def test_store_and_namespace_are_found(partq: Partq) -> None:
    partq("queue", "create", "a", "--partitions", 1)
    partq("queue", "create", "b", "--partitions", 1, "--namespace", "Two")
    assert [each["queue"] for each in partq.json("queue", "list")] == ["a"]
    assert [each["queue"] for each in partq.json("queue", "list", "--namespace", "two")] == ["b"]
    by_home = partq.json("queue", "list", PARTQ_STORE=None, HOME=str(partq.store.parent))
    assert by_home == []
    partq("queue", "create", "c", "--partitions", 1, PARTQ_STORE=None, HOME=str(partq.store.parent))
    assert (partq.store.parent / ".partq/default/c/_head.json").exists()


def test_an_unexpected_exception_is_one_line_and_can_be_traced(partq: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr("partq_spark.log.admin.list_queues", broken)
    assert partq.error("queue", "list") == "RuntimeError: first second (PARTQ_DEBUG=1 shows where)"
    traced = partq("queue", "list", code=1, PARTQ_DEBUG="1").stderr
    assert "Traceback" in traced
    assert "in broken" in traced


def test_an_unknown_queue_says_how_to_create_it(partq: Partq) -> None:
    for words in (
        ["queue", "describe"],
        ["queue", "trim", "--before-offsets", '{"0": 1}'],
        ["queue", "collect"],
        ["browse"],
    ):
        message = partq.error(*words, "orders")
        assert "queue 'orders'" in message
        assert partq.url in message
        assert message.endswith("create it with `partq queue create orders --partitions N`")
    assert "does not exist" in partq.error("queue", "alter", "orders", "--rebalance-delay", 1)
    assert "does not exist" in partq.error("publish", "orders", stdin='{"value":"a"}\n')


@pytest.mark.parametrize("name", ["-orders", "a b", "", "ä", "x" * 64, "../up"])
def test_a_bad_name_is_wrong_use(partq: Partq, name: str) -> None:
    assert "is not allowed" in partq.misuse("queue", "create", "--partitions", 1, "--", name)
    assert "is not allowed" in partq.misuse("queue", "list", f"--namespace={name}")
