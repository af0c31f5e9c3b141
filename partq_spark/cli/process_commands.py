"""`partq coordinator run`, `partq ui` and `partq spark-home`: what runs beside queries for as long as they do, and the
home from which Spark itself is started.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partq_spark.base.errors import Invalid
from partq_spark.cli.arguments import NAMESPACE, OWNERSHIP, STORE, STORES, command
from partq_spark.cli.output import Answer

if TYPE_CHECKING:
    from partq_spark.client.arguments import NamespaceAddress

PORT = 8096


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
def ui(where: NamespaceAddress, ownership: str | None, host: str, port: int, allow_actions: bool) -> Iterator[Answer]:
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
    yield Answer(None, iter([f"Open http://{shown}:{server.port}/ in a browser; Ctrl-C ends it."]))
    try:
        server.run()
    except KeyboardInterrupt:
        pass  # it was told to end, and has


@command("spark-home", of_store=False)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def spark_home(folder: Path) -> Iterator[Answer]:
    """Make a Spark home whose Python workers start quickly.

    DIR becomes a folder of links to the programs and jars of the PySpark that is installed for this Python. Its own
    archive, python/lib/pyspark.zip, is left out: every worker would compile anew what it imports from there. One that
    was made before is brought up to date; any other folder is refused. Right where workers run on this machine with
    this Python.

    What is printed is for the shell, before Spark starts: eval "$(partq spark-home ~/spark-home)"
    """
    from partq_spark.spark.local import make_home

    home = make_home(folder)
    yield Answer(home, iter([f"export SPARK_HOME={shlex.quote(str(home.folder))}"]))
