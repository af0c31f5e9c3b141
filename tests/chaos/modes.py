"""What drivers of a run may be: those that share a group in the ordinary way, and one of each other mode, which has
a group of its own, since a group is of one mode.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tests.cast.sidecars import GROUP


class Mode(StrEnum):
    """How a driver's query acknowledges, and what of it is kept outside of Spark's checkpoint."""

    AUTO = "auto"
    MANUAL = "manual"  # ackMode=manual: an application that acknowledges late, or fails before it does
    UNKEPT = "unkept"  # checkpoints=none: only Spark's checkpoint says how far the query is


GROUPS: Final = {Mode.AUTO: GROUP, Mode.MANUAL: "by-hand", Mode.UNKEPT: "unkept"}
OPTIONS: Final[dict[Mode, dict[str, str]]] = {
    Mode.AUTO: {},
    Mode.MANUAL: {"ackMode": "manual", "flow": "by-hand"},
    Mode.UNKEPT: {"checkpoints": "none"},
}


def driver_names(drivers: int, modes: tuple[Mode, ...]) -> dict[str, Mode]:
    """The drivers of a run by name, in the order in which faults count them."""
    sharing = {f"driver-{number}": Mode.AUTO for number in range(1, drivers + 1)}
    return {**sharing, **{f"driver-{mode}": mode for mode in modes if mode is not Mode.AUTO}}
