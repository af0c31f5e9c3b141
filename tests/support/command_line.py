"""`partq` as tests call it: in this process, on a store of the test's own. Processes are in `tests/cli/processes`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from partq_spark.cli.main import cli


class Partq:
    """Runs `partq ARGUMENTS` and checks the exit code. `store` is the directory of the store."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.url = f"file://{store}"
        self._environment = {"PARTQ_STORE": self.url, "COLUMNS": "100"}

    def __call__(self, *arguments: object, code: int = 0, stdin: str | bytes = "", **environment: str | None) -> Result:
        result = CliRunner().invoke(
            cli, [str(each) for each in arguments], input=stdin, env={**self._environment, **environment}
        )
        assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.output}{result.exception!r}"
        return result

    def json(self, *arguments: object, **more: Any) -> Any:
        """What `--json` printed, when that is one document."""
        return json.loads(self(*arguments, "--json", **more).stdout)

    def error(self, *arguments: object, **more: Any) -> str:
        """The one line on standard error of a command that failed with exit code 1, without its `Error: `."""
        stderr = self(*arguments, code=1, **more).stderr
        assert stderr.startswith("Error: ")
        assert stderr.count("\n") == 1, stderr
        return stderr.removeprefix("Error: ").rstrip("\n")

    def misuse(self, *arguments: object, **more: Any) -> str:
        """The last line on standard error of a command that failed with exit code 2."""
        return self(*arguments, code=2, **more).stderr.rstrip("\n").splitlines()[-1]

    def browse(self, queue: str, *arguments: object) -> list[dict[str, Any]]:
        """All messages of a queue, by `partq browse --json`."""
        lines = self("browse", queue, "--json", "--limit", 1_000_000, *arguments).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def messages(self, queue: str) -> list[tuple[str | None, str]]:
        """Key and value of all messages of a queue."""
        return [(each["key"], each["value"]) for each in self.browse(queue)]

    def is_untouched(self, queue: str = "orders") -> bool:
        """Whether a queue is as it was made: nothing was published."""
        shown = self.json("queue", "describe", queue)
        return bool(shown["messages"] == 0 and shown["log"]["sequence"] == 1)


def json_lines(rows: Iterable[object]) -> str:
    """One line of JSON per row."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def takes(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Result:
    """What the command line says of these words with all of its checks, but without doing anything."""
    with monkeypatch.context() as patch:
        patch.setattr(click.Command, "invoke", lambda command, context: None)
        return CliRunner().invoke(cli, list(words), prog_name="partq")


def command_at(words: Sequence[str]) -> tuple[click.Command, click.Context]:
    """The command that these words begin with; what follows it, and words that are none, are passed over."""
    command: click.Command = cli
    context = click.Context(cli)
    for word in words:
        found = command.get_command(context, word) if isinstance(command, click.Group) else None
        if found is None:
            break
        command = found
    return command, context


def commands(words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """Every command that is no group, with its words."""
    command, context = command_at(words)
    if not isinstance(command, click.Group):
        return [(words, command)]
    return [each for name in command.list_commands(context) for each in commands((*words, name))]
