"""The pieces that the local store is made of: temporary files, folders' entries, error messages.

Nothing here knows object names or the contract; `local.py` does. Everything works relative to an open directory, so
that a directory that is removed and made again under the same name is noticed instead of being written past.
"""

# Most calls are relative to an open folder, which pathlib cannot express.
# ruff: noqa: PTH108
from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from partq_spark.base.errors import Corrupt, Invalid, PartqError, Unavailable

TEMPORARY_PREFIX: Final = ".tmp-"
READING: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""How a file is opened. Not blocking, which is nothing to a regular file: to open a pipe that nobody writes, in the
place of an object, would last for ever.
"""

_log = logging.getLogger("partq.objects")

SYNC_EVERY_BYTES: Final = 32 * 1024 * 1024

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_FILE = (errno.ESPIPE, errno.ENXIO, errno.ENODEV)  # a pipe, a socket, a device


# ---- files


@contextmanager
def reading(path: str, folder: int | None = None) -> Iterator[int]:
    """An open file, for as long as it is read."""
    fd = os.open(path, READING, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write every byte, however many calls the system makes of it."""
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        done += os.write(fd, view[done:])


def read_all(fd: int, size_bytes: int, offset: int = 0) -> bytes:
    """`size_bytes` from `offset`, fewer only where the file ends."""
    pieces: list[bytes] = []
    while size_bytes > 0 and (piece := os.pread(fd, min(size_bytes, 1 << 30), offset)):
        pieces.append(piece)
        offset += len(piece)
        size_bytes -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class TemporaryFile:
    """A hidden file in an open folder; by a link or a rename it becomes the object at `path`, by `close` it is gone.

    While it grows, a thread starts write-back of every `sync_every_bytes`, so that the sync at the end, during which a
    Spark task does nothing else, finds little to do. The thread's error is kept: Linux reports a failed write-back only
    once, and the sync at the end would say that all is well.
    """

    def __init__(self, folder: int, path: str, *, sync_every_bytes: int = SYNC_EVERY_BYTES) -> None:
        self._folder = folder
        self._path = path
        self._sync_every_bytes = sync_every_bytes
        self.name = TEMPORARY_PREFIX + os.urandom(16).hex()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self.name, flags, 0o666, dir_fd=folder)
        self._exists = True
        self._unsynced_bytes = 0
        self._wake = threading.Event()
        self._ended = False
        self._syncer: threading.Thread | None = None
        self._failure: OSError | None = None  # after which it is not whole, whoever goes on

    def write(self, data: bytes | memoryview, /) -> int:
        view = memoryview(data)
        with explained("writing", self._path):
            try:
                write_all(self._fd, view)
            except OSError as error:
                self._failure = error
            self._raise_failure()
        self._unsynced_bytes += view.nbytes
        if self._unsynced_bytes >= self._sync_every_bytes:
            self._unsynced_bytes = 0
            if self._syncer is None:
                self._syncer = threading.Thread(target=self._sync_early, name="partq-write-back", daemon=True)
                self._syncer.start()
            self._wake.set()
        return view.nbytes

    def finish(self) -> None:
        """Make the content durable and close the file; it still has its hidden name."""
        self._join_syncer()
        self._raise_failure()
        os.fsync(self._fd)
        self._close()

    def link(self) -> None:
        """Give the file its name if that is free (`FileExistsError` if not); the hidden name goes with `close`."""
        name = os.path.basename(self._path)
        os.link(self.name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)

    def rename(self) -> None:
        """Give the file its name in place of what has it."""
        os.rename(self.name, os.path.basename(self._path), src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._exists = False

    def close(self) -> None:
        """Close it and remove the hidden name; never raises, because it also runs while an error is on its way."""
        try:
            self._join_syncer()
            self._close()
            if self._exists:
                self._exists = False
                os.unlink(self.name, dir_fd=self._folder)
        except OSError:
            pass  # housekeeping sweeps it

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _sync_early(self) -> None:
        while self._wake.wait() and not self._ended:
            self._wake.clear()
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                self._failure = error
                return

    def _join_syncer(self) -> None:
        if self._syncer is not None:
            self._ended = True
            self._wake.set()
            self._syncer.join()  # ends with the one sync under way, which is as bounded as the disk
            self._syncer = None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def entries(path: str, is_ours: Callable[[str], bool]) -> list[str]:
    """The names in a folder that are ours, folders with a `/` at the end, in the order of the whole names."""
    with os.scandir(path) as found:
        return sorted(entry.name + "/" if _is_folder(entry) else entry.name for entry in found if is_ours(entry.name))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link to itself


def sweep(root: str, older_than_s: float, is_ours: Callable[[str], bool]) -> int:
    """Remove hidden files anywhere below `root` that were last written so long ago; returns how many.

    Only folders whose name `is_ours` are entered: a `lost+found` or a snapshot is somebody else's. One that this user
    may not enter is told of and left out, for its own writer sweeps it; the rest is swept all the same.
    """
    removed = 0
    folders = [root]
    while folders:
        path = folders.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if is_ours(entry.name):
                            folders.append(entry.path)
                    elif entry.name.startswith(TEMPORARY_PREFIX):
                        removed += _sweep_one(entry, older_than_s)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            if path == root:
                raise explain(error, "sweeping", path) from error
            _log.warning("%s was not swept (%s): let user id %d in, or remove it", path, error.strerror, os.geteuid())
        except OSError as error:
            raise explain(error, "sweeping", path) from error
    return removed


def _sweep_one(entry: os.DirEntry[str], older_than_s: float) -> int:
    try:
        if time.clock_gettime(time.CLOCK_REALTIME) - entry.stat(follow_symlinks=False).st_mtime < older_than_s:
            return 0
        os.unlink(entry.path)
    except FileNotFoundError:
        return 0  # its writer finished, or another sweeper was here
    except PermissionError as error:
        _log.warning("%s was not swept (%s): remove it", entry.path, error.strerror)
        return 0
    return 1


# ---- errors


@contextmanager
def explained(
    doing: str, path: str, *, missing: PartqError | None = None, exists: PartqError | None = None
) -> Iterator[None]:
    """Turn the operating system's errors into partq's: into these where nothing, or something, has the name."""
    try:
        yield
    except OSError as error:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)) and missing is not None:
            raise missing from None
        if isinstance(error, FileExistsError) and exists is not None:
            raise exists from None
        raise explain(error, doing, path) from error


def explain(error: OSError, doing: str, path: str) -> PartqError:
    """What an operating system error means to the caller. `doing` is a phrase such as `writing`."""
    what = f"{doing} {path} failed: {error.strerror or error}"
    if error.errno in _FULL:
        return Unavailable(f"{what}; nothing half done is left behind: free space on that disk, or raise the quota")
    if error.errno == errno.EFBIG:
        return Unavailable(f"{what}; nothing half done is left behind: raise the limit on file size (`ulimit -f`)")
    if error.errno in _NOT_ALLOWED:
        act = "read" if doing in ("reading", "listing") else "write"
        return Invalid(f"{what}; let user id {os.geteuid()} {act} there, or choose another store")
    if error.errno in (errno.ENOTDIR, errno.EISDIR):
        return Invalid(f"{what}; an object cannot also be the folder of others: use another name")
    if error.errno in _NO_FILE:
        return Corrupt(
            f"{path} is no regular file ({error.strerror}): remove it, it is foreign, and restore the object"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return Unavailable(f"{what}; raise the limit on open files (`ulimit -n`)")
    return Unavailable(f"{what} ({errno.errorcode.get(error.errno or 0, 'no code')}); check that disk, then try again")
