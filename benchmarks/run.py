"""One part, from outside and from inside: each runs in a process of its own, within a bound."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing.process import BaseProcess
from typing import Final

import psutil

from benchmarks.parts import OUTCOMES, Part, Settings
from tools.cost.document import text_of
from tools.cost.prices import PRICES, load_prices
from tools.cost.requests import Counted
from tools.environment import observe
from tools.report import Measure, Outcome, save, text_table

_END_WAIT_S: Final = 10
logger = logging.getLogger(__name__)


def run_child(part: Part, settings: Settings) -> bool:
    """Run the part in a process of its own, so that no part finds what another left in memory; True if it came to an
    end.
    """
    shutil.rmtree(settings.work, ignore_errors=True)
    settings.work.mkdir()
    logger.info("%s", part)
    child = multiprocessing.get_context("spawn").Process(target=run_part, args=(part, settings))
    child.start()
    try:
        child.join(part.limit_s)
        if child.exitcode is None:
            logger.error("%s did not end within %d s", part.name, part.limit_s)
    finally:
        end_with_children(child)
        shutil.rmtree(settings.work, ignore_errors=True)
    return child.exitcode == 0


def end_with_children(child: BaseProcess) -> None:
    """End the child and all that it started and left, by their ids."""
    if child.exitcode is not None:
        return
    family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=_END_WAIT_S)
    child.join(_END_WAIT_S)


def run_part(part: Part, settings: Settings) -> None:
    """Measure, show the table, keep the outcome."""
    log_to_stderr()
    os.environ["TMPDIR"] = tempfile.tempdir = str(settings.work)
    module, _, function = part.call.partition(":")
    measure: Callable[[Settings], tuple[list[Measure], list[str], *tuple[list[Counted], ...]]] = getattr(
        import_module(f"benchmarks.{module}"), function
    )
    environment = observe(settings.work)
    begun_s = time.monotonic()
    measures, notes, *more = measure(settings)
    outcome = Outcome(
        part=part.name,
        environment=environment,
        rows=settings.rows,
        rounds=settings.rounds,
        took_s=round(time.monotonic() - begun_s),
        measures=tuple(measures),
        notes=tuple(notes),
        counted=tuple(more[0]) if more else (),
    )
    path = save(outcome, OUTCOMES if part.is_full(settings) else OUTCOMES / "trials")
    lines = [f"\n{part.name}:", text_table(measures), *notes, f"({path})", ""]
    if outcome.counted:
        lines[2:2] = ["", text_of(outcome, load_prices(settings.prices or PRICES)), ""]
    sys.stdout.write("\n".join(lines) + "\n")


def log_to_stderr() -> None:
    """What happens, for whoever waits."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)
