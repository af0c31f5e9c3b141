"""The sidecar's configuration: each setting with its range and default, where its value may come from, and what is
refused. Pure but for reading one file.

A value comes from the command line, else the environment, else the file, else the default. Every refusal is one line
that names where the value stood, the key, the value and what is allowed. What each setting is for,
`conf/coordinator.toml` says to people.
"""

from __future__ import annotations

import difflib
import os
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

from msgspec import Meta, Struct, ValidationError, convert, structs

from coordinator.logs import FORMATS, LEVELS
from partq_spark.base.errors import Invalid
from partq_spark.group.documents.urls import ALLOWED, STORE, parse_ownership
from partq_spark.log.names import checked_name
from partq_spark.objects.urls import canonical_url, default_store

T = TypeVar("T")
Raw = str | int | float | bool


# --- what may be set --------------------------------------------------------------------------------------------------


def _at(key: str, low: float | None = None, high: float | None = None, *, env: str | None = None) -> Meta:
    """Where a setting stands in the file (section and name), its range, and the variable that counts more, where that
    is not called after the setting.
    """
    return Meta(ge=low, le=high, extra={"key": key} | ({"env": env} if env else {}))


def _one_of(key: str, choices: tuple[str, ...]) -> Meta:
    return Meta(pattern=rf"^({'|'.join(choices)})\Z", extra={"key": key, "choices": choices})


class Settings(Struct, frozen=True, kw_only=True):
    """The configuration. Times are in seconds."""

    store: Annotated[str, _at("store.url", env="PARTQ_STORE")] = ""
    namespace: Annotated[str, _at("store.namespace")] = "default"
    ownership: Annotated[str, _at("store.ownership", env="PARTQ_OWNERSHIP")] = ""
    name: Annotated[str, _at("leader.name")] = ""
    lease_timeout_s: Annotated[float, _at("leader.lease_timeout_s", 0.5, 600)] = 5.0
    renewal_s: Annotated[float, _at("leader.renewal_s", 0.05, 60)] = 1.0
    frozen_after_s: Annotated[float, _at("leader.frozen_after_s", 0.2, 600)] = 3.0
    handoff_look_s: Annotated[float, _at("looks.handoff_s", 0.005, 10, env="PARTQ_COORDINATOR_HANDOFF_S")] = 0.05
    heads_look_s: Annotated[float, _at("looks.heads_s", 0, 600, env="PARTQ_COORDINATOR_HEADS_S")] = 0.0
    assumed_session_timeout_s: Annotated[float, _at("looks.assumed_session_timeout_s", 5, 3600)] = 10.0
    group_threads: Annotated[int, _at("threads.groups", 1, 64)] = 4
    fence_threads: Annotated[int, _at("threads.fences", 1, 256)] = 16
    housekeeping: Annotated[bool, _at("housekeeping.enabled")] = True
    housekeeping_look_s: Annotated[float, _at("housekeeping.look_s", 0.1, 3600)] = 5.0
    collection_grace_s: Annotated[float, _at("housekeeping.collection_grace_s", 1, 604800)] = 86400.0
    compaction_min_age_s: Annotated[float, _at("housekeeping.compaction_min_age_s", 0, 604800)] = 300.0
    retry_most_s: Annotated[float, _at("retry.most_s", 0.1, 300)] = 5.0
    log_format: Annotated[str, _one_of("logs.format", FORMATS)] = "text"
    log_level: Annotated[str, _one_of("logs.level", LEVELS)] = "info"
    health_host: Annotated[str, _at("health.host")] = "127.0.0.1"
    health_port: Annotated[int, _at("health.port", 0, 65535)] = 8095


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One setting, as `Settings` declares it."""

    name: str
    key: str
    env: str
    kind: Any
    default: Raw
    low: float | None
    high: float | None
    choices: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """In words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.high is None:
            return "true or false" if isinstance(self.default, bool) else "text"
        what = "a whole number" if isinstance(self.default, int) else "seconds"
        return f"{what} from {self.low:g} to {self.high:g}"

    def typed(self, value: object, place: str, *, text: bool = False) -> Raw:
        """`value` of the setting's type and within its range; as `text` it may spell a number or a flag."""
        try:
            found: Raw = convert(value, self.kind, strict=not text)
        except ValidationError:
            # An address may hold a password; its parser says what is wrong with it.
            shown = "…" if self.allowed == "text" else repr(value)
            raise Invalid(f"{place} = {shown} is not allowed: give {self.allowed}") from None
        return found.strip() if isinstance(found, str) else found


