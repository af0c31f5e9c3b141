"""The object store in a local directory, `file:///absolute/dir`: one file per object, durable, for many processes.

What is promised: an object appears whole or not at all, and once a call has returned, what it
did survives power loss. A file is written under a hidden name, synced, linked or renamed to its name, and then its
folder is synced. Documents are compared and renamed under a lock on their folder. The directory must be on a local
file system: lock and link are the kernel's, and network file systems differ in what they promise of both.

Folders are never removed: a process that waits for the lock of a removed folder would hold a lock that means nothing.
"""

# Descriptors and plain strings: a look at a document takes 3 µs, a Path alone takes longer.
# ruff: noqa: PTH108, PTH116
from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress

from partq_spark.base.errors import Corrupt, Invalid, ObjectMissing, PartqError
from partq_spark.objects.api import UNCHANGED, Document, ObjectInfo, Unchanged
from partq_spark.objects.contents import (
    LOOK_BYTES,
    MAX_METADATA_FILE_BYTES,
    MAX_NAME_CHARS,
    changed,
    check_content,
    check_folder_prefix,
    check_name,
    check_prefix,
    check_range,
    check_whole,
    decode_document,
    encode_document,
    find_etag,
    has_etag,
    is_part,
    new_etag,
    taken,
)
from partq_spark.objects.local_files import (
    READING,
    SYNC_EVERY_BYTES,
    TEMPORARY_PREFIX,
    FolderLock,
    Folders,
    TemporaryFile,
    explain,
    explained,
    opened,
    read_all,
)
from partq_spark.objects.urls import LocalUrl

_log = logging.getLogger("partq.objects")


