"""Folders that only one user may enter, made in places where others may write too: those for temporary files."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from partq_spark.base.errors import Invalid


def private_folder(path: Path) -> Path:
    """`path`, made if it is not there. Raises `Invalid` if it is a link, another user's, or open to others: what they
    may have planted in it is not followed.
    """
    try:
        with suppress(FileExistsError):  # whatever is there is looked at below
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise Invalid(f"{path} cannot be made ({error}): set TMPDIR to a writable place") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Invalid(
            f"{path} is not a folder that only this user may enter: remove it, or set TMPDIR to another place"
        )
    return path
