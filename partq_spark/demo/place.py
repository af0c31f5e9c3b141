"""Where the demo works: a private folder of the user's, for one demo at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from partq_spark.base.errors import Invalid
from partq_spark.base.folders import private_folder

_LOCK: Final = ".lock"


def default_place() -> Path:
    """By the user's number: two names may differ in less than a file's name can show."""
    return Path(tempfile.gettempdir()) / f"partq-demo-{os.getuid()}"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """The folder, private and empty, until the `with` block ends; what was made in it stays. Raises `Invalid` if
    another demo is in it, or others may enter it.
    """
    lock = os.open(private_folder(folder) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Invalid(f"another demo of yours runs in {folder}: wait for it, or set TMPDIR for this one") from None
        for each in folder.iterdir():
            if each.name == _LOCK:
                continue
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                each.unlink()
        yield
    finally:
        os.close(lock)
