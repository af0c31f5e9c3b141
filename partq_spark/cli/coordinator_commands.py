"""`partq coordinator run`: becomes `python -m coordinator`, which is another package and is never imported here."""

from __future__ import annotations

import os
import sys

import click

from partq_spark.cli.arguments import NAMESPACE, OWNERSHIP, STORE
from partq_spark.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "run": Lazy("partq_spark.cli.coordinator_commands:run", "Decide who gets which partition, in the foreground."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def coordinator() -> None:
    """Run the sidecar that shares a group's partitions among its flows."""


@click.command("run")
@click.option("--config", type=click.Path(dir_okay=False), metavar="FILE", help="As conf/coordinator.toml.")
@click.option("--store", type=STORE, metavar="URL", help="file:///absolute/dir or azure://container/prefix.")
@click.option("--namespace", type=NAMESPACE, metavar="NAME", help="The namespace whose groups are coordinated.")
@click.option("--ownership", type=OWNERSHIP, metavar="WHERE", help="redis://host:port/db, rediss://… or store.")
@click.option("--json", "as_json", is_flag=True, help="Log lines as JSON, for machines.")
def run(config: str | None, store: str | None, namespace: str | None, ownership: str | None, as_json: bool) -> None:
    """Decide who gets which partition, in the foreground, until SIGTERM or Ctrl-C.

    Any number may run; one leads. What is not given comes from the environment (PARTQ_STORE, PARTQ_OWNERSHIP), then
    from the configuration. Exit code 0 when it was told to end, 2 if the configuration cannot be used.
    """
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
