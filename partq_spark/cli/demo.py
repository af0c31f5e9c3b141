"""`partq demo`: streaming queries share a queue of real flights, one comes later, one is killed, the outcome is proven.

The command and its options; the story is in `demo_story`. The queries run in this process, the coordinator in its own.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console

from partq_spark import client
from partq_spark.base.errors import Invalid, PartqError, WrongUse
from partq_spark.cli import output
from partq_spark.cli.arguments import NAMESPACE, OWNERSHIP, STORE, json_option
from partq_spark.cli.demo_screen import Screen
from partq_spark.cli.demo_story import Story
from partq_spark.demo.flights import KEY, ddl, prepare
from partq_spark.demo.processes import Coordinator, alone, default_place, keep_out_of_the_picture

if TYPE_CHECKING:
    from partq_spark.demo.queries import DemoQueries

QUEUE: Final = "flights"
GROUP: Final = "board"
FILES: Final = 12
REBALANCE_DELAY_S: Final = 1.0
SESSION_S: Final = 5


@click.command("demo")
@click.option("--partitions", type=click.IntRange(1, 64), default=8, show_default=True, help="Partitions of the queue.")
@click.option("--store", type=STORE, metavar="URL", help="Where the queue is made.  [default: a temporary directory]")
@click.option(
    "--namespace", type=NAMESPACE, metavar="NAME", default="default", show_default=True, help="The namespace."
)
@click.option(
    "--ownership",
    type=OWNERSHIP,
    metavar="WHERE",
    default="store",
    show_default=True,
    help="Where the group keeps who has what: store, redis://host:port/db or rediss://….",
)
@click.option("--page", is_flag=True, help="Show it in a browser, too, while it runs.")
@json_option
def demo(partitions: int, store: str | None, namespace: str, ownership: str, page: bool, as_json: bool) -> None:
    """Send 336,776 real flights through a queue that queries share.

    The flights that left New York in 2013 are published at a steady pace, each a row of 19 columns, keyed by the
    aircraft's tail number. Two streaming queries share them, a third one joins, then one is killed and does not come
    back; a coordinator moves the partitions, and every move is shown. No server is needed. Then what was delivered is
    checked: no flight missing, none twice unless it is marked as redelivered, every aircraft's flights in order.
    """
    if ownership == "none":
        raise WrongUse(
            "--ownership none is not for the demo, whose queries share a group: use store or redis://host:port/db"
        )
    port = _page_port() if page else 0
    console = Console(stderr=as_json, highlight=False)
    folder = default_place()
    store = store or f"file://{folder / 'store'}"
    begun_s = time.monotonic()
    with alone(folder):
        queue = client.create_queue(
            QUEUE,
            partitions=partitions,
            schema=ddl(),
            key=KEY,
            store=store,
            namespace=namespace,
            rebalance_delay_s=REBALANCE_DELAY_S,
        )
        # Here already, so that the coordinator knows it when the first flow comes.
        queue.create_group(GROUP, starting="earliest", ownership=ownership)
        place = {"store": store, "namespace": namespace}
        flow = {"group": GROUP, "ownership": ownership, "sessionTimeout": f"{SESSION_S}s"}
        with (
            queue.watching(GROUP, ownership=ownership) as look,
            Coordinator(folder / "coordinator.log", **place, ownership=ownership, port=port) as coordinator,
            _queries(folder, {**place, "queue": QUEUE}, flow, partitions) as queries,
        ):
            prepared = prepare(folder / "flights", FILES)  # while Spark starts
            with Screen(console, rebalance_delay_s=REBALANCE_DELAY_S, session_s=SESSION_S) as screen:
                shown = f"http://127.0.0.1:{port}/queues/{QUEUE}/groups/{GROUP}" if page else ""
                screen.head(prepared.flights, prepared.aircraft, partitions, store, shown)
                flights = prepared.flights
                story = Story(coordinator, queries, look=look, screen=screen, flights=flights)
                story.play()
        facts, moves = queries.facts, story.ledger.moves
        seconds = time.monotonic() - begun_s
        screen.proof(facts, flights, moves)
        if as_json:
            told = {**facts, "seconds": seconds, "store": store, "moves": [asdict(move) for move in moves]}
            output.print_json(told)
        where = ["--store", store, *(["--namespace", namespace] if namespace != "default" else [])]
        screen.end(seconds, _commands(where, ownership))
        if not facts["ok"]:
            raise PartqError(f"the check of what was delivered failed: {facts}; everything is kept in {folder}")


def _queries(folder: Path, queue: Mapping[str, str], flow: Mapping[str, str], partitions: int) -> DemoQueries:
    """Spark is loaded here: the rest of the command line does without."""
    log = folder / "spark.log"
    keep_out_of_the_picture(log)
    from partq_spark.demo.queries import DemoQueries

    return DemoQueries(folder, log, queue, {**queue, **flow}, partitions)


def _commands(where: Sequence[str], ownership: str) -> Sequence[str]:
    """What shows the group, some messages and the page, to be typed as it stands."""
    commands = (
        ("status", QUEUE, "--group", GROUP, "--ownership", ownership, *where),
        ("browse", QUEUE, *where, "--limit", "5"),
        ("ui", "--ownership", ownership, *where),
    )
    return [shlex.join([*_program(), *words]) for words in commands]


def _program() -> Sequence[str]:
    """How a shell calls this Python's partq: scripts/demo has it in an environment to which no PATH need lead."""
    beside = Path(sys.executable).with_name("partq")
    if not beside.exists():
        return [sys.executable, "-m", "partq_spark"]
    return ["partq" if shutil.which("partq") == str(beside) else str(beside)]


def _page_port() -> int:
    """A port for the coordinator's page."""
    try:
        from partq_spark.page.server import listening
    except ModuleNotFoundError as error:
        raise Invalid(f"--page needs {error.name}, which is not installed: pip install 'partq[ui]'") from error
    with listening("127.0.0.1", 0) as listener:
        port: int = listener.getsockname()[1]
        return port
