"""What a command is: what it takes and what it shows. Several take the store and its namespace, names, numbers and
times, checked before anything is done, and the settings of a queue.

A command is a function under `@command`. It yields what it has to show, and prints nothing itself: values as `Answer`,
of which machines get JSON (`document` makes it of any frozen value); lines, facts and tables for people. Lines are not
wrapped; whatever is printed is printable (`partq_spark.base.words`). ruff refuses `click.echo` anywhere else.

An argument that no queue could take is wrong use (exit code 2): click says so of those that are checked here, and
`WrongUse` of those that the client checks.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from partq_spark import client
from partq_spark.base.effects import LONGEST_WAIT_S, RETRY_TIMEOUT_S, format_rfc3339, parse_rfc3339, unix_us
from partq_spark.base.errors import Invalid, WrongUse
from partq_spark.base.words import printable, printable_json, printable_lines
from partq_spark.cli.tables import Table, draw
from partq_spark.client import arguments

DOCUMENTS_AT_A_TIME = 500

T = TypeVar("T")


# --- what an argument may be ------------------------------------------------------------------------------------------


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


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= LONGEST_WAIT_S:  # refuses nan too
        raise Invalid(f"{text!r} is not allowed: give seconds from 0 to {LONGEST_WAIT_S:.0f}")
    return value


def _time(text: str) -> str:
    parse_rfc3339(text)
    return text


NAME = Checked("name", partial(arguments.checked_name, "queue"))
NAMESPACE = Checked("name", partial(arguments.checked_name, "namespace"))
GROUP = Checked("name", partial(arguments.checked_name, "group"))
STORES = "file:///absolute/dir, azure://container/prefix or s3://bucket/prefix"
STORE = Checked("url", arguments.canonical_url)
TIME = Checked("rfc3339", _time)
TOPIC = Checked("topic", arguments.checked_topic)
OWNERSHIP = Checked("where", arguments.canonical_ownership)
PARTITIONS = Checked("partitions", arguments.checked_partitions)
SECONDS = Checked[float]("seconds", _seconds)


# --- arguments of several commands ------------------------------------------------------------------------------------


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the settings of a queue, as one dictionary `given` of those that were given."""
    settings, default = client.QueueConfig.settings(), client.QueueConfig()

    @functools.wraps(command)
    def run(*args: Any, **own: Any) -> Any:
        source_of = click.get_current_context().get_parameter_source
        values = {name: own.pop(name) for name in settings}
        given = {name: value for name, value in values.items() if source_of(name) is ParameterSource.COMMANDLINE}
        return command(*args, given=given, **own)

    for name, setting in reversed(list(settings.items())):
        kind: click.ParamType[Any] = Checked(setting.unit, setting.parse)
        if setting.choices:
            kind = click.Choice(setting.choices, case_sensitive=False)
        letter, usual = "S" if setting.unit == "seconds" else "N", getattr(default, name)
        run = click.option(
            f"--{setting.name}",
            name,
            type=kind,
            metavar=None if setting.choices else f"{letter}|none" if setting.none else letter,
            help=f"{setting.meaning}  [default: {'none' if usual is None else usual}]",
        )(run)
    return run


# --- what a command shows ---------------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """Names and values below each other, the values aligned and never cut."""

    pairs: Sequence[tuple[str, str]]


class Answer(NamedTuple):
    """A value of the client, for machines. Of an iterator each item is a JSON document of its own, printed as it is."""

    value: object


View: TypeAlias = "Iterator[Answer | str | Facts | Table | View]"
"""What a command has to show, part by part. A text is a line; what is within a view is made for people alone."""


def show(view: View, *, as_json: bool) -> None:
    """Print what is for machines, or what is for people."""
    for part in view:
        match part:
            case Answer(value) if as_json:
                documents = value if isinstance(value, Iterator) else iter((document(value),))
                while some := list(islice(documents, DOCUMENTS_AT_A_TIME)):
                    print_json(*some)
            case _ if as_json or isinstance(part, Answer):
                pass
            case Table():
                for line in draw(part):
                    say(line)
            case Facts(pairs):
                width = max(len(name) for name, _ in pairs)
                for name, value in pairs:
                    click.echo(f"{click.style(name.ljust(width), dim=True)}  {printable(value)}")
            case str():
                say(part)
            case _:
                show(part, as_json=False)


