"""`python -m tests.coordinator.modelcheck`: explores and prints what was found. See `test_modelcheck`."""

from __future__ import annotations

import argparse
import resource
import sys

from tests.coordinator.modelcheck.test_modelcheck import Explorer, Failure


def main() -> int:
    """0: everything holds. 1: something does not, and the way there was printed."""
    parser = argparse.ArgumentParser(
        prog="model-check", description="Explores every interleaving of the decision core."
    )
    parser.add_argument("--flows", type=int, default=3, help="names of flows (default 3)")
    parser.add_argument("--partitions", type=int, default=3, help="partitions, of which some go and come (default 3)")
    parser.add_argument("--states", type=int, default=1_000_000, help="stop after so many (default 1,000,000)")
    parser.add_argument("--no-alterations", action="store_true", help="leave partitions and access type as they are")
    options = parser.parse_args()
    explorer = Explorer(
        flows=options.flows, partitions=options.partitions, limit=options.states, alterations=not options.no_alterations
    )
    try:
        result = explorer.run()
    except Failure as failure:
        print(f"model-check: BROKEN\n{failure}", file=sys.stderr)  # noqa: T201 # a command prints
        return 1
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    extent = "all there are" if result.complete else f"not all there are, {result.followed:,} of them followed further"
    lines = (
        (
            f"model-check: {options.flows} flows, {options.partitions} partitions: {result.states:,} states "
            f"({extent}), {result.transitions:,} transitions, depth {result.depth}"
        ),
        f"model-check: {result.seconds:.0f} s, of which {result.cpu_s:.0f} s on one core, {memory_mb:,.0f} MB",
        (
            "model-check: safe in every state; from every state timers and fences alone lead to Ready, in at most "
            f"{result.longest_way_to_ready} steps ({result.extra_states:,} further states were looked at for that)"
        ),
    )
    print(*lines, sep="\n")  # noqa: T201 # a command prints
    return 0


if __name__ == "__main__":
    sys.exit(main())
