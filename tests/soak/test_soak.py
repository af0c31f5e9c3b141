"""The soak run in short, and its judgement: what grows is noticed, what comes twice or not at all too."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.environment import Environment
from tests.coordinator.test_housekeeping_process import HASTY
from tests.soak.__main__ import told, write_document
from tests.soak.chart import chart
from tests.soak.consumer import Counted
from tests.soak.run import Course, Outcome, run
from tests.soak.verdict import Sample, compared, failures
from tests.support.flow_loop import Batch

FLAT = Sample(at_s=0, objects=100, bytes=500_000, head_bytes=9000, messages=6000, references=2, entries=20, plan_ms=1.5)


def samples(**growth: float) -> list[Sample]:
    """Half an hour of samples; a figure that is named grows by so much from the first to the last."""
    made = []
    for number in range(181):
        grown = {
            name: getattr(FLAT, name) * (1 + by * number / 180)
            if name == "plan_ms"
            else int(getattr(FLAT, name) * (1 + by * number / 180))
            for name, by in growth.items()
        }
        made.append(replace(FLAT, at_s=number * 10.0, **grown))
    return made


def judged(found: list[Sample], *, received: int = 1000, marked: int = 0, out_of_order: int = 0) -> list[str]:
    return failures(found, published=1000, received=received, marked=marked, out_of_order=out_of_order, strange=())


def test_what_stays_as_it_is_passes() -> None:
    assert judged(samples()) == []
    assert judged(samples(objects=0.3, bytes=0.3)) == []


@pytest.mark.parametrize("name", ["objects", "bytes"])
def test_what_grows_all_the_time_is_noticed(name: str) -> None:
    assert [each.split(":")[0] for each in judged(samples(**{name: 9.0}))] == [name]


def test_planning_may_be_felt_by_the_machine_but_may_not_grow() -> None:
    noisy = [replace(each, plan_ms=40.0 if number % 7 == 0 else 1.5) for number, each in enumerate(samples())]
    assert judged(noisy) == []
    assert [each.split(":")[0] for each in judged(samples(plan_ms=20.0))] == ["planning"]


def test_what_is_lost_or_comes_twice_is_noticed() -> None:
    assert judged(samples(), received=999) == ["the consumer received 999 of 1,000 messages"]
    assert "1 messages came again" in judged(samples(), marked=1)[0]
    assert "2 were not the next" in judged(samples(), out_of_order=2)[0]


def test_a_run_too_short_is_not_judged() -> None:
    assert "too short" in judged(samples()[:5])[0]


def test_the_consumer_notices_what_is_not_the_next_of_its_key() -> None:
    counted = Counted(10)
    counted.take(Batch(partition=0, begin=0, end=4, messages=[3, 13, 4, 23]))
    assert counted.found.out_of_order == 0
    counted.take(Batch(partition=0, begin=4, end=6, messages=[43, 14]))
    assert (counted.found.out_of_order, counted.found.messages) == (1, 6)
    assert "43 came, 33 was next" in counted.found.strange[0]


def outcome() -> Outcome:
    return Outcome(
        course=Course(length_s=1800.0),
        samples=samples(),
        published=1000,
        received=1000,
        trimmed=900,
        deleted=50,
        compactions=3,
        cpu_s={"coordinator": 18.0},
        failures=[],
    )


def test_the_picture_has_a_line_for_each_figure() -> None:
    root = ElementTree.fromstring(chart(samples(objects=3.0)))  # noqa: S314 - our own
    lines = [each for each in root.iter() if each.tag.endswith("polyline")]
    assert [len(str(each.get("points")).split()) for each in lines] == [181, 181]


def test_the_section_says_what_was_run_and_what_came_of_it(tmp_path: Path) -> None:
    names = ("date", "commit", "cpu", "memory", "disk", "system", "versions")
    machine = Environment(**dict(zip(names, map(str, count()), strict=False)), cores=2, load=0.5)
    page, picture = tmp_path / "reliability.md", tmp_path / "images/soak.svg"
    write_document(outcome(), machine, page, picture)
    text = page.read_text()
    assert "Written by `scripts/soak --minutes 30 --write-docs`" in text
    assert all(f"- {line}" in text for line in told(outcome()))
    assert "{{" not in text
    assert picture.exists()


@pytest.mark.crash
@pytest.mark.slow
def test_a_short_run_stays_bounded(tmp_path: Path) -> None:
    """Everything in a tenth of its time: a coordinator that does not wait so long between its steps."""
    course = Course(
        length_s=27.0,
        interval_s=0.15,
        messages=20,
        retention_s=2.0,
        grace_s=1.0,
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
    assert all(each.last <= 1.6 * each.second for each in compared(found.samples)[:2]), told(found)
    assert max(each.messages for each in found.samples) < found.published / 2, "most of it is gone"
