"""The code in the documents: every fenced block with its page, line and language, and every command in running text.

What is done with them is decided in the tests beside this module. Notebooks are not looked at: they are executed
(tests/notebooks).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(\S*) *\n(.*?)^``` *$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(partq [^`\n]+)`")
_BETWEEN = {"|", "||", "&&", ";", "&", "(", ")", "do", "then", "else", ">", ">>", "<"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One fenced block. `line` is that of its first line of code, from 1."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*pages: Path) -> list[Block]:
    """The blocks of these pages, in their order; of all pages where none is given."""
    found = []
    for page in pages or PAGES:
        text = page.read_text(encoding="utf-8")
        for fence in _FENCE.finditer(text):
            line = text.count("\n", 0, fence.start(2)) + 1
            found.append(Block(page=page, line=line, language=fence[1], text=fence[2]))
    return found


def shell_of(block: Block) -> str:
    """What of a block is typed. In a console block the lines behind `$ `, and those that a backslash joins to them."""
    if block.language != "console":
        return block.text
    typed, goes_on = [], False
    for line in block.text.splitlines():
        if goes_on or line.startswith("$ "):
            typed.append(line if goes_on else line[2:])
            goes_on = line.endswith("\\")
    return "\n".join(typed)


def partq_commands(shell: str) -> Iterator[list[str]]:
    """The words behind `partq` of each call of it, variables and substitutions as one word `x`."""
    for inner in re.findall(r"\$\((partq [^)]*)\)", shell):
        yield from partq_commands(inner)
    plain = re.sub(r"\$\([^)]*\)|\$\{?\w+\}?", "x", shell)
    for line in plain.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=False, punctuation_chars=True)  # keeps quotes: '>' is no redirection
        lexer.wordchars += ":@%+,{}*"
        command: list[str] = []
        for word in [*lexer, ";"]:
            if word in _BETWEEN:
                if command[:1] == ["partq"]:
                    yield command[1:]
                command = []
            else:
                command += shlex.split(word)


def inline_commands(page: Path) -> list[str]:
    """`partq …` in the running text of a page, which may have placeholders."""
    return _INLINE.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
