"""What a consumer needs of its group, however the group is shared: `session` shares it, `solo` takes all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from partq_spark.flow.claims import Binding, Position, View


class Membership(Protocol):
    """One flow of a group, in one process. `beat` may be called by any thread, the rest by one at a time.

    Everything but `is_bound`, `instance`, `mapping`, `room`, `lease_left_s` and `has_news` may raise `Unavailable`:
    then it is called again. `Session` says what each of them does.
    """

    @property
    def flow(self) -> str: ...

    @property
    def is_bound(self) -> bool: ...

    @property
    def instance(self) -> str | None: ...

    @property
    def mapping(self) -> Mapping[int, int]: ...

    @property
    def has_news(self) -> bool: ...

    def bind(self, mapping: Mapping[int, int] | None = None, *, wait_s: float) -> Binding: ...

    def unbind(self) -> None: ...

    def beat(self) -> None: ...

    def observe(self) -> View: ...

    def deliver(self, ends: Mapping[int, int]) -> bool: ...

    def acknowledge(self, positions: Mapping[int, Position]) -> frozenset[int]: ...

    def flush(self) -> None: ...

    def room(self) -> int | None: ...

    def lease_left_s(self) -> float: ...

    def wait_news(self, timeout_s: float) -> None: ...
