"""What a flow is told by its options (interface.md): values and their checks, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from partq_spark.errors import Invalid


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSettings:
    """The options that concern a flow. `keep_offsets` is False with `checkpoints=none`."""

    session_timeout_s: float = 10.0
    beat_interval_s: float = 1.0
    checkpoint_interval_s: float = 1.0
    keep_offsets: bool = True
    max_delivered_unacked: int | None = None  # messages, over all partitions; see `Session.room`

    def __post_init__(self) -> None:
        if not 0 < self.beat_interval_s <= self.session_timeout_s / 3:
            raise Invalid(
                f"a flow that beats every {self.beat_interval_s:g} s does not keep a session of "
                f"{self.session_timeout_s:g} s (sessionTimeout): beat at least three times as often"
            )
