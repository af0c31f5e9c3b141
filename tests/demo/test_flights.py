"""How the demo's flights come: steadily while the story lasts, the rest at once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partq_spark.demo.flights import HELD_BACK, PACE_S, SLOW_PACE_S, Feed

FILES = 9


class Fed:
    """A feed with a clock, and what has come of it."""

    def __init__(self, folder: Path) -> None:
        (folder / "from").mkdir()
        for number in range(FILES):
            pq.write_table(pa.table({"id": [0] * 10}), folder / "from" / f"part-{number}.parquet")
        self.now_s = 100.0
        self.target = folder / "to"
        self.feed = Feed(folder / "from", self.target, lambda: self.now_s)

    def wait(self, seconds: float) -> int:
        """Files that have come after so long."""
        self.now_s += seconds
        self.feed.give()
        return len(list(self.target.glob("*.parquet")))


@pytest.fixture
def fed(tmp_path: Path) -> Fed:
    return Fed(tmp_path)


def test_the_earliest_file_comes_at_once(fed: Fed) -> None:
    assert fed.feed.flights == 10 * FILES
    assert fed.wait(0) == 1
    assert [path.name for path in fed.target.iterdir()] == ["part-0.parquet"]


def test_files_come_at_a_pace_that_slows_down(fed: Fed) -> None:
    assert [fed.wait(0), fed.wait(PACE_S - 0.01), fed.wait(0.01)] == [1, 1, 2]
    while fed.wait(PACE_S) < FILES * 2 / 3:
        pass
    assert fed.wait(PACE_S) == 6
    assert fed.wait(SLOW_PACE_S - PACE_S) == 7


def test_the_last_files_come_only_when_they_are_asked_for(fed: Fed) -> None:
    assert [fed.wait(SLOW_PACE_S) for _ in range(100)][-1] == FILES - HELD_BACK
    fed.feed.hurry()
    assert fed.wait(0) == FILES
