"""From views to HTML, by the templates beside this module. Whatever is put into one is escaped there: names, keys and
messages are text, never markup.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from partq_spark.base.words import age, printable, size, when
from partq_spark.client import words
from partq_spark.page import memory, queue_views


class Static(NamedTuple):
    """A file of the page, under a name that changes with what it holds."""

    name: str
    type: str
    content: bytes


_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@cache
def statics() -> dict[str, Static]:
    """The style sheet, the script and the icon, by their own names."""
    found = {}
    for name in ("page.css", "page.js", "icon.svg"):
        content = (files("partq_spark.page") / "static" / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:12]
        stem, _, kind = name.rpartition(".")
        found[name] = Static(name=f"{stem}-{digest}.{kind}", type=f"{_TYPES[kind]}; charset=utf-8", content=content)
    return found


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("partq_spark.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["printable"] = printable
    made.filters["count"] = lambda value: f"{value:,.0f}"
    made.filters["utc"] = lambda value: "" if value is None else f"{when(value)} UTC"
    made.filters |= {"age": age, "size": size, "when": when}
    made.globals["words"] = words
    made.globals["views"] = queue_views
    made.globals["part"] = memory.part
    made.globals["static"] = lambda name: f"/static/{statics()[name].name}"
    made.globals["chart"] = {"width": memory.WIDTH, "height": memory.HEIGHT}
    return made


def html(template: str, **values: Any) -> str:
    """A template filled in."""
    return _templates().get_template(template).render(**values)
