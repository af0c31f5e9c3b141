"""Builds the documentation site and looks at what came out; what `scripts/docs` runs.

Sphinx' warnings are errors: a link to a page or heading that is not there, a page that is in no list of contents, a
docstring that cannot be read. What it wrote is then read once more by itself: every local link leads to a file, and to
a place in it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]


def build(folder: Path) -> str:
    """Build the site into a folder, anew. Answers Sphinx' complaints; empty if there are none."""
    with tempfile.TemporaryDirectory() as parsed:
        options = ["-b", "html", "-c", str(ROOT / "docs/site"), "-d", parsed, "-q", "--fail-on-warning"]
        done = subprocess.run(
            [sys.executable, "-m", "sphinx", *options, str(ROOT), str(folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    return done.stderr or ("" if done.returncode == 0 else f"sphinx ended with {done.returncode}")


class _Page(HTMLParser):
    """What a page links to, and the places in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def dead_links(folder: Path) -> Iterator[str]:
    """The local links of a built site that lead nowhere, each with its page. Other sites are not asked."""
    pages = {path.resolve(): _Page() for path in folder.rglob("*.html")}
    for path, page in pages.items():
        page.feed(path.read_text(encoding="utf-8"))
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            found = target.is_file() and (not place or target not in pages or place in pages[target].places)
            if not found:
                yield f"{path.relative_to(folder.resolve())}: {link}"


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    complaints = build(folder) or "\n".join(f"leads nowhere: {each}" for each in dead_links(folder))
    if complaints:
        print(complaints, file=sys.stderr)  # noqa: T201 - a script's output
        return 1
    print(f"{folder / 'index.html'}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
