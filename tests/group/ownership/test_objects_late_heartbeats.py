"""A heartbeat as an object that lands long after its flow stopped waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.objects.local import LocalStore
from tests.group.ownership.conftest import KEY, a_record, delivery
from tests.support.ownership import in_objects


class Late(LocalStore):
    """Holds one swap of a heartbeat back, and may refuse to answer when records are asked for."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.holds = False
        self.refuses = ""
        self.held: list[Callable[[], object]] = []

    def swap(self, name: str, content: Any, *, expected: str | None) -> str:
        if self.holds and "/beats/" in name:
            self.holds = False
            self.held.append(lambda: LocalStore.swap(self, name, content, expected=expected))
            raise Unavailable("no answer came (test)")
        self._answer("swap", name)
        return super().swap(name, content, expected=expected)

    def load(self, name: str, *, known: str | None = None) -> Any:
        self._answer("load", name)
        return super().load(name, known=known)

    def _answer(self, verb: str, name: str) -> None:
        if self.refuses == verb and "/flows/" in name:
            raise Unavailable("no answer came (test)")


@pytest.mark.parametrize("refused", ["swap", "load"])
def test_a_beat_that_counts_was_written_since_its_call_began(tmp_path: Path, refused: str) -> None:
    """Else the flow takes itself for alive for longer than others who watch its heartbeat."""
    objects = Late(str(tmp_path / "store"))
    store, watcher, record = in_objects(objects), in_objects(LocalStore(str(tmp_path / "store"))), a_record()
    store.bind(KEY, record, replaces=None)

    def beat() -> object:
        return store.beat(KEY, "billing-1", record.instance)

    objects.holds = True
    with pytest.raises(Unavailable):
        beat()
    objects.refuses = refused
    if refused == "load":  # nobody knows the record either
        store._own[KEY, "billing-1"].doubt()
    with pytest.raises(Unavailable):
        store.report(KEY, "billing-1", record.instance, {1: delivery(1)})
    objects.refuses = ""
    objects.held.pop()()
    landed = watcher.read_beats(KEY)["billing-1"].token
    beat()
    assert watcher.read_beats(KEY)["billing-1"].token != landed
