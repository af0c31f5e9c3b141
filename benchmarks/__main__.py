"""`python -m benchmarks`: the command line of scripts/bench."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.parts import (
    AGAINST,
    BOUNDS,
    DEFAULT_ROUNDS,
    DEFAULT_ROWS,
    OUTCOMES,
    PARTS,
    SHOWN,
    Settings,
    help_text,
    named,
)
from benchmarks.run import log_to_stderr, run_child
from tools import ROOT
from tools.cost.document import COST, write_cost
from tools.cost.prices import PRICES, Prices, load_prices
from tools.document import DOCUMENT, write_document
from tools.report import load

_BY_NAME: Final = {part.name: part for part in PARTS}
logger = logging.getLogger("benchmarks")


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments, checked; exits with 2 where they are wrong."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Compares partq with Spark's own sources and sinks, a bare Python source, and Kafka.",
        epilog=f"parts and what they take on two cores:\n{help_text()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", nargs="*", help="what to run, several may be named; all: everything (the parts below)")
    parser.add_argument("--peer", choices=("kafka",), help="in read, publish, rows, latency: this, too")
    parser.add_argument(
        "--rows", type=int, default=DEFAULT_ROWS, help="in read, publish, rows, memory, workers: 8000000"
    )
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="medians are of so many rounds: 5")
    parser.add_argument("--quick", action="store_true", help="a tenth or less of everything: a trial, no result")
    parser.add_argument(
        "--work-dir", type=Path, help="an empty or new folder on the disk to be used (kept); default: a temporary one"
    )
    parser.add_argument("--prices", type=Path, metavar="FILE", help="in cost: other prices than benchmarks/prices.toml")
    parser.add_argument(
        "--commit", help="in against: the earlier commit, in any way that git understands, such as main~20"
    )
    parser.add_argument("--of", nargs="+", default=[], metavar="PART", help="in against: the parts, or bounds")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"write {DOCUMENT.relative_to(ROOT)} and the table beside it, of cost {COST.relative_to(ROOT)}, "
        "from what was measured last",
    )
    found = parser.parse_args(arguments)
    if found.part == ["all"]:
        found.part = [name for name in _BY_NAME if name != AGAINST]
    found.part, found.of = named(found.part), named(found.of)
    unknown = [name for name in (*found.part, *found.of) if name not in _BY_NAME]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}: give all, or any of {', '.join((BOUNDS, *_BY_NAME))}")
    if AGAINST in found.part and not (found.commit and found.of):
        parser.error("against needs --commit COMMIT and --of PART...: what is compared with what")
    if AGAINST in found.of:
        parser.error("--of names the parts to compare: against is none of them")
    if not found.part and not found.write_docs:
        parser.error("no part was named: give all, or any of " + ", ".join((BOUNDS, *_BY_NAME)))
    if found.work_dir and found.work_dir.exists() and any(found.work_dir.iterdir()):
        parser.error(
            f"--work-dir {found.work_dir} is not empty: name a new folder, what is made in it is removed again"
        )
    if found.rows < 1 or found.rounds < 1:
        parser.error("--rows and --rounds are whole numbers from 1")
    if found.quick:
        found.rows, found.rounds = min(found.rows, 800_000), min(found.rounds, 2)
    return found


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; 1 if a part failed (a missed goal is a result, not a failure)."""
    found = parsed(arguments)
    log_to_stderr()
    with work_folder(found.work_dir) as work:
        failed = [name for name in found.part if not run_child(_BY_NAME[name], settings_of(found, work / name))]
    if failed:
        logger.error("failed: %s", ", ".join(failed))
        return 1
    if found.write_docs:
        write_documents(found.part, load_prices(found.prices or PRICES))
    return 0


def write_documents(parts: Sequence[str], prices: Prices) -> None:
    """Those in which these parts stand; without a part all of which there are outcomes."""
    kept = [load(path) for path in sorted(OUTCOMES.glob("*.json")) if path.stem in _BY_NAME]
    shown = [each for each in kept if each.part in SHOWN]
    wanted = [each for each in kept if not parts or each.part in parts]
    for outcome in wanted:
        if outcome.part not in SHOWN:
            write_cost(outcome, prices)
            logger.info("wrote %s", COST)
    if any(each in shown for each in wanted) or not wanted:
        write_document(shown, SHOWN)
        logger.info("wrote %s", DOCUMENT)


def settings_of(found: argparse.Namespace, work: Path) -> Settings:
    """The arguments as a part takes them."""
    given = {name: getattr(found, name) for name in ("rows", "rounds", "quick", "peer", "prices", "commit", "of")}
    return Settings(work=work, **given)


@contextmanager
def work_folder(named: Path | None) -> Iterator[Path]:
    """The folder to work in, on the disk that is measured; temporary files of every process below go there too."""
    if named is None:
        folder = Path(tempfile.mkdtemp(prefix="partq-bench-"))
    else:
        folder = named.resolve()
        folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        if named is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
