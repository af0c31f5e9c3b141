"""The test's side of `sitecustomize` in this folder: where processes are to be held, and whether they are."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

Point = Literal["writing", "staged", "before-publish", "after-publish"]

CODE: Final = str(Path(__file__).parent)
"""For PYTHONPATH."""


class Faults:
    """The instants at which processes are held, in a folder that those processes look into."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        """For the processes that may be held."""
        return {"PYTHONPATH": CODE, "PARTQ_TEST_FAULTS": str(self._folder)}

    def hold(self, point: Point, queue: str, batch: int) -> None:
        """Hold the process that comes first to this point."""
        (self._folder / f"{point}.{queue}.{batch}").touch()

    def held(self, point: Point, queue: str, batch: int) -> int:
        """The id of the process that is held there; 0 if none has come yet."""
        found = list(self._folder.glob(f"{point}.{queue}.{batch}.*"))
        return int(found[0].name.rpartition(".")[2]) if found else 0

    def release(self, point: Point, queue: str, batch: int) -> None:
        """Let the process go on that is held there."""
        (self._folder / f"{point}.{queue}.{batch}.{self.held(point, queue, batch)}").unlink()

    def outcomes(self, queue: str, batch: int) -> list[str]:
        """What each call that published this batch came to, `new` or `duplicate`, sorted."""
        return sorted(path.read_text() for path in self._folder.glob(f"outcome.{queue}.{batch}.*"))
