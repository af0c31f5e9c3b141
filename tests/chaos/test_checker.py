"""The judge sees what must not be: every check is shown evidence in which just that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.chaos.checker import MOST_TOLD, judge
from tests.chaos.evidence import Planned, Row
from tests.ownership.facts import Seen

KEYS = ("a", "b")


def key_of(number: int) -> str:
    return KEYS[number % 2]


@dataclass
class Story:
    """Partition 0 with the messages 0 to 8. Driver one has it at epoch 1 and reads 0 to 6 in two batches, the second of
    which it never acknowledged; driver two takes it over at offset 3, and reads 3 to 9 at epoch 2.
    """

    rows: list[Row] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    published: Mapping[int, str] = field(default_factory=lambda: {number: key_of(number) for number in range(9)})

    def deliver(self, driver: str, batch: int, epoch: int, start: int, to: int, below: int = 0) -> None:
        self.planned.append(Planned(driver, batch, 0, epoch, start, to, below, flow=f"flow of {driver}"))
        self.rows += [
            Row(driver, batch, offset - start, 0, offset, key_of(offset), offset, offset < below)
            for offset in range(start, to)
        ]

    def look(self, at_s: float, epoch: int, driver: str, offset: int) -> None:
        below = 6 if epoch > 1 else 0
        self.seen.append(
            Seen(
                sent_s=at_s,
                done_s=at_s,
                partition=0,
                epoch=epoch,
                flow=f"flow of {driver}",
                instance="i",
                offset=offset,
                redelivered_below=below,
            )
        )

    def change(self, number: int, driver: str, **to: Any) -> None:
        """Change one row."""
        place = next(n for n, row in enumerate(self.rows) if (row.number, row.driver) == (number, driver))
        self.rows[place] = self.rows[place]._replace(**to)

    def violations(self) -> list[str]:
        return list(judge(self.rows, self.planned, self.seen, self.published).violations)


@pytest.fixture
def story() -> Story:
    told = Story()
    told.deliver("one", 1, 1, 0, 3)
    told.deliver("one", 2, 1, 3, 6)
    told.deliver("two", 1, 2, 3, 7, below=6)
    told.deliver("two", 2, 2, 7, 9)
    told.look(1.0, 1, "one", 0)
    told.look(2.0, 1, "one", 3)
    told.look(3.0, 2, "two", 3)
    told.look(4.0, 2, "two", 9)
    return told


def test_what_may_happen_is_no_violation(story: Story) -> None:
    found = judge(story.rows, story.planned, story.seen, story.published)
    assert found.violations == ()
    assert (found.messages, found.rows, found.marked, found.repeated) == (9, 12, 3, 3)
    assert (found.batches, found.left_out, found.ownerships) == (4, 0, 2)


def test_a_batch_of_a_stale_owner_may_reach_its_sink_late_or_never(story: Story) -> None:
    story.rows = [row for row in story.rows if (row.driver, row.batch) != ("one", 2)]
    found = judge(story.rows, story.planned, story.seen, story.published)
    assert found.violations == ()
    assert found.left_out == 1


def test_a_message_that_no_sink_has_is_missing(story: Story) -> None:
    story.rows = [row for row in story.rows if (row.driver, row.batch) != ("two", 2)]
    assert story.violations() == ["missing: message 7 of 'b'", "missing: message 8 of 'a'"]


def test_a_second_copy_without_a_mark(story: Story) -> None:
    story.planned[2] = story.planned[2]._replace(redelivered_below=5)
    story.change(5, "two", redelivered=False)
    found = story.violations()
    assert any(each.startswith("repeated without a mark: message 5 (0/5, two batch 1): ") for each in found)
    assert any(each.startswith("out of order across owners: key 'b': message 5") for each in found)


def test_the_copy_of_the_later_owner_is_the_one_to_be_marked(story: Story) -> None:
    """Which of the two sinks had it first says nothing: the batch of the former owner may have been late."""
    story.planned[2] = story.planned[2]._replace(redelivered_below=0)
    story.planned[1] = story.planned[1]._replace(redelivered_below=6)
    for number in (3, 4, 5):
        story.change(number, "two", redelivered=False)
        story.change(number, "one", redelivered=True)
    assert {each.split(":")[0] for each in story.violations()} == {"repeated without a mark"}
    assert len(story.violations()) == 3


def test_a_stale_owner_that_went_on_planning(story: Story) -> None:
    """It reads what the new owner has read already, which nobody could mark in time."""
    story.deliver("one", 3, 1, 6, 8)
    assert "repeated without a mark: message 7 (0/7, two batch 2): delivered twice" in " ".join(story.violations())


def test_a_batch_that_is_in_the_sink_twice(story: Story) -> None:
    story.deliver("two", 3, 2, 7, 9)
    found = {each.split(":")[0] for each in story.violations()}
    assert found == {
        *("plans with gaps", "repeated without a mark", "out of order within an owner", "out of order across owners")
    }


def test_rows_that_are_in_disorder_within_a_batch(story: Story) -> None:
    story.change(0, "one", place=2)
    story.change(2, "one", place=0)
    assert {each.split(":")[0] for each in story.violations()} == {
        "out of order within an owner",
        "out of order across owners",
    }


def test_disorder_within_an_owner_is_none_the_better_for_a_mark(story: Story) -> None:
    story.change(3, "two", place=2)
    story.change(5, "two", place=0)
    (found,) = story.violations()
    assert found.startswith("out of order within an owner: key 'b': message 3 (0/3, two batch 1, redelivered) after")


def test_an_owner_that_comes_later_and_has_what_was_before(story: Story) -> None:
    """The second owner delivers 7 and 8 first and the third 3 to 6, without marks: each for itself is in order."""
    story.rows, story.planned = [], []
    story.deliver("one", 1, 1, 0, 3)
    story.deliver("two", 1, 2, 7, 9)
    story.deliver("one", 2, 3, 3, 7)
    assert {each.split(":")[0] for each in story.violations()} == {"out of order across owners"}


def test_a_part_of_a_batch(story: Story) -> None:
    story.rows = [row for row in story.rows if (row.number, row.driver) != (4, "one")]
    assert story.violations() == ["torn: one batch 2, 0/3 to 6 at epoch 1: has 2 rows, from 3 to 5"]


def test_a_gap_between_the_batches_of_an_owner(story: Story) -> None:
    story.planned[3] = story.planned[3]._replace(start=8)
    found = story.violations()
    assert "plans with gaps: two batch 2, 0/8 to 9 at epoch 2, before it two batch 1, 0/3 to 7 at epoch 2" in found


def unpublished(story: Story) -> None:
    story.published = {number: key for number, key in story.published.items() if number != 8}


def another_key(story: Story) -> None:
    story.change(8, "two", key="b")


def another_place(story: Story) -> None:
    story.change(4, "two", offset=5)


@pytest.mark.parametrize("spoil", [unpublished, another_key, another_place])
def test_rows_that_are_not_what_was_published(story: Story, spoil: Callable[[Story], None]) -> None:
    spoil(story)
    assert any(each.startswith("not what was published") for each in story.violations())


def test_rows_that_their_batch_was_not_to_read(story: Story) -> None:
    story.planned[3] = story.planned[3]._replace(partition=1)
    assert sum(each.startswith("not as planned") for each in story.violations()) == 2


def test_a_mark_that_was_not_planned(story: Story) -> None:
    story.change(8, "two", redelivered=True)
    (found,) = story.violations()
    assert found.startswith(
        "not as planned: message 8 (0/8, two batch 2, redelivered), to be marked below 0: two batch"
    )


def test_an_epoch_of_two_flows(story: Story) -> None:
    story.seen[2] = replace(story.seen[2], epoch=1)
    assert any(each.startswith("two owners: partition 0: epoch 1 belongs to") for each in story.violations())


def test_two_drivers_with_one_flow(story: Story) -> None:
    story.planned[2:] = [each._replace(flow="flow of one") for each in story.planned[2:]]
    story.seen = []
    assert story.violations() == ["two owners: flow flow of one is ['one', 'two']"]


@pytest.mark.parametrize("name", ["epoch", "offset", "redelivered_below"])
def test_a_checkpoint_that_goes_back(story: Story, name: str) -> None:
    back: dict[str, Any] = {name: 0}
    story.seen.append(replace(story.seen[-1], sent_s=5.0, done_s=5.0, **back))
    assert f"checkpoints that went back: partition 0: the checkpoint's {name} went from" in " ".join(story.violations())


def test_of_many_violations_some_are_told_and_all_are_counted(story: Story) -> None:
    story.published = {number: key_of(number) for number in range(109)}
    found = story.violations()
    assert len(found) == MOST_TOLD + 1
    assert found[-1] == f"missing: ... and {100 - MOST_TOLD} more"