def _fields() -> tuple[Field, ...]:
    found = []
    for each in structs.fields(Settings):
        meta = get_args(each.type)[1]
        where = {"env": f"PARTQ_COORDINATOR_{each.name.upper()}", "choices": (), **meta.extra}
        found.append(Field(name=each.name, kind=each.type, default=each.default, low=meta.ge, high=meta.le, **where))
    return tuple(found)


FIELDS: Final = _fields()
BY_KEY: Final = {field.key: field for field in FIELDS}


# --- where it comes from ----------------------------------------------------------------------------------------------


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
            given[field.key] = _Given(value=field.typed(text, field.env, text=True), place=field.env)
    for key, text in (overrides or {}).items():
        place = "--" + key.partition(".")[2].replace("url", "store")
        given[key] = _Given(value=BY_KEY[key].typed(text, place, text=True), place=place)
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
            key, place = f"{section}.{name}", f"{path}: {section}.{name}"
            if key not in BY_KEY:
                known = {each for each in BY_KEY if each.startswith(section + ".")}
                raise Invalid(f"{path}: key {key} is not known: {_near(key, known)}")
            found[key] = _Given(value=BY_KEY[key].typed(value, place), place=place)
    return found


def _near(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"known are {', '.join(sorted(known))}"


# --- what only all values together can say ----------------------------------------------------------------------------


def _checked(given: Mapping[str, _Given], environ: Mapping[str, str]) -> Settings:
    settings = convert({BY_KEY[key].name: one.value for key, one in given.items()}, Settings)

    def place(key: str) -> str:
        return given[key].place if key in given else f"{key} (default)"

    def demand(holds: bool, key: str, other: str, allowed: str) -> None:
        """Refuse two numbers that contradict each other."""
        if not holds:
            told = [f"{place(each)} = {getattr(settings, BY_KEY[each].name):g}" for each in (key, other)]
            raise Invalid(f"{told[0]} contradicts {told[1]}: give {allowed}")

    def parsed(key: str, parse: Callable[[str], T]) -> T:
        """What `parse` makes of a text; its refusal says where the text stood."""
        try:
            return parse(getattr(settings, BY_KEY[key].name))
        except Invalid as error:
            raise Invalid(f"{place(key)}: {error}") from None

    renewal_s, renewal = settings.renewal_s, "leader.renewal_s"
    for key, value in (
        ("leader.lease_timeout_s", settings.lease_timeout_s),
        ("leader.frozen_after_s", settings.frozen_after_s),
    ):
        demand(value >= 2 * renewal_s, key, renewal, f"at least twice the renewal, {2 * renewal_s:g}")
    demand(settings.handoff_look_s <= renewal_s, "looks.handoff_s", renewal, f"at most the renewal, {renewal_s:g}")
    store = parsed("store.url", lambda url: canonical_url(url) if url else default_store(environ))
    if settings.ownership.lower() in ("", "none"):
        raise Invalid(
            f"{place('store.ownership')} = {settings.ownership!r} leaves nothing to coordinate: give {ALLOWED}, in the "
            "configuration, as --ownership or as PARTQ_OWNERSHIP"
        )
    ownership = parsed("store.ownership", parse_ownership)
    return structs.replace(
        settings,
        store=store,
        namespace=parsed("store.namespace", lambda name: checked_name("namespace", name)),
        ownership=STORE if ownership is None else str(ownership),
        name=settings.name or f"{socket.gethostname()}:{os.getpid()}",
        heads_look_s=settings.heads_look_s or (1.0 if store.startswith("file:") else 5.0),
    )
