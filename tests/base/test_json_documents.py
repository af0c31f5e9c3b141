"""Documents under a checksum: what is not of their type is refused with the object, the field's path, the value and the
next step.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec import Struct

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.base.json_documents import JsonDocument, Positive, Seconds, Whole, checksum


class Place(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    number: Whole
    name: str


class Thing(Struct, kw_only=True, frozen=True):
    count: Whole = 0
    parts: Positive = 1
    left_s: Seconds = 0.0
    places: Mapping[str, Place] = {}
    deep: Mapping[str, Mapping[str, Place]] = {}
    row: tuple[Place, ...] = ()


def known(thing: Thing) -> None:
    if thing.parts < len(thing.row):
        raise ValueError(f"{len(thing.row)} places, there are {thing.parts} parts")


def kind(name: str = "thing") -> JsonDocument[Thing]:
    return JsonDocument(
        name, Thing, format_number=1, repair="mend it", upgrade="use another", other_format=Corrupt, check=known
    )


THING = kind()


def sealed(text: str) -> bytes:
    body = text.encode(errors="surrogatepass")
    return b'{"xxh3":"%s","thing":%s}' % (checksum(body).encode(), body)


def test_fields_that_are_not_known_are_passed_over() -> None:
    assert THING.open(sealed('{"format":1,"count":3,"later":[1]}'), "there") == Thing(count=3)
    assert THING.open(sealed('{"later":null, "format":1}'), "there") == Thing()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"count":-1', "Expected `int` >= 0 - at `$.count`, found -1"),
        ('"count":1.0', "Expected `int`, got `float` - at `$.count`, found 1.0"),
        ('"parts":0', "Expected `int` >= 1 - at `$.parts`, found 0"),
        ('"left_s":-0.5', "`$.left_s`, found -0.5"),
        ('"left_s":1e999', "`$.left_s`"),
        ('"left_s":null', "`$.left_s`, found None"),
        ('"row":[[1,"x"],[1,2]]', "Expected `str`, got `int` - at `$.row[1][1]`, found 2"),
        ('"row":[[1]]', "Expected `array` of at least length 2, got 1 - at `$.row[0]`, found [1]"),
        ('"row":[[1,"x",3]]', "Expected `array` of at most length 2; mend"),
        ('"row":[[1,"x"],[1,2]],"row":[]', "Expected `str`, got `int` - at `$.row[1][1]`; mend"),
        ('"row":{}', "Expected `array`, got `object` - at `$.row`, found {}"),
        ('"count":"%s"' % ("x" * 100), f"found '{'x' * 59}…"),
        ('"row":[[1,"x"],[1,"x"]]', "2 places, there are 1 parts; mend"),
        ('"count":01', "JSON is malformed"),
        # In a map it is the value of the first key that is wrong.
        ('"places":{"a":[1,"x"],"b":[3,4],"c":[5,"x"]}', "`$.places[...][1]`, found 4"),
        ('"places":{"a":[1,"x"],"b":[3,4],"c":[5,"x"]},"count":-1', "`$.places[...][1]`, found 4"),
        ('"deep":{"a":{"x":[1,""]},"b":{"x":[2,""],"y":[-7,""]},"c":{}}', "`$.deep[...][...][0]`, found -7"),
        ('"count":1', ""),
    ],
)
def test_what_the_type_does_not_allow_is_named_with_its_path_and_value(text: str, words: str) -> None:
    document = sealed('{"format":1,' + text + "}")
    if not words:
        THING.open(document, "there")
        return
    with pytest.raises(Corrupt) as error:
        THING.open(document, "there")
    message = str(error.value)
    assert message.startswith("there has the right checksum but not the fields of format 1: ")
    assert message.endswith("; mend it")
    assert words in message


def test_one_kind_is_not_taken_for_another() -> None:
    with pytest.raises(Corrupt, match=r"there is damaged: it does not begin or end as a thing does; mend it"):
        THING.open(kind("thin").seal(Thing()), "there")


def test_a_text_that_is_not_utf8_is_not_written() -> None:
    with pytest.raises(Invalid, match="a text in the thing is not UTF-8"):
        THING.seal(Thing(places={"x": Place(1, "\ud800")}))
