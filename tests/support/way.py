"""A way to an object store on which tests see, count, delay or break every call: the real store stands behind it.

What happens to a call is `call`'s business, which each kind of way overrides. Nothing here knows what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

from partq_spark.objects.api import Document, ObjectInfo, ObjectStore, ObjectWriter, Unchanged

T = TypeVar("T")
Hook = Callable[[str, str], object]
WRITES: Final = frozenset({"create", "swap", "remove", "delete"})


class Way:
    """An `ObjectStore` of which every call goes through `call`, with its kind, its name and what it does."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        """Carry it out."""
        return effect()

    def listing(self, prefix: str, items: Callable[[], Iterator[T]]) -> Iterator[T]:
        """A listing is one call, if a way says nothing else."""
        return self.call("list", prefix, items)

    @property
    def url(self) -> str:
        return self.store.url

    @property
    def look_interval_s(self) -> float:
        return self.store.look_interval_s

    def time_us(self) -> int | None:
        return self.store.time_us()

    def probe(self) -> None:
        self.store.probe()

    def close(self) -> None:
        self.store.close()

    def create(self, name: str, data: bytes | memoryview) -> None:
        body = bytes(data)  # it may be carried out later
        self.call("create", name, lambda: self.store.create(name, body))

    @contextmanager
    def writer(self, name: str) -> Iterator[ObjectWriter]:
        with ExitStack() as inner:
            yield Writing(self, name, inner.enter_context(self.store.writer(name)))
            whole = inner.pop_all()  # whose end is a call, and may be carried out later
        self.call("written", name, whole.close)

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        return self.call("read", name, lambda: self.store.read(name, start=start, length=length))

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        return self.call("load", name, lambda: self.store.load(name, known=known))

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        return self.call("swap", name, lambda: self.store.swap(name, content, expected=expected))

    def remove(self, name: str, *, expected: str) -> None:
        self.call("remove", name, lambda: self.store.remove(name, expected=expected))

    def delete(self, name: str) -> None:
        self.call("delete", name, lambda: self.store.delete(name))

    def list(self, prefix: str, *, values: bool = False) -> Iterator[ObjectInfo]:
        return self.listing(prefix, lambda: self.store.list(prefix, values=values))

    def list_folders(self, prefix: str) -> Iterator[str]:
        return self.listing(prefix, lambda: self.store.list_folders(prefix))

    def sweep_temporary(self, older_than_s: float) -> int:
        return self.call("sweep", "", lambda: self.store.sweep_temporary(older_than_s))


class Writing:
    """An immutable object in the making: every piece is a call."""

    def __init__(self, way: Way, name: str, inner: ObjectWriter) -> None:
        self._way, self._name, self._inner = way, name, inner

    def write(self, data: bytes | memoryview, /) -> int:
        return self._way.call("write", self._name, lambda: self._inner.write(data))


class Hooked(Way):
    """`before` and `after` are told every call's kind and name, and may raise in it."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.calls: list[tuple[str, str]] = []

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        self.calls.append((kind, name))
        if self.before is not None:
            self.before(kind, name)
        result = effect()
        if self.after is not None:
            self.after(kind, name)
        return result
