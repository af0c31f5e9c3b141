"""The demo's folder: of one user, for one demo, and nobody else can lead it elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from partq_spark.base.errors import Invalid
from partq_spark.cli.main import cli
from partq_spark.demo.processes import alone


def test_a_demo_finds_its_folder_empty_and_leaves_what_it_made(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    with alone(folder):
        (folder / "store").mkdir()
        (folder / "store/x").write_text("x")
        (folder / "link").symlink_to(precious)
        (folder / "log").write_text("x")
    assert {each.name for each in folder.iterdir()} >= {"store", "link", "log"}
    with alone(folder):
        assert not {each.name for each in folder.iterdir()} & {"store", "link", "log"}
    assert (precious / "file").read_text() == "kept"
    assert folder.stat().st_mode & 0o077 == 0


def test_only_one_demo_is_in_a_folder(tmp_path: Path) -> None:
    with (
        alone(tmp_path / "john.doe"),
        alone(tmp_path / "john.smith"),  # another user's is no hindrance
        pytest.raises(Invalid, match="another demo of yours"),
        alone(tmp_path / "john.doe"),
    ):
        pass
    with alone(tmp_path / "john.doe"):
        pass


def test_a_folder_that_others_may_have_prepared_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (target / "precious").write_text("kept")
    planted = tmp_path / "planted"
    planted.symlink_to(target)
    for path in (open_to_all, planted):
        with pytest.raises(Invalid, match=rf"{path} is not a folder that only this user may enter"), alone(path):
            pass
    assert (target / "precious").exists()


def test_a_planted_link_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder for temporary files anybody may make a link under a name that the demo is known to use."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    precious = tmp_path / "precious"
    precious.write_text("kept")
    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    for user in ("somebody", str(os.getuid())):
        (tmp_path / f"partq-demo-{user}").symlink_to(precious)
        (tmp_path / f"partq-demo-{user}.lock").symlink_to(precious)
    result = CliRunner().invoke(cli, ["demo"])
    assert result.exit_code == 1
    assert "only this user may enter" in result.stderr
    assert precious.read_text() == "kept"
