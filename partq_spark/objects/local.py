"""The object store in a local directory, `file:///absolute/dir`: one file per object, durable, for many processes.

What is promised: an object appears whole or not at all, and once a call has returned, what it
did survives power loss. A file is written under a hidden name, synced, linked or renamed to its name, and then its
folder is synced. Documents are compared and renamed under a lock on their folder. The directory must be on a local
file system: lock and link are the kernel's, and network file systems differ in what they promise of both.

Folders are never removed: a process that waits for the lock of a removed folder would hold a lock that means nothing.
"""

# Descriptors and plain strings: a look at a document takes 3 µs, a Path alone takes longer.
# ruff: noqa: PTH116, PTH117
from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from partq_spark.base.errors import Conflict, Corrupt, Invalid, ObjectMissing, PartqError
from partq_spark.objects.api import UNCHANGED, Document, ObjectInfo, Unchanged
from partq_spark.objects.local_files import (
    LOOK_BYTES,
    READING,
    SYNC_EVERY_BYTES,
    TemporaryFile,
    decode_document,
    encode_document,
    entries,
    explain,
    find_etag,
    has_etag,
    is_metadata,
    listed_document,
    new_etag,
    read_all,
    sweep,
)
from partq_spark.objects.local_folders import FolderLock, Folders
from partq_spark.objects.names import (
    MAX_METADATA_BYTES,
    MAX_NAME_CHARS,
    check_content,
    check_folder_prefix,
    check_name,
    check_prefix,
    check_range,
    is_part,
)
from partq_spark.objects.urls import LocalUrl

_MAX_METADATA_FILE_BYTES: Final = 8 * MAX_METADATA_BYTES  # JSON takes up to six bytes where the limit counts one


