"""The settings of a flow as values with their checks, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass

from partq_spark.base.errors import Invalid

_FLOW_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def checked_flow_name(name: str) -> str:
    """`name` itself, which is in lower case already. Raises `Invalid` otherwise."""
    if not _FLOW_NAME.fullmatch(name):
        raise Invalid(
            f"flow name {name!r} is not allowed: use 1 to 63 of a-z, 0-9, '.', '_', '-', beginning with a letter or "
            "digit"
        )
    return name


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSettings:
    """The options that concern a flow. `keep_offsets` is False with `checkpoints=none`. `verify_interval_s`: how often
    a flow without a coordinator looks in quiet times whether the group is still its own.
    """

    session_timeout_s: float = 10.0
    beat_interval_s: float = 1.0
    checkpoint_interval_s: float = 1.0
    verify_interval_s: float = 1.0
    keep_offsets: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.beat_interval_s <= self.session_timeout_s / 3:
            raise Invalid(
                f"a flow that beats every {self.beat_interval_s:g} s does not keep a session of "
                f"{self.session_timeout_s:g} s (sessionTimeout): beat at least three times as often"
            )
