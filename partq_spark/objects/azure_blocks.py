"""An object in an Azure container, written block by block: what goes where, and how much is under way at a time.

No SDK is imported here; `azure.py` hands in what a writer needs as `Blocks`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Protocol, Self

from partq_spark.base.errors import Invalid

BLOCK_BYTES: Final = 8 * 1024 * 1024
_BLOCKS_UNDER_WAY: Final = 3
_MAX_BLOCKS: Final = 50_000
"""The service's limit; 8 MiB each make 390 GiB."""


class Blocks(Protocol):
    """What a container does for a writer. Each call is repeated inside as far as it may be."""

    def put_whole(self, name: str, data: bytes) -> None:
        """Create the object in one request."""

    def put_block(self, name: str, block_id: str, data: bytes) -> None:
        """Stage one block, which stays invisible."""

    def commit_blocks(self, name: str, block_ids: Sequence[str]) -> None:
        """Create the object from staged blocks."""


class AzureWriter:
    """An immutable object as staged blocks of 8 MiB, three under way at a time; see `ObjectWriter`.

    An object of less than one block is put with one request. Memory is bounded to five blocks. What an abandoned
    writer has staged is dropped by the service after a week, and is never visible.
    """

    def __init__(self, store: Blocks, name: str) -> None:
        self._store = store
        self._name = name
        self._buffer: bytearray | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: list[Future[None]] = []
        self._block_ids: list[str] = []
        # Were two writers ever to use one name, blocks with equal ids would mix: each has ids of its own, of one
        # length.
        self._nonce = os.urandom(16).hex()

    def __enter__(self) -> Self:
        self._buffer = bytearray()
        return self

    def write(self, data: bytes | memoryview) -> int:
        if self._buffer is None:
            raise Invalid(f"object {self._name} is not being written: write inside the `with` block")
        view = memoryview(data).cast("B")
        done = 0
        while done < view.nbytes:
            part = view[done : done + BLOCK_BYTES - len(self._buffer)]
            self._buffer += part
            done += part.nbytes
            if len(self._buffer) == BLOCK_BYTES:
                self._stage(self._buffer)
        return done

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._buffer is not None:
                self._finish(self._buffer)
        finally:
            self._buffer = None
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)
                self._pool = None

    def _stage(self, buffer: bytearray) -> None:
        """Send the full buffer on its way; waits for the oldest block first if three are under way."""
        if len(self._block_ids) == _MAX_BLOCKS:
            raise Invalid(f"object {self._name} has more than {_MAX_BLOCKS} blocks of 8 MiB: write several objects")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_BLOCKS_UNDER_WAY, thread_name_prefix="partq-stage")
        if len(self._under_way) == _BLOCKS_UNDER_WAY:
            self._under_way[0].result()
            del self._under_way[0]
        block_id = f"{self._nonce}-{len(self._block_ids):05}"
        data = bytes(buffer)
        buffer.clear()
        self._under_way.append(self._pool.submit(self._store.put_block, self._name, block_id, data))
        self._block_ids.append(block_id)

    def _finish(self, buffer: bytearray) -> None:
        if not self._block_ids:
            self._store.put_whole(self._name, bytes(buffer))
            return
        if buffer:
            self._stage(buffer)
        for block in self._under_way:
            block.result()
        self._store.commit_blocks(self._name, self._block_ids)
