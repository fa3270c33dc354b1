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
    t.StructType([]), [b'{"id": 1, "name": "x", "place": {"city": "x", "zip": 1}, "tags": ["x"], "rate": 1.5}']
)
names = st.sampled_from(["id", "name", "place", "tags", "rate", "more", "ID", 'a":b', "city", "zip"])
plain = st.none() | st.integers(-5, 5) | st.sampled_from(["", "x", 'say ":', "06:30:00", "a : b", "\t:", "{}"])
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3), max_leaves=4
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
    """Whether a message has a field that the schema lacks, also inside of an object that is known as one."""

    def lacks(value: Any, known: t.StructType) -> bool:
        fields = {field.name: field.dataType for field in known.fields}
        if not isinstance(value, dict):
            return False
        return any(
            name not in fields or (isinstance(fields[name], t.StructType) and lacks(inner, fields[name]))  # type: ignore[arg-type]
            for name, inner in value.items()
        )

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
