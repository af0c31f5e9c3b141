"""What a coordinator counts while it works, for metrics: what it tells its log, what housekeeping does, and the calls
of its stores. Handoffs are counted by group (`handoffs`). Nobody decides by any of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coordinator.logs import FieldValue, Listener
from coordinator.measuring import OWNERSHIP_CALLS, OWNERSHIP_ERRORS, STORE_CALLS, STORE_ERRORS, Calls
from partq_spark.base.metrics import Counts

HOUSEKEEPING: Final[Mapping[tuple[str, str], str]] = {
    ("messages_trimmed", "messages"): "trimmed_messages",
    ("log_compacted", "messages"): "compacted_messages",
    ("log_compacted", "bytes"): "compacted_bytes",
    ("objects_deleted", "objects"): "deleted_objects",
    ("objects_deleted", "bytes"): "deleted_bytes",
    ("temporary_files_removed", "files"): "removed_temporary_files",
}
"""The log's events that tell of housekeeping, which of their facts are added up, and as what."""

_FACTS: Final = {event: [fact for each, fact in HOUSEKEEPING if each == event] for event, _ in HOUSEKEEPING}


class Tally(Listener):
    """Of one process, for any number of threads."""

    def __init__(self) -> None:
        super().__init__()
        self.events = Counts()
        self.housekeeping = Counts()
        self.store = Calls(STORE_CALLS, STORE_ERRORS)
        self.ownership = Calls(OWNERSHIP_CALLS, OWNERSHIP_ERRORS)

    def hear(self, event: str, facts: Mapping[str, FieldValue]) -> None:
        self.events.add(event)
        for fact in _FACTS.get(event, ()):
            count = facts.get(fact)
            if isinstance(count, int):
                self.housekeeping.add(HOUSEKEEPING[event, fact], count=count)
