"""What several commands take: the store and its namespace, names, numbers and times, checked before anything is done.

A value that no queue could take is wrong use (exit code 2), so checks that raise `Invalid` become click's errors here.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import click

from partq_spark import client
from partq_spark.base.errors import Invalid
from partq_spark.base.retry import LONGEST_WAIT_S, RETRY_TIMEOUT_S
from partq_spark.base.words import printable_lines

T = TypeVar("T")


class Checked(click.ParamType[T], Generic[T]):
    """A click type made of a function that raises `Invalid`; `name` stands in the help for the value."""

    def __init__(self, name: str, check: Callable[[str], T]) -> None:
        self.name = name
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._check(str(value))
        except Invalid as error:
            self.fail(str(error), param, ctx)


def checked_by(check: str, *given: Any) -> Callable[[str], Any]:
    """A check of `partq_spark.client.checks` by its name, imported when it is needed."""

    def run(text: str) -> Any:
        from partq_spark.client import checks

        return getattr(checks, check)(*given, text)

    return run


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= LONGEST_WAIT_S:  # refuses nan too
        raise Invalid(f"{text!r} is not allowed: give seconds from 0 to {LONGEST_WAIT_S:.0f}")
    return value


def _time(text: str) -> str:
    checked_by("parse_rfc3339")(text)
    return text


NAME = Checked[str]("name", checked_by("checked_name", "queue"))
NAMESPACE = Checked[str]("name", checked_by("checked_name", "namespace"))
GROUP = Checked[str]("name", checked_by("checked_name", "group"))
STORE = Checked[str]("url", checked_by("canonical_url"))
TIME = Checked[str]("rfc3339", _time)
OWNERSHIP = Checked[str]("where", checked_by("canonical_ownership"))
SECONDS = Checked[float]("seconds", _seconds)

queue_argument = click.argument("name", type=NAME)
group_option = click.option("--group", type=GROUP, metavar="NAME", required=True, help="The consumer group.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Where a command works: a store by its canonical URL, a namespace in it, and patience with it. `ownership` is what
    was given to the command, None if nothing was.
    """

    store: str
    namespace: str
    ownership: str | None
    retry_timeout_s: float

    def queue(self, name: str) -> client.Queue:
        """A queue there."""
        return client.Queue(name, **self.keywords)

    @property
    def keywords(self) -> dict[str, Any]:
        """As the client's functions take it."""
        return {"store": self.store, "namespace": self.namespace, "retry_timeout_s": self.retry_timeout_s}


def where_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--store`, `--namespace`, `--ownership` and `--retry-timeout`, as one `Where` in front of its
    own arguments.
    """

    @functools.wraps(command)
    def run(*, store: str | None, namespace: str, ownership: str | None, retry_timeout: float, **own: Any) -> None:
        from partq_spark.client import checks

        place = checked(lambda: checks.address(store, namespace, retry_timeout))
        checked(lambda: checks.ownership_url(ownership))  # what the environment says is checked, used or not
        _show_warnings()
        where = Where(store=place.store, namespace=place.namespace, ownership=ownership, retry_timeout_s=retry_timeout)
        command(where, **own)

    for option in (
        click.option(
            "--retry-timeout",
            type=SECONDS,
            metavar="S",
            default=RETRY_TIMEOUT_S,
            help=f"Seconds for which a store that does not answer is tried again.  [default: {RETRY_TIMEOUT_S:g}]",
        ),
        click.option(
            "--ownership",
            type=OWNERSHIP,
            metavar="URL",
            help="Where groups keep who has what: redis://host:port/db, rediss://…, store (beside the queue) or none.  "
            "[default: $PARTQ_OWNERSHIP, else none]",
        ),
        click.option(
            "--namespace", type=NAMESPACE, metavar="NAME", default="default", show_default=True, help="The namespace."
        ),
        click.option(
            "--store",
            type=STORE,
            metavar="URL",
            help="file:///absolute/dir or azure://container/prefix.  [default: $PARTQ_STORE, else file://$HOME/.partq]",
        ),
    ):
        run = option(run)
    return run


class Refused(click.ClickException):
    """Wrong use that needs no usage text beside its message."""

    exit_code = 2


def wrong_use(message: str) -> NoReturn:
    """End with exit code 2: what was asked for cannot be, whatever the store says."""
    raise click.UsageError(message, click.get_current_context(silent=True))


def checked(check: Callable[[], T]) -> T:
    """The result of `check`; if it raises `Invalid`, that is wrong use. For arguments that are checked together."""
    try:
        return check()
    except Invalid as error:
        wrong_use(str(error))


class _Printable(logging.Formatter):
    """What the log says of objects in a store, without what could steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def _show_warnings() -> None:
    """Show the log's warnings ("trying again for up to 120 s") to people, not to scripts, which expect one line."""
    package = logging.getLogger("partq")
    if not package.handlers:
        for name in ("partq", "partq_spark"):
            logger = logging.getLogger(name)
            handler = logging.StreamHandler() if sys.stderr.isatty() else logging.NullHandler()
            handler.setFormatter(_Printable())
            logger.addHandler(handler)
            logger.propagate = False
