"""The soak run in short, and its judgement: what grows is noticed, what comes twice or not at all too."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.cast.publisher import key_of
from tests.cast.sidecars import GROUP
from tests.soak.__main__ import told, write_document
from tests.soak.run import Course, Sample, grown, misread, run
from tests.world.facts import Checkpointed, Given, Handled, Row
from tools.environment import observe

FLAT = Sample(at_s=0, objects=100, bytes=500_000, head_bytes=9000, messages=6000, references=2, entries=20, plan_ms=1.5)

# The same program; only that it does not wait between two steps of a kind as long as it does outside of tests.
HASTY: Final = (
    sys.executable,
    "-P",
    "-c",
    (
        "import os; from coordinator import __main__, heads as h; "
        "h.RETAIN_LEAST_S = h.RETAIN_MOST_S = h.COMPACT_S = h.COLLECT_LEAST_S = 0.3; os._exit(__main__.main([]))"
    ),
)


def samples(**growth: float) -> list[Sample]:
    """Half an hour of samples; a figure that is named grows by so much from the first to the last."""
    made = []
    for number in range(181):
        larger = {name: getattr(FLAT, name) * (1 + by * number / 180) for name, by in growth.items()}
        whole = {name: value if name == "plan_ms" else int(value) for name, value in larger.items()}
        made.append(replace(FLAT, at_s=number * 10.0, **whole))
    return made


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (samples(), []),
        (samples(objects=0.3, bytes=0.3), []),
        (samples(objects=9.0), ["objects"]),
        (samples(bytes=9.0), ["bytes"]),
        (samples(plan_ms=20.0), ["planning"]),
        # Planning may be felt by the machine.
        ([replace(each, plan_ms=40.0 if number % 7 == 0 else 1.5) for number, each in enumerate(samples())], []),
        (samples()[:5], ["only 5 samples"]),
    ],
)
def test_what_grows_all_the_time_is_noticed(found: list[Sample], names: list[str]) -> None:
    assert [each.split(":")[0] for each in grown(found)] == names


def test_what_is_lost_or_marked_is_noticed() -> None:
    rows = tuple(Row(0, n, key_of(n), str(n), False) for n in range(6))
    given, handled = Given(2, 1, GROUP, "soak", "soak", rows), Handled(3, GROUP, "soak", rows)
    end = Checkpointed(4, GROUP, 0, 1, "soak", "", 6, 0)
    assert misread([given, handled, end], 6) == []
    assert misread([given, handled, end], 7) == ["7 messages were published, the queue has 6"]
    marked = given._replace(rows=(rows[0]._replace(marked=True), *rows[1:]))
    assert misread([marked, handled, end], 6) == ["0 messages came again, 1 were marked"]


@pytest.mark.crash
@pytest.mark.slow
def test_a_short_run_stays_bounded(tmp_path: Path) -> None:
    """Everything in a tenth of its time: a coordinator that does not wait so long between its steps."""
    course = Course(
        length_s=27.0,
        interval_s=0.15,
        messages=20,
        retention_s=2.0,
        grace_s=3.0,
        min_age_s=0.5,
        sample_s=0.5,
        look_s=0.2,
        coordinator=HASTY,
    )
    found = run(tmp_path, course)
    stored = ("objects", "bytes", "planning")
    assert [each for each in found.failures if not each.startswith(stored)] == []
    assert found.received == found.published > 1000
    assert found.deleted > 50
    assert max(each.messages for each in found.samples) < found.published / 2, "most of it is gone"
    page = tmp_path / "reliability.md"
    write_document(found, observe(tmp_path), page)
    text = page.read_text()
    assert "Written by `scripts/soak --minutes 0.45 --write-docs`" in text
    assert all(f"- {line}" in text for line in told(found))
    assert "{{" not in text
