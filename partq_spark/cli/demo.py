"""`partq demo`: the main job on real data, with a summary a person likes to read. The queries run as a process of
their own.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from partq_spark.cli.arguments import NAMESPACE, OWNERSHIP, STORE, json_option
from partq_spark.demo.check import Outcome, check
from partq_spark.demo.flights import Prepared, prepare
from partq_spark.errors import PartqError, Unavailable
from partq_spark.log.admin import create_queue
from partq_spark.objects import open_store

QUEUE = "flights"
TIMEOUT_S = 300.0
BAR_WIDTH = 32


@click.command("demo")
@click.option("--partitions", type=click.IntRange(1, 64), default=8, show_default=True, help="Partitions of the queue.")
@click.option("--store", type=STORE, metavar="URL", help="Where the queue is made.  [default: a temporary directory]")
@click.option(
    "--namespace", type=NAMESPACE, metavar="NAME", default="default", show_default=True, help="The namespace."
)
@click.option("--ownership", type=OWNERSHIP, metavar="none", help="Only none: the rest comes with a later version.")
@json_option
def demo(partitions: int, store: str | None, namespace: str, ownership: str | None, as_json: bool) -> None:
    """Publish 336,776 real flights and read them back, every aircraft in order.

    The flights that left New York in 2013, keyed by the aircraft's tail number: one Spark query publishes them in the
    order of departure, another reads them at the same time. No server is needed. Then what was delivered is checked:
    no flight missing, none twice, every aircraft's flights in order.
    """
    console = Console(stderr=as_json, highlight=False)
    folder = Path(tempfile.gettempdir()) / f"partq-demo-{getpass.getuser()}"
    shutil.rmtree(folder, ignore_errors=True)
    begun_s = time.monotonic()
    with console.status("reading the flights …"):
        prepared = prepare(folder / "flights")
        store = store or f"file://{folder / 'store'}"
        create_queue(open_store(store), namespace, QUEUE, partitions)
    console.print(
        f"[bold]{prepared.flights:,}[/] flights of [bold]{prepared.aircraft:,}[/] aircraft, "
        f"queue [bold]{QUEUE}[/] with [bold]{partitions}[/] partitions in {store}",
        soft_wrap=True,
    )
    facts = _run_queries(folder, store, namespace, prepared, console)
    with console.status("checking what was delivered …"):
        outcome = check(folder / "delivered", prepared.flights, partitions)
    seconds = time.monotonic() - begun_s
    if as_json:
        click.echo(json.dumps({"ok": outcome.ok, "seconds": seconds, "store": store, **facts, **asdict(outcome)}))
    else:
        where = f"--store {store}" + (f" --namespace {namespace}" if namespace != "default" else "")
        _summary(console, prepared, outcome, facts, seconds, where)
    if not outcome.ok:
        raise PartqError(f"the check of what was delivered failed: {outcome}; the files are kept in {folder}")


def _run_queries(folder: Path, store: str, namespace: str, prepared: Prepared, console: Console) -> dict[str, Any]:
    """Run the Spark process to its end, showing what it tells. Returns its closing facts."""
    log = folder / "spark.log"
    command = [sys.executable, "-m", "partq_spark.demo.queries", "--flights", str(folder / "flights")]
    command += ["--work", str(folder), "--store", store, "--namespace", namespace]
    command += ["--expected", str(prepared.flights), "--timeout", str(TIMEOUT_S)]
    # Spark's workers must be this Python: the first python3 on PATH may have no partq (spark-traps 27).
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        try:
            return _follow(_lines(process), prepared, console)
        except _Stopped as stopped:
            raise Unavailable(f"the demo's Spark queries stopped: {str(stopped) or 'no message'}; see {log}") from None
        finally:
            if process.poll() is None:
                process.terminate()


class _Stopped(Exception):
    """The Spark process ended before it was done; the text is its reason."""


def _lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    for line in process.stdout or ():
        if line.startswith("{"):  # Spark prints to standard output too
            yield json.loads(line)


def _follow(events: Iterator[dict[str, Any]], prepared: Prepared, console: Console) -> dict[str, Any]:
    with Progress(
        TextColumn("{task.description:>18}"),
        BarColumn(BAR_WIDTH),
        TextColumn("{task.completed:>9,.0f}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bars:
        starting = bars.add_task("starting Spark", total=None)
        published = bars.add_task("published", total=prepared.flights, visible=False)
        read = bars.add_task("read back", total=prepared.flights, visible=False)
        for event in events:
            if event["event"] == "started":
                bars.update(starting, visible=False)
                bars.update(published, visible=True)
                bars.update(read, visible=True)
            elif event["event"] == "failed":
                raise _Stopped(event["error"])
            else:
                bars.update(published, completed=event["published"])
                bars.update(read, completed=event["read"])
                if event["event"] == "done":
                    return {name: event[name] for name in ("published", "read", "published_s", "read_s")}
    raise _Stopped


def _summary(
    console: Console, prepared: Prepared, outcome: Outcome, facts: dict[str, Any], seconds: float, where: str
) -> None:
    rates = Table(show_header=False, box=None, padding=(0, 2))
    for name, messages, took_s in (
        ("published", facts["published"], facts["published_s"]),
        ("read back", facts["read"], facts["read_s"]),
    ):
        rates.add_row(name, f"{messages:,} messages", f"{took_s:.1f} s", f"{messages / took_s:,.0f} messages/s")
    console.print()
    console.print(rates)
    console.print("\n  messages per partition")
    most = max(outcome.per_partition) or 1
    for partition, messages in enumerate(outcome.per_partition):
        bar = "█" * round(BAR_WIDTH * messages / most)
        console.print(f"  {partition:>3}  [cyan]{bar:<{BAR_WIDTH}}[/]  {messages:>7,}")
    console.print()
    _verdict(
        console, outcome.missing == 0, f"none of {prepared.flights:,} flights missing", f"{outcome.missing:,} missing"
    )
    _verdict(console, outcome.twice == 0, "none delivered twice", f"{outcome.twice:,} delivered twice")
    _verdict(
        console,
        outcome.aircraft_out_of_order == 0 and outcome.offsets_out_of_order == 0,
        f"the flights of each of {outcome.aircraft:,} aircraft in order of departure",
        f"{outcome.aircraft_out_of_order:,} aircraft out of order",
    )
    console.print(f"\n  {seconds:.0f} s in all. The queue is still there, look for yourself:\n", style="dim")
    console.print(f"  partq browse {QUEUE} {where} --limit 5", soft_wrap=True)
    console.print(f"  partq queue describe {QUEUE} {where}", soft_wrap=True)


def _verdict(console: Console, good: bool, well: str, badly: str) -> None:
    console.print(f"  [green]✓[/] {well}" if good else f"  [red]✗ {badly}[/]")
