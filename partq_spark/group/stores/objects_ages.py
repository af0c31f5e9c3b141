"""The ages of documents that are kept with `ownership=store`, for people; nothing is decided by them."""

from __future__ import annotations

from collections.abc import Callable

from partq_spark.objects.api import ObjectStore


class Ages:
    """How long ago documents were written, for people, without comparing clocks: the store is asked the first time;
    from then on a change that this process sees counts as new when it is seen.
    """

    def __init__(self, store: ObjectStore, now_s: Callable[[], float]) -> None:
        self._store = store
        self._now_s = now_s
        self._seen: dict[str, tuple[str, float]] = {}  # ETag, and when it was written by our clock

    def of(self, name: str, etag: str) -> float:
        """The age in seconds of a document that was just read."""
        seen = self._seen.get(name)
        if seen is None:
            infos = self._store.list(name)
            seen = etag, self._now_s() - next((info.age_s for info in infos if info.name == name), 0.0)
        elif seen[0] != etag:
            seen = etag, self._now_s()
        self._seen[name] = seen
        return max(0.0, self._now_s() - seen[1])
