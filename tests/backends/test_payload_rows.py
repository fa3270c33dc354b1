"""Messages as rows and back: schemas that only widen, and values that are never changed."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from ematix_flow.backends.payload_rows import (
    Refused,
    RowSchema,
    json_batch,
    not_rows,
    parsed_json,
    raw_batch,
    to_messages,
)
from ematix_flow.errors import InvalidConfig, UnfitValue


def batch_of(*documents: Any, schema: RowSchema | None = None) -> pa.RecordBatch:
    return json_batch(documents, (schema or RowSchema()).widened(documents))


def types_of(*documents: Any) -> dict[str, str]:
    return {field.name: str(field.type) for field in batch_of(*documents).schema}


def test_columns_keep_the_place_and_type_of_their_first_appearance() -> None:
    first = RowSchema().widened([{"b": 1, "a": "x"}])
    second = first.widened([{"c": True, "a": "y"}])
    assert list(second.columns) == ["b", "a", "c"]
    assert second.widened([{"a": "z"}]) is second
    assert json_batch([{"a": "z"}], second).to_pylist() == [{"b": None, "a": "z", "c": None}]


@pytest.mark.parametrize(
    ("values", "kind", "stored"),
    [
        ([1, None], "int64", [1, None]),
        ([1, 2.5], "double", [1.0, 2.5]),
        ([2**53 + 1, 2], "int64", [2**53 + 1, 2]),
        ([2**53 + 1, 2.5], "string", ["9007199254740993", "2.5"]),  # a double would not hold the first
        ([2**63, 1], "string", ["9223372036854775808", "1"]),
        ([-(2**63)], "int64", [-(2**63)]),
        ([True, 1], "string", ["true", "1"]),
        ([1, "one"], "string", ["1", "one"]),
        ([None, None], "null", [None, None]),
        (
            [{"x": 1}, {"y": "a"}, {}],
            "struct<x: int64, y: string>",
            [{"x": 1, "y": None}, {"x": None, "y": "a"}, {"x": None, "y": None}],
        ),
        ([{}, None], "string", ["{}", None]),
        ([[1], [2.5], []], "list<item: double>", [[1.0], [2.5], []]),
        ([[1, "a"]], "list<item: string>", [["1", "a"]]),
        ([[1], {"x": 1}], "string", ["[1]", '{"x":1}']),
    ],
)
def test_a_type_becomes_as_wide_as_its_values_and_changes_none(values: list[Any], kind: str, stored: list[Any]) -> None:
    batch = batch_of(*({"v": value} for value in values))
    assert str(batch.schema.field("v").type) == kind
    assert batch.column("v").to_pylist() == stored


def test_a_schema_can_be_kept_and_read_back() -> None:
    schema = RowSchema().widened([{"a": 1, "b": [{"c": 1.5}], "ü": None}])
    assert RowSchema.from_json(schema.to_json()) == schema
    for text in ("", "[]", '{"columns": {"a": "int7"}}', '{"columns": {"a": {"set": "text"}}}'):
        with pytest.raises(InvalidConfig, match="cannot be read"):
            RowSchema.from_json(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
_DOCUMENTS = st.lists(st.dictionaries(st.text(max_size=3), _JSON, max_size=4), max_size=6)


@settings(max_examples=40)
@given(_DOCUMENTS, _DOCUMENTS)
def test_whatever_comes_the_schema_takes_it_and_only_widens(first: list[Any], second: list[Any]) -> None:
    before = RowSchema().widened(first)
    after = before.widened(second)
    assert list(after.columns)[: len(before.columns)] == list(before.columns)
    assert after.widened(first) == after
    assert json_batch(first + second, after).num_rows == len(first + second)
    assert RowSchema.from_json(after.to_json()) == after


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "not an object"),
        (b"1", "not an object"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\\ud800"}', "not UTF-8"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "too large"),
    ],
)
def test_a_message_that_is_no_row_is_named_by_its_place_and_not_shown(body: bytes, reason: str) -> None:
    documents, refused = parsed_json([b'{"secret": 1}', body])
    assert documents == [{"secret": 1}, None]
    assert [found.index for found in refused] == [1]
    assert reason in refused[0].reason
    error = not_rows(refused, 2, "'events'")
    assert "1 message of 2 from 'events'" in str(error) and "number 2" in str(error)
    assert "secret" not in str(error)


def test_bytes_are_one_column_and_back() -> None:
    bodies = [b"\x00\xff", b""]
    batch = raw_batch(bodies)
    assert batch.schema == pa.schema([("payload", pa.binary())])
    assert list(to_messages(batch, "raw_bytes")) == bodies
    for unfit in (pa.record_batch({"a": ["x"]}), pa.record_batch({"a": [b"x"], "b": [b"y"]})):
        with pytest.raises(UnfitValue, match="one column of bytes"):
            list(to_messages(unfit, "raw_bytes"))


def test_every_type_has_its_form_in_json() -> None:
    at = datetime(2026, 3, 1, 6, 0, 0, 5, tzinfo=timezone.utc)
    batch = pa.record_batch(
        {
            "i": pa.array([2**63 - 1, None]),
            "d": pa.array([Decimal("1.10"), None]),
            "tiny": pa.array([Decimal("1E-18"), None], pa.decimal128(38, 18)),
            "f": pa.array([0.1, None]),
            "b": pa.array([True, None]),
            "t": pa.array(['a"\n\u2028', None]),
            "raw": pa.array([b"\x00\xff", None]),
            "day": pa.array([date(2026, 3, 1), None]),
            "at": pa.array([at, None], pa.timestamp("us", tz="Europe/Berlin")),
            "wall": pa.array([at.replace(tzinfo=None), None], pa.timestamp("us")),
            "ns": pa.array([1_000, None], pa.timestamp("ns", tz="UTC")),
            "list": pa.array([[1, None], None], pa.list_(pa.int32())),
            "struct": pa.array([{"x": 1, "y": None}, None], pa.struct([("x", pa.int8()), ("y", pa.string())])),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "words": pa.array(["w", None]).dictionary_encode(),
        }
    )
    first, second = to_messages(batch, "json")
    assert first.decode() == (
        '{"i":9223372036854775807,"d":1.10,"tiny":0.000000000000000001,"f":0.1,"b":true,"t":"a\\"\\n\u2028","raw":"AP8=",'
        '"day":"2026-03-01","at":"2026-03-01T06:00:00.000005Z","wall":"2026-03-01T06:00:00.000005",'
        '"ns":"1970-01-01T00:00:00.000001Z","list":[1,null],"struct":{"x":1,"y":null},"map":{"k":1},"words":"w"}'
    )
    assert set(json.loads(second).values()) == {None}
    assert set(json.loads(second)) == set(batch.schema.names)


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        (pa.array([math.nan]), "Column 'c' holds NaN"),
        (pa.array([[-math.inf]]), "Column 'c' holds NaN"),
        (pa.array([1], pa.duration("s")), "no form for"),
        (pa.array([1], pa.timestamp("ns")), "go to the microsecond"),
        (pa.array([10**18], pa.timestamp("us")), "years 1 to 9999|holds a time"),
    ],
)
def test_a_value_that_json_does_not_have_is_refused_by_its_column(column: Any, complaint: str) -> None:
    with pytest.raises(UnfitValue, match=complaint):
        list(to_messages(pa.record_batch({"c": column}), "json"))


def test_json_written_is_json_read() -> None:
    batch = batch_of({"a": 1, "b": {"c": [1.5, None]}, "t": "ü"}, {"a": None, "b": None, "t": None})
    documents, refused = parsed_json(list(to_messages(batch, "json")))
    assert refused == []
    assert batch_of(*documents).equals(batch)
    assert Refused(0, "x") == Refused(0, "x")


def test_messages_without_members_are_rows_without_columns() -> None:
    assert batch_of({}, {}).num_rows == 2
    assert list(to_messages(batch_of({}, {}), "json")) == [b"{}", b"{}"]
