"""The sidecar's log: one line per decision, with its reason, as key=value text or JSON.

Only form lives here. No line carries a secret, because no caller has one: addresses come from the stores in a form free
of them. Lines of libraries (a store is tried again) come through `LibraryLines`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, Protocol, TextIO

from partq_spark.base.errors import PartqError

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")

FieldValue = str | int | float | bool | None
_PLAIN = re.compile(r"[^\s\"'=\\]+")


class Log(Protocol):
    """Where the coordinator tells what it does; `event` is a word, the rest are facts."""

    def __call__(self, level: str, event: str, /, **facts: FieldValue) -> None: ...


def one_line(error: Exception) -> str:
    """What an error says, as a fact for a line; a mistake in the program names its kind, too."""
    text = " ".join(str(error).split())
    return text if isinstance(error, PartqError) else f"{type(error).__name__}: {text}"


def silent(level: str, event: str, /, **facts: FieldValue) -> None:
    """A log that keeps nothing."""


class LineLog:
    """A log as lines on a stream. Safe for use by several threads. What cannot be written is dropped: a log that is in
    the way must not stop what it tells of.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        form: str = "text",
        level: str = "info",
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._render = _json if form == "json" else _text
        self._least = LEVELS.index(level)
        self._wall_s = wall_s
        self._lock = threading.Lock()

    def __call__(self, level: str, event: str, /, **facts: FieldValue) -> None:
        if LEVELS.index(level) < self._least:
            return
        at = datetime.fromtimestamp(self._wall_s(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = self._render({"time": at, "level": level, "event": event, **facts})
        with self._lock:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads any more; there is nowhere to say so


class LibraryLines(logging.Handler):
    """Hands lines of the standard `logging` (object stores, the Redis client) to a `Log`."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        self._log(level if level in LEVELS else "error", "library", logger=record.name, message=record.getMessage())

    def install(self, level: str) -> None:
        """Take over the loggers of partq's packages; those of others from warnings on."""
        for name in ("partq", "partq_spark"):
            logger = logging.getLogger(name)
            logger.handlers = [self]
            logger.propagate = False
            logger.setLevel(level.upper())
        root = logging.getLogger()
        root.handlers = [self]
        root.setLevel(logging.WARNING)


def _text(facts: Mapping[str, FieldValue]) -> str:
    return " ".join(f"{name}={_quoted(value)}" for name, value in facts.items() if value is not None)


def _quoted(value: FieldValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.isprintable() else json.dumps(text, ensure_ascii=True)


def _json(facts: Mapping[str, FieldValue]) -> str:
    return json.dumps({name: value for name, value in facts.items() if value is not None}, ensure_ascii=True)
