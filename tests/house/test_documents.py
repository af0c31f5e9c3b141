"""What the documents say of the tree is so: links lead somewhere, dependencies have reasons, settings are listed."""

from __future__ import annotations

import ast
import configparser
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from coordinator.settings import FIELDS
from tests.support.command_line import command_at
from tests.support.folders import SHOWS, folders

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, made as GitHub makes them."""
    headings = _HEADING.findall(re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(document: Path) -> Iterator[str]:
    for link in _LINK.findall(_CODE.sub("", document.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert list(dead_links(document)) == []


def test_every_trap_that_code_refers_to_is_listed() -> None:
    listed = set(re.findall(r"^\| (\d+) \|", (ROOT / "docs/spark-traps.md").read_text(encoding="utf-8"), re.MULTILINE))
    texts = (
        path.read_text(encoding="utf-8")
        for folder in ("partq_spark", "tests")
        for path in (ROOT / folder).rglob("*.py")
    )
    named = {numbers for text in texts for numbers in re.findall(r"spark-traps\.md ([\d, ]*\d)", text)}
    assert {number for numbers in named for number in numbers.split(", ")} - listed == set()


SPARK_SAYS = {"Python worker failed to connect back", "Commit denied"}


def test_messages_that_troubleshooting_explains_are_what_the_code_says() -> None:
    """The first column of its tables, between the places that are filled in."""
    sources = (path for room in ("partq_spark", "coordinator") for path in (ROOT / room).rglob("*.py"))
    nodes = (node for path in sources for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    said = "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    rows = re.findall(r"^\| (.*?) \|", (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    quoted = (quote for row in rows for quote in re.findall(r"`([^`]*)`", row))
    parts = {part.strip(" .,:") for quote in quoted for part in re.split(r"…|\bN\b|'\w'", quote)} - SPARK_SAYS
    assert len(parts) > 60
    assert {part for part in parts if " " in part and part not in said} == set()


def test_every_folder_of_tests_says_what_it_shows() -> None:
    assert set(folders()) == SHOWS.keys(), "for the table in CONTRIBUTING.md"


def project() -> dict[str, list[Requirement]]:
    """The requirements of pyproject.toml by where they stand: `build`, `plain`, and one per extra."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lists = {
        "build": content["build-system"]["requires"],
        "plain": content["project"]["dependencies"],
        **content["project"]["optional-dependencies"],
    }
    return {place: [Requirement(each) for each in lines] for place, lines in lists.items()}


def required_names() -> set[str]:
    names: set[str] = {canonicalize_name(each.name) for lines in project().values() for each in lines}
    return names - {"partq"}


def test_every_dependency_has_its_reason_and_an_exact_version_within_its_bounds() -> None:
    """docs/dependencies.md has one table row per package: its name in code type, then a reason."""
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", (ROOT / "docs/dependencies.md").read_text(), re.MULTILINE)
    assert sorted(name for name, reason in rows if reason.strip()) == sorted(required_names())
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    for each in (each for group in project().values() for each in group if each.name != "partq"):
        assert pins.get(canonicalize_name(each.name), "none") in each.specifier, f"{each}: run scripts/lock"


def test_every_exact_version_works_with_the_first_release_of_the_oldest_python() -> None:
    """Debian 12 has 3.11.2. Of what is installed, which are all but another machine's."""
    text = (ROOT / "constraints.txt").read_text()
    pinned = [each for each in distributions() if f"\n{canonicalize_name(each.name)}=={each.version}\n" in text]
    assert len(pinned) > 100
    wants = [SpecifierSet(str(each.metadata.json.get("requires_python", ""))) for each in pinned]
    late = [each for each, versions in zip(pinned, wants, strict=True) if not versions.contains("3.11.0")]
    assert [f"{each.name} {each.version}" for each in late] == [], "run scripts/lock"


def test_every_environment_variable_is_in_the_example() -> None:
    """conf/partq.env lists what the code reads, no less and no more."""
    pattern = r"\b(?:PARTQ|AZURE)_[A-Z_]*[A-Z]\b"
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for package in ("partq_spark", "coordinator")
        for path in (ROOT / package).rglob("*.py")
    )
    listed = set(re.findall(rf"^#?({pattern})=", (ROOT / "conf/partq.env").read_text(), re.MULTILINE))
    assert listed == {*re.findall(pattern, code), *(field.env for field in FIELDS)}


def test_the_systemd_unit_starts_what_there_is() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(ROOT / "conf/systemd/partq-coordinator.service", encoding="utf-8")
    assert set(unit) == {"DEFAULT", "Unit", "Service", "Install"}
    service = unit["Service"]
    program, *words = service["ExecStart"].split()
    assert Path(program).name == "partq"
    assert words[:2] == ["coordinator", "run"]
    options = {option for parameter in command_at(words[:2])[0].params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options
    assert service["RestartPreventExitStatus"] == "2", "what a configuration that cannot be used ends with"
    assert float(service["TimeoutStopSec"]) >= 5, "longer than a coordinator takes to give back what it leads"


# --- the README's words -----------------------------------------------------------------------------------------------


def cells(page: str, begins: str) -> list[str]:
    """The cells of the first row of a table that begins so."""
    row = re.search(rf"^\| {re.escape(begins)}.*$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None, begins
    return [cell.strip() for cell in row[0].strip("| ").split("|")]


def test_the_readme_says_what_the_figures_say_and_not_the_best_of_them_alone() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8").partition("## Rows, not bytes")[2]
    json, avro, into_json, into_avro = (
        float(re.search(rf"\| {measure}, whole query \|[^|]*\| Kafka, {form}[^|]*\| ([\d.]+)", page)[1])  # type: ignore[index]
        for measure in ("reading, all 19 columns", "publishing")
        for form in ("JSON", "Avro")
    )
    assert (
        f"of 19 columns in a typed queue it reads {json:.1f} times as fast as from Kafka with JSON and {avro:.1f} "
        f"times as fast as with Avro, and publishes {into_json:.1f} and {into_avro:.1f} times as fast"
    ) in text
    alone, redis, store = (
        cells("docs/cost.md", row)[-2]  # the last is S3's
        for row in (
            "a query without a group | 0",
            "a flow of a group shared by Redis | 0",
            "a flow of a group shared with `ownership=store` | 1",
        )
    )
    assert 2 < float(alone) < 3
    assert f"with `ownership=store`, as in the quick start, ${store}, and ${redis} with a Redis" in text
