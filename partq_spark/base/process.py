"""A process of partq and its surroundings: that each standard stream is there, how a process ends whose output nobody
reads, and folders that only its user may enter.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from partq_spark.base.errors import Invalid


def open_standard_streams() -> None:
    """See that descriptors 0, 1 and 2 are open, as a program's first act. One that was closed (`2>&-`) would be given
    to the next file that is opened, of a store perhaps, and what is meant for people would go into it.

    Output then goes nowhere; input stays None, for to read nothing would look like an empty file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_WRONLY), True)  # the lowest number that is free, which is this
            if name != "stdin":
                stream = open(number, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - it stays
                setattr(sys, name, stream)


def drop_unwritten() -> None:
    """Forget what an output did not take, which was told: Python would try once more, and tell it in its own way."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def end_unread() -> NoReturn:
    """End as a program does whose reader has gone away (`| head`): by SIGPIPE, which Python ignores, since it means
    sockets as well. A shell shows it as 141.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    os._exit(128 + signal.SIGPIPE)  # where the signal is blocked


# --- a user's own folders ---------------------------------------------------------------------------------------------

# Folders that only one user may enter, made in places where others may write too: those for temporary files.


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
