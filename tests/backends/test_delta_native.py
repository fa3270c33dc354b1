"""Delta tables that the native engine writes through delta-rs: what is refused, and what a commit looks like.

The contract itself is run on the engine by `tests/spark/test_native.py` and `proofs/native.py`.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from ematix_flow import Target, ematix, pk
from ematix_flow.backends import delta_native
from ematix_flow.backends.delta import DeltaBackend, S3DeltaBackend
from ematix_flow.backends.iceberg import IcebergBackend
from ematix_flow.connections import DeltaLocalConnection, DeltaS3Connection, IcebergConnection
from ematix_flow.contracts.plans import DdlPlan
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.contracts.table_writes import MergeClause, TableChange, TableWrite
from ematix_flow.declare.columns import BigInt, Double, Integer, Numeric, Text, Timestamp, TimestampTZ
from ematix_flow.declare.namespace import Ematix
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import BackendError, InvalidSource, RouteImpossible, WriteConflict
from ematix_flow.plan.native import against_native, against_native_target
from ematix_flow.testing.registry import isolated_registry

APPEND = TableWrite("append", "")
COLUMNS = (ColumnSpec("id", BigInt(), nullable=False), ColumnSpec("name", Text(), nullable=True))


def made(path: Path, *columns: ColumnSpec) -> str:
    """A new table."""
    delta_native.change(str(path), [TableChange("create", columns or COLUMNS)], ())
    return str(path)


def rows_in(folder: Path, **columns: Any) -> list[str]:
    """Rows in a Parquet file, as the engine leaves them."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{len(list(folder.iterdir()))}.parquet"
    parquet.write_table(pa.table(columns), file)
    return [str(file)]


def commit(table: str, files: list[str], number: int, write: TableWrite = APPEND, version: int | None = None) -> None:
    mark = json.dumps({"ematix_flow_run": f"run-{number}"})
    delta_native.commit(table, version, write, files, metadata=mark, application="app", number=number)


