"""The sidecar's log: one line per decision, with its reason, as key=value text or JSON, by the standard library's
logging.

Whoever wants to know what a coordinator does listens to its logger (`coordinator_logger`), whatever level is printed.
No line carries a secret, because no caller has one: addresses come from the stores in a form free of them.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from partq_spark.base.errors import PartqError

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")

FieldValue = str | int | float | bool | None
_PLAIN = re.compile(r"[^\s\"'=\\]+")


def coordinator_logger(name: str) -> logging.Logger:
    """Of one coordinator: a program may run several. It tells everything; its handlers choose."""
    logger = logging.getLogger(f"partq.coordinator.{name}")
    logger.setLevel(logging.DEBUG)
    return logger


class Log:
    """Tells what one coordinator does: `event` is a word, the rest are facts, and so is `about` in every line."""

    def __init__(self, name: str, *, before: str = "", **about: FieldValue) -> None:
        """`before`: what its events' words begin with."""
        self._logger = coordinator_logger(name)
        self._before = before
        self._about = about

    def __call__(self, level: str, event: str, /, **facts: FieldValue) -> None:
        number = logging.getLevelNamesMapping()[level.upper()]
        self._logger.log(number, "%s", self._before + event, extra={"facts": {**self._about, **facts}})


class Listener(logging.Handler):
    """Has `hear` called with every event of a coordinator, and its facts."""

    def __init__(self, hear: Callable[[str, Mapping[str, FieldValue]], None]) -> None:
        super().__init__()
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        facts = getattr(record, "facts", None)
        if facts is not None:
            self._hear(record.getMessage(), facts)


class Lines(logging.Formatter):
    """One line for each record, also of libraries (a store is tried again)."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._render = _json if form == "json" else _text

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        level = record.levelname.lower()
        line: dict[str, Any] = {"time": at, "level": level if level in LEVELS else "error"}
        facts = getattr(record, "facts", None)
        if facts is None:
            return self._render({**line, "event": "library", "logger": record.name, "message": record.getMessage()})
        return self._render({**line, "event": record.getMessage(), **facts})


def print_lines(form: str, level: str, stream: TextIO | None = None) -> None:
    """From now on, on stderr if nothing else is said: what coordinators tell, and partq's packages, from `level` on;
    libraries of others from warnings on. A line that nobody reads is dropped: it must not stop what it tells of.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(Lines(form))
    handler.setLevel(level.upper())
    handler.handleError = lambda record: None  # type: ignore[method-assign] # there is nowhere to say so
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    for name in ("partq", "partq_spark"):
        logger = logging.getLogger(name)
        logger.setLevel(level.upper())
        logger.propagate = True  # also in a process in which a command has shown warnings its own way


def one_line(error: Exception) -> str:
    """What an error says, as a fact for a line; a mistake in the program names its kind, too."""
    text = " ".join(str(error).split())
    return text if isinstance(error, PartqError) else f"{type(error).__name__}: {text}"


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
