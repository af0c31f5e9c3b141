"""`python -m coordinator`: configuration, log, health, then the service until SIGTERM or SIGINT.

Exit codes: 0 ended on request; 2 the configuration cannot be used (one line says which key, and what is allowed), the
health port and the ownership store's password and version included; 1 anything else.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coordinator.figures import Figures
from coordinator.health import Answers, PageServer, access_beside_health, serve
from coordinator.logs import Listener, Log, coordinator_logger, one_line, print_lines
from coordinator.measuring import Tally, measured
from coordinator.metrics import samples
from coordinator.service import Service
from coordinator.settings import Settings, load_settings
from partq_spark import __version__
from partq_spark.base.errors import Invalid, PartqError
from partq_spark.base.metrics import Exposition, Sample
from partq_spark.base.process import open_standard_streams
from partq_spark.base.words import printable
from partq_spark.group.ownership import open_ownership
from partq_spark.objects import open_store
from partq_spark.objects.urls import ALLOWED
from partq_spark.page.access import TOKEN_VARIABLE
from partq_spark.page.memory import Timeline

_STORE_RETRY_S = 2.0
"""Of one read: what fails for longer is tried again after the group's pause."""

_COLLECT_AFTER = 50_000
"""Objects made and not dropped yet after which Python looks for circles of them: some megabytes."""


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run the sidecar; returns the exit code."""
    open_standard_streams()
    given = vars(_parser().parse_args(arguments))
    path = given.pop("config")
    try:
        settings = load_settings(path, environ, {key: text for key, text in given.items() if text is not None})
        print_lines(settings.log_format, settings.log_level)
        return _serve(settings, environ)
    except PartqError as error:
        print(f"coordinator: {printable(one_line(error))}", file=sys.stderr, flush=True)  # noqa: T201 - the one line
        return 2 if isinstance(error, Invalid) else 1


def _parser() -> argparse.ArgumentParser:
    """What it parses is named by the settings' keys."""
    parser = argparse.ArgumentParser(
        prog="python -m coordinator",
        description="Decides which flow of a group has which partition. Any number may run; one leads a group.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration, as conf/coordinator.toml")
    parser.add_argument("--store", dest="store.url", metavar="URL", help=ALLOWED)
    parser.add_argument(
        "--namespace", dest="store.namespace", metavar="NAME", help="the namespace whose groups are coordinated"
    )
    parser.add_argument(
        "--ownership", dest="store.ownership", metavar="URL", help="redis://host:port/db, rediss://… or store"
    )
    parser.add_argument("--json", dest="logs.format", action="store_const", const="json", help="log lines as JSON")
    parser.add_argument("--version", action="version", version=f"coordinator {__version__}")
    return parser


def _serve(settings: Settings, environ: Mapping[str, str]) -> int:
    # SIGTERM may come at any time from here on.
    early = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: early.set())
    tally, timeline = Tally(), Timeline()
    for hear in (tally.hear, timeline.add):
        coordinator_logger(settings.name).addHandler(Listener(hear))
    log = Log(settings.name)
    store = measured(open_store(settings.store, retry_timeout_s=_STORE_RETRY_S), tally.store)
    # Ownership as objects is asked about once a second: what fails is asked again by its caller.
    impatient = measured(open_store(settings.store, retry_timeout_s=0.0), tally.store)
    ownership = open_ownership(
        settings.ownership,
        store=impatient,
        environ=environ,
        around=lambda documents: measured(documents, tally.ownership),
    )
    service = Service(settings, store=store, ownership=ownership)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    if early.is_set():
        return 0
    health = None
    if settings.health_port != 0:
        figures = Figures(name=settings.name, namespace=settings.namespace, store=impatient, tally=tally)

        def told() -> Iterator[Sample]:
            return samples(figures.picture(service.status(), service.heads.seen(), service.groups()))

        access = access_beside_health(settings.health_host, environ)
        answers = Answers(service.status, metrics=Exposition(told), access=access)
        health = serve(settings, answers, timeline, access)
        if access is None:
            reason = f"other machines reach {settings.health_host}: set {TOKEN_VARIABLE} to have metrics and the page"
            log("warning", "metrics_closed", reason=reason)
    log(
        "info",
        "started",
        version=__version__,
        name=settings.name,
        store=store.url,
        namespace=settings.namespace,
        ownership=ownership.documents.url,
        health_port=health.port if health is not None else None,
        page=isinstance(health, PageServer),
    )
    # Each look makes and drops values by the thousand, hardly ever in circles; by default Python would look for circles
    # after every few of them, through everything that lives.
    gc.set_threshold(_COLLECT_AFTER)
    service.run()
    return 0


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except Exception:  # noqa: BLE001 - said, and the process ends all the same
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that waits for a store must not keep the process: what it began is safe to be cut off anywhere.
    os._exit(code)
