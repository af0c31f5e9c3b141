"""Lines that people and machines read; a log that cannot be written stops nothing."""

from __future__ import annotations

import io
import json
import logging

from coordinator.logs import LibraryLines, LineLog


def test_text_is_key_and_value_with_quotes_only_where_they_are_needed() -> None:
    stream = io.StringIO()
    log = LineLog(stream, wall_s=lambda: 0.25)
    log("info", "pause", group="a/b/c", partition=3, to="f", wait_s=1.5, forced=True, none=None, reason='it "moved"\n')
    assert stream.getvalue() == (
        "time=1970-01-01T00:00:00.250Z level=info event=pause group=a/b/c partition=3 to=f wait_s=1.5 forced=true "
        'reason="it \\"moved\\"\\n"\n'
    )


def test_json_is_one_object_per_line() -> None:
    stream = io.StringIO()
    log = LineLog(stream, form="json", wall_s=lambda: 0.0)
    log("warning", "fence_failed", partition=3, reason="two\nlines", none=None)
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.000Z",
        "level": "warning",
        "event": "fence_failed",
        "partition": 3,
        "reason": "two\nlines",
    }


def test_what_is_below_the_level_is_left_out() -> None:
    stream = io.StringIO()
    log = LineLog(stream, level="warning")
    log("info", "assign")
    log("error", "group_failed")
    assert stream.getvalue().count("\n") == 1


def test_a_log_that_nobody_reads_any_more_stops_nothing() -> None:
    stream = io.StringIO()
    log = LineLog(stream)
    stream.close()
    log("info", "assign")


def test_lines_of_libraries_come_in_the_same_form() -> None:
    stream = io.StringIO()
    handler = LibraryLines(LineLog(stream, form="json"))
    logger = logging.getLogger("tests.coordinator.logs")
    logger.propagate = False
    logger.addHandler(handler)
    logger.warning("the store %s is tried again", "file:///x")
    found = json.loads(stream.getvalue())
    assert (found["event"], found["message"]) == ("library", "the store file:///x is tried again")


def test_no_line_steers_a_terminal() -> None:
    for value in ("\x1b[31mred", "\x9b31m", "a\u202eb", "two words\x1b]0;title\x07"):
        for form in ("text", "json"):
            stream = io.StringIO()
            LineLog(stream, form=form)("info", "event", flow=value)
            assert stream.getvalue().rstrip("\n").isprintable()
