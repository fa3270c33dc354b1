"""JSON messages become rows: what is unknown or no object is told, with and without a second look."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql import functions as F, types as t

from ematix_flow.contracts.streams import VALUE
from ematix_flow.spark.json_schema import learned
from ematix_flow.spark.payloads import BAD, UNKNOWN, JsonCodec
from ematix_flow.testing.spark import local_spark

SCHEMA = learned(
    t.StructType([]),
    [
        b'{"id": 1, "name": "x", "place": {"city": "x", "zip": 1}, "tags": ["x"], "rate": 1.5,'
        b' "items": [{"sku": "x", "of": {"city": "x"}, "parts": [{"n": 1}]}]}'
    ],
)
names = st.sampled_from(["id", "name", "place", "tags", "rate", "more", "ID", 'a":b', "city", "zip", "items", "sku"])
plain = st.none() | st.integers(-5, 5) | st.sampled_from(["", "x", 'say ":', "06:30:00", "a : b", "\t:", "{}"])
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3), max_leaves=4
)
items = st.lists(
    st.none()
    | st.fixed_dictionaries(
        {},
        optional={
            "sku": st.none() | st.sampled_from(["x", '":']),
            "of": st.none() | st.dictionaries(st.sampled_from(["city", "more"]), st.just("x"), max_size=2),
            "parts": st.lists(st.dictionaries(st.sampled_from(["n", "more"]), st.just(1), max_size=2), max_size=2),
            "more": st.just(1),
        },
    ),
    max_size=2,
)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(0, 9),
        "name": st.none() | st.sampled_from(["", 'say ":', "06:30:00", "a : b", "\t:"]),
        "place": st.none() | st.dictionaries(st.sampled_from(["city", "more"]), st.just("x"), max_size=2),
        "tags": st.lists(st.sampled_from(["x", '":']), max_size=2),
        "rate": st.none() | st.floats(-5, 5),
        "more": st.none() | st.integers(0, 3),
        "items": st.none() | items,
    },
)
spellings = st.sampled_from(
    [None, (",", ":"), (", ", ": "), (" ,\n", " : "), (",", "\t:"), (",", "\n:"), (",", "\r: ")]
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message in one spelling, or with a spelling of its own for one more field."""
    value: Any = draw(fitting | st.dictionaries(names, values, max_size=4))
    text = json.dumps(value, separators=draw(spellings))
    if draw(st.booleans()) and value:
        text = text[:-1] + draw(
            st.sampled_from([',"extra":1}', ',"extra" :1}', ',"extra"\t:{"a":1}}', ', "extra"\n: 1}'])
        )
    return text.encode()


def has_more(message: bytes) -> bool:
    """Whether a message has a field that the schema lacks, also inside of an object, or of a list of them."""

    def lacks(value: Any, known: t.DataType) -> bool:
        if isinstance(known, t.ArrayType) and isinstance(value, list):
            return any(lacks(inner, known.elementType) for inner in value)
        if not isinstance(known, t.StructType) or not isinstance(value, dict):
            return False
        fields = {field.name: field.dataType for field in known.fields}
        return any(name not in fields or lacks(inner, fields[name]) for name, inner in value.items())

    return lacks(json.loads(message), SCHEMA)


def decoded(texts: list[bytes]) -> list[tuple[str | None, bool]]:
    spark = local_spark()
    numbered = [(number, text) for number, text in enumerate(texts)]
    frame = spark.createDataFrame(numbered, f"number int, {VALUE} binary").orderBy("number").select(VALUE)
    rows = JsonCodec(SCHEMA, lambda schema: None).decoded(frame).select(F.col(BAD), F.col(UNKNOWN)).collect()
    return [(row[0], row[1]) for row in rows]


@settings(max_examples=8, deadline=None)
@given(st.lists(messages(), min_size=10, max_size=40))
def test_every_message_with_an_unknown_field_is_told(texts: list[bytes]) -> None:
    for text, (bad, is_unknown) in zip(texts, decoded(texts), strict=True):
        if bad is None:
            assert is_unknown == has_more(text), text


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"1",
        b"[]",
        b'[{"id": 1}]',
        b'"x"',
        b"{",
        b'{"id": 1',
        b"{'id': 1}",
        b'{"id": "x"}',
        b"\xff{}",
        b'{"name": "\xff"}',
    ],
)
def test_what_is_no_object_is_bad(text: bytes) -> None:
    ((bad, _),) = decoded([text])
    assert bad is not None


@pytest.mark.parametrize("text", [b"{}", b' {"id": 1}', b'\n{"id":1,"name":null}', b'{"place":{"city":"x"}}'])
def test_an_object_is_good(text: bytes) -> None:
    assert decoded([text]) == [(None, False)]


class Learning:
    """A codec that has seen some messages, as a stream would show them to it."""

    def __init__(self, *texts: bytes) -> None:
        self.codec = JsonCodec(None, lambda schema: None)
        self.messages = local_spark().createDataFrame([(text,) for text in texts], f"{VALUE} binary")
        self.codec.prepare(self.messages)
        while self.codec.widen(self.messages):
            pass

    def reasons(self) -> list[str | None]:
        found = self.codec.decoded(self.messages).select(BAD, UNKNOWN).collect()
        assert not any(row[1] for row in found), "it has learned all there is"
        return [row[0] for row in found]


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (b'{"id": 1, "name": "x"}', b'{"id": 2, "Name": "y"}'),
        (b'{"id": 1, "name": "x"}', b'{"id": 2, "name": "x", "NAME": "y"}'),
        (b'{"id": 1, "of": {"city": "x"}}', b'{"id": 2, "of": {"City": "y"}}'),
        (b'{"id": 1, "of": [{"city": "x"}]}', b'{"id": 2, "of": [{"city": "x"}, {"City": "y"}]}'),
    ],
)
def test_a_name_that_differs_only_in_its_case_makes_its_message_bad_and_no_other(first: bytes, other: bytes) -> None:
    learning = Learning(first, other, b'{"id": 3, "more": 1}')
    one, two, three = learning.reasons()
    assert one is None and three is None
    assert two is not None and "case" in two
    assert "more" in learning.codec.columns


def test_names_that_differ_only_in_their_case_are_left_out_of_what_was_learned_before() -> None:
    known = t.StructType.fromDDL("id bigint, name string, Name string, of array<struct<a string, A string>>")
    codec = JsonCodec(known, lambda schema: None)
    assert codec.schema.simpleString() == "struct<id:bigint,name:string,of:array<struct<a:string>>>"


def test_objects_without_fields_teach_nothing_and_are_bad_only_until_a_field_is_known() -> None:
    (reason,) = Learning(b"{}").reasons()
    assert reason is not None and "without fields" in reason
    assert Learning(*[b"{}"] * 1100, b'{"id": 1}').reasons() == [None] * 1101
