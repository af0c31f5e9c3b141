"""The pieces that the local store is made of: the document format, temporary files, error messages.

Nothing here knows object names or the contract; `local.py` does. Everything works relative to an open directory, so
that a directory that is removed and made again under the same name is noticed instead of being written past.

A document is one file. Its first key is the ETag, at a fixed width, so that a look at a document reads 64 bytes:

- JSON body:  `{"etag":"<32 hex>",` then the body without its first `{`;
- metadata:   `{"metadata.etag":"<32 hex>",` then the keys and values as one JSON object without its first `{`.

The dot cannot occur in a metadata key, so neither kind can be taken for the other, whatever the document holds. Where
the body is an empty object, the comma is a space, which keeps the file valid JSON. A file that begins otherwise is no
document.
"""

# Most calls are relative to an open folder, which pathlib cannot express.
# ruff: noqa: PTH108
from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from partq_spark.base.errors import Corrupt, Invalid, PartqError, Unavailable
from partq_spark.objects.api import Document

TEMPORARY_PREFIX: Final = ".tmp-"
LOOK_BYTES: Final = 64
"""Enough of a document to tell its kind and its ETag."""

READING: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""How a file is opened. Not blocking, which is nothing to a regular file: to open a pipe that nobody writes, in the
place of an object, would last for ever.
"""

_log = logging.getLogger("partq.objects")

_BODY_START: Final = b'{"etag":"'
_METADATA_START: Final = b'{"metadata.etag":"'
_ETAG_CHARS: Final = 32
_METADATA: Final = msgspec.json.Decoder(dict[str, str])
SYNC_EVERY_BYTES: Final = 32 * 1024 * 1024

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_FILE = (errno.ESPIPE, errno.ENXIO, errno.ENODEV)  # a pipe, a socket, a device


# ---- documents


def new_etag() -> str:
    """Random, never a counter or a time: the same content written again must not look unchanged."""
    return os.urandom(_ETAG_CHARS // 2).hex()


def encode_document(etag: str, content: bytes | Mapping[str, str]) -> bytes:
    """The file of a document whose content was checked."""
    if isinstance(content, bytes):
        start, body = _BODY_START, content
    else:
        start, body = _METADATA_START, msgspec.json.encode(dict(content))
    separator = b'" ' if body[1:].lstrip()[:1] == b"}" else b'",'
    return b"".join((start, etag.encode(), separator, memoryview(body)[1:]))


def find_etag(path: str, head: bytes) -> str:
    """The ETag in the first `LOOK_BYTES` of a document. Raises `Corrupt` if this is none."""
    for start in (_BODY_START, _METADATA_START):
        end = len(start) + _ETAG_CHARS
        if head.startswith(start) and head[end : end + 2] in (b'",', b'" '):
            return head[len(start) : end].decode("ascii", "replace")
    raise Corrupt(
        f"{path} is no document of partq: it does not begin with an ETag; restore it, or remove it if it is foreign"
    )


def has_etag(head: bytes, etag: bytes) -> bool:
    """Whether a document has this ETag: what an idle reader asks every few milliseconds."""
    if head[9:41] == etag:
        return head.startswith(_BODY_START)
    return head[18:50] == etag and head.startswith(_METADATA_START)


def is_metadata(head: bytes) -> bool:
    """Whether a file that begins so is a metadata document."""
    return head.startswith(_METADATA_START)


def decode_document(path: str, data: bytes) -> Document:
    """The document in a file. Raises `Corrupt` if it is none, or is cut short."""
    etag = find_etag(path, data[:LOOK_BYTES])
    if data[-1:] != b"}":
        raise Corrupt(f"{path} is cut short, its last byte is not '}}': restore it from a copy")
    if not data.startswith(_METADATA_START):
        return Document(etag=etag, body=b"{" + data[len(_BODY_START) + _ETAG_CHARS + 2 :])
    return Document(etag=etag, metadata=decode_metadata(path, data))


def decode_metadata(path: str, data: bytes) -> dict[str, str]:
    """The keys and values of a metadata document's file, without its ETag."""
    try:
        return _METADATA.decode(b"{" + data[len(_METADATA_START) + _ETAG_CHARS + 2 :])
    except msgspec.ValidationError:
        raise Corrupt(f"{path} holds something else than text values: restore it from a copy") from None
    except ValueError as error:
        raise Corrupt(f"{path} is no JSON object: {error}; restore it from a copy") from None


def listed_document(path: str, data: bytes) -> Document:
    """As `decode_document`, for a listing: an empty one where it is damaged, which those who need it find just as
    corrupt. So one hides no others.
    """
    try:
        return decode_document(path, data)
    except Corrupt:
        return Document(etag="")


# ---- files


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
    """A hidden file in an open folder that becomes an object by a link or a rename, or is gone after `discard`.

    While it grows, a thread starts write-back of every `sync_every_bytes`, so that the sync at the end, during which a
    Spark task does nothing else, finds little to do. The thread's error is kept: Linux reports a failed write-back only
    once, and the sync at the end would say that all is well.
    """

    def __init__(self, folder: int, *, sync_every_bytes: int = SYNC_EVERY_BYTES) -> None:
        self._folder = folder
        self._sync_every_bytes = sync_every_bytes
        self.name = TEMPORARY_PREFIX + os.urandom(16).hex()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self.name, flags, 0o666, dir_fd=folder)
        self._exists = True
        self._unsynced_bytes = 0
        self._wake = threading.Event()
        self._ended = False
        self._syncer: threading.Thread | None = None
        self._sync_error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data)
        write_all(self._fd, view)
        self._unsynced_bytes += view.nbytes
        if self._unsynced_bytes >= self._sync_every_bytes:
            self._unsynced_bytes = 0
            if self._syncer is None:
                self._syncer = threading.Thread(target=self._sync_early, name="partq-write-back", daemon=True)
                self._syncer.start()
            self._wake.set()
            self._raise_sync_error()
        return view.nbytes

    def finish(self) -> None:
        """Make the content durable and close the file; it still has its hidden name."""
        self._join_syncer()
        self._raise_sync_error()
        os.fsync(self._fd)
        self._close()

    def link(self, name: str) -> None:
        """Give the file its name if that is free (`FileExistsError` if not); the hidden name goes with `discard`."""
        os.link(self.name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)

    def rename(self, name: str) -> None:
        """Give the file its name in place of what has it."""
        os.rename(self.name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._exists = False

    def discard(self) -> None:
        """Close and remove the hidden name; never raises, because it also runs while an error is on its way."""
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
                self._sync_error = error
                return

    def _join_syncer(self) -> None:
        if self._syncer is not None:
            self._ended = True
            self._wake.set()
            self._syncer.join()  # ends with the one sync under way, which is as bounded as the disk
            self._syncer = None

    def _raise_sync_error(self) -> None:
        if self._sync_error is not None:
            raise self._sync_error


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
