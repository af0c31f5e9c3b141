"""For those who operate queues. `partq queue trim`, `compact` and `collect`: housekeeping on request, which the
coordinator does by itself; and `resolve`, which only a person can say. `partq coordinator run`, `partq ui` and `partq
spark-home`: what runs beside queries for as long as they do, and the home from which Spark itself is started.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import click
import msgspec

from partq_spark import client
from partq_spark.base import words
from partq_spark.base.errors import Invalid, WrongUse
from partq_spark.base.json_documents import Whole
from partq_spark.cli.commands import (
    NAMESPACE,
    OWNERSHIP,
    SECONDS,
    STORE,
    STORES,
    TIME,
    Answer,
    Checked,
    View,
    command,
    require_yes,
)
from partq_spark.client import words as sayings
from partq_spark.client.arguments import NamespaceAddress

_DAY_S = 86_400.0  # the default grace
PORT = 8096


_Offsets = Annotated[dict[Whole, Whole], msgspec.Meta(min_length=1)]


def _offsets(text: str) -> dict[int, int]:
    from partq_spark.client.readers import ExactDecoder

    try:
        return msgspec.convert(ExactDecoder().decode(text), type=_Offsets, str_keys=True)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        said = f'{text!r} is not allowed: give JSON that names partitions and offsets, such as {{"0": 12, "1": 7}}'
        raise Invalid(said) from None


@command("trim")
@click.option("--before", "before", type=TIME, metavar="RFC3339", help="Everything published before this time.")
@click.option(
    "--before-offsets",
    type=Checked("json", _offsets),
    metavar="JSON",
    help='Everything below these offsets; partitions that are not named keep all.  Example: {"0": 12}',
)
def trim(queue: client.Queue, before: str | None, before_offsets: dict[int, int] | None) -> View:
    """Make old messages unreadable, for every reader and for good.

    What a group has not acknowledged stays: its checkpoints say how far it is, its start where there is none. The
    stored bytes are given back later, by `partq queue collect`.
    """
    if (before is None) == (before_offsets is None):
        raise WrongUse("give either --before or --before-offsets.")
    done = queue.trim(before_offsets if before is None else before)  # type: ignore[arg-type]  # one of them is given
    yield Answer(done)
    yield f"Trimmed {words.plural(done.trimmed, 'message')} of {queue}; {done.messages:,} can still be read."
    if done.held_back:
        yield f"Held back: {sayings.held_back_in_words(done.held_back)}."
    if done.trimmed:
        yield f"The space is given back by: partq queue collect {queue.name}"


@command("compact")
@click.option(
    "--min-age",
    "min_age_s",
    type=SECONDS,
    metavar="S",
    help="Leave alone what was published within so many seconds.  [default: 300]",
)
def compact(queue: client.Queue, min_age_s: float | None) -> View:
    """Join small stored pieces into large ones, so that reading many small publishes is as fast as reading one.

    Messages keep their offsets and times. Goes on until nothing is worth it; the space of what was joined is given back
    later, by `partq queue collect`. A publish whose outcome is unknown for longer than --min-age cannot be told from
    one that failed any more.
    """
    done = queue.compact(min_age_s=min_age_s)
    yield Answer(done)
    if not done.steps:
        yield f"Nothing of {queue} is worth compacting: what is old enough lies in large pieces already."
        return
    yield (
        f"Compacted {words.plural(done.messages, 'message')} of {queue}: {words.plural(done.slices_before, 'slice')} "
        f"({words.size(done.bytes_before)}) became {done.slices:,} ({words.size(done.bytes)})."
    )
    if not done.finished:
        yield "There may be more: run it again."
    yield f"The space of what was joined is given back by: partq queue collect {queue.name}"


@command("collect")
@click.option(
    "--grace",
    "grace_s",
    type=SECONDS,
    metavar="S",
    help="Seconds for which a slow publish or reader may still need an object.  [default: 86400, a day]",
)
def collect(queue: client.Queue, grace_s: float | None) -> View:
    """Delete stored objects that nothing needs: what was trimmed, and what publishes that never ended left behind.

    Works in rounds, so run it from time to time: an object is marked by one round and deleted by a later one, at least
    one grace after. A publish that takes longer than the grace is refused at its end, and must be repeated.
    """
    done = queue.collect(grace_s=grace_s)
    yield Answer(done)
    yield f"Deleted {words.plural(done.deleted, 'object')} ({words.size(done.deleted_bytes)}) of {queue}."
    if done.temporary:
        yield f"Removed {words.plural(done.temporary, 'temporary file')} of writers that died, in the whole store."
    if not done.deleted and not done.marked:
        yield "Nothing was due: with regular rounds an object goes two graces after it was needed last."
    if done.marked:
        grace_s = _DAY_S if grace_s is None else grace_s
        wait = f"{grace_s / 3600:g} h" if grace_s >= 3600 else words.seconds(grace_s)
        yield f"Marked {words.plural(done.marked, 'object')}: a round at least {wait} from now deletes them."


@command("resolve")
@click.option("--writer", metavar="NAME", required=True, help="The query's id or the txnAppId, as the refusal says.")
@click.option("--batch", type=click.IntRange(min=0), metavar="N", required=True, help="The first batch.")
@click.option(
    "--as",
    "what",
    type=click.Choice(["published", "new"]),
    required=True,
    help="published: skip them, as their rows are there.  new: publish them once more, at least once.",
)
def resolve(queue: client.Queue, writer: str, batch: int, what: str, yes: bool) -> View:
    """Say what batches are that were refused because their writer has used their numbers for other rows.

    It counts for batch N and later ones up to the writer's last, in every queue of the namespace that has them, until
    the writer publishes something that is new. Restart the query after it. Describe shows who said what.
    """
    if not yes:
        queue.describe()  # says that there is no such queue
    effect = "their rows are skipped" if what == "published" else "their rows are published once more"
    require_yes(yes, f"say that batch {batch} and later ones of writer {writer!r} are {what}: {effect}")
    done = queue.resolve(writer=writer, batch=batch, published=what == "published")
    yield Answer(done)
    effect = "skipped as published before" if done.published else "published once more"
    yield (
        f"Batch {done.batch} and later ones of writer {done.writer!r}, up to its last, are {effect} in "
        f"{words.plural(len(done.queues), 'queue')} ({', '.join(done.queues)}). Start the query again."
    )
    if done.unreadable:
        yield f"Not said in queues that cannot be read: {', '.join(done.unreadable)}."


# --- what runs beside queries -----------------------------------------------------------------------------------------


@click.command("run")
@click.option("--config", type=click.Path(dir_okay=False), metavar="FILE", help="As conf/coordinator.toml.")
@click.option("--store", type=STORE, metavar="URL", help=f"{STORES}.")
@click.option("--namespace", type=NAMESPACE, metavar="NAME", help="The namespace whose groups are coordinated.")
@click.option("--ownership", type=OWNERSHIP, metavar="WHERE", help="redis://host:port/db, rediss://… or store.")
@click.option("--json", "as_json", is_flag=True, help="Log lines as JSON, for machines.")
def coordinator_run(
    config: str | None, store: str | None, namespace: str | None, ownership: str | None, as_json: bool
) -> None:
    """Decide who gets which partition, in the foreground, until SIGTERM or Ctrl-C.

    Any number may run; one leads. What is not given comes from the environment (PARTQ_STORE, PARTQ_OWNERSHIP), then
    from the configuration. Exit code 0 when it was told to end, 2 if the configuration cannot be used.
    """
    # Another package, which is never imported here.
    # -P: a directory named coordinator where the command is typed is not the package.
    command = [sys.executable, "-P", "-m", "coordinator"]
    for name, value in (("config", config), ("store", store), ("namespace", namespace), ("ownership", ownership)):
        if value is not None:
            command += [f"--{name}", value]
    if as_json:
        command.append("--json")
    sys.stdout.flush()
    sys.stderr.flush()
    # In place of this process: signals reach the sidecar itself, and nothing is left behind if one is killed.
    os.execv(sys.executable, command)


@command("ui", prints_json=False)
@click.option(
    "--host",
    metavar="H",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen; other than this machine only with $PARTQ_UI_TOKEN.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="P",
    default=PORT,
    show_default=True,
    help="On which port; 0: any that is free.",
)
@click.option(
    "--allow-actions", is_flag=True, help="Let the page rewind groups and alter queues; needs $PARTQ_UI_TOKEN."
)
def ui(where: NamespaceAddress, ownership: str | None, host: str, port: int, allow_actions: bool) -> View:
    """Show queues, groups and messages in a browser, live.

    The page looks at the store once a second while somebody watches, and not at all when nobody does. With
    $PARTQ_UI_TOKEN everybody who opens it is asked for the token. Names other than localhost by which the page is
    asked for are given in $PARTQ_UI_HOSTS, with commas. Ends with Ctrl-C.
    """
    try:
        from partq_spark.page.access import access
        from partq_spark.page.app import Page
        from partq_spark.page.sections import Place
        from partq_spark.page.server import Server, listening
    except ModuleNotFoundError as error:
        raise Invalid(f"the page needs {error.name}, which is not installed: pip install 'partq[ui]'") from error
    allowed = access(host, os.environ, actions=allow_actions)
    place = Place(
        store=where.store,
        namespace=where.namespace,
        ownership=ownership,
        retry_timeout_s=min(where.retry_timeout_s, 30.0),
    )
    page = Page(place, allowed)
    try:
        listener = listening(host, port)
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or error
        raise Invalid(
            f"--port {port} on {host} cannot be used ({said}): end what listens there, or choose another port"
        ) from error
    server = Server(page.app, listener, ending=page.end)
    shown = f"[{host}]" if ":" in host else host
    yield f"Open http://{shown}:{server.port}/ in a browser; Ctrl-C ends it."
    try:
        server.run()
    except KeyboardInterrupt:
        pass  # it was told to end, and has


@command("spark-home", of_store=False)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def spark_home(folder: Path) -> View:
    """Make a Spark home whose Python workers start quickly.

    DIR becomes a folder of links to the programs and jars of the PySpark that is installed for this Python. Its own
    archive, python/lib/pyspark.zip, is left out: every worker would compile anew what it imports from there. One that
    was made before is brought up to date; any other folder is refused. Right where workers run on this machine with
    this Python.

    What is printed is for the shell, before Spark starts: eval "$(partq spark-home ~/spark-home)"
    """
    from partq_spark.spark.local import make_home

    home = make_home(folder)
    yield Answer(home)
    yield f"export SPARK_HOME={shlex.quote(str(home.folder))}"