class LocalStore:
    """Objects as files below `folder`, an absolute path in plain form (`urls`); it is made at the first write: for this
    user alone if it is `private`, else as the umask has it. One that is there keeps its permissions.

    `lock_wait_s` bounds the wait for another process that replaces a document in the same folder;
    `sync_every_bytes` is how much of a growing object is written back at a time.
    """

    def __init__(
        self,
        folder: str,
        *,
        private: bool = False,
        lock_wait_s: float = 10.0,
        sync_every_bytes: int = SYNC_EVERY_BYTES,
    ) -> None:
        self._root = folder
        self._lock_wait_s = lock_wait_s
        self._sync_every_bytes = sync_every_bytes
        self._folders = Folders(folder, private=private)

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    @property
    def url(self) -> str:
        return str(LocalUrl(folder=self._root))

    @property
    def look_interval_s(self) -> float:
        return 0.01

    def time_us(self) -> int:
        """The kernel's clock, which stamps the files; not this process's own."""
        return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000

    def probe(self) -> None:
        """Nothing: what a directory can do is known."""

    def close(self) -> None:
        """Nothing is kept open."""

    # ---- immutable objects

    def create(self, name: str, data: bytes | memoryview) -> None:
        with self.writer(name) as writer:
            writer.write(data)

    @contextmanager
    def writer(self, name: str) -> Iterator[TemporaryFile]:
        path = self._path(name)
        with ExitStack() as stack:  # errors of whoever writes pass as they are
            with explained("writing", path):
                folder = stack.enter_context(self._folder(path, make=True))
                file = TemporaryFile(folder, path, sync_every_bytes=self._sync_every_bytes)
                stack.enter_context(closing(file))
            yield file
            with explained("writing", path, exists=taken(path)):
                file.finish()
                file.link()
                stack.close()

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        check_range(name, start, length)
        path = self._path(name)
        missing = ObjectMissing(f"object {path} is not there: restore it from a copy")
        with explained("reading", path, missing=missing), opened(path, READING) as fd:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                raise ObjectMissing(f"object {path} is not there, it is a directory: restore it from a copy")
            if not stat.S_ISREG(status.st_mode):
                raise Corrupt(f"{path} is no regular file: remove it, it is foreign, and restore the object")
            end = status.st_size if length is None else start + length
            check_whole(path, status.st_size, start, end)
            # Read and not mapped: a process that cuts a mapped file ends this one by SIGBUS, and could change what
            # was compared with its checksum already. Compressed slices, as they are by default, are read faster.
            data = read_all(fd, end - start, start)
            check_whole(path, start + len(data), start, end)  # it may have been cut a moment ago
            return memoryview(data)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with (
            explained("deleting", path),
            suppress(FileNotFoundError, IsADirectoryError),
            self._folder(path) as folder,
            self._lock(folder, path),  # also for an object: a swap compares and renames, and must not straddle it
        ):
            os.unlink(os.path.basename(path), dir_fd=folder)

    # ---- documents

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        path = self._path(name)
        try:
            if self._folders.unsynced:
                self._folders.settle(os.path.dirname(path))
            fd = os.open(path, READING)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise explain(error, "reading", path) from error
        try:
            if known is not None and has_etag(os.pread(fd, LOOK_BYTES, 0), known.encode()):
                return UNCHANGED
            return decode_document(path, read_all(fd, os.fstat(fd).st_size))
        except IsADirectoryError:
            return None
        except OSError as error:
            raise explain(error, "reading", path) from error
        finally:
            os.close(fd)

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        path, etag = self._path(name), new_etag()
        check_content(name, content)
        gone = None if expected is None else changed(path, expected, None)
        with (
            explained("replacing", path, missing=gone, exists=changed(path, None, None)),
            self._folder(path, make=expected is None) as folder,
        ):
            self._compare(folder, path, expected)  # a lost race ends here, before a sync is paid for
            with closing(TemporaryFile(folder, path)) as file:
                file.write(encode_document(etag, content))
                file.finish()
                if expected is None:
                    file.link()
                else:
                    with self._lock(folder, path):
                        self._compare(folder, path, expected)
                        file.rename()
        return etag

    def remove(self, name: str, *, expected: str) -> None:
        path = self._path(name)
        with (
            explained("removing", path, missing=changed(path, expected, None)),
            self._folder(path) as folder,
            self._lock(folder, path),
        ):
            self._compare(folder, path, expected)
            os.unlink(os.path.basename(path), dir_fd=folder)

    @staticmethod
    def _compare(folder: int, path: str, expected: str | None) -> None:
        found = None
        with suppress(FileNotFoundError), opened(os.path.basename(path), READING, folder) as fd:
            found = find_etag(path, os.pread(fd, LOOK_BYTES, 0)) if expected is not None else "another one"
        if found != expected:
            raise changed(path, expected, found)

    # ---- listing

    def list(self, prefix: str, *, values: bool = False) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._walk(prefix[: prefix.rfind("/") + 1], prefix, values=values)

    def list_folders(self, prefix: str) -> Iterator[str]:
        check_folder_prefix(prefix)
        folders = (entry for entry in self._entries(prefix) if entry.endswith("/"))
        return (folder[:-1] for folder in folders if self._has_objects(prefix + folder))

    def _has_objects(self, folder: str) -> bool:
        try:
            return next(self._walk(folder, ""), None) is not None
        except Invalid:
            return True  # this user may not look: one folder hides no others, and using what is in it says why not

    def _walk(self, folder: str, prefix: str, *, values: bool = False) -> Iterator[ObjectInfo]:
        for entry in self._entries(folder):
            name = folder + entry
            if not name.startswith(prefix) or len(name) > MAX_NAME_CHARS:
                continue
            if name.endswith("/"):
                yield from self._walk(name, prefix, values=values)
            else:
                info = self._info(name, values=values)
                if info is not None:
                    yield info

    def _entries(self, folder: str) -> Iterator[str]:
        path = f"{self._root}/{folder}"
        try:
            return iter(_entries(path))
        except (FileNotFoundError, NotADirectoryError):
            return iter(())
        except OSError as error:
            raise explain(error, "listing", path) from error

    def _info(self, name: str, *, values: bool) -> ObjectInfo | None:
        path = f"{self._root}/{name}"
        document = Document(etag="")
        try:
            status = os.stat(path)
            if values and LOOK_BYTES // 2 < status.st_size <= MAX_METADATA_FILE_BYTES:
                # Those who need it find it just as corrupt or closed to this user; others it does not hide.
                with suppress(Corrupt, PermissionError), opened(path, READING) as fd:
                    status = os.fstat(fd)  # the document may have been replaced meanwhile
                    document = decode_document(path, read_all(fd, status.st_size))
        except FileNotFoundError:
            return None  # deleted since the folder was read
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None  # a link that leads nowhere, as one to a file that is gone
            raise explain(error, "listing", path) from error
        age_s = max(0.0, time.clock_gettime(time.CLOCK_REALTIME) - status.st_mtime)
        if not document.metadata:
            return ObjectInfo(name=name, size_bytes=status.st_size, age_s=age_s)
        return ObjectInfo(name=name, size_bytes=0, age_s=age_s, etag=document.etag, metadata=document.metadata)

    # ---- housekeeping

    def sweep_temporary(self, older_than_s: float) -> int:
        """Remove what writers that died left behind, and return how many files that were.

        `older_than_s` must be longer than any writer pauses between two writes: a file that is swept from under its
        writer makes that writer fail (nothing is published), and it must try again.

        Only folders that names may lead through are entered: a `lost+found` or a snapshot is somebody else's. One that
        this user may not enter is told of and left out, for its own writer sweeps it; the rest is swept all the same.
        """

        def unreadable(error: OSError) -> None:
            if isinstance(error, PermissionError) and error.filename != self._root:
                said = "%s was not swept (%s): let user id %d in, or remove it"
                _log.warning(said, error.filename, error.strerror, os.geteuid())
            elif not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise explain(error, "sweeping", error.filename) from error

        removed = 0
        for path, folders, files in os.walk(self._root, onerror=unreadable):
            folders[:] = filter(is_part, folders)
            left = (f"{path}/{name}" for name in files if name.startswith(TEMPORARY_PREFIX))
            removed += sum(_sweep_one(name, older_than_s) for name in left)
        return removed

    # ---- folders

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"

    @contextmanager
    def _folder(self, path: str, *, make: bool = False) -> Iterator[int]:
        """The open folder of an object; what was done in it is durable at the end. Raises `OSError`."""
        parent = os.path.dirname(path)
        folder = self._folders.make(parent) if make else self._folders.open(parent)
        try:
            yield folder
            os.fsync(folder)
        except (PartqError, FileNotFoundError, FileExistsError):
            raise  # somebody else was first
        except BaseException:  # a signal's, too: it may have been done, and be seen before it is durable
            self._folders.unsynced.add(parent)
            raise
        finally:
            os.close(folder)

    def _lock(self, folder: int, path: str) -> FolderLock:
        return FolderLock(folder, os.path.dirname(path), self._lock_wait_s)


def _entries(path: str) -> list[str]:
    """The names in a folder that are partq's, folders with a `/` at the end, in the order of the whole names."""
    with os.scandir(path) as found:
        return sorted(entry.name + "/" if _is_folder(entry) else entry.name for entry in found if is_part(entry.name))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link to itself


def _sweep_one(path: str, older_than_s: float) -> int:
    try:
        if time.clock_gettime(time.CLOCK_REALTIME) - os.lstat(path).st_mtime < older_than_s:
            return 0
        os.unlink(path)
    except FileNotFoundError:
        return 0  # its writer finished, or another sweeper was here
    except OSError as error:
        _log.warning("%s was not swept (%s): remove it", path, error.strerror)
        return 0
    return 1
