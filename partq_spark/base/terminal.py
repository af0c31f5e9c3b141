"""The one way in which text that partq did not write itself (from a store, a file, an argument) may reach a terminal.

A terminal obeys control characters: titles, colours, keys that it pretends were typed. So what is not printable is
shown as its escape. Everything that is printed or logged for people goes through here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence


def printable(text: str) -> str:
    """`text` on one line, with line ends, control characters and the like as escapes: `\\x1b`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """`printable`, for text of several lines that partq put together itself."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def printable_json(document: str) -> str:
    """A JSON document that says the same with what is not printable as JSON's own escapes, half surrogates included."""
    if document.isprintable():
        return document
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in document)


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in rising order in words: `0-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
