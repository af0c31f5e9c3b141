"""`partq demo`: streaming queries share a queue of real flights, one comes later, one is killed, the outcome is proven.

The command and its story: what happens when. Each act begins when the group shows the outcome of the one before. What
is read comes from the group, the coordinator's log and the queries, which run in this process; what is shown goes to
the screen (`demo_screen`).
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console

from partq_spark import client
from partq_spark.base.errors import Invalid, PartqError, Unavailable, WrongUse
from partq_spark.cli.commands import JSON, NAMESPACE, OWNERSHIP, STORE, print_json
from partq_spark.cli.demo_screen import Screen
from partq_spark.demo.flights import KEY, ddl, prepare
from partq_spark.demo.processes import Coordinator, Ledger, alone, default_place, keep_out_of_the_picture

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
                story = Story(
                    coordinator=coordinator, queries=queries, look=look, screen=screen, flights=prepared.flights
                )
                story.play()
            came = published(look())
        facts, moves = queries.facts, story.ledger.moves
        seconds = time.monotonic() - begun_s
        screen.proof(facts, prepared.flights, moves)
        if as_json:
            told = {
                **facts,
                "published": came,
                "seconds": seconds,
                "store": store,
                "moves": [asdict(move) for move in moves],
            }
            print_json(told)
        where = ["--store", store, *(["--namespace", namespace] if namespace != "default" else [])]
        screen.end(seconds, _commands(where, ownership))
        if not facts["ok"]:
            raise PartqError(f"the check of what was delivered failed: {facts}; everything is kept in {folder}")


demo.params.append(JSON)


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


# --- the story --------------------------------------------------------------------------------------------------------

QUIET_S: Final = 1.0  # between two acts, so that a person sees what came of the last one
WARM: Final = 0.1  # of all flights: that many are acknowledged before anything else happens
TIMEOUT_S: Final = 240.0  # for one act, on a machine that is very busy
LOOK_S: Final = 0.2


@dataclass(kw_only=True)
class Story:
    """What happens, act by act: each waits until the last one's outcome shows in the group."""

    coordinator: Coordinator
    queries: DemoQueries
    look: Callable[[], client.GroupView]
    screen: Screen
    flights: int
    ledger: Ledger = field(default_factory=Ledger)
    _is_over: bool = False

    def play(self) -> None:
        """From the first query to the proof. Raises `Unavailable` where something does not come to pass."""
        self._tell("Spark and a coordinator start")
        self._until(lambda view: self.queries.is_idle, "start of Spark")
        self._tell("two queries start: the flows amber and blue of one consumer group")
        self._join("amber", "blue")
        self._tell("another query publishes flights from now on, thousands every second")
        self.queries.do(self.queries.publish)
        self._until(lambda view: acknowledged(view) >= self.flights * WARM, "first flights")
        self._tell("a third query starts, the flow coral")
        self._join("coral")
        self._tell("blue is killed: SIGKILL for its reader process, and nobody starts it again")
        self.queries.do(self.queries.kill, "blue")
        self._until(lambda view: is_settled(view, {"amber", "coral"}), "new owners for blue's partitions")
        self._quiet()
        self._tell("the rest of the year comes at once")
        self.queries.do(self.queries.rest)
        self._until(self._is_done, "end of all flights")
        self._tell("everything is acknowledged; what the queries wrote is counted")
        self.queries.do(self.queries.prove)
        self._is_over = True
        self._until(lambda view: bool(self.queries.facts), "proof")

    def _join(self, *flows: str) -> None:
        for flow in flows:
            self.queries.do(self.queries.join, flow)
        together = {*flows, *self.ledger.bound}
        self._until(lambda view: is_settled(view, together), f"even share of {', '.join(sorted(together))}")
        self._quiet()

    def _quiet(self) -> None:
        until_s = time.monotonic() + QUIET_S
        self._until(lambda view: time.monotonic() >= until_s, "")

    def _is_done(self, view: client.GroupView) -> bool:
        return published(view) >= self.flights and not any(each.lag for each in view.partitions)

    def _until(self, done: Callable[[client.GroupView], bool], what: str) -> None:
        begun_s = time.monotonic()
        while True:
            self.queries.look()
            view = self.look()
            # The log after the state: a change that is seen there is told here.
            for line in self.coordinator.news():
                if not self._is_over:  # that the queries leave at the end is no part of the story
                    self.screen.changed(self.ledger, self.ledger.heed(line), self.queries.killed_ms)
            self.screen.show(view, published(view), self.flights)
            if done(view):
                return
            if time.monotonic() - begun_s > TIMEOUT_S:
                raise Unavailable(f"the demo saw no {what} within {TIMEOUT_S:.0f} s: see coordinator.log and spark.log")
            time.sleep(LOOK_S)

    def _tell(self, words: str) -> None:
        self.screen.tell(self.ledger, words)


def published(view: client.GroupView) -> int:
    """Messages that the group's queue has ever had, none of which was there before the group."""
    return sum(each.end for each in view.partitions)


def acknowledged(view: client.GroupView) -> int:
    """Messages that the group has dealt with, from its start."""
    return sum(each.acknowledged for each in view.partitions)


def is_settled(view: client.GroupView, flows: set[str]) -> bool:
    """Whether exactly these flows are bound and share all partitions evenly, and every partition delivers."""
    bound = {each.flow for each in view.flows if each.bound}
    shares = [sum(each.flow == flow for each in view.partitions) for flow in flows]
    return (
        bound == flows
        and view.rebalance_status is client.RebalanceStatus.READY
        and all(each.status is client.PartitionStatus.READY for each in view.partitions)
        and sum(shares) == len(view.partitions)
        and max(shares) - min(shares) <= 1
    )
