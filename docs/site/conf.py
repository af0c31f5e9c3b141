"""How Sphinx makes the documentation site of the files that are read in the repository too; `scripts/docs` runs it.

The source is the project's root, so that a link between README.md, docs/ and the code is the same link on the site and
in the repository. No text lives here: only what the files' form needs (GitHub's anchors, its mermaid blocks), and the
order of the pages (contents.md).
"""

from __future__ import annotations

import builtins
import posixpath
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ConfigError
from sphinx.util.docutils import SphinxDirective

import partq

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
# Everything else in the root is no page: the virtual environment, code, what builds and tests leave.
PAGES = {"docs", *(page.name for page in ROOT.glob("*.md"))}
exclude_patterns = [*sorted({each.name for each in ROOT.iterdir()} - PAGES), "docs/site"]

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
        source[0] += "\n\n" + (HERE / "contents.md").read_text(encoding="utf-8")


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
    app.connect("doctree-read", mend_links)
    app.connect("html-page-context", add_mermaid)
