"""A publisher as a process: run as a script, the argument names a JSON file (see `Plan`).

Publishes so many messages at every interval, until SIGTERM, numbered from 0; then it writes how many they were.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Final, TypedDict

import partq

KEYS: Final = 50  # which the messages have in turn


class Plan(TypedDict):
    """What to do."""

    store: str
    queue: str
    messages: int
    interval_s: float


def key_of(number: int) -> str:
    """The key of a message."""
    return f"key{number % KEYS}"


def main(plan: Plan) -> None:
    """Publish at a steady rate."""
    stop: list[int] = []  # no event: setting one takes a lock, which the interrupted code below may hold
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    number = 0
    due_s = time.monotonic()
    with partq.open_queue(plan["queue"], store=plan["store"]).publisher(linger_s=1.0) as publisher:
        while not stop:
            for _ in range(plan["messages"]):
                publisher.send(str(number), key=key_of(number))
                number += 1
            publisher.flush()
            due_s = max(due_s + plan["interval_s"], time.monotonic())
            time.sleep(max(0.0, due_s - time.monotonic()))
    sys.stdout.write(f"{number}\n")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
