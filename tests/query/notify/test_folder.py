"""The folder of the sockets, which is for one user alone, and the end of a mailbox."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.query import notify
from partq_spark.query.notify import Datagram, Mailbox, send
from tests.query.notify.mailboxes import NAMES, echo, line
from tests.support.waiting import wait_until


def test_the_folder_is_for_this_user_alone() -> None:
    assert stat.S_IMODE(notify.folder().stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o777])
def test_a_folder_that_others_may_enter_is_refused(mode: int) -> None:
    path = notify.folder()
    path.chmod(mode)
    with pytest.raises(Invalid, match=f"{path} is not a folder that only this user may enter: remove it"):
        Mailbox(NAMES, echo)
    with pytest.raises(Invalid, match="only this user may enter"):
        line().ask({})


@pytest.mark.parametrize("what", ["a file", "a link", "a dead link"])
def test_what_is_no_folder_is_refused(place: Path, what: str) -> None:
    path = place / f"partq-{os.getuid()}"
    if what == "a file":
        path.write_text("")
    else:
        target = place / "elsewhere"
        if what == "a link":
            target.mkdir(mode=0o700)
        path.symlink_to(target)
    with pytest.raises(Invalid, match="only this user may enter"):
        notify.folder()


def test_a_folder_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = notify.folder()
    somebody = os.getuid() + 1
    path.rename(path.with_name(f"partq-{somebody}"))
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    with pytest.raises(Invalid, match="only this user may enter"):
        notify.folder()


def test_a_place_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    deep = place / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    for use in (lambda: Mailbox(NAMES, echo), lambda: line().ask({})):
        with pytest.raises(Invalid, match=r"no socket can be made at .*: set TMPDIR to a writable place whose path"):
            use()
    monkeypatch.setattr(tempfile, "tempdir", str(place / "not there"))
    with pytest.raises(Invalid, match=r"cannot be made .*: set TMPDIR to a writable place"):
        notify.folder()


def test_closing_ends_the_thread_and_removes_the_path() -> None:
    box = Mailbox(NAMES, echo)
    assert line().ask({"say": "hello"})["heard"] == "hello"
    box.close()
    assert not Path(box.path).exists()
    wait_until(lambda: not box._thread.is_alive(), "end of the thread", wait_s=5)
    box.close()
    with pytest.raises(Unavailable):
        line(0.1).ask({"say": "hello"})


def test_closing_while_a_message_is_dealt_with_ends_the_thread_after_it() -> None:
    busy, go_on = threading.Event(), threading.Event()

    def handle(_message: Datagram) -> Datagram:
        busy.set()
        go_on.wait(10.0)
        return {}

    box = Mailbox(NAMES, handle)
    assert send(box.path, {})
    assert busy.wait(5.0)
    box.close()
    go_on.set()
    wait_until(lambda: not box._thread.is_alive(), "end of the thread", wait_s=5)
