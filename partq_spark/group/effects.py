"""What flows and the coordinator take from the outside world: time, chance, waiting. Simulations give their own."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field


def boot_time_s() -> float:
    """Seconds of a clock that runs on while the machine sleeps: a lease must not survive a suspended laptop."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def wall_time_us() -> int:
    """Unix time in microseconds: for what people read, never compared."""
    return time.time_ns() // 1000


def new_token() -> str:
    """16 random hex digits: tells one instance, state or term from every other."""
    return secrets.token_hex(8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """`now_s` is one process' own clock: values of two processes are never compared (OWN-05)."""

    now_s: Callable[[], float] = boot_time_s
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = field(default_factory=lambda: random.Random().uniform)
    token: Callable[[], str] = new_token