def stored(table: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    return sorted(DeltaTable(table).to_pyarrow_table().to_pylist(), key=lambda row: str(row["id"]))


def log_of(table: str, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(table, "_delta_log", f"{version:020d}.json").read_text().splitlines()]


# ── commits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_commit_carries_the_marks_that_spark_writes_and_reads(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    commit(table, rows_in(tmp_path / "rows", id=[1], name=["ann"]), 7)
    actions = log_of(table, 1)
    assert actions[0]["commitInfo"]["userMetadata"] == '{"ematix_flow_run": "run-7"}'
    assert {"txn": {"appId": "app", "version": 7}} in actions


def test_a_number_that_is_taken_is_not_committed_again(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    rows = rows_in(tmp_path / "rows", id=[1], name=["ann"])
    commit(table, rows, 2)
    with pytest.raises(WriteConflict, match="already holds commit 2"):
        commit(table, rows, 2)
    assert stored(table) == [{"id": 1, "name": "ann"}]


def test_a_merge_on_an_old_version_is_a_conflict_and_changes_nothing(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    merge = TableWrite(
        "merge",
        "",
        ("id",),
        (
            MergeClause("delete", "delete"),
            MergeClause("update", "correct", ("name",)),
            MergeClause("insert", "insert", ("id", "name")),
        ),
        "__flow_action",
    )
    commit(table, rows_in(tmp_path / "rows", id=[1, 2, 3], name=["ann", "bob", "cid"]), 1)
    changes = rows_in(
        tmp_path / "changes", id=[1, 2, 4], name=["Ann", None, "dot"], __flow_action=["correct", "delete", "insert"]
    )
    with pytest.raises(WriteConflict, match="Another program"):
        commit(table, changes, 2, merge, version=0)
    assert [row["name"] for row in stored(table)] == ["ann", "bob", "cid"]
    commit(table, changes, 2, merge, version=1)
    assert [(row["id"], row["name"]) for row in stored(table)] == [(1, "Ann"), (3, "cid"), (4, "dot")]


def test_rows_that_are_only_added_go_with_what_others_add(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    commit(table, rows_in(tmp_path / "rows", id=[1]), 1)
    commit(table, rows_in(tmp_path / "rows", id=[2]), 2)
    assert stored(table) == [{"id": 1, "name": None}, {"id": 2, "name": None}], "a column that is not given is NULL"


def test_replacing_all_rows_is_one_commit_and_may_leave_none(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    commit(table, rows_in(tmp_path / "rows", id=[1], name=["ann"]), 1)
    commit(table, [], 2, TableWrite("replace", ""), version=1)
    assert stored(table) == []
    assert [next(iter(action)) for action in log_of(table, 2)] == ["commitInfo", "remove", "txn"]


def test_files_have_no_statistics_that_would_be_wrong(tmp_path: Path) -> None:
    table = made(
        tmp_path / "t",
        ColumnSpec("id", BigInt()),
        ColumnSpec("ratio", Double()),
        ColumnSpec("money", Numeric(12, 2)),
        ColumnSpec("long", Numeric(30, 2)),
    )
    values: dict[str, Any] = {
        "id": [1, 2],
        "ratio": [5.0, float("nan")],
        "money": pa.array([Decimal("1.15"), Decimal("2.30")], pa.decimal128(12, 2)),
        "long": pa.array([Decimal("9007199254740993.12")] * 2, pa.decimal128(30, 2)),
    }
    commit(table, rows_in(tmp_path / "rows", **values), 1)
    (added,) = [action["add"] for action in log_of(table, 1) if "add" in action]
    assert set(json.loads(added["stats"])["minValues"]) == {"id", "money"}


def test_a_failure_of_delta_rs_shows_no_row(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    with pytest.raises(BackendError) as caught:
        commit(table, rows_in(tmp_path / "rows", id=pa.array([None], pa.int64()), name=["a secret"]), 1)
    assert "a secret" not in str(caught.value) and caught.value.fix
    assert stored(table) == []


# ── the table itself ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_table_is_made_and_changed_in_the_form_that_spark_gives_it(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    delta_native.change(table, [TableChange("add", (ColumnSpec("at", TimestampTZ(), nullable=False),))], ())
    delta_native.change(table, [TableChange("relax", (ColumnSpec("id", BigInt(), nullable=True),))], ())
    found = delta_native.columns(delta_native.opened(table))
    assert found == [("id", "bigint", True), ("name", "string", True), ("at", "timestamp", True)]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_table_with_wall_clock_times_lists_the_features_without_which_spark_does_not_open_it(
    tmp_path: Path, at_once: bool
) -> None:
    clock = ColumnSpec("clock", Timestamp(), nullable=True)
    table = made(tmp_path / "t", *COLUMNS, *([clock] if at_once else []))
    if not at_once:
        delta_native.change(table, [TableChange("add", (clock,))], ())
    protocol = delta_native.opened(table).protocol()
    assert protocol.reader_features == ["timestampNtz"]
    assert {*(protocol.writer_features or ())} == {"timestampNtz", "appendOnly", "invariants"}


def test_a_description_needs_no_engine(tmp_path: Path) -> None:
    lake = backend(tmp_path)
    assert lake.describe(TableRef("sales", "t")) is None
    made(tmp_path / "sales" / "t")
    shape = lake.describe(TableRef("sales", "t"))
    assert shape is not None and not shape.has_rows
    assert [(column.name, column.type, column.nullable) for column in shape.columns] == [
        ("id", BigInt(), False),
        ("name", Text(), True),
    ]


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def no_session() -> Any:
    raise AssertionError("no session is needed here")


def backend(root: Path) -> DeltaBackend:
    """A lake on the native engine, which it must not need."""
    lake = DeltaBackend(DeltaLocalConnection(name="lake", path=str(root)))
    lake.use_spark(no_session, native=True)
    return lake


@pytest.mark.parametrize(
    ("protocol", "named"),
    [
        ({"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}, "deletionVectors"),
        ({"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["columnMapping"]}, "columnMapping"),
        ({"minReaderVersion": 2, "minWriterVersion": 5}, "columnMapping"),
        ({"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["typeWidening"]}, "typeWidening"),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}, "rowTracking"),
        ({"minReaderVersion": 1, "minWriterVersion": 4}, "version 4 for writers"),
    ],
)
def test_a_table_with_features_that_it_does_not_keep_is_refused_by_name(
    tmp_path: Path, protocol: dict[str, Any], named: str
) -> None:
    if protocol["minWriterVersion"] == 7:
        protocol = {"readerFeatures": [], "writerFeatures": protocol.get("readerFeatures", []), **protocol}
    if protocol["minReaderVersion"] < 3:
        protocol.pop("readerFeatures", None)
    table = made(tmp_path / "sales" / "t")
    log = Path(table, "_delta_log", f"{0:020d}.json")
    kept = [action for action in log_of(table, 0) if "protocol" not in action]
    log.write_text("\n".join(json.dumps(action) for action in [*kept, {"protocol": protocol}]) + "\n")
    with pytest.raises(RouteImpossible, match=named) as caught:
        backend(tmp_path).describe(TableRef("sales", "t"))
    assert "engine='spark'" in (caught.value.fix or "") and str(tmp_path) in str(caught.value)


def test_lakes_that_are_left_to_spark_say_so_before_a_session_is_opened(tmp_path: Path) -> None:
    iceberg = IcebergBackend(IcebergConnection(name="lake", warehouse=str(tmp_path)))
    given = dict.fromkeys(("bucket", "region", "access_key_id", "secret_access_key"), "nobody-asks-for-it")
    bucket = DeltaS3Connection(name="bucket", endpoint="http://127.0.0.1:9", **given)
    for lake, kind in ((iceberg, "iceberg"), (S3DeltaBackend(bucket), "delta_s3")):
        lake.use_spark(no_session, native=True)
        with pytest.raises(RouteImpossible, match=f"no connector for {kind}"):
            lake.spark()


@pytest.mark.parametrize("name", ["lake[1]", "lake*", "lake{a,b}", "50%"])
def test_a_folder_that_the_engine_takes_for_a_pattern_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RouteImpossible, match="cannot work in a folder"):
        backend(tmp_path / name).describe(TableRef("sales", "t"))


def test_what_delta_rs_cannot_do_for_a_load_is_said_when_it_is_planned() -> None:
    with isolated_registry():

        @ematix.table(schema="sales")
        class Prices:
            id: Annotated[BigInt, pk()]
            price: Double
            net: Numeric[10, 2]

        def reasons(mode: str, change: TableChange | None = None, **options: Any) -> list[str]:
            target = Target(connection="lake", table=Prices, mode=mode, **options)
            declare = Ematix().pipeline(targets=[target], name="load", source_connection="till", source_table="main.t")
            changes = () if change is None else (change,)
            spec = declare(lambda: None).spec
            ddl = DdlPlan("create", changes=changes, partition_by=tuple(options.get("partition_by", ())))
            return against_native_target("delta_local", spec.target, ddl)

        assert reasons("merge") == []
        assert "row_hash covers 'price'" in reasons("scd2")[0]
        assert "partitions by values like those of 'net'" in reasons("append", partition_by=["net"])[0]
        assert "wider type" in reasons("append", TableChange("widen", (ColumnSpec("id", Integer()),)))[0]
        assert "column mapping" in reasons("append", TableChange("create", (ColumnSpec("a b", Integer()),)))[0]
    assert not against_native(("delta_local", None), ("delta_local", None))
    assert against_native(("delta_s3", None)) and against_native(("iceberg", None))


def test_a_file_that_is_gone_is_an_error_and_not_an_empty_table(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    commit(table, rows_in(tmp_path / "rows", id=[1], name=["ann"]), 1)
    next(Path(table).glob("*.parquet")).unlink()
    with pytest.raises(InvalidSource, match="is not there") as caught:
        delta_native.rows_of(None, table, None)  # type: ignore[arg-type]  # it does not come to that
    assert ".parquet" in str(caught.value)


def test_a_version_that_never_was_is_said_to_be_none(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    with pytest.raises(InvalidSource, match="no version 7"):
        delta_native.rows_of(None, table, 7)  # type: ignore[arg-type]  # it does not come to that
    with pytest.raises(InvalidSource, match="no version of this table at"):
        delta_native.rows_of(None, table, "2000-01-01 00:00:00+00:00")  # type: ignore[arg-type]


def test_a_time_after_the_newest_commit_has_the_newest_version(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    commit(table, rows_in(tmp_path / "rows", id=[1], name=["ann"]), 1)
    assert delta_native._version_at(table, "2999-01-01 00:00:00+00:00") == 1
