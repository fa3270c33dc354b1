"""Values: every type with its extremes arrives exactly, or is refused with one clear error; so does every name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Annotated, Any

import pytest

from ematix_flow.declare.columns import (
    JSON,
    JSONB,
    UUID,
    BigInt,
    Boolean,
    Bytes,
    ColumnType,
    Date,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
    to_column_type,
)
from ematix_flow.declare.keys import pk
from ematix_flow.errors import FlowError, InvalidIdentifier, UnfitValue
from ematix_flow.testing.bench import Bench, RouteName, Table
from ematix_flow.testing.endpoints import Endpoint, Row, in_order
from ematix_flow.testing.gaps import needs

_FLOAT_MAX, _FLOAT_LEAST = 3.4028234663852886e38, 1.401298464324817e-45
_EARLIEST, _LATEST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)
_BEFORE_EPOCH = datetime(1969, 12, 31, 23, 59, 59, 999999)

TYPES: dict[str, tuple[Any, list[Any]]] = {
    "a_small": (SmallInt, [7, 0, -(2**15), 2**15 - 1]),
    "an_integer": (Integer, [7, 0, -(2**31), 2**31 - 1]),
    "a_big": (BigInt, [7, 0, -(2**63), 2**63 - 1]),
    "a_float": (Float, [1.5, _FLOAT_MAX, -_FLOAT_MAX, _FLOAT_LEAST, math.inf, -math.inf, math.nan]),
    "a_double": (Double, [0.1, 1.7976931348623157e308, 5e-324, -1e-10, math.inf, -math.inf, math.nan]),
    "money": (Numeric[12, 2], [Decimal("12.34"), Decimal("0.00"), Decimal("-9999999999.99"), Decimal("9999999999.99")]),  # type: ignore[misc]
    "wide": (Numeric[38, 10], [Decimal("1.0000000001"), Decimal("-" + "9" * 28 + "." + "9" * 10)]),  # type: ignore[misc]
    "a_flag": (Boolean, [True, False]),
    "a_text": (
        Text,
        ["plain", "", "  two  spaces ", "NULL", 'it\'s "quoted" \\n', "tab\tline\nend", "日本語 🚲 é", "x" * 50_000],
    ),
    "a_string": (String[5], ["abcde", "", "日本🚲e\u0301"]),  # type: ignore[misc]
    "a_date": (Date, [date(2026, 2, 28), date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10)]),
    "a_time": (Timestamp, [datetime(2026, 3, 29, 2, 30, 0, 1), _EARLIEST, _LATEST, _BEFORE_EPOCH]),
    "an_instant": (
        TimestampTZ,
        [
            moment.replace(tzinfo=timezone.utc)
            for moment in (datetime(2026, 3, 29, 1, 30), _EARLIEST, _LATEST, _BEFORE_EPOCH)
        ],
    ),
    "a_json": (JSON, [{"b": [1, None, "ü"], "a": {}}, [], "text", 1e100]),
    "a_jsonb": (JSONB, [{"a": {}, "b": [1, None, "ü"]}, [], "text", 12345678901234567890]),
    "a_uuid": (UUID, ["123e4567-e89b-12d3-a456-426614174000", "0" * 8 + "-0000-0000-0000-" + "0" * 12]),
    "some_bytes": (Bytes, [b"bytes", b"", b"\x00\xff\\x'"]),
}
"""Column → type and values. The shorter lists end in NULLs, and the last row is NULL throughout."""


def typed_table(bench: Bench, name: str) -> Table:
    """A table with a nullable column of every type."""
    return bench.table(
        name, {"n": Annotated[BigInt, pk()], **{column: kind | None for column, (kind, _) in TYPES.items()}}
    )


def typed_rows(*places: Endpoint) -> list[Row]:
    """Rows with all values of `TYPES` that all of these places can hold."""
    columns = []
    for kind, values in TYPES.values():
        column_type = to_column_type(kind)
        columns.append([v for v in values if all(place.holds(column_type, v) for place in places)])
    longest = max(len(values) for values in columns) + 1
    return [(n, *(values[n] if n < len(values) else None for values in columns)) for n in range(longest)]


def same(rows: list[Row]) -> list[Row]:
    """Rows ready to be compared: NaN is equal to itself here."""
    return in_order([tuple("nan" if isinstance(v, float) and math.isnan(v) else v for v in row) for row in rows])


class Types:
    """The published table of types."""

    @needs("append")
    def test_every_type_keeps_every_value(self, bench: Bench, route: RouteName) -> None:
        everything = typed_table(bench, "everything")
        rows = typed_rows(bench.target, bench.place(route))
        result = bench.load(everything, rows, route=route, mode="append")
        assert result.rows_inserted == len(rows)
        assert same(bench.rows(everything)) == same(rows)

    @needs("merge")
    def test_every_source_delivers_the_same_values(self, bench: Bench, sources: Mapping[str, Endpoint]) -> None:
        everything = typed_table(bench, "everything")
        rows = typed_rows(bench.target, *sources.values())
        first = bench.load(everything, rows, route="spark", mode="merge", place=bench.target)
        assert same(bench.rows(everything)) == same(rows)
        # A value that arrived in any other form would count as a change.
        for name, place in sources.items():
            again = bench.load(everything, rows, route="spark", mode="merge", place=place)
            counts = (again.rows_inserted, again.rows_updated, again.rows_unchanged)
            assert counts == (0, 0, len(rows)), f"from {name}"
        assert set(bench.batches(everything).values()) == {first.run_id}

    @needs("append")
    def test_every_source_appends_the_same_values(self, bench: Bench, sources: Mapping[str, Endpoint]) -> None:
        places = {"the target itself": bench.target, **sources}
        rows = typed_rows(*places.values())
        for number, (name, place) in enumerate(places.items()):
            everything = typed_table(bench, f"everything_{number}")
            bench.load(everything, rows, route="spark", mode="append", place=place)
            assert same(bench.rows(everything)) == same(rows), f"from {name}"

    @needs("scd2", "pushdown")
    def test_both_routes_write_the_same_history_to_the_last_byte(self, bench: Bench) -> None:
        pushed, sparked = typed_table(bench, "pushed"), typed_table(bench, "sparked")
        rows = typed_rows(bench.target, bench.source)
        shifted = [(row[0], *rows[(index + 1) % len(rows)][1:]) for index, row in enumerate(rows)]
        for some in (rows, shifted):
            bench.load(pushed, some, route="pushdown", mode="scd2")
            bench.load(sparked, some, route="spark", mode="scd2")
        one, other = bench.rows(pushed, "is_current", "row_hash"), bench.rows(sparked, "is_current", "row_hash")
        assert same(one) == same(other) and len(one) == 2 * len(rows)
        assert same(bench.history(pushed)) == same(bench.history(sparked))


UNFIT: list[Any] = [
    pytest.param(String[3], Text(), "4ever", id="a text that is too long"),  # type: ignore[misc]
    pytest.param(SmallInt, BigInt(), 40_123, id="a number over 16 bits"),
    pytest.param(Integer, BigInt(), 2**40 + 3, id="a number over 32 bits"),
    pytest.param(Numeric[4, 2], Numeric(12, 2), Decimal("12345.67"), id="a decimal with too many digits"),  # type: ignore[misc]
    pytest.param(Text, Text(), None, id="NULL where a value must be"),
]
UNREADABLE: list[Any] = [
    pytest.param(BigInt, "77x", id="no whole number"),
    pytest.param(Double, "0.7.7", id="no number"),
    pytest.param(Date, "2026-02-31", id="no such day"),
    pytest.param(TimestampTZ, "2026-02-28 25:00", id="no such time"),
    pytest.param(Boolean, "perhaps", id="no boolean"),
    pytest.param(UUID, "123e4567-e89b", id="no identifier"),
]


NO_JSON = (
    '{"secret": 1',
    '{"secret": 1} x',
    "{'secret': 1}",
    '["secret", NaN]',
    '["secret",]',
    '1, "secret"',
    "secret",
    "",
)
"""Texts that some readers of JSON let pass, and some stop reading in time."""

JSON_TEXTS: dict[str, Any] = {
    ' {"a": [1, null]} ': {"a": [1, None]},
    '{"twice": 1, "twice": 2}': {"twice": 2},
    '"text"': "text",
    "null": None,
    "[" * 100 + "]" * 100: json.loads("[" * 100 + "]" * 100),
}


class UnfitValues:
    """One clear error, nothing changed, no value told."""

    @pytest.mark.parametrize("mode", ["append", "merge"])
    @pytest.mark.parametrize(("declared", "given", "value"), UNFIT)
    def test_a_value_that_does_not_fit_stops_the_load(
        self, bench: Bench, route: RouteName, mode: str, declared: Any, given: ColumnType, value: Any
    ) -> None:
        things = bench.table("things", id=Annotated[BigInt, pk()], v=declared)
        source = {"id": BigInt(), "v": given}
        with pytest.raises(UnfitValue) as caught:
            bench.load(things, [(1, value)], route=route, mode=mode, columns=source)
        _is_clear(caught.value, value)
        assert bench.target.shape("things") is None
        (run,) = bench.runs("things")
        assert run["status"] == "failed" and (value is None or str(value) not in run["error_message"])

    @needs("append")
    @pytest.mark.parametrize(("declared", "text"), UNREADABLE)
    def test_a_text_that_cannot_be_read_stops_the_load(self, bench: Bench, declared: Any, text: str) -> None:
        things = bench.table("things", id=Annotated[BigInt, pk()], v=declared)
        source = {"id": BigInt(), "v": Text()}
        bench.put(things, [(1, text)], route="spark", columns=source)
        with pytest.raises(UnfitValue) as caught:
            bench.pipeline(things, route="spark", mode="append").sync()
        _is_clear(caught.value, text)
        assert bench.target.shape("things") is None
        assert [run["status"] for run in bench.runs("things")] == ["failed"]

    @needs("append")
    @pytest.mark.parametrize("declared", [JSON, JSONB])
    @pytest.mark.parametrize("origin", ["target", "source"])
    def test_a_text_that_is_no_json_stops_the_load(self, bench: Bench, origin: str, declared: Any) -> None:
        things = bench.table("things", id=BigInt, v=declared)
        for text in NO_JSON:
            with pytest.raises(UnfitValue) as caught:
                self.load_texts(bench, things, [(1, "{}"), (2, text)], getattr(bench, origin))
            assert "'v'" in str(caught.value) and "secret" not in str(caught.value), caught.value
            assert bench.target.shape("things") is None
        assert {run["status"] for run in bench.runs("things")} == {"failed"}

    @needs("append")
    @pytest.mark.parametrize("declared", [JSON, JSONB])
    @pytest.mark.parametrize("origin", ["target", "source"])
    def test_a_text_that_is_json_is_that_document(self, bench: Bench, origin: str, declared: Any) -> None:
        things = bench.table("things", id=BigInt, v=declared | None)
        depth = bench.target.json_depth
        texts = {t: d for t, d in JSON_TEXTS.items() if t.count("[") <= depth}
        texts["[" * depth + "]" * depth] = json.loads("[" * depth + "]" * depth)
        self.load_texts(bench, things, list(enumerate([*texts, None])), getattr(bench, origin))
        assert bench.rows(things) == list(enumerate([*texts.values(), None]))

    def load_texts(self, bench: Bench, table: Table, rows: list[Row], place: Endpoint) -> None:
        """Load rows of a number and a text, whichever way the planner takes: a database may leave JSON to Spark."""
        bench.put(table, rows, route=bench.quick, columns={"id": BigInt(), "v": Text()}, place=place)
        bench.pipeline(table, route=bench.quick, mode="append", place=place, engine="auto").sync()

    @needs("append")
    def test_a_value_the_system_cannot_hold_is_refused(self, bench: Bench, sources: Mapping[str, Endpoint]) -> None:
        for kind, value in sorted(bench.target.cannot_hold, key=repr):
            real = math.nan if value == "nan" else value
            column_type = next(to_column_type(t) for t, _ in TYPES.values() if to_column_type(t).kind == kind)
            place = next((p for p in sources.values() if p.holds(column_type, real)), None)
            if place is None:
                continue
            things = bench.table(f"holds_{kind}", v=type(column_type))
            with pytest.raises(FlowError):
                bench.load(things, [(real,)], route="spark", mode="append", place=place)
            assert bench.target.shape(f"holds_{kind}") is None


def _is_clear(error: FlowError, value: Any) -> None:
    """It names the column and never the value."""
    assert "'v'" in str(error), error
    assert value is None or str(value) not in str(error), error


HOSTILE = (
    'or"der',
    "select",
    "a b",
    "x;DROP TABLE users;--",
    "Ünïcødé 🚲",
    "UPPER",
    "tick`tick",
    "per%cent",
    "dot.ted",
    "back\\slash",
    "{brace}",
    "(paren)",
    "quote'd",
    "$dollar",
    "?",
    "line\nbreak",
)


def hostile_names(bench: Bench) -> tuple[str, ...]:
    """Those of them that the target can have at all; of the others `test_a_name_the_system_cannot_have…` speaks."""
    return tuple(name for name in HOSTILE if name not in bench.target.cannot_name)


class Names:
    """Identifiers are never more than names."""

    @needs("merge")
    def test_hostile_names_are_just_names(self, bench: Bench, route: RouteName) -> None:
        names = hostile_names(bench)
        columns: dict[str, Any] = dict.fromkeys(names, Text | None)
        table = bench.table('we"ird; ta.ble', {"the key'": Annotated[BigInt, pk()], **columns})
        rows: list[Row] = [(1, *(f"value of {n}" for n in range(len(names)))), (2, *(None for _ in names))]
        name = "pipe'line; DROP TABLE x; -- ü"
        first = bench.load(table, rows, route=route, mode="merge", name=name)
        changed = [rows[0], (2, *("new" for _ in names))]
        second = bench.load(table, changed, route=route, mode="merge", name=name)
        assert (first.rows_inserted, second.rows_updated, second.rows_unchanged) == (2, 1, 1)
        assert bench.rows(table) == changed
        assert [run["status"] for run in bench.runs(name)] == ["success", "success"]

    @needs("append")
    def test_hostile_names_are_appended_to(self, bench: Bench, route: RouteName) -> None:
        names = hostile_names(bench)
        columns: dict[str, Any] = dict.fromkeys(names, Text | None)
        table = bench.table('we"ird; ta.ble', {"the key'": BigInt, **columns})
        rows: list[Row] = [(1, *(f"value of {n}" for n in range(len(names)))), (2, *(None for _ in names))]
        name = "pipe'line; DROP TABLE x; -- ü"
        for row in rows:
            bench.load(table, [row], route=route, mode="append", name=name, incremental_column="the key'")
        assert bench.rows(table) == rows
        assert bench.watermark(name) == ("the key'", "2")
        assert [run["status"] for run in bench.runs(name)] == ["success", "success"]

    @needs("scd2")
    def test_hostile_names_keep_a_history(self, bench: Bench) -> None:
        names = hostile_names(bench)
        columns: dict[str, Any] = dict.fromkeys(names, Text | None)
        table = bench.table('his"tory', {"the key'": Annotated[BigInt, pk()], **columns})
        bench.load(table, [(1, *names)], route=bench.quick, mode="scd2", handle_deletes="soft")
        bench.load(table, [(1, *reversed(names))], route=bench.quick, mode="scd2", handle_deletes="soft")
        assert sorted(row[-3:] for row in bench.history(table)) == [(1, 2, False), (2, None, True)]

    @needs("append")
    def test_a_name_too_long_for_the_system_is_refused_before_anything_moves(self, bench: Bench) -> None:
        counts_bytes = bench.target.max_identifier_bytes is not None
        limit = bench.target.max_identifier_bytes or bench.target.max_identifier_chars
        longest = "c" * (limit or 200)
        table = bench.table("longest", {longest: Text})
        bench.load(table, [("fits",)], route=bench.quick, mode="append", place=bench.target)
        assert bench.rows(table) == [("fits",)]
        if limit is not None:
            bench.put(table, [("fits",)], route=bench.quick)
            for name, column in (("longer", longest + "c"), ("é" * (limit // (1 + counts_bytes) + 1), "c")):
                longer = bench.table(name, {column: Text})
                with pytest.raises(InvalidIdentifier, match="bytes" if counts_bytes else "characters"):
                    bench.pipeline(
                        longer, route=bench.quick, mode="append", name="longer", function=lambda conn: "SELECT 1 AS c"
                    ).sync()

    @needs("append")
    def test_a_name_the_system_cannot_have_is_refused_before_anything_moves(self, bench: Bench) -> None:
        for number, name in enumerate(sorted(bench.target.cannot_name)):
            table = bench.table(f"named_{number}", {name: Text})
            with pytest.raises(InvalidIdentifier):
                bench.pipeline(table, route=bench.quick, mode="append", function=lambda conn: "SELECT 1 AS c").sync()
            assert bench.target.shape(f"named_{number}") is None
