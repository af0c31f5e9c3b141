"""What the documents have from the code: docs/cli.md what the commands say of themselves, docs/metrics.csv the metrics,
docs/handoff.md the table of handoff states. `scripts/docs --write` writes all of them.

In docs/cli.md, below the heading of a command, stands its help, then its options. What is written by hand stays as it
is: all before the first of these headings, and of a command's section what follows the first heading of the third level
or bold word at the beginning of a line.
"""

from __future__ import annotations

import csv
import inspect
import io
import re
import textwrap
from collections.abc import Iterator
from typing import Final

import click

from coordinator.core.handoff import TABLE
from coordinator.metrics import METRICS as COORDINATOR
from partq_spark.cli.main import cli
from partq_spark.client import QueueConfig
from partq_spark.group.model import Phase
from partq_spark.spark.listener import METRICS as QUERY
from tools import ROOT

COMMANDS: Final = ROOT / "docs/cli.md"
METRICS: Final = ROOT / "docs/metrics.csv"
HANDOFF: Final = ROOT / "docs/handoff.md"
_COMMON: Final = ("--json", "--store", "--namespace", "--ownership", "--retry-timeout")
_SETTINGS: Final = tuple(f"--{setting.name}" for setting in QueueConfig.settings().values())
_ALL_TAKE: Final = "## What all commands take"
_WIDTH: Final = 118


# --- docs/cli.md ------------------------------------------------------------------------------------------------------


def command_page(former: str) -> str:
    """The page as it should be; `former` is the one that is there. Raises `ValueError` where that has words about a
    command that is gone.
    """
    hand = _by_hand(former)
    parts = [hand.pop(""), *(f"{section}\n{hand.pop(heading, '')}" for heading, section in _sections())]
    if hand:
        raise ValueError(f"no command has a section with this heading any more: {sorted(hand)}")
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _by_hand(text: str) -> dict[str, str]:
    """What is written by hand, by the heading of the command; that of the page's beginning by an empty one."""
    first, *others = re.split(rf"^(?=## partq |{_ALL_TAKE}$)", text, flags=re.MULTILINE)
    found = {"": first}
    for section in others:
        hand = re.search(r"^(?:### |\*\*).*", section, re.MULTILINE | re.DOTALL)
        if hand:
            found[section.partition("\n")[0]] = hand[0]
    return found


def _sections() -> Iterator[tuple[str, str]]:
    """Of each command its heading, and the whole of what it says of itself; before them what all of them take."""
    found = list(_commands(cli))
    options = _options_of(found[0][1])
    yield _ALL_TAKE, "\n".join((_ALL_TAKE, "", *(options[name] for name in _COMMON), ""))
    for words, command in found:
        context = click.Context(command)
        arguments = [each.make_metavar(context) for each in command.params if isinstance(each, click.Argument)]
        heading = " ".join(("## partq", *words, *arguments))
        parts = (heading, _paragraphs(command.help or ""), "\n".join(_own_options(command)))
        yield heading, "\n\n".join(part for part in parts if part) + "\n"


def _commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is no group, with its words."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _commands(found, (*words, name))


def _own_options(command: click.Command) -> Iterator[str]:
    """Those that not all commands take; the settings of a queue are told of `create` alone."""
    options = _options_of(command)
    told_before = _SETTINGS if command.name == "alter" and _SETTINGS[0] in options else ()
    yield from (line for name, line in options.items() if name not in (*_COMMON, *told_before))
    if told_before:
        yield "- the settings of [`partq queue create`](#partq-queue-create-name)"


def _options_of(command: click.Command) -> dict[str, str]:
    """A line for each of a command's options, by its name."""
    context = click.Context(command)
    records = {each.opts[0]: each.get_help_record(context) for each in command.params if isinstance(each, click.Option)}
    return {name: f"- `{record[0]}`: {_as_markdown(record[1])}" for name, record in records.items() if record}


def _paragraphs(text: str) -> str:
    """A command's help. Its first sentence, which stands alone in a terminal, begins the first paragraph."""
    first, *others = _as_markdown(text).split("\n\n")
    joined = [" ".join((first, *others[:1])), *others[1:]]
    return "\n\n".join(textwrap.fill(each, _WIDTH) for each in joined)


def _as_markdown(text: str) -> str:
    plain = re.sub(r"  +", " ", inspect.cleandoc(text))
    return re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or r"\*", plain)


# --- docs/metrics.csv -------------------------------------------------------------------------------------------------


def metrics_table() -> str:
    """All metrics, in the words that a scrape has."""
    rows = [("metric", "kind", "labels", "meaning")]
    rows += [(each.name, each.kind, " ".join(each.labels), each.help) for each in (*COORDINATOR, *QUERY)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


# --- docs/handoff.md --------------------------------------------------------------------------------------------------


def handoff_page(former: str) -> str:
    """The page as it should be; `former` is the one that is there, of which all but diagram and table stays."""
    head, tail = former[: former.index("```mermaid\n")], former[former.index("\n## What keeps this safe") :]
    return f"{head}{_diagram()}\n\n## The table\n\n{_table()}\n{tail}"


def _diagram() -> str:
    """A mermaid state diagram: one arrow for each pair of states, with what leads along it."""
    arrows: dict[tuple[Phase, Phase | None], list[str]] = {}
    for row in TABLE:
        arrows.setdefault((row.phase, row.then), []).extend(cause.value for cause in row.causes)
    lines = ["stateDiagram-v2", "    [*] --> free"]
    for (phase, then), causes in arrows.items():
        target = "[*]" if then is None else then.value
        lines.append(f"    {phase.value} --> {target} : {', '.join(causes)}")
    return "\n".join(["```mermaid", *lines, "```"])


def _table() -> str:
    """The rows, as a table in Markdown."""
    lines = ["| in | step | cause | when | then |", "|---|---|---|---|---|"]
    for row in TABLE:
        then = "gone" if row.then is None else row.then.value
        for cause, when in row.causes.items():
            lines.append(f"| {row.phase.value} | {row.step.value} | {cause.value} | {when} | {then} |")
    return "\n".join(lines)


if __name__ == "__main__":
    COMMANDS.write_text(command_page(COMMANDS.read_text(encoding="utf-8")), encoding="utf-8")
    METRICS.write_text(metrics_table(), encoding="utf-8")
    HANDOFF.write_text(handoff_page(HANDOFF.read_text(encoding="utf-8")), encoding="utf-8")
