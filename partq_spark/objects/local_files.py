"""The pieces that the local store is made of: temporary files; folders that are made durable, synced, and locked while
a document in them is replaced; error messages.

Nothing here knows object names or the contract; `local.py` does. Everything works relative to an open directory, so
that a directory that is removed and made again under the same name is noticed instead of being written past.
"""

# Most calls are relative to an open folder, which pathlib cannot express.
# ruff: noqa: PTH103, PTH112
from __future__ import annotations

import errno
import fcntl
import os
import random
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from typing import Final

from partq_spark.base.errors import Corrupt, Invalid, PartqError, Unavailable

TEMPORARY_PREFIX: Final = ".tmp-"
READING: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""How a file is opened. Not blocking, which is nothing to a regular file: to open a pipe that nobody writes, in the
place of an object, would last for ever.
"""

SYNC_EVERY_BYTES: Final = 32 * 1024 * 1024
_MOST_AT_ONCE: Final = 1024 * 1024
"""Of one call to the system. Linux takes memory for a file in pieces as large as the call, and those of 2 MiB are dear:
100 MB cost 30 ms of its time in calls of 1 MiB, 130 to 390 ms in calls of 2 MiB and more.
"""

LOCK_NAME: Final = ".lock"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LOCK: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAX_KNOWN: Final = 4096
_OPEN_TRIES: Final = 50

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_FILE = (errno.ESPIPE, errno.ENXIO, errno.ENODEV)  # a pipe, a socket, a device


# ---- files


@contextmanager
def opened(path: str, flags: int, folder: int | None = None) -> Iterator[int]:
    """A file or folder, open in the block."""
    fd = os.open(path, flags, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


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
        self._owner = os.getpid()  # who removes the hidden name: no fork of this process; 0: nobody any more
        self._unsynced_bytes = 0
        self._wake = threading.Event()
        self._ended = False
        self._syncer: threading.Thread | None = None
        self._failure: OSError | None = None  # after which it is not whole, whoever goes on

    def write(self, data: bytes | memoryview, /) -> int:
        view = memoryview(data).cast("B")
        done = 0
        with explained("writing", self._path):
            try:
                while done < len(view):
                    done += os.write(self._fd, view[done : done + _MOST_AT_ONCE])
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
        self._owner = 0

    def close(self) -> None:
        """Close it and remove the hidden name; never raises, because it also runs while an error is on its way."""
        try:
            self._join_syncer()
            self._close()
            if self._owner == os.getpid():
                self._owner = 0
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


# ---- folders


class Folders:
    """The folders of the store at `root`, as far as this process knows them. Safe for use by several threads."""

    def __init__(self, root: str, *, private: bool = False) -> None:
        """`private`: what makes `root` lets nobody else in."""
        self._root = root
        self._root_mode = 0o700 if private else 0o777
        self._durable: set[str] = set()
        self.unsynced: set[str] = set()  # where something may have been done, and its sync did not end

    def open(self, path: str) -> int:
        """An open folder. Raises `OSError`, as `FileNotFoundError` also where a file is in its way."""
        self.settle(path)
        try:
            return os.open(path, _FOLDER)
        except NotADirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error

    def make(self, path: str) -> int:
        """An open folder, made if it was not there, and durable with all its parents. Raises `OSError`."""
        self.settle(path)
        if path in self._durable:
            try:
                return os.open(path, _FOLDER)
            except FileNotFoundError:
                pass  # somebody removed the whole store and goes on using it
        make_durable_folder(self._root, path, self._root_mode)
        if len(self._durable) >= _MAX_KNOWN:
            self._durable.clear()
        self._durable.add(path)
        folder = os.open(path, _FOLDER)
        with suppress(OSError):  # now, since a disk that is full later must not keep anybody from deleting
            os.close(_open_lock(folder))
        return folder

    def settle(self, path: str) -> None:
        """Sync a folder whose last sync did not end: a caller that comes back to see what became of a change must not
        take it for done before it is durable. Raises `OSError`.
        """
        if path not in self.unsynced:
            return
        with suppress(FileNotFoundError, NotADirectoryError), opened(path, _FOLDER) as folder:
            os.fsync(folder)
        self.unsynced.discard(path)


def make_durable_folder(root: str, folder: str, root_mode: int = 0o777) -> None:
    """Make `folder` (at or below `root`) and see to it that it survives power loss, also parts that others made. A
    `root` that is not there yet gets `root_mode`, less the umask.

    Syncing only what one made oneself is not enough: another process may have made the parent a moment ago and not
    have synced it yet, and what is written below would be lost with it.
    """
    made_from = root
    while not os.path.isdir(made_from) and made_from != "/":
        made_from = os.path.dirname(made_from)
    try:
        os.makedirs(root, mode=root_mode, exist_ok=True)
        os.makedirs(folder, exist_ok=True)
    except FileExistsError as error:  # which elsewhere means that an object is there already
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from error
    top = made_from if len(made_from) < len(root) else os.path.dirname(root)
    path = os.path.dirname(folder)
    while len(path) >= len(top):
        # A parent above the store may be one that this process cannot read; a store that was there is not its
        # business.
        try:
            with opened(path, _FOLDER) as fd:
                os.fsync(fd)
        except PermissionError:
            if len(path) >= len(root):
                raise
        if path == "/":
            break
        path = os.path.dirname(path)


class FolderLock:
    """The lock under which a folder's documents are replaced: flock on a file in it, held for some microseconds.

    The file may be opened by those alone who may write to the folder. A lock on the folder itself, or on any file that
    others may read, could be taken by any reader, and kept.

    The kernel frees it when its holder dies. A holder that is frozen keeps it, rightly: it would still rename when it
    wakes. So the wait is bounded and then says what to look for.
    """

    def __init__(self, folder: int, path: str, wait_s: float) -> None:
        self._folder = folder
        self._path = path
        self._wait_s = wait_s

    def __enter__(self) -> None:
        try:
            # Whose end closes it: a signal's exception may come before the first line of `__exit__`.
            self._lock = FileIO(_open_lock(self._folder), "r+")
        except OSError as error:
            raise explain(error, "locking", f"{self._path}/{LOCK_NAME}") from error
        try:
            self._wait()
        except BaseException:
            self._lock.close()
            raise

    def _wait(self) -> None:
        pause_s = 0.0001
        deadline_s = time.monotonic() + self._wait_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise Unavailable(
                        f"folder {self._path} stayed locked for {self._wait_s:g} s, nothing was changed: a process may"
                        f" be frozen while it holds the lock; find it with `fuser -v {self._path}/{LOCK_NAME}`, let it"
                        " go on (`kill -CONT`) or end it"
                    ) from None
            time.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(pause_s * 1.5, 0.01)

    def __exit__(self, *_: object) -> None:
        # Said aloud instead of left to close: a child forked meanwhile has the same open file and would keep the lock.
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._lock.close()


def _open_lock(folder: int) -> int:
    """The open lock file of a folder, made if it was not there. Never removed: a lock on a file without a name means
    nothing to the maker of the next.
    """
    for left in reversed(range(_OPEN_TRIES)):
        try:
            lock = os.open(LOCK_NAME, _LOCK, dir_fd=folder)
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.close(os.open(LOCK_NAME, _LOCK | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder))
            continue
        except PermissionError:
            if not left:
                raise
            time.sleep(0.001)  # another user has just made it and is about to let others in
            continue
        try:
            _let_in_writers(lock, os.fstat(folder))
        except BaseException:
            os.close(lock)
            raise
        return lock
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _let_in_writers(lock: int, folder: os.stat_result) -> None:
    """Give the lock file the permissions of the folder's writers, and of nobody else: also where somebody has changed
    those of the whole store since.
    """
    found = os.fstat(lock)
    shared = folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    wanted = 0o600 | shared | shared << 1
    owner = folder.st_uid if os.geteuid() == 0 else found.st_uid  # what root made must not lock the owner out
    group = folder.st_gid if shared & stat.S_IWGRP else found.st_gid
    with suppress(PermissionError):  # not our file, or not our group: its owner does it at the next change
        if (found.st_uid, found.st_gid) != (owner, group):
            os.fchown(lock, owner, group)
        if stat.S_IMODE(found.st_mode) != wanted:
            os.fchmod(lock, wanted)


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
