"""A Spark home of links: made, made again, and refused where there is nothing to link to."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from partq_spark.base.errors import Invalid
from partq_spark.demo import processes


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, parts: tuple[str, ...] = ("bin", "jars", "sbin")) -> None:
    """Have this Python find a PySpark there."""
    for part in (*parts, "python/lib"):
        (folder / part).mkdir(parents=True)
    spec = ModuleSpec("pyspark", None, origin=str(folder / "__init__.py"))
    monkeypatch.setattr(processes, "find_spec", lambda name: {"pyspark": spec}[name])


def test_it_has_programs_and_jars_and_not_the_archive_of_pyspark(tmp_path: Path) -> None:
    home = processes.make_home(tmp_path / "home")
    assert sorted(path.name for path in home.iterdir()) == ["bin", "jars", "sbin"]
    assert (home / "bin/spark-submit").exists()
    assert list(home.glob("jars/spark-core_*.jar"))


def test_made_again_it_stays_and_follows_another_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for name in ("one", "one", "two"):
        if not (tmp_path / name).exists():
            install(tmp_path / name, monkeypatch)
        assert processes.make_home(home) == home
        assert {path.name: path.readlink() for path in home.iterdir()} == {
            part: tmp_path / name / part for part in ("bin", "jars", "sbin")
        }


def test_a_pyspark_without_spark_and_none_at_all_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "client", monkeypatch, parts=())
    for _ in range(2):
        with pytest.raises(Invalid, match=r"has no PySpark with Spark in it: run pip install 'partq\[demo\]'"):
            processes.make_home(tmp_path / "home")
        assert not (tmp_path / "home").exists()
        monkeypatch.setattr(processes, "find_spec", lambda _: None)
