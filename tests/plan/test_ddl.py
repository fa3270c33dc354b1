"""What is refused when a declared table is held against the one that is there, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow.backends.delta import DeltaDialect
from ematix_flow.backends.sqlite import SqliteDialect
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.columns import BigInt, Text
from ematix_flow.declare.table import ColumnSpec, TableSpec
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import IncompatibleSchema, InvalidPlan
from ematix_flow.plan.ddl import plan_ddl

TABLE = TableRef("sales", "customers")
DELTA, SQLITE = DeltaDialect("delta_local", str), SqliteDialect()


def target(*names: str, mode: Any = "append") -> TargetSpec:
    columns = [ColumnSpec(name, Text(), nullable=True) for name in names]
    table = TableSpec("sales", "customers", (ColumnSpec("id", BigInt(), primary_key=True, nullable=False), *columns))
    return TargetSpec(table=table, connection="store", mode=mode)


def there(*names: str) -> TableShape:
    columns = [ColumnShape(name, Text(), "string", nullable=True) for name in names]
    return TableShape(TABLE, (ColumnShape("id", BigInt(), "bigint", nullable=False), *columns), has_rows=True)


@pytest.mark.parametrize(
    ("names", "first", "second"), [(("Name", "name"), "Name", "name"), (("_Batch_ID",), "_B", "_b")]
)
def test_columns_that_are_one_to_a_lake_table_are_both_named(names: tuple[str, ...], first: str, second: str) -> None:
    with pytest.raises(
        InvalidPlan, match=f"Columns '{first}.*' and '{second}.*' of sales.customers differ only in case"
    ):
        plan_ddl(DELTA, target(*names), TABLE, None, "evolve")


def test_a_column_that_the_lake_table_has_in_another_case_is_not_added_to_it() -> None:
    with pytest.raises(IncompatibleSchema, match="'Name' .* not in the table, which has 'name': one column to delta"):
        plan_ddl(DELTA, target("Name"), TABLE, there("name", "_loaded_at", "_batch_id"), "evolve")


@pytest.mark.parametrize("dialect", [DELTA, SQLITE], ids=["delta", "sqlite"])
def test_rows_without_a_history_are_not_told_to_get_a_default(dialect: Any) -> None:
    live = there("name", "_loaded_at", "_batch_id")
    with pytest.raises(IncompatibleSchema, match="'valid_from'.*load into a new table") as caught:
        plan_ddl(dialect, target("name", mode="scd2"), TABLE, live, "evolve")
    assert "default(" not in caught.value.message and "nullable or" not in caught.value.message
