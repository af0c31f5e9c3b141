"""The configuration: where values come from, what is refused and in which words, and that file and documents agree."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from coordinator.settings import FIELDS, Field, Settings, load_settings
from partq_spark.base.errors import Invalid

ROOT = Path(__file__).parents[2]
FILE = ROOT / "conf/coordinator.toml"
ENV = {"HOME": "/home/someone", "PARTQ_OWNERSHIP": "redis://127.0.0.1:6379/0"}


def load(text: str | None = None, tmp_path: Path | None = None, **environ: str) -> Settings:
    path = None
    if text is not None:
        assert tmp_path is not None
        path = tmp_path / "coordinator.toml"
        path.write_text(text)
    return load_settings(path, {**ENV, **environ})


def refusal(text: str, tmp_path: Path, **environ: str) -> str:
    with pytest.raises(Invalid) as error:
        load(text, tmp_path, **environ)
    message = str(error.value)
    assert "\n" not in message
    return message


# --- file, code and documents -----------------------------------------------------------------------------------------


def test_the_file_has_every_key_with_its_default() -> None:
    content = tomllib.loads(FILE.read_text())
    found = {f"{section}.{name}": value for section, entries in content.items() for name, value in entries.items()}
    assert found == {field.key: field.default for field in FIELDS}
    assert {key: type(value) for key, value in found.items()} == {field.key: type(field.default) for field in FIELDS}


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.key)
def test_every_key_in_the_file_is_explained_with_its_variable_and_range(field: Field) -> None:
    section, _, name = field.key.partition(".")
    inside = FILE.read_text().partition(f"[{section}]\n")[2].partition("\n[")[0]
    before = inside.partition(f"\n{name} =")[0] if not inside.startswith(f"{name} =") else ""
    comment = re.split(r"\n(?!#)", before)[-1]
    words = [f"[{field.env}]", *field.choices]
    if field.high:
        kind = "Seconds" if isinstance(field.default, float) else "Port" if "port" in field.key else "Number"
        words += [f"{field.low:g} to {field.high:g}", kind]
    assert [each for each in words if each not in comment] == []


# --- where a value comes from -----------------------------------------------------------------------------------------


def test_the_command_line_counts_more_than_the_environment_and_that_more_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[store]\nurl = "file:///from/file"\nnamespace = "file"\n[leader]\nrenewal_s = 0.5\n')
    environ = {**ENV, "PARTQ_STORE": "file:///from/env", "PARTQ_COORDINATOR_NAMESPACE": "Env"}
    settings = load_settings(path, environ, {"store.url": "file:///from/line"})
    assert settings.store == "file:///from/line"
    assert settings.namespace == "env", "in lower case, as everywhere"
    assert settings.renewal_s == 0.5
    assert load_settings(path, {**environ, "PARTQ_STORE": ""}).store == "file:///from/file", "empty is not set"


def test_what_is_not_given_follows_from_what_is(tmp_path: Path) -> None:
    settings = load("[store]\nurl = ' file:///from/file '\n[leader]\nname = ' pod '\n", tmp_path)
    assert (settings.store, settings.name) == ("file:///from/file", "pod"), "blanks around a text do not count"
    assert load().store == "file:///home/someone/.partq"
    assert load().heads_look_s == 1.0, "more often on a disk"
    assert load(PARTQ_STORE="azure://container/x").heads_look_s == 5.0
    assert load(PARTQ_COORDINATOR_HEADS_S="2.5").heads_look_s == 2.5
    assert load().housekeeping is True
    assert load(PARTQ_COORDINATOR_HOUSEKEEPING="False").housekeeping is False


# --- refusals ---------------------------------------------------------------------------------------------------------


REFUSED = """
[leader]|lease_timout_s = 5             = key leader.lease_timout_s is not known: did you mean leader.lease_timeout_s?
[leeder]|name = 'x'                     = section [leeder] is not known: did you mean leader?
leader = 3                              = leader = 3 ... section
[leader]|renewal_s = true               = leader.renewal_s = True ... seconds from 0.05 to 60
[leader]|renewal_s = 0                  = leader.renewal_s = 0 ... seconds from 0.05 to 60
[leader]|renewal_s = nan                = leader.renewal_s = nan ... seconds from 0.05 to 60
[housekeeping]|enabled = 1              = housekeeping.enabled = 1 ... true or false
[housekeeping]|collection_grace_s = 0   = housekeeping.collection_grace_s = 0 ... seconds from 1 to
[threads]|groups = 2.0                  = threads.groups = 2.0 ... a whole number from 1 to 64
[logs]|format = 'xml'                   = logs.format = 'xml' ... one of text, json
[health]|port = 70000                   = health.port = 70000 ... a whole number from 0 to 65535
[store]|namespace = 'a/b'               = store.namespace ... 'a/b'
[store]|url = 'nowhere'                 = store.url ... nowhere
[leader                                 = is not TOML
[leader]|lease_timeout_s = 1.5          = leader.lease_timeout_s = 1.5 ... leader.renewal_s (default) = 1 ... 2
[leader]|renewal_s = 4                  = leader.lease_timeout_s (default) = 5 ... leader.renewal_s = 4 ... at least
[leader]|frozen_after_s = 1             = leader.frozen_after_s = 1 ... leader.renewal_s ... at least
[looks]|handoff_s = 2                   = looks.handoff_s = 2 ... leader.renewal_s ... at most the renewal, 1
PARTQ_COORDINATOR_RENEWAL_S=soon        = PARTQ_COORDINATOR_RENEWAL_S = 'soon' ... seconds from 0.05 to 60
PARTQ_COORDINATOR_HOUSEKEEPING=maybe    = PARTQ_COORDINATOR_HOUSEKEEPING = 'maybe' ... true or false
PARTQ_COORDINATOR_HEALTH_PORT=80.5      = PARTQ_COORDINATOR_HEALTH_PORT = '80.5' ... whole number
PARTQ_COORDINATOR_LEASE_TIMEOUT_S=1     = PARTQ_COORDINATOR_LEASE_TIMEOUT_S = 1 contradicts
PARTQ_OWNERSHIP=none                    = PARTQ_OWNERSHIP = 'none' ... redis://host:port/db
PARTQ_OWNERSHIP=mysql://h/0             = PARTQ_OWNERSHIP: ... redis://host:port/db
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_a_refusal_names_the_file_or_variable_the_value_and_what_is_allowed(row: str, tmp_path: Path) -> None:
    """What a file (`|` ends a line) or a variable has, and the words of the refusal in their order."""
    given, words = (part.strip() for part in re.split("  += ", row))
    if given.startswith("PARTQ"):
        name, _, value = given.partition("=")
        message = refusal("", tmp_path, **{name: value})
    else:
        message = refusal(given.replace("|", "\n") + "\n", tmp_path)
        assert str(tmp_path / "coordinator.toml") in message
    assert re.search(".*".join(map(re.escape, words.split(" ... "))), message), message


def test_a_secret_in_an_address_is_refused_and_not_repeated(tmp_path: Path) -> None:
    for key in ("ownership", "url"):
        message = refusal(f"[store]\n{key} = 'redis://me:hunter2@host:6379/0'\n", tmp_path, PARTQ_OWNERSHIP="")
        assert f"store.{key}" in message
        assert "hunter2" not in message
    message = refusal("[store]\nownership = ['redis://me:hunter2@host:6379/0']\n", tmp_path)
    assert "store.ownership = … is not allowed: give text" in message


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="leaves nothing to coordinate: give redis://host:port/db"):
        load_settings(None, {"HOME": "/home/someone"})
    with pytest.raises(Invalid, match=r"absent\.toml is not there"):
        load_settings(tmp_path / "absent.toml", ENV)
    with pytest.raises(Invalid, match="cannot be read"):
        load_settings(tmp_path, ENV)


def test_a_coordinator_begins_without_arrow() -> None:
    program = "import sys, coordinator.__main__\nsys.exit(' '.join({'pyarrow', 'numpy', 'pyspark'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == "", "50 MB of each sidecar: housekeeping imports it when it compacts"
