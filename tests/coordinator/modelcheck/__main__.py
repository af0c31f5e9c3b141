"""`python -m tests.coordinator.modelcheck`: explores and prints what was found. See `test_modelcheck`."""

from __future__ import annotations

import argparse
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
    options = parser.parse_args()
    try:
        found = Explorer(flows=options.flows, partitions=options.partitions, limit=options.states).run()
    except Failure as failure:
        print(f"model-check: BROKEN\n{failure}", file=sys.stderr)  # noqa: T201 # a command prints
        return 1
    extent = "all there are" if found.complete else "not all there are"
    print(  # noqa: T201 # a command prints
        f"model-check: {found.states:,} states ({extent}), {found.transitions:,} transitions, depth {found.depth}: "
        "safe in every state; from each timers and fences alone lead to Ready, in at most "
        f"{found.longest_way_to_ready} steps"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