def say(text: str = "", *, err: bool = False) -> None:
    """Print one line."""
    click.echo(printable(text), err=err)


def print_json(*documents: object) -> None:
    """Print each document on a line of its own, in UTF-8 whatever the terminal's encoding (RFC 8259)."""
    lines = [printable_json(json.dumps(each, ensure_ascii=False, allow_nan=False)) for each in documents]
    click.echo("\n".join(lines).encode())


def document(value: object) -> Any:
    """Any value of the client as JSON: a frozen dataclass or Struct becomes an object of its fields and properties, a
    point in time RFC 3339, seconds a number with six digits.
    """
    own = [each.name for each in fields(value)] if is_dataclass(value) else getattr(value, "__struct_fields__", ())
    if own:
        more = (name for name, found in vars(type(value)).items() if isinstance(found, property))
        return {name.rstrip("_"): document(getattr(value, name)) for name in (*own, *more)}
    match value:
        case float():
            return round(value, 6)
        case datetime():
            return format_rfc3339(unix_us(value))
        case Mapping():
            return {name: document(each) for name, each in value.items()}
        case list() | tuple():
            return [document(each) for each in value]
        case None | bool() | int():
            return value
        case _:
            return str(value)


# --- commands ---------------------------------------------------------------------------------------------------------


def command(
    name: str, *, of_store: bool = True, prints_json: bool = True
) -> Callable[[Callable[..., View]], click.Command]:
    """Make a command of a view. Each part is printed as it comes; with `--json` the answers alone.

    Around its own options the command gets those of all others. Its function gets the values of its own, and what it
    names of these: `where` (the namespace), `queue` (which NAME, an argument of the command, says), `group`, `yes` (for
    `require_yes`) and `ownership`.
    """

    def make(function: Callable[..., View]) -> click.Command:
        wanted = inspect.signature(function).parameters

        @functools.wraps(function)
        def run(*, as_json: bool = False, **given: Any) -> None:
            if of_store:
                given = _placed(given, wanted)
            show(function(**given), as_json=as_json)

        made = click.command(name)(run)
        if "group" in wanted:
            made.params.insert(0, _GROUP)
        if "queue" in wanted:
            made.params.insert(0, click.Argument(["name"], type=NAME))
        made.params += [*[_YES] * ("yes" in wanted), *[JSON] * prints_json, *_STORE * of_store]
        return made

    return make


_GROUP = click.Option(["--group"], type=GROUP, metavar="NAME", required=True, help="The consumer group.")
_YES = click.Option(["--yes"], is_flag=True, help="Really do it.")
JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, for machines.")
_STORE = (
    click.Option(
        ["--store"],
        type=STORE,
        metavar="URL",
        help=f"{STORES}.  [default: $PARTQ_STORE, else file://$HOME/.partq]",
    ),
    click.Option(
        ["--namespace"], type=NAMESPACE, metavar="NAME", default="default", show_default=True, help="The namespace."
    ),
    click.Option(
        ["--ownership"],
        type=OWNERSHIP,
        metavar="URL",
        help="Where groups keep who has what: redis://host:port/db, rediss://…, store (beside the queue) or none.  "
        "[default: $PARTQ_OWNERSHIP, else none]",
    ),
    click.Option(
        ["--retry-timeout"],
        type=SECONDS,
        metavar="S",
        default=RETRY_TIMEOUT_S,
        help=f"Seconds for which a store that does not answer is tried again.  [default: {RETRY_TIMEOUT_S:g}]",
    ),
)


def _placed(given: dict[str, Any], wanted: Collection[str]) -> dict[str, Any]:
    """The arguments of a command's function: what was given, with the place that it wants in place of the options. What
    the environment says is checked, wanted or not.
    """
    where = arguments.address(given.pop("store"), given.pop("namespace"), given.pop("retry_timeout"))
    arguments.ownership_url(given["ownership"])
    _show_warnings()
    if "queue" in wanted:
        given["queue"] = client.Queue(given.pop("name"), **asdict(where))
    if "where" in wanted:
        given["where"] = where
    if "ownership" not in wanted:
        del given["ownership"]
    return given


def require_yes(yes: bool, would: str) -> None:
    """End the command, which says what it would do, unless `--yes` was given."""
    if not yes:
        raise WrongUse(f"this would {would}. Add --yes to do so.")


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
