"""Every argument of every public callable: what is of another kind is `Invalid` and named, nothing raises anything but
partq's errors, and no argument makes a queue unreadable. Callables and parameters are found by their signatures, so
what is new is tried too.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import partq
from partq_spark.query.notify import Address, Requester
from tests.client.conftest import Make

BY_PARTQ = {"Publisher", "Publication", "Consumer", "Batch", "InHand"}
"""Whose constructors are not called by users."""

BY_SPARK = {"register", "supervise", "processing"}
"""What these are given right needs Spark."""

REQUIRED: dict[str, Any] = {
    "name": "other",
    "queue": "orders",
    "group": "billing",
    "flow": "one",
    "ownership": "none",
    "topic": "a/b",
    "partitions": 1,
    "before": {},
    "offsets": {},
    "partition": 0,
    "offset": 0,
    "key": None,
    "value": b"x",
    "path": "/nope.csv",
    "table": None,
    "batch": 0,
    "writer": "w",
    "published": True,
    "start": len,
    "spark": type("SparkSession", (), {})(),
    "acknowledger": partq.Acknowledger(queue="orders", group="billing", flow="one", timeout_s=0),
}
"""By their names: what a call needs beside the argument that is tried."""


class Hostile:
    """Cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 5, 2**40, 2**63, -(10**30), 10**5000, ..., object(), int, len, Hostile()),
    *(0.0, 1.0, 1.5, -0.5, 1e9, 1e300, nan, inf, 1j, Decimal(1), Decimal("NaN"), np.array([1]), np.bool_(True)),
    *(np.int64(1), np.uint64(2**64 - 1), np.float32(1.5), np.float64("nan"), np.datetime64("2026-01-01")),
    *("", "x", "1", "a/b", "earliest", "none", "\0", "\ud800", "x" * 300, "id BIGINT", "-"),
    *("redis://u:hunter2@h/0", b"redis://u:hunter2@h/0"),
    *("/nope.csv", "/nope.jsonl", "/tmp", "file:///\0", "file:///\ud800", "2026-01-01T00:00:00Z", np.str_("x")),
    *(b"", b"x", b"\xff", bytearray(b"x"), memoryview(b"x"), Path("/nope.csv"), range(2), {1, 2}),
    *([], [1], [1.0], [True], ["x"], [None], [("x", b"y")], [("x", 0)], [("\ud800", b"")], ("key", "value")),
    *({}, {0: 0}, {0: 1.0}, {0: True}, {"0": 1}, {0: -1}, {0: 2**63}, {99: 0}, {"retry": 0}, {"x": b"y"}, {None: b""}),
    *(datetime(2026, 1, 1), datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),  # noqa: DTZ001
    *(date(2026, 1, 1), timedelta(1)),
]


def is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and abs(int(value)) < 2**63


def are_whole(values: Any) -> bool:
    return all(map(is_whole, values))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(-9e9 < value < 9e9)


KINDS: dict[str, Callable[[Any], bool]] = {
    "Any": lambda _: True,
    "object": lambda _: True,
    "None": lambda value: value is None,
    "EllipsisType": lambda value: value is ...,
    "bool": lambda value: isinstance(value, bool),
    "int": is_whole,
    "float": is_number,
    "str": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, bytes | bytearray | memoryview),
    "datetime": lambda value: isinstance(value, datetime),
    "PathLike[str]": lambda value: isinstance(value, Path),
    "Mapping[int, int]": lambda value: isinstance(value, dict) and all(map(is_whole, [*value, *value.values()])),
    "Collection[int]": lambda value: isinstance(value, list | tuple | set | range | np.ndarray) and are_whole(value),
    "Sequence[str]": lambda value: isinstance(value, list | tuple | set) and {*map(type, value)} <= {str},
    "Mapping": lambda value: isinstance(value, dict),
    "Iterable": lambda value: isinstance(value, list | tuple),
    "Callable": callable,
}


def fits(annotation: str, value: Any) -> bool:
    """Whether a value is of a kind that a signature names; what is allowed of that kind is another question."""
    kinds = re.split(r" \| (?![^\[]*\])", annotation)
    if any(each.startswith("Literal") and isinstance(value, str) and f'"{value}"' in each for each in kinds):
        return True
    return any(KINDS.get(each, KINDS.get(each.partition("[")[0], lambda _: False))(value) for each in kinds)


# --- what there is ----------------------------------------------------------------------------------------------------


def _public() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in vars(partq)["__all__"]:
        found = getattr(partq, name)
        if inspect.isfunction(found):
            yield name, found
        elif inspect.isclass(found) and not issubclass(found, Exception):
            values = dataclasses.is_dataclass(found) or issubclass(found, tuple)
            ours = [each for each in found.__mro__ if each.__module__.startswith("partq_spark")]
            for each, member in [pair for kind in ours for pair in vars(kind).items()]:
                own = each == "__init__" and name not in BY_PARTQ and not values
                if inspect.isfunction(member) and (own or not each.startswith("_")):
                    yield f"{name}.{each}", member


