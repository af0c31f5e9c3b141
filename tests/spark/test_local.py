"""A Spark home of links: made, made again, by several at once; refused where there is nothing to link to, and where
the folder is somebody else's; the command that makes one. Spark's own logs, written in two ways.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from partq import Invalid
from partq_spark.spark import local
from partq_spark.spark.local import QUICK_LOGS, make_home
from tests.cli import processes
from tests.support.spark import Lab

LINKS = ("bin", "jars", "sbin")


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, parts: tuple[str, ...] = LINKS) -> Path:
    """Have this Python find a PySpark in that folder; returns the package."""
    package = folder / "pyspark"
    for part in (*parts, "python/lib"):
        (package / part).mkdir(parents=True, exist_ok=True)
    spec = ModuleSpec("pyspark", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(local, "find_spec", lambda name: {"pyspark": spec}[name])
    return package


def links(folder: Path) -> dict[str, Path]:
    return {path.name: path.readlink() for path in folder.iterdir()}


def test_the_command_prints_what_a_shell_takes_or_json_or_refuses_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "a home"
    first, again = (processes.run(tmp_path / "store", "spark-home", folder) for _ in range(2))
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == first.stdout == f"export SPARK_HOME={shlex.quote(str(folder))}\n"
    shown = subprocess.run(
        ["sh", "-c", f'{again.stdout}\nprintf %s "$SPARK_HOME"'], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout == str(folder)
    told = json.loads(processes.run(tmp_path / "store", "spark-home", folder, "--json").stdout)
    assert told["folder"] == str(folder)
    assert links(folder) == {name: Path(told["pyspark"]) / name for name in LINKS}, "not the archive of PySpark"
    assert (folder / "bin/spark-submit").exists()
    assert list(folder.glob("jars/spark-core_*.jar"))
    assert list(tmp_path.iterdir()) == [folder]
    refused = processes.run(tmp_path / "store", "spark-home", tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    says = f"Error: {tmp_path} exists and was not made by partq spark-home: name a new folder, or remove this one\n"
    assert refused.stderr == says


def test_made_again_it_stays_and_follows_another_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "home"
    for name in ("one", "one", "two"):
        package = install(tmp_path / name, monkeypatch)
        assert make_home(folder).pyspark == package
        assert links(folder) == {part: package / part for part in LINKS}
    (folder / "conf").mkdir()  # a user's own settings
    assert make_home(folder).folder == folder
    assert (folder / "conf").is_dir()


def test_several_may_make_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each as a process of its own: what is half made has the name of a process."""
    package = install(tmp_path, monkeypatch)
    numbers = iter(range(1_000_000, 1_000_100))
    monkeypatch.setattr(os, "getpid", lambda: next(numbers))
    for name in ("a", "b", "c"):
        folder = tmp_path / "homes" / name
        with ThreadPoolExecutor(8) as several:
            made = list(several.map(make_home, [folder] * 8))
        assert {each.folder for each in made} == {folder}
        assert links(folder) == {part: package / part for part in LINKS}
        assert list(folder.parent.glob(f"{name}.*")) == []


def test_no_spark_and_a_place_to_make_nothing_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match=r"the Spark home .*/file/home cannot be made \(.*\): name a folder"):
        make_home(tmp_path / "file/home")
    install(tmp_path / "client", monkeypatch, parts=())
    for _ in range(2):
        with pytest.raises(Invalid, match=r"has no PySpark with Spark in it: run pip install 'partq\[demo\]'"):
            make_home(tmp_path / "home")
        assert not (tmp_path / "home").exists()
        monkeypatch.setattr(local, "find_spec", lambda _: None)


FOREIGN = [
    "mkdir home",
    "touch home",
    "mkdir home home/notes",
    "mkdir home home/bin home/jars home/sbin",
    "mkdir home; ln -s /usr/bin /usr/jars /usr/sbin home",
    "ln -s nothing home",
]


@pytest.mark.parametrize("other", FOREIGN)
def test_what_was_not_made_here_is_refused_and_left_as_it_is(tmp_path: Path, other: str) -> None:
    folder = tmp_path / "home"
    subprocess.run(["sh", "-c", other], cwd=tmp_path, check=True, timeout=60)
    before = sorted((path, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*"))
    with pytest.raises(Invalid, match=r"home exists and was not made by partq spark-home: name a new folder"):
        make_home(folder)
    assert sorted((path, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


@pytest.mark.spark
def test_a_query_goes_on_where_it_was_with_either_way_to_write_sparks_logs(lab: Lab) -> None:
    """The setting can be made and taken back at any time: the files are the same (spark-traps.md 41)."""
    lab.create("orders", 2)
    setting, quick = QUICK_LOGS
    assert lab.spark.conf.get(setting) == quick
    plain = replace(lab, spark=lab.spark.newSession())
    plain.spark.conf.set(setting, quick.replace("FileSystemBased", "FileContextBased"))  # Spark's default on a disk
    consumer = lab.consumer()
    for number, each in enumerate((plain, lab, plain)):
        each.publish("orders", [(f"k{n}", b"%d/%d" % (number, n)) for n in range(5)])
        consumer.run(each.stream("orders", startingOffsets="earliest"))
        assert sorted(consumer.values) == [b"%d/%d" % (earlier, n) for earlier in range(number + 1) for n in range(5)]
        assert consumer.log_files("commits") == list(range(number + 1))
