"""What a run is made of and what was done in it; what its drivers are: those that share a group in the ordinary way,
and one of each other mode, which has a group of its own, since a group is of one mode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from benchmarks.environment import Environment
from tests.cast.sidecars import GROUP

NAME: Final = "course.json"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """`drivers` share a group; of each other of the `modes` there is one beside them. What was done, how often, and
    what must not be (`troubles`), is known in the end.
    """

    minutes: float
    seed: int
    drivers: int
    store: str = "file"  # or "azurite"
    counts: tuple[int, ...] = (8,)  # of partitions, one after another
    modes: tuple[Mode, ...] = (Mode.AUTO,)
    python: bool = False  # one consumer in plain Python of each kind shares the group with the drivers

    machine: Environment | None = None
    took_s: float = 0.0
    published: int = 0
    done: Mapping[str, int] = field(default_factory=dict)
    missed: int = 0  # faults whose victim was not there
    troubles: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What repeats it."""
        words = [f"scripts/chaos --minutes {self.minutes:g} --seed {self.seed} --drivers {self.drivers}"]
        words.append(f"--store {self.store}")
        words += [f"--resize {','.join(map(str, self.counts))}"] if len(self.counts) > 1 else []
        words += [f"--modes {','.join(self.modes)}"] if len(self.modes) > 1 else []
        return " ".join([*words, *(["--python"] if self.python else [])])

    @property
    def names(self) -> dict[str, Mode]:
        """The drivers by name, in the order in which faults count them."""
        sharing = {f"driver-{number}": Mode.AUTO for number in range(1, self.drivers + 1)}
        return {**sharing, **{f"driver-{mode}": mode for mode in self.modes if mode is not Mode.AUTO}}

    def write(self, folder: Path) -> None:
        """Keep it with the rest."""
        (folder / NAME).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def read_course(folder: Path) -> Course:
    """What a run wrote at its end."""
    raw = json.loads((folder / NAME).read_text(encoding="utf-8"))
    raw["machine"] = Environment(**raw["machine"])
    lists = {name: tuple(raw[name]) for name in ("counts", "troubles")}
    return Course(**{**raw, **lists, "modes": tuple(map(Mode, raw["modes"]))})
