"""The options of consumer groups: defaults, what is refused without a group, and what contradicts itself."""

from __future__ import annotations

import pytest

from partq_spark.query.settings import GroupOptions
from partq_spark.spark import options
from tests.spark.option_cases import (
    BASE,
    GROUP,
    SECRET,
    refused,
)


def group(**more: str) -> GroupOptions:
    found = options.stream_source_options({**BASE, "group": "Billing", **more}).group
    assert found is not None
    return found


def test_a_group_has_defaults_and_its_names_are_lower_cased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARTQ_OWNERSHIP", raising=False)
    assert options.stream_source_options(BASE).group is None
    assert group(flow="Left") == GroupOptions(
        name="billing",
        ownership="none",
        keep_offsets=True,
        flow="left",
        checkpoint_interval_s=None,
        session_timeout_s=10.0,
        max_poll_interval_s=None,
    )
    assert group(ownership="redis://Host").ownership == "redis://Host:6379/0"
    assert group(**{**GROUP, "group": "billing"}).max_poll_interval_s == 60.0
    assert not group(checkpoints="none").keep_offsets


def test_the_default_ownership_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTQ_OWNERSHIP", "redis://host:7000/3")
    assert group().ownership == "redis://host:7000/3"
    assert group(sessionTimeout="7s").session_timeout_s == 7.0
    assert group(ownership="none").ownership == "none"
    assert options.stream_source_options(BASE).group is None, "without a group it says nothing"
    monkeypatch.setenv("PARTQ_OWNERSHIP", f"redis://:{SECRET}@host")
    assert SECRET not in refused(options.stream_source_options, {**BASE, "group": "billing"})


@pytest.mark.parametrize("name", [each for each in GROUP if each != "group"])
def test_what_is_for_groups_is_refused_without_one(name: str) -> None:
    message = refused(options.stream_source_options, {**BASE, name: GROUP[name]})
    assert f"'{name}'" in message
    assert "group" in message


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ownership": "none", "sessionTimeout": "9s"}, "'sessionTimeout'"),
        ({"ownership": "none", "maxPollInterval": "9s"}, "'maxPollInterval'"),
        ({"ownership": "kafka"}, "redis://host:port/db"),
        ({"ownership": "store", "sessionTimeout": "4s"}, "from 5s"),
        ({"checkpoints": "none", "checkpointInterval": "1s"}, "'checkpointInterval'"),
        ({"checkpoints": "redis"}, "give store or none"),
        ({"ackMode": "manual"}, "ackMode='manual' needs the option flow"),
        ({"ackMode": "manual", "flow": "left", "checkpoints": "none"}, "ackMode='manual' and checkpoints='none'"),
        ({"ackMode": "sometimes"}, "give auto or manual"),
        ({"flow": "no spaces"}, "flow name 'no spaces'"),
        ({"group": "_segments"}, "begin with '_'"),
        ({"maxDeliveredUnackedMsgsPerFlow": "0"}, "maxDeliveredUnackedMsgsPerFlow='0'"),
    ],
)
def test_what_contradicts_itself_in_a_group_is_refused(more: dict[str, str], said: str) -> None:
    assert said in refused(options.stream_source_options, {**BASE, "group": "billing", **more})


def test_by_hand_there_is_a_bound_for_what_is_in_hand() -> None:
    base = {**BASE, "group": "billing"}
    manual = options.stream_source_options({**base, "ackMode": "MANUAL", "flow": "left"})
    assert manual.group is not None
    assert manual.group.manual_acks
    assert manual.max_delivered_unacked == 10_000
    given = {**base, "ackMode": "manual", "flow": "left", "maxDeliveredUnackedMsgsPerFlow": "7"}
    assert options.stream_source_options(given).max_delivered_unacked == 7
    assert options.stream_source_options(base).max_delivered_unacked is None
