"""How Sphinx makes the documentation site of the files that are read in the repository too; `scripts/docs` runs it.

The source is the project's root, so that a link between README.md, docs/ and the code is the same link on the site and
in the repository. No text lives here: only what the files' form needs (GitHub's anchors, its mermaid blocks), and the
order of the pages.
"""

from __future__ import annotations

import builtins
import csv
import posixpath
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ConfigError
from sphinx.util.docutils import SphinxDirective

import partq
from tools.report import markdown_line

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# scripts/setup fetches this version; it is a part of the site, so that a reader needs no network.
MERMAID = ROOT / ".venv/node/mermaid-11.17.2.min.js"

project = "partq"
author = "The partq authors"
project_copyright = "the partq authors, Apache License 2.0"
version = release = partq.__version__

# --- Sources ----------------------------------------------------------------------------------------------------------

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
CONTENTS = {
    "Begin": "quickstart recipes",
    "Use": "python options typed topics groups cli api",
    "Run": "operate observe troubleshooting cost guarantees glossary /SECURITY /CHANGELOG",
    "Inside": "architecture handoff formats spark-traps conformance reliability benchmarks decisions/index"
    " dependencies /CONTRIBUTING",
}
# Everything else in the root is no page: the virtual environment, code, what builds and tests leave.
PAGES = {"docs", *(page.name for page in ROOT.glob("*.md"))}
exclude_patterns = sorted({each.name for each in ROOT.iterdir()} - PAGES)

# --- Markdown as GitHub reads it --------------------------------------------------------------------------------------

myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]
suppress_warnings = [
    "myst.header",  # a page may begin with several titles, or a table's section with a deeper one
]

# --- Python: the public names, from their docstrings ------------------------------------------------------------------

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# How an answer or a consumer is made is no concern of those to whom it is given.
autodoc_class_signature = "separated"
autodoc_default_options = {"members": True, "undoc-members": True, "exclude-members": "__init__, __new__"}
add_module_names = False
python_maximum_signature_line_length = 100

# --- Pages ------------------------------------------------------------------------------------------------------------

html_theme = "furo"
html_title = f"partq {version}"
html_static_path = ["static"]
html_extra_path = ["root"]  # index.html, which leads to the first page
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "scorer.js")
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}


class Mermaid(SphinxDirective):
    """A diagram as text, which mermaid draws in the reader's browser."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        text = "\n".join(self.content)
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return [nodes.raw("", f'<pre class="mermaid">{escaped}</pre>', format="html")]


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """The README is the first page; the order of the others is kept apart, since GitHub would show it as text."""
    if page == root_doc:
        for caption, names in CONTENTS.items():
            pages = "\n".join(name if name.startswith("/") else f"docs/{name}" for name in names.split())
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"
    if page == "docs/decisions/index":
        source[0] += "\n\n```{toctree}\n:glob:\n:maxdepth: 1\n\n0*\n```\n"


def add_docstrings(app: Sphinx, page: str, source: list[str]) -> None:
    """A block of public names becomes what their docstrings say; in the repository it is a list to look at."""
    source[0] = re.sub(r"(?<=^```)\{names\}\n(.*?)(?=^```$)", directives, source[0], flags=re.MULTILINE | re.DOTALL)


def add_files(app: Sphinx, page: str, source: list[str]) -> None:
    """Markdown outside of docs/ is no page: the site gives it as a file, as all else that a page leads to."""
    source[0] = re.sub(r"\]\((\.\./(?:tests|benchmarks)/[^)#]+\.md)\)", r"](path:\1)", source[0])


def add_tables(app: Sphinx, page: str, source: list[str]) -> None:
    """Where a page leads to a file with commas, the site has the table itself, so that a search finds what is in it."""
    folder = (ROOT / page).parent
    source[0] = re.sub(r"^<!-- table (\S+) -->$", lambda found: table(folder / found[1]), source[0], flags=re.MULTILINE)


def table(path: Path) -> str:
    """The file as a table of Markdown."""
    with path.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    return "\n".join(map(markdown_line, (head, ["---"] * len(head), *rows)))


def directives(block: re.Match[str]) -> str:
    """What Sphinx puts docstrings in place of, for the names of a block."""
    lines = ["{eval-rst}"]
    for name in re.findall(r"\w+", block[1]):
        value = getattr(partq, name)
        if isinstance(value, type) and issubclass(value, Exception):
            lines += [f".. autoexception:: partq.{name}", "   :show-inheritance:"]
        else:
            lines.append(f".. {'autoclass' if isinstance(value, type) else 'autofunction'}:: partq.{name}")
            lines += ["   :inherited-members:"] * (value is partq.Queue)  # of the classes of which it is made
    return "\n".join((*lines, ""))


def mend_links(app: Sphinx, tree: nodes.document) -> None:
    """A link to a folder, of which GitHub shows the files, leads to the folder's index. And a type in a signature that
    Python itself brings (`bytes`) is no link to some attribute of that name.
    """
    environment = app.env
    for node in list(tree.findall(addnodes.pending_xref)):
        target = node["reftarget"]
        if node["refdomain"] == "py" and hasattr(builtins, target):
            node.replace_self(node.children)
        elif node["reftype"] == "myst" and node["refdomain"] != "doc":
            folder = posixpath.join(posixpath.dirname(environment.docname), target)
            page = posixpath.normpath(folder) + "/index"
            if page in environment.found_docs:
                node["refdomain"], node["reftarget"], node["reftargetid"] = "doc", page, None


def add_mermaid(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None) -> None:
    """Its 3.5 MB are loaded only where there is something to draw."""
    if 'class="mermaid"' in context.get("body", ""):
        app.add_js_file(MERMAID.name, loading_method="defer")
        app.add_js_file("draw.js", loading_method="defer")


def setup(app: Sphinx) -> None:
    """What Sphinx calls first. Raises `ConfigError` where mermaid was not fetched."""
    if not MERMAID.is_file():
        raise ConfigError(f"{MERMAID} is missing: run scripts/setup")
    html_static_path.append(str(MERMAID))
    app.add_directive("mermaid", Mermaid)
    app.connect("source-read", add_contents)
    app.connect("source-read", add_docstrings)
    app.connect("source-read", add_files)
    app.connect("source-read", add_tables)
    app.connect("doctree-read", mend_links)
    app.connect("html-page-context", add_mermaid)
