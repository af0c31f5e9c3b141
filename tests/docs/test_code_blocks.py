"""Every block of code in the documents is of a known kind, and is what its kind asks for. Nothing is run here."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import click
import pytest
import yaml

import partq
from partq_spark.spark.options import source_options
from tests.docs.blocks import PAGES, ROOT, Block, blocks, inline_commands, partq_commands, shell_of
from tests.docs.spark_options import checked_options
from tests.support.command_line import command_at, commands, takes

SHELL = ("bash", "console", "sh")
KNOWN = {"", *SHELL, "json", "mermaid", "python", "sql", "text", "yaml", "{names}"}
ALL = blocks()


def of(*languages: str) -> list[Block]:
    return [each for each in ALL if each.language in languages]


def test_every_block_says_what_it_is() -> None:
    """A new language needs a check here."""
    assert [str(each) for each in ALL if each.language not in KNOWN] == []


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python_compiles_knows_partq_and_gives_options_that_are_taken(block: Block) -> None:
    tree = ast.parse(block.text, str(block))
    used = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute) and is_partq(each.value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "partq":
            used |= {each.name for each in node.names}
    assert used - set(vars(partq)["__all__"]) == set()
    for role, options, taken in checked_options(tree):
        assert taken, f"{role} has options {options}, and the check read none"


def is_partq(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "partq"


@pytest.mark.parametrize("block", of("sql"), ids=str)
def test_sql_gives_options_that_a_source_has(block: Block) -> None:
    given = re.findall(r"USING partq OPTIONS \(([^)]*)\)", block.text)
    assert given
    for options in given:
        source_options(dict(re.findall(r"(\w+) '([^']*)'", options)))  # raises `Invalid` for any other


@pytest.mark.parametrize("block", of(*SHELL), ids=str)
def test_a_shell_and_the_command_line_take_it(block: Block, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    typed = shell_of(block)
    done = subprocess.run(["bash", "-n"], input=typed, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for script in re.findall(r"\bscripts/([\w-]+)", typed):
        assert (ROOT / "scripts" / script).is_file()
    monkeypatch.chdir(tmp_path)
    for name in ("orders.csv", "payments.csv"):
        Path(name).touch()  # those that the examples name must be there
    for words in partq_commands(typed):
        taken = takes(words, monkeypatch)
        assert taken.exit_code == 0, f"partq {' '.join(words)}: {taken.output}"


def options_of(words: tuple[str, ...]) -> set[str]:
    """The options of the command which these words begin with, and those of the commands below it."""
    path = next(words[:end] for end in range(len(words), -1, -1) if is_command(words[:end]))
    below = [command_at(path)[0], *(each for _, each in commands(path))]
    found = {option for each in below for parameter in each.params for option in parameter.opts}
    return {*found, "--help", "--version"}


def is_command(words: tuple[str, ...]) -> bool:
    command, context = command_at(words[:-1])
    return not words or (isinstance(command, click.Group) and words[-1] in command.list_commands(context))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_text_have_the_options_that_they_name(page: Path) -> None:
    for text in inline_commands(page):
        words = tuple(text.split()[1:])
        named = {word.strip("[],.…").partition("=")[0] for word in words if word.startswith("--")} - {"--"}
        assert is_command(words[:1]) or words[0] == "…" or words[0].startswith("-"), text
        assert named <= options_of(words), text


def test_json_and_yaml_are_such() -> None:
    for block in of("json"):
        json.loads(block.text)
    for block in of("yaml"):
        assert list(yaml.safe_load_all(block.text)), str(block)
