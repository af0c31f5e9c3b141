"""The entry point `partq`: the table of all commands, each imported only when it is called, and what becomes of errors.

Exit codes: 0 done; 2 wrong use (click's usage errors, and `WrongUse`); 1 anything else. One line on standard error says
what to do. Ends by SIGPIPE where nobody reads the output any more. Nothing heavy is imported here.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from partq_spark import __version__
from partq_spark.base.errors import PartqError, WrongUse
from partq_spark.base.process import drop_unwritten, end_unread, open_standard_streams
from partq_spark.base.words import printable, printable_lines


class Lazy(NamedTuple):
    """A command that is imported when it is called: its line in the group's help, and where it is found,
    `module:attribute` in this package.
    """

    summary: str
    target: str


class LazyGroup(click.Group):
    """A group whose commands are in a table, so that `--version` and `--help` cost no more than click itself."""

    def __init__(self, *, table: Mapping[str, Lazy | LazyGroup], summary: str = "", **more: Any) -> None:
        super().__init__(**{"help": summary, "commands": table, **more})
        self.table = table
        self.summary = summary

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self.table.get(cmd_name)
        if not isinstance(found, Lazy):
            return found
        module, _, attribute = found.target.partition(":")
        command: click.Command = getattr(importlib.import_module(f"partq_spark.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.summary) for name, each in self.table.items()])


class Checkpoints(LazyGroup):
    """`partq checkpoints NAME` shows; a first word that is a command is that command. A queue that has such a name is
    shown by `partq checkpoints show NAME`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.table and args[0] not in ctx.help_option_names:
            args = ["show", *args]
        return super().parse_args(ctx, args)


QUEUE = {
    "create": Lazy("Create a queue.", "queue_commands:create"),
    "list": Lazy("List the queues of a namespace.", "queue_commands:list_all"),
    "describe": Lazy("Show what a queue is and what it holds.", "queue_commands:describe"),
    "alter": Lazy("Change a queue's partitions, columns and settings.", "queue_commands:alter"),
    "delete": Lazy("Delete a queue, its messages and how far its groups were, for good.", "queue_commands:delete"),
    "resolve": Lazy("Say what batches are that were refused.", "operating_commands:resolve"),
    "subscribe": Lazy("Let a queue attract messages by their topics.", "queue_commands:subscribe"),
    "unsubscribe": Lazy("Take subscriptions back.", "queue_commands:unsubscribe"),
    "subscriptions": Lazy("List subscriptions.", "queue_commands:subscriptions"),
    "trim": Lazy("Make old messages unreadable.", "operating_commands:trim"),
    "compact": Lazy("Join small stored pieces into large ones.", "operating_commands:compact"),
    "collect": Lazy("Delete stored objects that nothing needs.", "operating_commands:collect"),
}
CHECKPOINTS = {
    "show": Lazy("Show the checkpoint of every partition.", "group_commands:checkpoints"),
    "rewind": Lazy("Take a group back: messages are delivered again.", "group_commands:rewind"),
}
GROUP = {
    "alter": Lazy("Change how a consumer group is shared.", "group_commands:alter"),
    "list": Lazy("List the consumer groups of a queue.", "group_commands:list_all"),
    "remove": Lazy("Remove a consumer group for good.", "group_commands:remove"),
}
COORDINATOR = {"run": Lazy("Decide who gets which partition, in the foreground.", "operating_commands:coordinator_run")}
COMMANDS: Mapping[str, Lazy | LazyGroup] = {
    "queue": LazyGroup(table=QUEUE, summary="Create, show, change and clean up queues."),
    "publish": Lazy("Publish messages from a file or standard input.", "message_commands:publish"),
    "browse": Lazy("Look at messages without taking them.", "message_commands:browse"),
    "status": Lazy("Show which flow has which partition, and why.", "group_commands:status"),
    "checkpoints": Checkpoints(
        table=CHECKPOINTS,
        summary="Show how far a group is, and take it back.",
        help="""Show how far a consumer group is, and take it back.

        \b
        partq checkpoints NAME --group G
        partq checkpoints rewind NAME --group G --to earliest --yes
        """,
    ),
    "group": LazyGroup(
        table=GROUP,
        summary="List, change and remove a queue's consumer groups.",
        help="List a queue's consumer groups, change how one is shared, and remove one.",
    ),
    "ui": Lazy("Show queues, groups and messages in a browser, live.", "operating_commands:ui"),
    "coordinator": LazyGroup(
        table=COORDINATOR,
        summary="Run the sidecar that shares partitions.",
        help="Run the sidecar that shares a group's partitions among its flows.",
    ),
    "spark-home": Lazy("Make a Spark home whose Python workers start quickly.", "operating_commands:spark_home"),
    "demo": Lazy("Send real flights through a queue with Spark.", "demo:demo"),
}
EPILOG = """\b
Examples:
  partq queue create orders --partitions 8
  partq publish orders --file orders.csv --key-column customer
  partq browse orders --limit 5
"""


class Root(LazyGroup):
    """The topmost group: turns errors into one line each, whichever command they come from."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with _as_one_line():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _as_one_line():
            return super().invoke(ctx)


@click.group(
    cls=Root,
    table=COMMANDS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="partq %(version)s")
def cli() -> None:
    """Partitioned message queues for Spark, kept in a directory, in Azure Blob Storage or in S3."""


def main() -> None:
    """What the command `partq` runs."""
    open_standard_streams()
    # A command that is told to end tidies up as after Ctrl-C: nothing half-staged stays behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what a terminal's encoding lacks is no reason to fail
    try:
        cli(prog_name="partq")
    except OSError as error:  # of standard error, the last place where something could be said
        if error.errno == errno.EPIPE:
            end_unread()
        sys.exit(1)
    finally:
        drop_unwritten()


class _WrongUse(click.ClickException):
    exit_code = 2


@contextmanager
def _as_one_line() -> Iterator[None]:
    try:
        yield
    except (PartqError, KeyboardInterrupt) as error:  # that one before click sees it, which would print an empty line
        raise _failure(str(error) or "interrupted", error) from error
    except click.ClickException as error:
        shown = printable_lines(error.format_message())  # nothing that was typed may steer a terminal
        error.format_message = lambda: shown  # type: ignore[method-assign]
        raise
    except (click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:  # whatever it is, a person gets one line and the way to more
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            end_unread()
        done = ctx.meta.get("partq.done", "") if (ctx := click.get_current_context(silent=True)) else ""
        raise _failure(f"{done}{type(error).__name__}: {error} (PARTQ_DEBUG=1 shows where)", error) from error


def _failure(message: str, error: BaseException) -> click.ClickException:
    if os.environ.get("PARTQ_DEBUG", "") not in ("", "0"):
        import traceback

        print(printable_lines("".join(traceback.format_exception(error))), end="", file=sys.stderr)  # noqa: T201 -- whole
    kind = _WrongUse if isinstance(error, WrongUse) else click.ClickException
    return kind(printable(" ".join(message.splitlines())))


if __name__ == "__main__":
    main()
