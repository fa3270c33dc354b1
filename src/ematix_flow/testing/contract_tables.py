"""Tables: created as declared, changed only by adding, refused with everything as it was."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import pytest

from ematix_flow.declare.columns import (
    BigInt,
    Boolean,
    ColumnType,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    to_column_type,
)
from ematix_flow.declare.keys import natural_key, pk
from ematix_flow.declare.normalizers import default
from ematix_flow.declare.table import ColumnSpec, table_spec
from ematix_flow.errors import IncompatibleSchema, UnfitValue
from ematix_flow.testing.bench import ADDED, Bench, RouteName, Table
from ematix_flow.testing.gaps import needs

CODE: Any = String[12]  # type: ignore[misc]  # a type made by subscript is no generic to mypy
MONEY: Any = Numeric[10, 2]  # type: ignore[misc]

MORE_PLACES = "numeric to more places"
WIDENINGS: list[Any] = [
    pytest.param(SmallInt, Integer, 7, 40_000, id="small_int to integer"),
    pytest.param(SmallInt, BigInt, 7, 2**40, id="small_int to big_int"),
    pytest.param(Integer, BigInt, 7, 2**40, id="integer to big_int"),
    pytest.param(Float, Double, 0.5, 0.1, id="float to double"),
    pytest.param(String[3], String[6], "abc", "abcdef", id="string to longer string"),  # type: ignore[misc]
    pytest.param(String[3], Text, "abc", "abcdef" * 50, id="string to text"),  # type: ignore[misc]
    pytest.param(Numeric[4, 2], Numeric[8, 2], "12.34", "123456.78", id="numeric to more digits"),  # type: ignore[misc]
    pytest.param(Numeric[4, 2], Numeric[8, 4], "12.34", "1234.5678", id=MORE_PLACES),  # type: ignore[misc]
]


def _types(**columns: Any) -> dict[str, ColumnType]:
    return {name: to_column_type(kind) for name, kind in columns.items()}


class Tables:
    """DDL and evolution. The statements are the same on both routes, so most of it is shown on the quick one."""

    def orders(self, bench: Bench) -> Table:
        """A table with a key of two columns, a unique constraint and a column that may be NULL, and one row in it."""
        orders = bench.table(
            "orders",
            number=Annotated[BigInt, pk()],
            line=Annotated[Integer, pk()],
            code=Annotated[CODE, natural_key("code")],
            shop=Annotated[bench.target.text_key, natural_key("code")],
            total=MONEY | None,
            is_paid=Boolean,
        )
        bench.load(orders, [(1, 1, "x", "north", None, True)], route=bench.quick, mode="append")
        return orders

    @needs("append")
    def test_a_missing_table_is_created_with_the_declared_columns(self, bench: Bench) -> None:
        columns = bench.columns(self.orders(bench))
        shop = bench.target.text_key
        declared = _types(number=BigInt, line=Integer, code=CODE, shop=shop, total=MONEY, is_paid=Boolean)
        stamps = {name: ADDED[name] for name in ("_loaded_at", "_batch_id")}
        assert columns == {name: bench.target.described(kind) for name, kind in {**declared, **stamps}.items()}
        assert list(columns) == [*declared, *stamps]

    @needs("append", "keys_enforced")
    def test_a_missing_table_is_created_with_its_keys_and_not_null(self, bench: Bench) -> None:
        self.orders(bench)
        shape = bench.target.shape("orders")
        assert shape is not None
        assert {c.name for c in shape.columns if c.nullable} == {"total"}
        assert shape.primary_key == ("number", "line")
        assert shape.unique == (("code", "shop"),)

    @needs("append", "adds_columns")
    def test_a_new_nullable_column_is_added_and_old_rows_are_null_in_it(self, bench: Bench, route: RouteName) -> None:
        before = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(before, [(1, "ann")], route=route, mode="append")
        after = bench.table("users", id=Annotated[BigInt, pk()], city=Text | None, name=Text)
        bench.load(after, [(2, "Rome", "bob")], route=route, mode="append")
        assert bench.rows(after) == [(1, None, "ann"), (2, "Rome", "bob")]

    @needs("append", "widens_columns")
    @pytest.mark.parametrize(("narrow", "wide", "small", "large"), WIDENINGS)
    def test_a_widened_type_takes_larger_values(
        self, bench: Bench, narrow: Any, wide: Any, small: Any, large: Any
    ) -> None:
        from ematix_flow.testing.endpoints import canonical

        before = bench.table("things", id=Annotated[BigInt, pk()], v=narrow | None)
        bench.load(before, [(1, small)], route=bench.quick, mode="append")
        after = bench.table("things", id=Annotated[BigInt, pk()], v=wide | None)
        bench.load(after, [(2, large), (3, None)], route=bench.quick, mode="append")
        kind = to_column_type(wide)
        assert bench.rows(after) == [(1, canonical(small, kind)), (2, canonical(large, kind)), (3, None)]

    @needs("append", "widens_columns")
    @pytest.mark.parametrize(("narrow", "wide", "small", "large"), WIDENINGS)
    def test_a_widened_type_is_the_live_tables_type_afterwards(
        self, bench: Bench, narrow: Any, wide: Any, small: Any, large: Any
    ) -> None:
        before = bench.table("things", v=narrow)
        bench.load(before, [(small,)], route=bench.quick, mode="append")
        after = bench.table("things", v=wide)
        bench.load(after, [(large,)], route=bench.quick, mode="append")
        assert bench.columns(after)["v"] == bench.target.described(to_column_type(wide))

    @needs("append", "relaxes_not_null")
    def test_not_null_is_relaxed_when_the_declaration_allows_null(self, bench: Bench) -> None:
        before = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(before, [(1, "ann")], route=bench.quick, mode="append")
        after = bench.table("users", id=Annotated[BigInt, pk()], name=Text | None)
        bench.load(after, [(2, None)], route=bench.quick, mode="append")
        assert bench.rows(after) == [(1, "ann"), (2, None)]

    @needs("merge", "sql")
    def test_columns_that_only_the_live_table_has_are_left_alone(self, bench: Bench, route: RouteName) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(users, [(1, "ann"), (2, "bob")], route=route, mode="merge")
        name = bench.target.sql_name("users")
        bench.database.execute(
            f"ALTER TABLE {name} ADD COLUMN hand_written TEXT",
            f"ALTER TABLE {name} ADD COLUMN counted INTEGER NOT NULL DEFAULT 7",
            f"UPDATE {name} SET hand_written = 'kept', counted = 8 WHERE id = 1",
        )
        bench.load(users, [(1, "eve"), (3, "new")], route=route, mode="merge")
        found = bench.database.query(f"SELECT id, name, hand_written, counted FROM {name} ORDER BY id")
        assert found == [(1, "eve", "kept", 8), (2, "bob", None, 7), (3, "new", None, 7)]

    @needs("append", "adds_columns")
    def test_a_new_not_null_column_needs_a_default_when_there_are_rows(self, bench: Bench) -> None:
        before = bench.table("users", id=Annotated[BigInt, pk()])
        bench.load(before, [(1,)], route=bench.quick, mode="append")
        refused = bench.table("users", id=Annotated[BigInt, pk()], city=Text)
        with pytest.raises(IncompatibleSchema, match="'city'.*default"):
            bench.load(refused, [(2, "Rome")], route=bench.quick, mode="append")
        assert "city" not in bench.columns(before)

    @needs("append", "adds_columns")
    def test_a_new_not_null_column_is_added_to_a_table_without_rows(self, bench: Bench) -> None:
        before = bench.table("users", id=Annotated[BigInt, pk()])
        bench.load(before, [], route=bench.quick, mode="append")
        filled = bench.table("users", id=Annotated[BigInt, pk()], city=Annotated[Text, default("it's")])
        bench.load(filled, [(2, "Rome"), (3, None)], route=bench.quick, mode="append")
        assert bench.rows(filled) == [(2, "Rome"), (3, "it's")]

    @needs("append", "adds_columns", "fills_added_columns")
    def test_a_new_not_null_column_with_a_default_gives_it_to_the_rows_that_are_there(self, bench: Bench) -> None:
        before = bench.table("users", id=Annotated[BigInt, pk()])
        bench.load(before, [(1,)], route=bench.quick, mode="append")
        filled = bench.table("users", id=Annotated[BigInt, pk()], city=Annotated[Text, default("it's")])
        bench.load(filled, [(2, "Rome"), (3, None)], route=bench.quick, mode="append")
        assert bench.rows(filled) == [(1, "it's"), (2, "Rome"), (3, "it's")]

    @needs("append")
    @pytest.mark.parametrize(
        ("declared", "said"),
        [
            pytest.param({"id": Annotated[BigInt, pk()], "name": BigInt}, "'name'", id="another type"),
            pytest.param({"id": Annotated[CODE, pk()], "name": Text}, "'id'", id="a key of another type"),
        ],
    )
    def test_what_is_not_additive_is_refused_and_nothing_changes(
        self, bench: Bench, declared: dict[str, Any], said: str
    ) -> None:
        self.refused(bench, declared, said)

    @needs("append", "keys_enforced")
    def test_another_primary_key_is_refused_and_nothing_changes(self, bench: Bench) -> None:
        self.refused(bench, {"id": BigInt, "name": Annotated[CODE, pk()]}, "primary key")

    def refused(self, bench: Bench, declared: dict[str, Any], said: str) -> None:
        """A table of people cannot become the declared one, and is told so."""
        before = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(before, [(1, "ann")], route=bench.quick, mode="append")
        stored, columns = bench.rows(before, "_batch_id"), bench.columns(before)
        after = bench.table("users", declared)
        with pytest.raises(IncompatibleSchema, match="schema drift detected") as caught:
            bench.load(after, [], route=bench.quick, mode="append")
        assert isinstance(caught.value, ValueError) and said in str(caught.value)
        assert (bench.rows(before, "_batch_id"), bench.columns(before)) == (stored, columns)
        assert bench.runs("users")[-1]["status"] == "failed"

    @needs("append", "not_null_kept")
    def test_an_unknown_not_null_column_in_the_live_table_is_refused(self, bench: Bench) -> None:
        users = bench.table("users", id=BigInt)
        bench.target.make("users", [*table_spec(users).columns, ColumnSpec("must", Text(), nullable=False)], [])
        with pytest.raises(IncompatibleSchema, match="'must'"):
            bench.load(users, [(1,)], route=bench.quick, mode="append")
        assert list(bench.columns(users)) == ["id", "must"]

    @needs("append", "adds_columns")
    def test_a_table_made_by_hand_is_adopted(self, bench: Bench) -> None:
        users = bench.table("users", id=BigInt, name=Text)
        bench.target.make("users", table_spec(users).columns, [(1, "ann")])
        result = bench.load(users, [(2, "bob")], route=bench.quick, mode="append")
        assert bench.rows(users, "_batch_id") == [(1, "ann", None), (2, "bob", result.run_id)]

    @needs("append")
    def test_on_drift_error_lists_every_difference_and_loads_nothing(self, bench: Bench) -> None:
        before = bench.table("users", id=Annotated[BigInt, pk()], size=Integer | None, age=BigInt | None)
        bench.load(before, [(1, 7, 5)], route=bench.quick, mode="append")
        stored, columns = bench.rows(before, "_loaded_at", "_batch_id"), bench.columns(before)
        after = bench.table("users", id=Annotated[BigInt, pk()], size=BigInt | None, city=Text | None)
        with pytest.raises(IncompatibleSchema) as caught:
            bench.load(after, [(2, None, None)], route=bench.quick, mode="append", on_drift="error")
        said = str(caught.value)
        assert all(part in said for part in ("'city'", "'age'", "'size'", "schema drift detected"))
        assert (bench.rows(before, "_loaded_at", "_batch_id"), bench.columns(before)) == (stored, columns)

    @needs("append", "not_null_kept")
    def test_on_drift_error_counts_a_not_null_that_is_no_longer_declared(self, bench: Bench) -> None:
        before = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(before, [(1, "ann")], route=bench.quick, mode="append")
        after = bench.table("users", id=Annotated[BigInt, pk()], name=Text | None)
        with pytest.raises(IncompatibleSchema, match="'name' is NOT NULL"):
            bench.load(after, [(2, None)], route=bench.quick, mode="append", on_drift="error")
        assert bench.rows(before) == [(1, "ann")]

    @needs("append")
    def test_on_drift_warn_says_so_and_loads_the_columns_that_exist(
        self, bench: Bench, route: RouteName, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(before, [(1, "ann")], route=route, mode="append")
        after = bench.table("users", id=Annotated[BigInt, pk()], city=Text | None, name=Text)
        with caplog.at_level(logging.WARNING, logger="ematix_flow"):
            bench.load(after, [(2, "Rome", "bob")], route=route, mode="append", on_drift="warn")
        assert bench.rows(before) == [(1, "ann"), (2, "bob")] and "city" not in bench.columns(before)
        assert any("'city'" in record.getMessage() for record in caplog.records)

    @needs("append", "adds_columns")
    def test_a_bad_value_takes_back_the_schema_change_too(self, bench: Bench, route: RouteName) -> None:
        before = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(before, [(1, "ann")], route=route, mode="append")
        columns = bench.columns(before)
        after = bench.table("users", id=Annotated[BigInt, pk()], name=Text, city=Text | None)
        with pytest.raises(UnfitValue, match="'name'"):
            bench.load(after, [(2, None, "Rome")], route=route, mode="append")
        assert bench.columns(before) == columns and bench.rows(before) == [(1, "ann")]

    @needs("append", "sql")
    def test_ensure_creates_the_table_and_then_finds_it_as_declared(self, bench: Bench) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        assert users.ensure(bench.target.connection) == {"action": "created", "differences": []}
        bench.load(users, [(1, "ann")], route=bench.quick, mode="merge")
        assert users.ensure(bench.target.connection) == {"action": "matched", "differences": []}
        other = bench.table("users", id=Annotated[BigInt, pk()], name=Text, city=Text | None)
        with pytest.raises(IncompatibleSchema, match="'city'"):
            other.ensure(bench.target.connection)
        assert other.ensure(bench.target.connection, on_drift="warn")["action"] == "drift"
