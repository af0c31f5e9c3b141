"""The entry point `partq`: the table of commands, and what becomes of errors.

Exit codes: 0 done; 2 wrong use (click's usage errors, and arguments that no queue could take); 1 anything else, with
one line on standard error that says what to do; by SIGPIPE where nobody reads the output any more. Nothing heavy is
imported here.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from partq_spark import __version__
from partq_spark.base.errors import PartqError
from partq_spark.base.process import drop_unwritten, end_unread, open_standard_streams
from partq_spark.base.words import printable, printable_lines
from partq_spark.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "queue": Lazy("partq_spark.cli.queue_commands:queue", "Create, show, change and clean up queues."),
    "publish": Lazy("partq_spark.cli.publish:publish", "Publish messages from a file or standard input."),
    "browse": Lazy("partq_spark.cli.browse:browse", "Look at messages without taking them."),
    "status": Lazy("partq_spark.cli.status_command:status", "Show which flow has which partition, and why."),
    "checkpoints": Lazy(
        "partq_spark.cli.checkpoints_commands:checkpoints", "Show how far a group is, and take it back."
    ),
    "group": Lazy("partq_spark.cli.group_commands:group", "List, change and remove a queue's consumer groups."),
    "ui": Lazy("partq_spark.cli.ui_command:ui", "Show queues, groups and messages in a browser, live."),
    "coordinator": Lazy("partq_spark.cli.coordinator_commands:coordinator", "Run the sidecar that shares partitions."),
    "spark-home": Lazy(
        "partq_spark.cli.spark_home_command:spark_home", "Make a Spark home whose Python workers start quickly."
    ),
    "demo": Lazy("partq_spark.cli.demo:demo", "Send real flights through a queue with Spark."),
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
    lazy=COMMANDS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="partq %(version)s")
def cli() -> None:
    """Partitioned message queues for Spark, kept in a directory or in Azure Blob Storage."""


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


@contextmanager
def _as_one_line() -> Iterator[None]:
    try:
        yield
    except PartqError as error:
        raise _failure(str(error), error) from error
    except KeyboardInterrupt as error:
        # Before click sees it, which would print an empty line too.
        raise _failure("interrupted", error) from error
    except click.ClickException as error:
        raise _shown(error) from error
    except (click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:  # whatever it is, a person gets one line and the way to more
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            end_unread()
        raise _failure(f"{type(error).__name__}: {error} (PARTQ_DEBUG=1 shows where)", error) from error


def _failure(message: str, error: BaseException) -> click.ClickException:
    if os.environ.get("PARTQ_DEBUG", "") not in ("", "0"):
        import traceback

        print(printable_lines("".join(traceback.format_exception(error))), end="", file=sys.stderr)  # noqa: T201 -- whole
    return click.ClickException(printable(" ".join(message.splitlines())))


def _shown(error: click.ClickException) -> click.ClickException:
    """The error itself, if nothing in it (what was typed, for example) could steer a terminal; else one that says the
    same with escapes.
    """
    text = error.format_message()
    shown = printable_lines(text)
    if shown == text:
        return error
    if isinstance(error, click.UsageError):
        return click.UsageError(shown, error.ctx)
    from partq_spark.cli.arguments import Refused

    return Refused(shown) if error.exit_code == Refused.exit_code else click.ClickException(shown)


if __name__ == "__main__":
    main()
