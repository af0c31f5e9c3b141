"""Waiting for what other threads and processes bring about, with a limit. Nothing here knows what that is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

WAIT_S: Final = 90
"""Seconds on an idle machine, much longer on a busy one."""

_SHORTEST_S: Final = 0.01
_LONG_S: Final = 0.25
"""For which a look that is long is put off at most, unless it takes even longer itself."""


def wait_until(look: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> float:
    """Wait until `look` is true; returns how long it took in s, and fails after `wait_s`.

    It looks at most a quarter of the time, half where looks are long: a look takes the processor from those who are
    waited for.
    """
    begun_s = now_s = time.monotonic()
    while not look():
        looked_s, now_s = now_s, time.monotonic()
        assert now_s - begun_s < wait_s, f"no {what} in {wait_s:g} s"
        look_s = now_s - looked_s
        time.sleep(max(_SHORTEST_S, look_s, min(3 * look_s, _LONG_S)))
        now_s = time.monotonic()
    return time.monotonic() - begun_s
