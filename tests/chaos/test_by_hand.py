"""The judges of the other modes see what they are there for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.by_hand import Acknowledged, Fact, Given, judge_by_hand, read_by_hand
from tests.chaos.checker import judge_unkept
from tests.chaos.evidence import FAILURE, Planned, Row, completed_ends, kind_of, read_rows_by_batch
from tests.chaos.modes import Mode, driver_names
from tests.ownership.facts import Seen

BEYOND = "a checkpoint beyond what was acknowledged"
PUBLISHED = dict.fromkeys(range(6), "k")


def given(at_s: float, first: int, to: int, *, run: str = "a", epoch: int | None = 1, marked: bool = False) -> Given:
    """Messages of partition 0, whose number is their offset."""
    rows = [Row("driver-manual", 0, place, 0, n, "k", n, marked) for place, n in enumerate(range(first, to))]
    return Given(at_s=at_s, run=run, process=run, epochs={} if epoch is None else {0: epoch}, rows=rows)


def acknowledged(at_s: float, end: int, *, counted: bool | None = True, run: str = "a") -> Acknowledged:
    answer = None if counted is None else frozenset([0] if counted else [])
    return Acknowledged(at_s=at_s, run=run, ends={0: end}, counted=answer)


def seen(at_s: float, offset: int, epoch: int = 1) -> Seen:
    return Seen(
        sent_s=at_s,
        done_s=at_s,
        partition=0,
        epoch=epoch,
        flow="by-hand",
        instance="i",
        offset=offset,
        redelivered_below=0,
    )


def told(facts: list[Fact], looks: tuple[Seen, ...] = ()) -> list[str]:
    """The kinds of what must not be."""
    return [each.split(":")[0] for each in judge_by_hand(facts, looks, PUBLISHED).violations]


def test_what_is_given_once_in_order_and_acknowledged_is_well() -> None:
    facts: list[Fact] = [given(1, 0, 3), given(2, 3, 6), acknowledged(3, 6)]
    assert told(facts, (seen(2.5, 0), seen(4, 6))) == []


def test_what_comes_again_marked_after_a_restart_is_well() -> None:
    again: list[Fact] = [given(3, 1, 6, run="b", epoch=2, marked=True), acknowledged(4, 6, run="b")]
    for counted in (True, None):  # an acknowledgement without an answer counted, or not
        facts: list[Fact] = [given(1, 0, 3), acknowledged(1.5, 1, counted=counted), *again]
        assert told(facts, (seen(2, 1), seen(5, 6, 2))) == []


def test_what_comes_again_after_a_refusal_is_well() -> None:
    facts: list[Fact] = [given(1, 0, 3), acknowledged(2, 3, counted=False), given(3, 0, 3, marked=True)]
    assert told([*facts, given(4, 3, 6), acknowledged(5, 6)]) == []


@pytest.mark.parametrize(
    ("facts", "looks", "kinds"),
    [
        ([given(1, 0, 3)], (), ["missing"] * 3),
        ([given(1, 0, 2), given(2, 3, 6)], (), ["missing", "passed over"]),
        # A restart goes on behind what was given and not acknowledged: it comes neither again nor marked.
        ([given(1, 0, 3), given(2, 3, 6, run="b")], (), ["passed over"]),
        ([given(1, 0, 3), given(2, 3, 6, epoch=2)], (), ["passed over"]),
        ([given(1, 0, 3, epoch=None), given(2, 3, 6)], (), ["passed over"]),
        # An acknowledgement that did not count, and the flow goes on behind it.
        ([given(1, 0, 3), acknowledged(2, 3, counted=False), given(3, 3, 6)], (), ["passed over"]),
        ([given(1, 0, 6), acknowledged(2, 3), given(3, 2, 4, run="b")], (), ["repeated without a mark"] * 2),
        ([given(1, 0, 6)], (seen(2, 1),), [BEYOND]),
        ([given(1, 0, 6), acknowledged(3, 6)], (seen(2, 6),), [BEYOND]),
        (
            [given(1, 0, 6), acknowledged(2, 6, counted=False)],
            (seen(3, 6),),
            [BEYOND],
        ),
        ([given(1, 0, 6), acknowledged(1.5, 6)], (seen(2, 6), seen(3, 2)), ["checkpoints that went back"]),
        (
            [given(1, 0, 2), acknowledged(1.5, 4), given(2, 4, 6)],
            (),
            ["missing", "missing", "acknowledged without having been given"],
        ),
    ],
)
def test_what_must_not_be_is_seen(facts: list[Fact], looks: tuple[Seen, ...], kinds: list[str]) -> None:
    assert told(facts, looks) == [f"by hand, {kind}" for kind in kinds]


def test_a_gap_in_one_batch_is_seen() -> None:
    whole = given(1, 0, 6)
    torn = Given(at_s=1, run="a", process="a", epochs={0: 1}, rows=[whole.rows[0], *whole.rows[2:]])
    assert told([torn]) == ["by hand, missing", "by hand, passed over"]


def test_a_journal_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    lines = [
        {"what": "begun", "at_s": 0.5, "run": "a"},
        {"what": "given", "at_s": 1.0, "run": "a", "batch": 2, "process": "p", "epochs": {"0": 1}}
        | {"rows": [[0, 5, "k", 7, True]]},
        {"what": "acknowledges", "at_s": 2.0, "run": "a", "number": 1, "ends": {"0": 6}},
        {"what": "answered", "at_s": 3.0, "run": "a", "number": 1, "counted": []},
        {"what": "acknowledges", "at_s": 4.0, "run": "a", "number": 2, "ends": {"0": 6}},
    ]
    path = tmp_path / "by-hand.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"what": "answered", "at')
    rows = [Row("driver-manual", 2, 0, 0, 5, "k", 7, True)]
    assert read_by_hand(path) == [
        Given(at_s=1.0, run="a", process="p", epochs={0: 1}, rows=rows),
        Acknowledged(at_s=2.0, run="a", ends={0: 6}, counted=frozenset()),
        Acknowledged(at_s=4.0, run="a", ends={0: 6}, counted=None),
    ]
    verdict = judge_by_hand(read_by_hand(path), (), {7: "k"})
    assert (verdict.rows, verdict.marked, verdict.runs, verdict.acknowledgements, verdict.refused) == (1, 1, 1, 2, 1)


def test_what_is_lost_without_checkpoints_is_seen() -> None:
    """A batch that did not come to its end, whose partition had moved on when it was repeated."""
    rows = [Row("driver-unkept", 0, n, 0, n, "k", n, False) for n in range(6)]
    planned = [Planned("driver-unkept", 0, 0, 1, 0, 6, 0, "f")]
    assert judge_unkept(rows, planned, PUBLISHED) == ()
    again = [*planned, Planned("driver-unkept", 1, 0, 2, 0, 6, 0, "f")]
    twice = [*rows, *(row._replace(batch=1) for row in rows)]
    assert judge_unkept(twice, again, PUBLISHED) == (), "what comes again is not promised to be marked"
    left_out = [Planned("driver-unkept", 0, 0, 1, 0, 3, 0, "f"), Planned("driver-unkept", 1, 0, 2, 3, 6, 0, "f")]
    lost = [row._replace(batch=1) for row in rows[3:]]
    assert [each.split(":")[0] for each in judge_unkept(lost, left_out, PUBLISHED)] == ["unkept, missing"] * 3


def test_a_sink_of_batches_has_what_was_written_to_its_end(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for batch in (0, 1):
        folder = tmp_path / str(batch)
        folder.mkdir()
        columns = {"partition": [0], "offset": [batch], "key": ["k"], "number": [batch], "redelivered": [False]}
        pq.write_table(pa.table(columns), folder / "part-00000.parquet")
    (tmp_path / "0/_SUCCESS").touch()
    assert list(read_rows_by_batch("driver-unkept", tmp_path)) == [Row("driver-unkept", 0, 0, 0, 0, "k", 0, False)]
    assert completed_ends(tmp_path / "none") == {}


def test_drivers_have_names() -> None:
    assert driver_names(2, (Mode.AUTO, Mode.UNKEPT)) == {
        "driver-1": Mode.AUTO,
        "driver-2": Mode.AUTO,
        "driver-unkept": Mode.UNKEPT,
    }


def test_an_application_that_fails_is_known() -> None:
    assert kind_of(f"Py4JException … RuntimeError: {FAILURE} before it writes\n\tat …") == FAILURE
