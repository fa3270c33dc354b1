"""Avro schemas as data: references inside, and one reader for many writers. fastavro reads what the reader is given."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from ematix_flow.backends.avro_schema import PRESENT, reading_all, whole
from ematix_flow.backends.schema_registry import Schema
from ematix_flow.errors import UnfitValue

CITY = {"type": "record", "name": "City", "namespace": "geo", "fields": [{"name": "name", "type": "string"}]}


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    named = [{"name": name, "type": kind, **extra} for name, kind, extra in fields]
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": named, **more}


def schema(written: Any, number: int = 1, **references: Schema) -> Schema:
    return Schema(number, "AVRO", json.dumps(written), references)


def read(writer: dict[str, Any], row: dict[str, Any], reader: dict[str, Any]) -> Any:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(writer), row)
    body.seek(0)
    return fastavro.schemaless_reader(body, fastavro.parse_schema(writer), fastavro.parse_schema(reader))


def test_schemas_that_are_referred_to_are_written_where_they_come_first() -> None:
    written = record(("home", "geo.City", {}), ("work", ["null", "geo.City"], {}))
    found = whole(schema(written, City=schema(CITY, 2)))
    assert found["name"] == "shop.Order"
    assert found["fields"][0]["type"]["name"] == "geo.City"
    assert found["fields"][1]["type"] == ["null", "geo.City"]
    fastavro.parse_schema(found)


def test_one_reader_reads_what_every_version_wrote() -> None:
    old = whole(schema(record(("id", "int", {}), ("gone", CITY, {}))))
    new = whole(schema(record(("id", "long", {}), ("added", "string", {}), ("kind", "string", {"default": "x"}))))
    reader = reading_all(new, [old])
    assert [field["name"] for field in reader["fields"]] == ["id", "added", "kind", "gone", PRESENT]
    assert read(old, {"id": 1, "gone": {"name": "Rome"}}, reader) == {
        "id": 1,
        "added": None,
        "kind": "x",
        "gone": {"name": "Rome"},
        PRESENT: 1,
    }
    assert read(new, {"id": 2**40, "added": "a", "kind": "b"}, reader)["gone"] is None


def test_a_record_inside_that_grew_is_read_in_both_forms() -> None:
    grown = {**CITY, "fields": [*CITY["fields"], {"name": "zip", "type": "int"}]}  # type: ignore[misc]
    old, new = (whole(schema(record(("home", ["null", city], {})))) for city in (CITY, grown))
    reader = reading_all(new, [old])
    assert read(old, {"home": {"name": "Rome"}}, reader)["home"] == {"name": "Rome", "zip": None}


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("string", "not a record"),
        ({"type": "array", "items": "int"}, "not a record"),
        (record(("next", ["null", "Order"], {})), "'shop.Order' holds itself"),
        (record(("next", {"type": "array", "items": "shop.Order"}, {})), "'shop.Order' holds itself"),
    ],
)
def test_what_has_no_columns_is_refused(written: Any, complaint: str) -> None:
    with pytest.raises(UnfitValue, match=complaint):
        whole(schema(written))


def test_a_schema_of_another_language_is_refused() -> None:
    with pytest.raises(UnfitValue, match="Schema 7 is PROTOBUF, not Avro"):
        whole(Schema(7, "PROTOBUF", "message A {}"))
