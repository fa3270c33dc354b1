"""Previews as text: everything that was decided can be read, brackets included."""

from __future__ import annotations

import json

from ematix_flow.preview import PreviewResult, TargetPlan, TransformPlan, render_text
from ematix_flow.run.preview_result import ValidateResult
from ematix_flow.run.preview_text import render_validation

CUSTOMERS = TargetPlan(
    schema_qualified_name="analytics.customer_dim",
    mode="scd2",
    path="same_db",
    path_reason="source and target are the same database",
    augmented_columns=(
        {"name": "id", "type": {"kind": "big_int"}, "nullable": False, "primary_key": True},
        {"name": "email", "type": {"kind": "string", "length": 80}, "nullable": True, "primary_key": False},
        {"name": "valid_from", "type": {"kind": "timestamp_tz"}, "nullable": False, "primary_key": False},
    ),
    declared_columns=("id", "email"),
    merge_keys=("id",),
    merge_keys_reason="from primary_key=True",
    compare_columns=("email",),
    compare_columns_reason="auto-derived (non-key non-metadata)",
    target_connection_name="warehouse",
    target_connection_info={"host": "db", "port": 5432, "dbname": "w", "user": None},
    plan_sql=("CREATE TABLE x (\n  id bigint\n)", "INSERT INTO x SELECT 1"),
    plan_sql_label="2 statements, one transaction",
)


def preview(*targets: TargetPlan, **fields) -> PreviewResult:
    return PreviewResult(
        pipeline_name="sync_customers",
        schedule="0 6 * * *",
        mode="scd2",
        source_connection_name="warehouse",
        source_sql="\n        SELECT id, email\n          FROM raw.customers\n        ",
        targets=targets,
        **fields,
    )


def test_one_target_is_written_out_with_its_reasons_and_statements() -> None:
    text = render_text(
        preview(
            CUSTOMERS,
            notes=("the target does not exist yet",),
            transforms_post=(TransformPlan(kind="sql", summary="ANALYZE\n  analytics.customer_dim"),),
        )
    )
    assert text == (
        "sync_customers  scd2  schedule 0 6 * * *\n"
        "  source   warehouse\n"
        "    SELECT id, email\n"
        "      FROM raw.customers\n"
        "  target   analytics.customer_dim  scd2  on warehouse (host db, port 5432, dbname w)\n"
        "  route    pushdown (same_db)  [source and target are the same database]\n"
        "  keys     id  [from primary_key=True]\n"
        "  compare  email  [auto-derived (non-key non-metadata)]\n"
        "  columns  id, email  + valid_from\n"
        "  plan     2 statements, one transaction\n"
        "    CREATE TABLE x (\n"
        "      id bigint\n"
        "    )\n"
        "    INSERT INTO x SELECT 1\n"
        "  post[0]  sql: ANALYZE analytics.customer_dim\n"
        "  note     the target does not exist yet"
    )


def test_verbose_shows_every_column_with_its_type() -> None:
    text = render_text(preview(CUSTOMERS), verbose=True)
    assert "  columns  3\n    id          big_int  primary key  not null\n    email       string(80)\n" in text
    assert "    valid_from  timestamp_tz  not null  added\n" in text


def test_several_targets_are_a_compact_list_unless_verbose() -> None:
    other = TargetPlan(schema_qualified_name="analytics.copy", mode="append", path="cross_db")
    result = preview(CUSTOMERS, other)
    compact = render_text(result)
    assert "INSERT INTO" not in compact
    assert compact.count("  target   ") == 2
    assert "  target   analytics.copy  append  spark" in compact
    assert "INSERT INTO" in render_text(result, verbose=True)


def test_a_dry_run_says_rows_or_the_error() -> None:
    good = TargetPlan(schema_qualified_name="a.good", mode="append", dry_run_rows_affected=1204)
    bad = TargetPlan(schema_qualified_name="a.bad", mode="append", dry_run_error="no such table\n  fix    make one")
    result = preview(good, bad, is_dry_run=True)
    assert not result.ok
    text = render_text(result)
    assert text.splitlines()[0].endswith("dry run, rolled back")
    assert "a.good  append  1,204 rows affected" in text
    assert "a.bad  append  failed: no such table fix make one" in text
    assert "  failed   no such table\n      fix    make one" in render_text(preview(bad, is_dry_run=True))
    assert "  rows     1,204 rows affected" in render_text(preview(good, is_dry_run=True))


def test_json_has_exactly_the_documented_keys() -> None:
    told = json.loads(preview(CUSTOMERS).to_json())
    assert list(told) == [
        *("pipeline_name", "schedule", "mode", "source_connection_name", "source_connection_info", "source_sql"),
        *("targets", "is_dry_run", "notes", "transforms_post"),
    ]
    assert list(told["targets"][0]) == [
        *("schema_qualified_name", "mode", "path", "path_reason", "augmented_columns", "declared_columns"),
        *("merge_keys", "merge_keys_reason", "compare_columns", "compare_columns_reason"),
        *("target_connection_name", "target_connection_info", "plan_sql", "plan_sql_label"),
        *("dry_run_rows_affected", "dry_run_error"),
    ]
    assert told == preview(CUSTOMERS).to_dict()


def test_a_validation_says_ok_and_keeps_its_notes() -> None:
    result = ValidateResult(pipeline_name="p", ok=True, source_sql="SELECT 1", notes=("post step not checked",))
    assert render_validation(result) == "p: ok\n  note     post step not checked"
    assert "SELECT 1" in render_validation(result, verbose=True)
    assert list(result.to_dict()) == ["pipeline_name", "ok", "source_sql", "errors", "target_connection_name", "notes"]
