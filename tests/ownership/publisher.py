"""A publisher as a process: `python -m tests.ownership.publisher STORE NAMESPACE QUEUE MESSAGES INTERVAL_S KEYS`.

Publishes so many messages at every interval, until SIGTERM, numbered from 0; then it writes how many they were. With
KEYS above 0 they have so many keys in turn, otherwise each has one of its own. Nothing else.
"""

from __future__ import annotations

import signal
import sys
import time

from partq_spark.log.queue import QueueLog
from partq_spark.log.staged import stage_of
from partq_spark.objects import open_store
from tests.log.queues import publish_staged, staged


def key_of(number: int, keys: int) -> str:
    """The key of a message."""
    return f"key{number % keys if keys else number}"


def main(store_url: str, namespace: str, name: str, messages: int, interval_s: float, keys: int) -> None:
    """Publish at a steady rate."""
    stop: list[int] = []  # no event: setting one takes a lock, which the interrupted code below may hold
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    queue = QueueLog(open_store(store_url), namespace, name)
    number = 0
    due_s = time.monotonic()
    while not stop:
        rows = [(key_of(each, keys), b"%d" % each) for each in range(number, number + messages)]
        number += messages
        stage = stage_of(queue.refresh())
        publish_staged(queue, stage, staged(queue, stage, rows), seed=str(number))
        due_s = max(due_s + interval_s, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))
    sys.stdout.write(f"{number}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6]))
