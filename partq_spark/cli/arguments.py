"""What several commands take: the store and its namespace, names, numbers and times, checked before anything is done.

A value that no queue could take is wrong use (exit code 2), so checks that raise `Invalid` become click's errors here.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import click

from partq_spark.base.errors import Invalid
from partq_spark.base.terminal import printable_lines

if TYPE_CHECKING:
    from partq_spark.group.stores.api import OwnershipStore
    from partq_spark.log.model import Head
    from partq_spark.log.queue import Queue
    from partq_spark.objects import ObjectStore

T = TypeVar("T")
RETRY_TIMEOUT_S = 120.0
LONGEST_S = 366 * 24 * 3600.0


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


def name_check(kind: str) -> Callable[[str], str]:
    """The check of the name of a queue, namespace or group."""

    def check(text: str) -> str:
        from partq_spark.log.names import checked_name

        return checked_name(kind, text)

    return check


def _store(text: str) -> str:
    from partq_spark.objects import canonical_url

    return canonical_url(text)


def _time(text: str) -> int:
    from partq_spark.base.timestamps import parse_rfc3339

    return parse_rfc3339(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= LONGEST_S:  # refuses nan too
        raise Invalid(f"{text!r} is not allowed: give seconds from 0 to {LONGEST_S:.0f}")
    return value


def _ownership(text: str) -> str:
    from partq_spark.group.stores.urls import canonical_ownership

    return canonical_ownership(text)


NAME = Checked("name", name_check("queue"))
NAMESPACE = Checked("name", name_check("namespace"))
STORE = Checked("url", _store)
TIME = Checked("rfc3339", _time)
OWNERSHIP = Checked("where", _ownership)
SECONDS = Checked("seconds", _seconds)

queue_argument = click.argument("name", type=NAME)
group_option = click.option(
    "--group", type=Checked("name", name_check("group")), metavar="NAME", required=True, help="The consumer group."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where a command works: a store by its canonical URL, a namespace in it, where ownership is kept (a canonical URL,
    `store` or `none`), and patience with them. `says_ownership`: it was given to the command, not by the environment.
    """

    url: str
    namespace: str
    ownership: str
    retry_timeout_s: float
    says_ownership: bool = False

    def for_group(self, head: Head, group: str) -> Target:
        """The same, with an ownership by which this group is shared, `none` if no address is known. What the
        environment says may be meant for other groups, so what does not fit is left out. Raises `Invalid` if the
        command was given what does not fit.
        """
        from partq_spark.log.groups import kind_of, require_ownership

        found = head.groups.get(group)
        if found is None or found.ownership in (None, kind_of(self.ownership)):
            return self
        if self.says_ownership:
            require_ownership(head, group, self.ownership, store=self.url)
        return replace(self, ownership="store" if found.ownership == "store" else "none")

    @contextmanager
    def store(self) -> Iterator[ObjectStore]:
        """The store, open for as long as the `with` block lasts. Raises as `open_store` does."""
        from partq_spark.objects import open_store

        _show_warnings()
        store = open_store(self.url, retry_timeout_s=self.retry_timeout_s)
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def group_ownership(self, store: ObjectStore) -> Iterator[OwnershipStore | None]:
        """Where the groups' ownership is kept; None for `none`. Raises `Invalid` as `open_ownership` does."""
        if self.ownership == "none":
            yield None
            return
        from partq_spark.group.stores import open_ownership

        ownership = open_ownership(self.ownership, store=store)
        try:
            yield ownership
        finally:
            ownership.close()

    @contextmanager
    def queue(self, name: str) -> Iterator[Queue]:
        """A handle on a queue in the open store; nothing is read yet."""
        from partq_spark.log.queue import Effects, Queue

        with self.store() as store:
            yield Queue(store, self.namespace, name, Effects(retry_timeout_s=self.retry_timeout_s))


def target_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--store`, `--namespace`, `--ownership` and `--retry-timeout`, as one `Target` in front of its
    own arguments.
    """

    @functools.wraps(command)
    def run(*, store: str | None, namespace: str, ownership: str | None, retry_timeout: float, **own: Any) -> None:
        target = Target(
            url=store or _default_store(),
            namespace=namespace,
            ownership=ownership or default_ownership(),
            retry_timeout_s=retry_timeout,
            says_ownership=ownership is not None,
        )
        command(target, **own)

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


def _default_store() -> str:
    from partq_spark.objects.urls import default_store

    return checked(lambda: default_store(os.environ))


def default_ownership() -> str:
    """What the environment says. A value that is not usable is wrong use."""
    from partq_spark.group.stores import urls

    return checked(lambda: urls.default_ownership(os.environ))


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