class LocalStore:
    """Objects as files below `folder`, an absolute path; it is made at the first write: for this user alone if it is
    `private`, else as the umask has it. One that is there keeps its permissions.

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
        if not os.path.isabs(folder) or os.path.normpath(folder) != folder or folder == "/":
            raise Invalid(
                f"local store {folder!r} is not an absolute path of a directory in plain form: write it in full"
            )
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

    def close(self) -> None:
        """Nothing is kept open."""

    # ---- immutable objects

    def create(self, name: str, data: bytes | memoryview) -> None:
        with self.writer(name) as writer:
            writer.write(data)

    def writer(self, name: str) -> LocalWriter:
        return LocalWriter(f"{self._root}/{check_name(name)}", self._folders, self._sync_every_bytes)

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        check_range(name, start, length)
        path = f"{self._root}/{check_name(name)}"
        try:
            fd = os.open(path, READING)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissing(f"object {path} is not there: restore it from a copy") from None
        except OSError as error:
            raise explain(error, "reading", path) from error
        try:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                raise ObjectMissing(f"object {path} is not there, it is a directory: restore it from a copy")
            if not stat.S_ISREG(status.st_mode):
                raise Corrupt(f"{path} is no regular file: remove it, it is foreign, and restore the object")
            end = status.st_size if length is None else start + length
            size_bytes = status.st_size
            if max(start, end) <= size_bytes:
                # Read and not mapped: a process that cuts a mapped file ends this one by SIGBUS, and could change what
                # was compared with its checksum already. Compressed slices, as they are by default, are read faster.
                data = read_all(fd, end - start, start)
                if len(data) == end - start:
                    return memoryview(data)
                size_bytes = start + len(data)  # it was cut a moment ago
            raise Corrupt(
                f"object {path} is cut short: it has {size_bytes} bytes, and bytes {start} to {max(start, end)}"
                " were asked for; restore it from a copy"
            )
        except OSError as error:
            raise explain(error, "reading", path) from error
        finally:
            os.close(fd)

    def delete(self, name: str) -> bool:
        leaf = self._leaf(name)
        path = f"{self._root}/{name}"
        parent = os.path.dirname(path)
        try:
            folder = self._folders.open(parent)
            if folder is None:
                return False
            try:
                # Also an object's deletion takes the lock: a swap compares and renames, and must not straddle it.
                with FolderLock(folder, parent, self._lock_wait_s):
                    os.unlink(leaf, dir_fd=folder)
                self._folders.sync(folder, parent)
            finally:
                os.close(folder)
        except (FileNotFoundError, IsADirectoryError):
            return False
        except OSError as error:
            raise explain(error, "deleting", path) from error
        return True

    # ---- documents

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        path = f"{self._root}/{check_name(name)}"
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
        leaf = self._leaf(name)
        check_content(name, content)
        path = f"{self._root}/{name}"
        parent = os.path.dirname(path)
        etag = new_etag()
        try:
            folder = self._folders.make(parent) if expected is None else self._folders.open(parent)
            if folder is None:
                raise _changed(path, expected, None)
            try:
                self._compare(folder, leaf, path, expected)  # a lost race ends here, before a sync is paid for
                temporary = TemporaryFile(folder)
                try:
                    temporary.write(encode_document(etag, content))
                    temporary.finish()
                    if expected is None:
                        temporary.link(leaf)
                    else:
                        with FolderLock(folder, parent, self._lock_wait_s):
                            self._compare(folder, leaf, path, expected)
                            temporary.rename(leaf)
                finally:
                    temporary.discard()
                self._folders.sync(folder, parent)
            finally:
                os.close(folder)
        except FileExistsError:
            raise _changed(path, expected, "another one") from None
        except OSError as error:
            raise explain(error, "replacing", path) from error
        return etag

    def remove(self, name: str, *, expected: str) -> None:
        leaf = self._leaf(name)
        path = f"{self._root}/{name}"
        parent = os.path.dirname(path)
        try:
            folder = self._folders.open(parent)
            if folder is None:
                raise _changed(path, expected, None)
            try:
                with FolderLock(folder, parent, self._lock_wait_s):
                    self._compare(folder, leaf, path, expected)
                    os.unlink(leaf, dir_fd=folder)
                self._folders.sync(folder, parent)
            finally:
                os.close(folder)
        except OSError as error:
            raise explain(error, "removing", path) from error

    @staticmethod
    def _compare(folder: int, leaf: str, path: str, expected: str | None) -> None:
        try:
            fd = os.open(leaf, READING, dir_fd=folder)
        except FileNotFoundError:
            found = None
        else:
            try:
                found = find_etag(path, os.pread(fd, LOOK_BYTES, 0)) if expected is not None else "another one"
            finally:
                os.close(fd)
        if found != expected:
            raise _changed(path, expected, found)

    # ---- listing

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._walk(prefix[: prefix.rfind("/") + 1], prefix)

    def list_folders(self, prefix: str) -> Iterator[str]:
        check_folder_prefix(prefix)
        folders = (entry for entry in self._entries(prefix) if entry.endswith("/"))
        return (folder[:-1] for folder in folders if self._has_objects(prefix + folder))

    def _has_objects(self, folder: str) -> bool:
        try:
            return next(self._walk(folder, ""), None) is not None
        except Invalid:
            return True  # this user may not look: one folder hides no others, and using what is in it says why not

    def _walk(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        for entry in self._entries(folder):
            name = folder + entry
            if not name.startswith(prefix) or len(name) > MAX_NAME_CHARS:
                continue
            if name.endswith("/"):
                yield from self._walk(name, prefix)
            else:
                info = self._info(name)
                if info is not None:
                    yield info

    def _entries(self, folder: str) -> Iterator[str]:
        path = f"{self._root}/{folder}"
        try:
            return iter(entries(path, is_part))
        except (FileNotFoundError, NotADirectoryError):
            return iter(())
        except OSError as error:
            raise explain(error, "listing", path) from error

    def _info(self, name: str) -> ObjectInfo | None:
        path = f"{self._root}/{name}"
        document = Document(etag="")
        try:
            status = os.stat(path)
            if LOOK_BYTES // 2 < status.st_size <= _MAX_METADATA_FILE_BYTES:
                fd = os.open(path, READING)
                try:
                    status = os.fstat(fd)  # the document may have been replaced meanwhile
                    if is_metadata(data := read_all(fd, status.st_size)):
                        document = listed_document(path, data)
                finally:
                    os.close(fd)
        except FileNotFoundError:
            return None  # deleted since the folder was read
        except PermissionError:
            status = os.stat(path)  # one that this user may not read hides no others; reading it says why not
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None  # a link that leads nowhere, as one to a file that is gone
            raise explain(error, "listing", path) from error
        age_s = max(0.0, time.clock_gettime(time.CLOCK_REALTIME) - status.st_mtime)
        size_bytes = 0 if document.metadata else status.st_size
        return ObjectInfo(name=name, size_bytes=size_bytes, age_s=age_s, etag=document.etag, metadata=document.metadata)

    # ---- housekeeping

    def sweep_temporary(self, older_than_s: float) -> int:
        """Remove what writers that died left behind, and return how many files that were.

        `older_than_s` must be longer than any writer pauses between two writes: a file that is swept from under its
        writer makes that writer fail (nothing is published), and it must try again.
        """
        return sweep(self._root, older_than_s, is_part)

    # ---- folders

    @staticmethod
    def _leaf(name: str) -> str:
        return check_name(name).rpartition("/")[2]


class LocalWriter:
    """An immutable object that is written straight to its hidden file; see `ObjectWriter`."""

    def __init__(self, path: str, folders: Folders, sync_every_bytes: int) -> None:
        self._folders = folders
        self._sync_every_bytes = sync_every_bytes
        self._path = path
        self._parent = os.path.dirname(path)
        self._folder = -1
        self._temporary: TemporaryFile | None = None
        self._failure: PartqError | None = None

    def __enter__(self) -> Self:
        try:
            self._folder = self._folders.make(self._parent)
            self._temporary = TemporaryFile(self._folder, sync_every_bytes=self._sync_every_bytes)
        except OSError as error:
            self._discard()
            raise explain(error, "writing", self._path) from error
        return self

    def write(self, data: bytes | memoryview) -> int:
        if self._temporary is None:
            raise Invalid(f"object {self._path} is not being written: write inside the `with` block")
        try:
            return self._temporary.write(data)
        except OSError as error:
            self._failure = explain(error, "writing", self._path)
            raise self._failure from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._failure is not None:  # a caller went on after a failed write: it is not whole
                raise self._failure
            if kind is None and self._temporary is not None:
                self._temporary.finish()
                self._temporary.link(os.path.basename(self._path))
                self._temporary.discard()
                self._folders.sync(self._folder, self._parent)
        except FileExistsError:
            raise Conflict(f"object {self._path} exists already: immutable objects need a name of their own") from None
        except OSError as failure:
            raise explain(failure, "writing", self._path) from failure
        finally:
            self._discard()

    def _discard(self) -> None:
        if self._temporary is not None:
            self._temporary.discard()
            self._temporary = None
        if self._folder >= 0:
            folder, self._folder = self._folder, -1
            os.close(folder)


def _changed(path: str, expected: str | None, found: str | None) -> Conflict:
    if expected is None:
        return Conflict(f"document {path} exists already: load it before changing it")
    if found is None:
        return Conflict(f"document {path} is gone, ETag {expected} was expected: load it before changing it")
    return Conflict(f"document {path} has ETag {found}, {expected} was expected: load it again before changing it")
