"""The sidecar's configuration: what may be set, where it may come from, and what is refused. Pure but for reading one
file.

A value comes from the command line, else the environment, else the file, else the default; `FIELDS` has all of them.
Every refusal is one line that names where the value stood, the key, the value and what is allowed.
"""

from __future__ import annotations

import difflib
import math
import os
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from coordinator.fields import BY_KEY, FIELDS, Field, Raw
from partq_spark.base.errors import Invalid
from partq_spark.group.stores.urls import ALLOWED, STORE, parse_ownership
from partq_spark.log.names import checked_name
from partq_spark.objects.urls import canonical_url, default_store

__all__ = ["BY_KEY", "FIELDS", "Settings", "load_settings"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The configuration, checked. Units as in `FIELDS`."""

    store: str
    namespace: str
    ownership: str
    name: str
    lease_timeout_s: float
    renewal_s: float
    frozen_after_s: float
    handoff_look_s: float
    heads_look_s: float
    assumed_session_timeout_s: float
    group_threads: int
    fence_threads: int
    housekeeping: bool
    housekeeping_look_s: float
    collection_grace_s: float
    compaction_min_age_s: float
    retry_most_s: float
    log_format: str
    log_level: str
    health_host: str
    health_port: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    """A value, and how to name the place where it stood."""

    value: Raw
    place: str


def load_settings(
    path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str] | None = None
) -> Settings:
    """The settings from a file (None: none), the environment and the command line's `overrides` (by key).

    Raises `Invalid`.
    """
    given = _from_file(path) if path is not None else {}
    for field in FIELDS:
        # An empty variable counts as not set, as everywhere in partq.
        text = environ.get(field.env, "").strip()
        if text:
            given[field.key] = _Given(value=_from_text(field, text, field.env), place=field.env)
    for key, text in (overrides or {}).items():
        place = "--" + key.partition(".")[2].replace("url", "store")
        given[key] = _Given(value=_from_text(BY_KEY[key], text, place), place=place)
    return _checked(given, environ)


def _from_file(path: Path) -> dict[str, _Given]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Invalid(f"configuration {path} is not there: create it, or leave out --config for the defaults") from None
    except OSError as error:
        raise Invalid(f"configuration {path} cannot be read ({error.strerror}): make it a readable file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"configuration {path} is not TOML: {' '.join(str(error).split())}") from None
    found: dict[str, _Given] = {}
    sections = {key.partition(".")[0] for key in BY_KEY}
    for section, entries in content.items():
        if section not in sections:
            raise Invalid(f"{path}: section [{section}] is not known: {_near(section, sections)}")
        if not isinstance(entries, dict):
            raise Invalid(
                f"{path}: {section} = {entries!r} is not allowed: [{section}] is a section with keys of its own"
            )
        for name, value in entries.items():
            key = f"{section}.{name}"
            if key not in BY_KEY:
                known = {each for each in BY_KEY if each.startswith(section + ".")}
                raise Invalid(f"{path}: key {key} is not known: {_near(key, known)}")
            found[key] = _Given(value=_typed(BY_KEY[key], value, f"{path}: {key}"), place=f"{path}: {key}")
    return found


def _near(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"known are {', '.join(sorted(known))}"


def _from_text(field: Field, text: str, place: str) -> Raw:
    """A value of the environment or the command line."""
    if isinstance(field.default, str):
        return _typed(field, text, place)
    if isinstance(field.default, bool):
        return _typed(field, {"true": True, "false": False}.get(text.lower(), text), place)
    try:
        return _typed(field, int(text) if isinstance(field.default, int) else float(text), place)
    except ValueError:
        raise Invalid(f"{place} = {text!r} is not allowed: give {field.allowed}") from None


def _typed(field: Field, value: object, place: str) -> Raw:
    """`value`, of the field's type and within what it allows."""
    if isinstance(field.default, str):
        if isinstance(value, str) and (not field.choices or value in field.choices):
            return value
    elif isinstance(field.default, bool):
        if isinstance(value, bool):
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        whole = isinstance(field.default, int)
        if (isinstance(value, int) or not whole) and math.isfinite(value) and field.low <= value <= field.high:
            return value if whole else float(value)
    # An address may hold a password, and is told of by whoever parses it.
    shown = "…" if field.unit == "url" else repr(value)
    raise Invalid(f"{place} = {shown} is not allowed: give {field.allowed}")


# --- what only all values together can say ----------------------------------------------------------------------------


class _Values:
    """Every key's value, and how to name the place where it stood."""

    def __init__(self, given: Mapping[str, _Given]) -> None:
        self._given = given

    def place(self, key: str) -> str:
        return self._given[key].place if key in self._given else f"{key} (default)"

    def text(self, key: str) -> str:
        return str(self._value(key)).strip()

    def number(self, key: str) -> float:
        return float(self._value(key))

    def parsed(self, key: str, parse: Callable[[str], T]) -> T:
        """What `parse` makes of a text; its refusal says where the text stood."""
        try:
            return parse(self.text(key))
        except Invalid as error:
            raise Invalid(f"{self.place(key)}: {error}") from None

    def demand(self, holds: bool, key: str, other: str, allowed: str) -> None:
        """Refuse two numbers that contradict each other."""
        if not holds:
            raise Invalid(
                f"{self.place(key)} = {self.number(key):g} contradicts {self.place(other)} = {self.number(other):g}: "
                f"give {allowed}"
            )

    def _value(self, key: str) -> Raw:
        return self._given[key].value if key in self._given else BY_KEY[key].default


def _checked(given: Mapping[str, _Given], environ: Mapping[str, str]) -> Settings:
    values = _Values(given)
    text, number = values.text, values.number
    renewal, least_s = "leader.renewal_s", 2 * number("leader.renewal_s")
    for key in ("leader.lease_timeout_s", "leader.frozen_after_s"):
        values.demand(number(key) >= least_s, key, renewal, f"at least twice the renewal, {least_s:g}")
    handoff = "looks.handoff_s"
    values.demand(number(handoff) <= number(renewal), handoff, renewal, f"at most the renewal, {number(renewal):g}")
    store = values.parsed("store.url", lambda url: canonical_url(url) if url else default_store(environ))
    ownership = text("store.ownership")
    if ownership.lower() in ("", "none"):
        raise Invalid(
            f"{values.place('store.ownership')} = {ownership!r} leaves nothing to coordinate: give {ALLOWED}, in the "
            "configuration, as --ownership or as PARTQ_OWNERSHIP"
        )
    parsed = values.parsed("store.ownership", parse_ownership)
    return Settings(
        store=store,
        namespace=values.parsed("store.namespace", lambda name: checked_name("namespace", name)),
        ownership=STORE if parsed is None else str(parsed),
        name=text("leader.name") or f"{socket.gethostname()}:{os.getpid()}",
        lease_timeout_s=number("leader.lease_timeout_s"),
        renewal_s=number(renewal),
        frozen_after_s=number("leader.frozen_after_s"),
        handoff_look_s=number(handoff),
        heads_look_s=number("looks.heads_s") or (1.0 if store.startswith("file:") else 5.0),
        assumed_session_timeout_s=number("looks.assumed_session_timeout_s"),
        group_threads=int(number("threads.groups")),
        fence_threads=int(number("threads.fences")),
        housekeeping=bool(number("housekeeping.enabled")),
        housekeeping_look_s=number("housekeeping.look_s"),
        collection_grace_s=number("housekeeping.collection_grace_s"),
        compaction_min_age_s=number("housekeeping.compaction_min_age_s"),
        retry_most_s=number("retry.most_s"),
        log_format=text("logs.format"),
        log_level=text("logs.level"),
        health_host=text("health.host"),
        health_port=int(number("health.port")),
    )
