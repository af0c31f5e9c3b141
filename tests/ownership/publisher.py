"""A publisher as a process: `python -m tests.ownership.publisher STORE NAMESPACE QUEUE MESSAGES INTERVAL_S`.

Publishes so many messages with keys of their own at every interval, until SIGTERM. Nothing else.
"""

from __future__ import annotations

import signal
import sys
import time

from partq_spark.log.publish import publish, stage_for
from partq_spark.log.queue import Queue
from partq_spark.objects import open_store
from tests.log.queues import staged


def main(store_url: str, namespace: str, name: str, messages: int, interval_s: float) -> None:
    """Publish at a steady rate."""
    stop: list[int] = []  # no event: setting one takes a lock, which the interrupted code below may hold
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    queue = Queue(open_store(store_url), namespace, name)
    number = 0
    due_s = time.monotonic()
    while not stop:
        rows = [(f"key{number + row}", b"%d" % (number + row)) for row in range(messages)]
        number += messages
        stage = stage_for(queue)
        publish(queue, stage, staged(queue, stage, rows))
        due_s = max(due_s + interval_s, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
