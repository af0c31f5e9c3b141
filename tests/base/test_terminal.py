"""What may reach a terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.terminal import printable, printable_json, printable_lines

TEXTS = st.text(st.characters())  # half surrogates included


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 客", "größe 客"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\r", "a\\nb\\r"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\udcff", "\\udcff"),
        ("", ""),
    ],
)
def test_what_steers_a_terminal_is_shown_as_its_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(TEXTS)
def test_nothing_that_is_not_printable_passes(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    assert all(line.isprintable() for line in printable_lines(text).split("\n"))
    assert printable_json(json.dumps(text, ensure_ascii=False)).isprintable()


@given(TEXTS)
def test_json_says_the_same(text: str) -> None:
    assert json.loads(printable_json(json.dumps({text: text}, ensure_ascii=False))) == {text: text}
