"""What a typed queue says of types and keys is what Spark says: DDL and JSON, and the text of every key (TYP-03)."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pytest
from py4j import java_gateway, protocol

from partq_spark.base.errors import Invalid
from partq_spark.log.schema.ddl import ddl_of, parse_ddl
from partq_spark.log.schema.keys import texts_of
from partq_spark.log.schema.struct_json import parse_struct_json
from partq_spark.log.schema.types import KEY_TYPES
from tests.log.schema.texts import a_ddl
from tests.support.spark import Lab

pytestmark = pytest.mark.spark

TEXTS = 3_000


class Theirs:
    """Spark's own parser, for thousands of texts. It is looked up once: to find a class is a question for each of its
    packages. Nor do its refusals become PySpark's exceptions, which ask ten times for their words.
    """

    def __init__(self, lab: Lab, patch: pytest.MonkeyPatch) -> None:
        jvm = lab.spark.sparkContext._jvm
        assert jvm is not None
        self._parse = jvm.org.apache.spark.sql.types.StructType.fromDDL
        patch.setattr(java_gateway, "get_return_value", protocol.get_return_value)

    def json(self, text: str) -> str | None:
        """The JSON of the columns that it makes of a text; None if it refuses it."""
        try:
            return str(self._parse(text).json())
        except protocol.Py4JJavaError:
            return None


def schema_or_none(parse: Any, text: str) -> pa.Schema | None:
    try:
        return parse(text)
    except Invalid:
        return None


def test_every_text_means_what_spark_makes_of_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it is refused: what Spark refuses, and types that a queue does not keep."""
    rng = random.Random(2026)
    theirs = Theirs(lab, monkeypatch)
    kept = refused = 0
    for _ in range(TEXTS):
        text = a_ddl(rng)
        said, found = theirs.json(text), schema_or_none(parse_ddl, text)
        wanted = None if said is None else schema_or_none(parse_struct_json, said)
        assert found == wanted, text
        if found is not None:
            kept += 1
            again = theirs.json(ddl_of(found))
            assert again is not None
            assert parse_struct_json(again) == found, "what is written is read as the same"
        refused += found is None
    assert kept > TEXTS / 4
    assert refused > TEXTS / 10


def keys_of(kind: pa.DataType) -> list[Any]:
    rng = random.Random(str(kind))
    if kind == pa.bool_():
        return [True, False, None]
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return [-most, most - 1, 0, -1, None, *(rng.randrange(-most, most) for _ in range(300))]
    if kind == pa.date32():
        first, last = date(1, 1, 1), date(9999, 12, 31)
        days = (last - first).days
        return [first, last, None, date(1582, 10, 10), *(first + timedelta(rng.randint(0, days)) for _ in range(300))]
    texts = [
        "",
        "a",
        " ",
        "键",
        "🚚",
        "\0",
        None,
        *("".join(rng.choices("abä键🚚 ", k=rng.randint(0, 40))) for _ in range(300)),
    ]
    return texts if kind == pa.string() else [None if text is None else text.encode() for text in texts]


@pytest.mark.conformance("TYP-03")
@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_the_text_of_a_key_is_what_spark_casts_it_to(lab: Lab, kind: pa.DataType, zone: str) -> None:
    session = lab.spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    column = pa.array(keys_of(kind), kind)
    frame = session.createDataFrame(pa.table({"row": pa.array(range(len(column))), "key": column}))
    rows = frame.selectExpr("row", "CAST(key AS STRING) AS text").orderBy("row").collect()
    assert [row.text for row in rows] == texts_of(column).to_pylist()
