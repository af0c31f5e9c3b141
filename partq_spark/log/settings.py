"""The settings of a queue: what each one means, which values it may have, and what it is where nothing is said.

All of it stands in the metadata of `QueueConfig`. The command line makes its options of it, the page its form, the
client its checks and its words, the documents their list: a new setting is a field here and an argument of
`create_queue` (`client.queue`) and `Queue.alter` (`client.altering`), which name their arguments for editors. A version
that does not know it would write the head without it, so it takes a new format number (`codec`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from msgspec import Meta

from partq_spark.base.errors import WrongUse
from partq_spark.base.json_documents import Seconds, Whole

_LONGEST_S = 7 * 24 * 3600
_LONGEST_RETENTION_S = 10 * 366 * 24 * 3600
_LARGEST_MESSAGE_BYTES = 1_000_000_000  # Arrow's 32-bit offsets end at 2 GiB, a run must hold more than one message
_LARGEST_QUOTA_BYTES = 2**60
_ACCESS_TYPES = ("non-exclusive", "exclusive")

AccessType = Annotated[str, Meta(pattern=rf"^({'|'.join(_ACCESS_TYPES)})\Z")]
Value = float | int | str | None
Unit = Literal["seconds", "bytes", "messages", ""]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting. Its value is one of `choices`, or a number of `unit` from `least` to `most`: a float of seconds or
    an int of others. `none` is what None is good for, where that is a value.
    """

    name: str  # as options and messages have it
    meaning: str
    unit: Unit = ""
    least: int = 0
    most: int = 0
    none: str | None = None
    choices: tuple[str, ...] = ()

    def check(self, value: Value) -> None:
        """Raises `WrongUse` for a value that the setting cannot have."""
        if value is None:
            fits = self.none is not None
        elif isinstance(value, str) or self.choices:
            fits = value in self.choices
        else:
            fits = self.least <= value <= self.most  # refuses nan too
        if fits:
            return
        allowed = f"{self.unit} from {self.least} to {self.most}"
        if self.choices:
            allowed = f"one of {', '.join(self.choices)}"
        raise self._refused(value, allowed if self.none is None else f"{allowed}, or none {self.none}")

    def parse(self, text: str) -> Value:
        """The value that a person typed, still to be checked. Raises `WrongUse` for what is no number."""
        if self.choices:
            return text.lower()
        if text.lower() == "none" and self.none is not None:
            return None
        try:
            return float(text) if self.unit == "seconds" else int(text)
        except ValueError:
            allowed = "seconds, as in 86400" if self.unit == "seconds" else "a whole number of bytes"
            raise self._refused(text[:40], allowed if self.none is None else f"{allowed}, or none") from None

    def _refused(self, value: Value, allowed: str) -> WrongUse:
        return WrongUse(f"{self.name}={value!r} is not allowed: give {allowed}")


def _setting(default: Value, **about: Any) -> Any:
    """A field with this default, and what `Setting` says of it."""
    return field(default=default, metadata={"setting": Setting(**about)})


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueConfig:
    """A queue's settings, as `partq queue create` and `alter` take them."""

    rebalance_delay_s: Seconds = _setting(
        5.0,
        name="rebalance-delay",
        meaning="Seconds that changes may settle before rebalancing; 0 allowed.",
        unit="seconds",
        most=_LONGEST_S,
    )
    max_handoff_time_s: Seconds = _setting(
        3.0,
        name="max-handoff-time",
        meaning="Seconds that a handoff may wait for acknowledgements; 0 allowed.",
        unit="seconds",
        most=_LONGEST_S,
    )
    access_type: AccessType = _setting(
        "non-exclusive",
        name="access-type",
        meaning="Whether one flow has all partitions, or flows share them.",
        choices=_ACCESS_TYPES,
    )
    max_message_bytes: Whole = _setting(
        10_000_000,
        name="max-message-bytes",
        meaning="Largest message: key, value and headers, or all columns.",
        unit="bytes",
        least=1,
        most=_LARGEST_MESSAGE_BYTES,
    )
    retention_s: Seconds | None = _setting(
        None,
        name="retention",
        meaning="Seconds after which messages go that every group has acknowledged; none: they stay.",
        unit="seconds",
        least=1,
        most=_LONGEST_RETENTION_S,
        none="to keep messages until they are trimmed by hand",
    )
    quota_bytes: Whole | None = _setting(
        None,
        name="quota-bytes",
        meaning="Stored bytes of messages at which publishing is refused.",
        unit="bytes",
        least=1,
        most=_LARGEST_QUOTA_BYTES,
        none="for no limit",
    )

    @classmethod
    def settings(cls) -> Mapping[str, Setting]:
        """What each field means and which values it may have."""
        return {each.name: each.metadata["setting"] for each in fields(cls)}


def check_settings(given: Mapping[str, Any]) -> None:
    """Raises `WrongUse` for the first of these settings that is out of its range. Each has a range of its own, so this
    needs no queue.
    """
    settings = QueueConfig.settings()
    for name, value in given.items():
        settings[name].check(value)
