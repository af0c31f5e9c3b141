"""docs/cost.md, written from what part `cost` counted, the prices and `cost_template.md`; never by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tools import ROOT
from tools.cost.prices import Prices
from tools.cost.requests import ON_S3, Counted, Counts, Kind
from tools.report import Outcome, markdown_table

COST: Final = ROOT / "docs/cost.md"
TEMPLATE: Final = ROOT / "benchmarks/cost_template.md"
_PLACE: Final = re.compile(r"^\{\{([a-z]+)\}\}$", re.MULTILINE)
_LAST: Final = {"each": "$ for 10,000", "million": "$", "month": "$ a month"}
_FIRST: Final = {"each": "what", "million": "a million messages", "month": "by the month (730 h)"}
_SHOWN: Final = (Kind.WRITE, Kind.LIST, Kind.READ)
_ROW: Final = re.compile(r"^\| ([^|]+)" + r" \| ([\d.,]+)" * (len(_SHOWN) + 2) + r" \|$", re.MULTILINE)


def write_cost(outcome: Outcome, prices: Prices, target: Path = COST) -> None:
    """Write the document."""
    target.write_text(document(outcome, prices, TEMPLATE.read_text(encoding="utf-8")), encoding="utf-8")


def document(outcome: Outcome, prices: Prices, template: str) -> str:
    """The template with its places filled."""
    environment = outcome.environment
    texts = {name: table(name, outcome.counted, prices) for name in _LAST}
    texts["goals"] = markdown_table(outcome.measures)
    texts["prices"] = _prices(prices)
    texts["counted"] = f"Counted {environment.date} at commit {environment.commit}. {' '.join(outcome.notes)}"
    return _PLACE.sub(lambda place: texts[place[1]], template)


def text_of(outcome: Outcome, prices: Prices) -> str:
    """All tables, for a terminal."""
    return "\n\n".join(table(name, outcome.counted, prices) for name in _LAST)


def table(name: str, counted: Iterable[Counted], prices: Prices) -> str:
    """One of the tables. Raises `ValueError` for requests of a class that has no column."""
    found = list(counted)
    head = (_FIRST[name], *_SHOWN, _LAST[name], "on S3")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    factor = 10_000 if name == "each" else 1
    on_s3 = {line.what: factor * prices.dollars(line.counts) for line in found if line.table == name + ON_S3}
    for line in found:
        if line.table != name:
            continue
        if any(getattr(line.counts, kind) for kind in Kind if kind not in _SHOWN):
            raise ValueError(f"{line.what} makes requests of a class that the table does not show: {line.counts}")
        cells = [f"{getattr(line.counts, kind):,.0f}" for kind in _SHOWN]
        cells += [_dollars(each) for each in (factor * prices.dollars(line.counts), on_s3[line.what])]
        lines.append(f"| {line.what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read_tables(text: str) -> dict[str, Counts]:
    """What the document says that each thing asks for, by the words in its first column."""
    return {
        row[0]: Counts(**{kind: float(cell.replace(",", "")) for kind, cell in zip(_SHOWN, row[1:-2], strict=True)})
        for row in _ROW.findall(text)
    }


def dollars_on_s3(text: str) -> dict[str, float]:
    """What the document says that each thing costs on S3."""
    return {row[0]: float(row[-1].replace(",", "")) for row in _ROW.findall(text)}


def _prices(prices: Prices) -> str:
    lines = ["| for 10,000 requests | $ |", "|---|---|"]
    lines += [f"| {kind} | {prices.per_10000[kind]:g} |" for kind in Kind]
    return f"{prices.name}, {prices.as_of}.\n\n" + "\n".join(lines)


def _dollars(value: float) -> str:
    if value >= 1:
        return f"{value:,.2f}"
    return f"{value:.4f}" if value >= 0.001 or not value else f"{value:.6f}"