PUBLIC = dict(_public())
PARAMETERS = [
    (name, parameter)
    for name, function in PUBLIC.items()
    for parameter in inspect.signature(function).parameters.values()
    if parameter.name != "self"
]


def test_every_callable_is_found() -> None:
    assert {"create_queue", "Queue.__init__", "Queue.alter", "Publisher.send", "Consumer.poll", "supervise"} <= {
        *PUBLIC
    }
    assert len(PARAMETERS) > 100
    loose = [(name, str(each)) for name, each in PARAMETERS if each.kind is each.VAR_KEYWORD]
    assert loose == [], "keywords without a name and a type"


@pytest.fixture
def owners(make: Make, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Something of each class to call the methods of, by the class' name. `queue` is whole before and after."""
    queue = make(partitions=1)
    monkeypatch.setenv("PARTQ_STORE", queue.store)
    with queue.publisher() as publisher, queue.publication() as publication, ExitStack() as left:
        publisher.send(b"x")
        publisher.flush()
        held = left.enter_context(queue.consumer("held", starting="earliest"))
        stopped = left.enter_context(queue.consumer("stopped"))
        stopped.stop()  # so that no question waits
        acknowledger = REQUIRED["acknowledger"]
        line = Requester(
            Address(store=queue.store, namespace="default", queue="orders", group="g", flow="f"), timeout_s=0
        )
        yield {
            "queue": queue,
            "Publisher": publisher,
            "Publication": publication,
            "Consumer": stopped,
            "Batch": held.poll(5),
            "Acknowledger": acknowledger,
            "InHand": partq.InHand(line, "p", {0: partq.Held(1, 0, 5)}),
            "KeySequences": partq.KeySequences(acknowledger),
        }


def _call(function: Callable[..., Any], owner: str, owners: dict[str, Any], name: str, value: Any) -> None:
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    given = {
        each.name: owners["queue"] if each.annotation == "Queue" else REQUIRED[each.name]
        for each in parameters
        if each.default is each.empty and each.name != name and each.kind is not each.VAR_POSITIONAL
    }
    if not owner:
        target = function
    elif function.__name__ == "__init__":
        target = getattr(partq, owner)
    else:
        target = function.__get__(owners["queue"] if owner == "Queue" else owners[owner])
    is_many = next(each for each in parameters if each.name == name).kind is inspect.Parameter.VAR_POSITIONAL
    answer = target(value, **given) if is_many else target(**{**given, name: value})
    if isinstance(answer, AbstractContextManager):
        with answer:
            pass
    elif isinstance(answer, Iterator):
        next(answer, None)


@pytest.mark.conformance("OBS-06")
@pytest.mark.parametrize(("where", "parameter"), PARAMETERS, ids=lambda each: getattr(each, "name", each))
def test_what_cannot_be_is_wrong_and_harmless(owners: dict[str, Any], where: str, parameter: inspect.Parameter) -> None:
    owner = where.rpartition(".")[0]
    function, name = PUBLIC[where], parameter.name
    for value in VALUES:
        fitting = fits(str(parameter.annotation), value)
        if fitting and where in BY_SPARK:
            continue
        try:
            _call(function, owner, owners, name, value)
        except partq.PartqError as error:
            said = str(error)
            is_right = fitting or (isinstance(error, partq.Invalid) and name in said)
            assert is_right, f"{where}({name}=) does not say which: {said}"
            assert "hunter2" not in said or name not in ("store", "ownership", "former")
        else:
            assert fitting, f"{where}({name}={type(value).__name__} {value!r:.40}) is taken"
    queue = owners["queue"]
    assert queue.describe().config.retention_s is None or where == "Queue.alter"
    assert list(queue.browse())
    owners["Publisher"].flush()  # nothing that was refused is harmful to what others send


# --- what is of the right kind and not allowed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "given", "said"),
    [
        ("publisher", {"linger_s": -1}, "linger_s"),
        ("publisher", {"max_batch_bytes": 0}, "max_batch_bytes"),
        ("publisher", {"max_pending_bytes": 1}, "max_pending_bytes"),
        ("publisher", {"publish_id": ""}, "1 to 255 bytes"),
        ("publisher", {"publish_id": "x", "max_pending_bytes": 2**31}, "max_pending_bytes"),
        ("consumer", {"acknowledge": "never"}, "acknowledge='never'"),
        *(("consumer", {"columns": each}, "columns=") for each in (["price"], ["key", "key"], ["key", "KEY"], [])),
        *(("consumer", {each: 0}, f"{each}=0") for each in ("max_messages", "max_poll_interval_s")),
        ("consumer", {"ownership": "carrier pigeon"}, "redis://host:port"),
        ("consumer", {"flow": "A B"}, "flow name"),
        ("collect", {"grace_s": -1}, "grace_s=-1"),
        ("compact", {"min_age_s": -1}, "min_age_s=-1"),
    ],
)
def test_what_is_not_allowed_is_refused(make: Make, what: str, given: dict[str, Any], said: str) -> None:
    queue = make()
    ask: Callable[..., object] = partial(queue.consumer, "billing") if what == "consumer" else getattr(queue, what)
    with pytest.raises(partq.Invalid, match=said):
        ask(**given)
