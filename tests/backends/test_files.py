"""Local files as source and target: every format, hostile values, crashes at every step, two writers, bad options."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F, types as T

from ematix_flow import Column, ManagedTable, ematix
from ematix_flow.backends.files import FilesBackend
from ematix_flow.backends.files_options import check_options
from ematix_flow.backends.files_sql import folder_query
from ematix_flow.backends.files_store import HeldLock, LocalStore
from ematix_flow.config.resolve import resolve
from ematix_flow.contracts.backend import KeepsBooks, Settles, WritesFrames
from ematix_flow.contracts.plans import (
    BatchPlan,
    DdlPlan,
    OpenedRun,
    Reading,
    Route,
    SettleReport,
    SourceQuery,
    Stamp,
    WatermarkRule,
)
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.columns import (
    JSON,
    BigInt,
    Bytes,
    ColumnType,
    Date,
    Double,
    Numeric,
    Text,
    Timestamp,
    TimestampTZ,
)
from ematix_flow.declare.connection import Connection, ObjectStoreLocalConnection
from ematix_flow.declare.table import ColumnSpec, TableSpec
from ematix_flow.declare.target import FileOptions, TargetSpec
from ematix_flow.errors import (
    AlreadyRunning,
    ConnectionFailed,
    IncompatibleSchema,
    InvalidIdentifier,
    InvalidSource,
    UnsupportedMode,
    WriteConflict,
)
from ematix_flow.spark.failures import explain
from ematix_flow.testing.registry import isolated_registry

FORMATS = ("parquet", "csv", "json_lines", "orc")
NOW = datetime(2026, 3, 1, 6, 0, 0, 123456, tzinfo=timezone.utc)
EVENTS = TableRef("raw", "events")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    from ematix_flow.spark.session import open_session

    session = open_session(FilesBackend.needs | SessionNeeds(), SparkSettings(master="local[2]"))
    session.sparkContext.setLogLevel("OFF")
    yield session


# ── small makers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def files(path: Path, file_format: str = "parquet", **options: Any) -> FilesBackend:
    return FilesBackend(ObjectStoreLocalConnection(name="lake", path=str(path), format=file_format, **options))


def columns_of(**types: ColumnType) -> tuple[ColumnSpec, ...]:
    return tuple(ColumnSpec(name, kind, nullable=True) for name, kind in types.items())


def reading_of(query: SourceQuery, columns: Sequence[ColumnSpec] = ()) -> Reading:
    return Reading(query=query, columns=tuple(columns), renamed={}, pending={})


def plan_of(
    columns: Sequence[ColumnSpec],
    *,
    mode: Any = "append",
    watermark: WatermarkRule | None = None,
    options: FileOptions | None = None,
    pipeline: str = "load",
) -> BatchPlan:
    table = TableSpec("raw", "events", tuple(columns))
    target = TargetSpec(table=table, connection="lake", mode=mode, files=options or FileOptions())
    return BatchPlan(
        pipeline=pipeline,
        target=target,
        table=EVENTS,
        columns=tuple(columns),
        route=Route("spark", "files"),
        ddl=DdlPlan("match"),
        landing_sql=None,
        reading=None,
        profile=None,
        checks=(),
        statements=(),
        watermark=watermark,
    )


def opened(backend: FilesBackend, plan: BatchPlan, *, logical_run: str | None = None, now: datetime = NOW) -> OpenedRun:
    return backend.open_run(
        plan.pipeline,
        run_id=str(uuid4()),
        logical_run=logical_run,
        target=plan.table,
        mode=plan.target.mode,
        now=now,
    )


def load(
    backend: FilesBackend, frame: DataFrame, plan: BatchPlan, *, logical_run: str | None = None, now: datetime = NOW
) -> SettleReport:
    """One run the way the runner does it: lease, open, write unless applied, close."""
    with backend.lease(plan.pipeline):
        run = opened(backend, plan, logical_run=logical_run, now=now)
        if run.applied is not None:
            backend.close_run(run, error=None, now=now)
            return SettleReport(rows=0, replayed=True)
        try:
            report = backend.write(frame, plan, run, Stamp(run.run_id, now))
        except Exception as exc:
            backend.close_run(run, error=str(exc), now=now)
            raise
        backend.close_run(run, error=None, now=now)
        return report


def rows(
    backend: FilesBackend, spark: SparkSession, query: str | TableRef = EVENTS, columns: Sequence[ColumnSpec] = ()
) -> list[T.Row]:
    source = SourceQuery(table=query) if isinstance(query, TableRef) else SourceQuery(sql=query)
    with backend.read(spark, source, reading_of(source, columns)) as frame:
        return frame.collect()


def numbers(backend: FilesBackend, spark: SparkSession) -> list[int]:
    return sorted(int(row["id"]) for row in rows(backend, spark))


def data_files(folder: Path, ending: str = "") -> list[str]:
    return sorted(
        str(p.relative_to(folder))
        for p in folder.rglob(f"*{ending}")
        if p.is_file() and not any(part[0] in "._" for part in p.relative_to(folder).parts)
    )


ID = columns_of(id=BigInt())


def ids(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(value,) for value in values], "id bigint")


# ── round trips ──────────────────────────────────────────────────────────────────────────────────────────────────────

NASTY_TEXT = [
    "", None, " lead", "trail ", "a,b", 'q"q', '"', "n\nn", "r\rr", "rn\r\nrn", "tab\tt", "back\\slash",
    "\\\"", "#c", "ünï😀", "\u2028ls", "NULL", "null", "''", "a\\", "\ufeffbom", "{}", "[1]", "x" * 100_000,
]  # fmt: skip
ALL_TYPES = columns_of(
    id=BigInt(), text=Text(), money=Numeric(38, 6), real=Double(), day=Date(), wall=Timestamp(), instant=TimestampTZ(),
    raw=Bytes(), doc=JSON(),
)  # fmt: skip
SPARK_TYPES = (
    "id bigint, text string, money decimal(38,6), real double, day date, wall timestamp_ntz, instant timestamp, "
    "raw binary, doc string"
)


def nasty_frame(spark: SparkSession) -> tuple[DataFrame, list[tuple[Any, ...]]]:
    data: list[tuple[Any, ...]] = [
        (
            number,
            text,
            Decimal("12345678901234567890123456789012.000001") * (-1) ** number,
            0.1 + number,
            date(1, 1, 1) + timedelta(days=700_000 + number),
            datetime(1999, 12, 31, 23, 59, 59, 999_999 - number),
            datetime(2026, 3, 1, 6, 0, 0, 1 + number),
            bytes(range(number, number + 120)),
            '{"b": 1.10,  "a":[null]}',
        )
        for number, text in enumerate(NASTY_TEXT)
    ]
    data.append((len(data), *([None] * 8)))
    schema = T._parse_datatype_string(SPARK_TYPES)  # type: ignore[attr-defined]
    return spark.createDataFrame(data, schema).repartition(3), data


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_gives_back_hostile_values_as_they_were(
    file_format: str, spark: SparkSession, tmp_path: Path
) -> None:
    backend = files(tmp_path, file_format)
    frame, data = nasty_frame(spark)
    report = load(backend, frame, plan_of(ALL_TYPES))
    assert (report.rows, report.inserted) == (len(data), len(data))
    source = SourceQuery(table=EVENTS)
    with backend.read(spark, source, reading_of(source, ALL_TYPES)) as back:
        # The engine casts to the declared types; text formats hand over text.
        typed = back.select([F.col(f.name).cast(f.dataType).alias(f.name) for f in frame.schema.fields])
        found = sorted(map(tuple, typed.collect()))
    assert len(data_files(tmp_path / "raw/events")) == 1
    for got, wanted in zip(found, data, strict=True):
        assert got == wanted


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_types_survive_and_are_described_without_spark(file_format: str, spark: SparkSession, tmp_path: Path) -> None:
    backend = files(tmp_path, file_format)
    assert backend.describe(EVENTS) is None
    frame, _ = nasty_frame(spark)
    load(backend, frame, plan_of(ALL_TYPES))
    source = SourceQuery(table=EVENTS)
    with backend.read(spark, source, reading_of(source)) as back:
        assert back.schema.simpleString() == frame.schema.simpleString()
    shape = backend.describe(EVENTS)
    assert shape is not None and shape.has_rows
    kinds = {column.name: column.type for column in shape.columns}
    assert (kinds["id"], kinds["money"], kinds["raw"]) == (BigInt(), Numeric(38, 6), Bytes())
    if file_format == "parquet":
        assert (kinds["wall"], kinds["instant"]) == (Timestamp(), TimestampTZ())


def test_csv_with_its_own_layout_is_read_back_without_options(spark: SparkSession, tmp_path: Path) -> None:
    backend = files(tmp_path, "csv")
    options = FileOptions(csv_delimiter=";", csv_quote="'", csv_header=False, csv_null_value="~")
    frame, data = nasty_frame(spark)
    load(backend, frame.select("id", "text"), plan_of(columns_of(id=BigInt(), text=Text()), options=options))
    assert {int(row.id): row.text for row in rows(backend, spark)} == {row[0]: row[1] for row in data}


def test_a_csv_text_equal_to_the_null_value_stops_the_load(spark: SparkSession, tmp_path: Path) -> None:
    backend = files(tmp_path, "csv")
    plan = plan_of(columns_of(text=Text()), options=FileOptions(csv_null_value="NULL"))
    with pytest.raises(Exception, match="csv_null_value"):
        load(backend, spark.createDataFrame([("NULL",)], "text string"), plan)
    assert data_files(tmp_path / "raw/events") == []


def test_partition_folders_are_written_and_their_values_come_back_as_text(spark: SparkSession, tmp_path: Path) -> None:
    for file_format in FORMATS:
        backend = files(tmp_path / file_format, file_format)
        frame = spark.createDataFrame(
            [(1, "007", "x"), (2, "a/b=c", "y"), (3, None, "z")], "id bigint, zone string, v string"
        )
        plan = plan_of(columns_of(id=BigInt(), zone=Text(), v=Text()), options=FileOptions(partition_by=["zone"]))
        assert load(backend, frame.repartition(3), plan).rows == 3
        assert len(data_files(tmp_path / file_format / "raw/events")) == 3
        found = sorted((int(row.id), row.zone, row.v) for row in rows(backend, spark))
        assert found == [(1, "007", "x"), (2, "a/b=c", "y"), (3, None, "z")], file_format
        load(backend, frame.limit(0), plan_of(plan.columns, mode="truncate", options=plan.target.files))
        assert [p.name for p in (tmp_path / file_format / "raw/events").iterdir() if p.name[0] != "_"] == []


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_empty_text_that_would_be_a_folder_without_a_name_stops_the_load(
    file_format: str, spark: SparkSession, tmp_path: Path
) -> None:
    plan = plan_of(columns_of(id=BigInt(), zone=Text()), options=FileOptions(partition_by=["zone"]))
    backend = files(tmp_path, file_format)
    for zone in ("", "__HIVE_DEFAULT_PARTITION__"):
        with pytest.raises(Exception, match="'zone' has an empty text"):
            load(backend, spark.createDataFrame([(1, "a"), (2, zone)], "id bigint, zone string"), plan)
    assert not data_files(tmp_path / "raw/events")


# ── sources ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, newline="")


def test_sql_joins_two_folders_and_leaves_cte_names_alone(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "raw/orders/a.csv", "id,customer,amount\n1,7,10.50\n2,8,1.25\n3,7,2.00\n")
    put(tmp_path / "crm/customers/x/y.csv", "id,name\n7,Ada\n8,Grace\n")
    sql = """
        WITH totals AS (SELECT customer, sum(cast(amount AS decimal(12,2))) AS total FROM raw.orders GROUP BY customer)
        SELECT customers.name, totals.total, (SELECT count(*) FROM raw.orders o) AS n
        FROM totals JOIN crm.customers ON crm.customers.id = totals.customer ORDER BY 1;
    """
    found = rows(files(tmp_path, "csv"), spark, sql)
    assert [tuple(row) for row in found] == [("Ada", Decimal("12.50"), 3), ("Grace", Decimal("1.25"), 3)]
    assert not [view for view in spark.catalog.listTables() if view.name.startswith("ematix_flow_")]


def test_nested_fields_are_not_taken_for_schemas(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "raw/events/a.jsonl", '{"payload": {"user": {"id": 5}}}\n')
    found = rows(
        files(tmp_path, "json_lines"),
        spark,
        "SELECT payload.user.id AS a, raw.events.payload.user.id b FROM raw.events",
    )
    assert [tuple(row) for row in found] == [(5, 5)]


def test_a_bare_prefix_reads_that_folder_or_that_file(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "events/raw/a.csv", "id\n1\n")
    put(tmp_path / "events/raw/deep/er/b.csv", "id\n2\n")
    put(tmp_path / "events/raw/_hidden/c.csv", "id\n9\n")
    put(tmp_path / "events/raw/.d.csv", "id\n9\n")
    put(tmp_path / "events/raw/notes.txt", "not data")
    backend = files(tmp_path, "csv")
    assert sorted(row.id for row in rows(backend, spark, "events/raw")) == ["1", "2"]
    assert [row.id for row in rows(backend, spark, "events/raw/a.csv")] == ["1"]
    assert sorted(row.id for row in rows(backend, spark, "SELECT * FROM `events/raw`")) == ["1", "2"]


def test_compressed_tab_separated_and_differently_ordered_csv_files_are_one_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "raw/events/a.csv.gz", "\ufeffid,name\r\n1,Ada\r\n")
    put(tmp_path / "raw/events/b.tsv", 'name\tid\n"Grace\nHopper"\t2\n')
    put(tmp_path / "raw/events/c.csv", "id,name,extra\n3,,x\n")
    put(tmp_path / "raw/events/empty.csv", "")
    found = {row.id: (row.name, row.extra) for row in rows(files(tmp_path, "csv"), spark)}
    assert found == {"1": ("Ada", None), "2": ("Grace\nHopper", None), "3": (None, "x")}


def test_names_with_pattern_characters_are_just_names(spark: SparkSession, tmp_path: Path) -> None:
    for file_format, text in (("csv", "id\n1\n"), ("json_lines", '{"id": 1}\n')):
        ending = "csv" if file_format == "csv" else "json"
        put(tmp_path / file_format / "we ird {a,b}/[x]*?%20'\"/f [1] %41.{a}." / f"z.{ending}", text)
        backend = files(tmp_path / file_format, file_format)
        assert numbers_at(backend, spark, TableRef("we ird {a,b}", "[x]*?%20'\"")) == [1]


def numbers_at(backend: FilesBackend, spark: SparkSession, table: TableRef) -> list[int]:
    return sorted(int(row["id"]) for row in rows(backend, spark, table))


def test_short_csv_rows_fail_unless_allowed_and_long_ones_always_do(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "raw/events/a.csv", "id,name\n1\n2,x\n")
    backend = files(tmp_path, "csv")
    with pytest.raises(Exception, match="MALFORMED"):
        rows(backend, spark)
    lenient = files(tmp_path, "csv", csv_read_options={"truncated_rows_ok": True})
    assert sorted((row.id, row.name) for row in rows(lenient, spark)) == [("1", None), ("2", "x")]
    put(tmp_path / "raw/events/a.csv", "id,name\n1,x,SECRET\n")
    with pytest.raises(Exception, match="more fields"):
        rows(lenient, spark)


def test_csv_read_options_reach_the_reader(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "raw/events/a.csv", "# a comment\n1;'a;b';N/A\n#2;x;y\n3;NA;\n")
    options = {"has_header": False, "delimiter": ";", "quote": "'", "comment": "#", "null_regex": "N/?A"}
    backend = files(tmp_path, "csv", csv_read_options=options)
    found = rows(backend, spark, EVENTS, columns_of(id=BigInt(), name=Text(), note=Text()))
    assert [tuple(row) for row in found] == [("1", "a;b", None), ("3", None, None)]
    assert rows(backend, spark, "SELECT column_2 AS c FROM raw.events WHERE column_1 = '1'")[0].c == "a;b"


def test_json_numbers_keep_every_digit_and_documents_their_text(spark: SparkSession, tmp_path: Path) -> None:
    put(
        tmp_path / "raw/events/a.ndjson",
        '{"id": 1, "money": 12345678901234567890123456789.123456, "doc": {"b": 1.10,  "a": []}, "flag": true}\n'
        '{"id": 2, "money": 0.10, "doc": [1], "note": "only here"}\n',
    )
    columns = columns_of(id=BigInt(), money=Numeric(38, 6), doc=JSON(), note=Text())
    found = rows(files(tmp_path, "json_lines"), spark, EVENTS, columns)
    assert [(row.id, row.money, row.doc, row.flag, row.note) for row in found] == [
        (1, "12345678901234567890123456789.123456", '{"b": 1.10,  "a": []}', True, None),
        (2, "0.10", "[1]", None, "only here"),
    ]
    sampled = files(tmp_path, "json_lines", json_read_options={"schema_infer_max_records": 1})
    assert [row.note for row in rows(sampled, spark, EVENTS, columns)] == [None, "only here"]
    source = SourceQuery(sql="SELECT * FROM raw.events")
    with sampled.read(spark, source, reading_of(source)) as frame:
        assert sorted(frame.columns) == ["doc", "flag", "id", "money"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (TableRef("raw", "nothing"), "raw/nothing"),
        (TableRef("raw", "other"), ".txt"),
        ("events/raw", "events/raw"),
        ("SELECT * FROM raw.nothing", "raw/nothing"),
        ("DELETE FROM raw.events WHERE 1 = 1", "one SELECT"),
        ("SELECT * FROM a.b.c", "two parts"),
        ("SELEC * FORM x y z", "parsed"),
        ("../secret", "hidden"),
    ],
)
def test_a_source_that_is_not_there_is_one_clear_error(
    query: str | TableRef, said: str, spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "raw/other/a.txt", "x")
    with pytest.raises(ValueError if "secret" in str(query) else InvalidSource) as caught:
        rows(files(tmp_path), spark, query)
    assert said in str(caught.value)


def test_unreadable_compression_and_headers_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    for folder, name, text, said in (
        ("zst", "a.csv.zst", "x", "Zstandard"),
        ("colon", "a:b.csv", "id\n1\n", "':'"),
        ("twice", "a.csv", "id,id\n1,2\n", "more than once"),
    ):
        put(tmp_path / folder / name, text)
        with pytest.raises(InvalidSource, match=said):
            rows(files(tmp_path, "csv"), spark, folder)


def test_folder_query_refuses_nothing_that_spark_allows() -> None:
    found = folder_query(
        "SELECT e.*, explode(xs) x FROM raw.events e LATERAL VIEW explode(e.ys) t AS y WHERE EXISTS (SELECT 1 FROM b)"
    )
    assert sorted(map(str, found.views.values())) == ["b", "raw.events"]


# ── damaged sources ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_file_that_is_not_what_its_name_says_is_named(file_format: str, spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / f"raw/events/a.{file_format}", "no such thing at all")
    with pytest.raises(InvalidSource, match=f"is not {file_format}") as caught:
        rows(files(tmp_path, file_format), spark)
    assert "raw/events" in str(caught.value.where)


def test_a_file_of_ours_that_was_damaged_since_is_named(spark: SparkSession, tmp_path: Path) -> None:
    load(files(tmp_path), ids(spark, 1, 2), plan_of(ID))
    (name,) = data_files(tmp_path / "raw/events")
    file = tmp_path / "raw/events" / name
    file.write_bytes(file.read_bytes()[:-20] + b"x" * 20)
    with pytest.raises(Exception, match="FAILED_READ_FILE") as caught:
        rows(files(tmp_path), spark)
    told = explain(caught.value)
    assert isinstance(told, InvalidSource) and name in str(told)


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(b"id\n1\n" * 1000, mtime=0)[:20]], ids=["not packed", "cut off"]
)
def test_a_packed_file_that_cannot_be_unpacked_is_named(content: bytes, spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "raw/events/a.csv.gz"
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    with pytest.raises(InvalidSource, match="'raw/events/a.csv.gz' cannot be unpacked"):
        rows(files(tmp_path, "csv"), spark)


def test_files_that_disagree_about_a_column_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("SELECT 1L AS id").write.parquet(str(tmp_path / "raw/events/a"))
    spark.sql("SELECT 'x' AS id").write.parquet(str(tmp_path / "raw/events/b"))
    said = r"disagree about their columns: column 'id' is long in 'a/.*' and string in 'b/.*'"
    with pytest.raises(InvalidSource, match=said):
        rows(files(tmp_path), spark)


def test_a_file_outside_of_the_partition_folders_is_refused_not_left_out(spark: SparkSession, tmp_path: Path) -> None:
    for file_format in FORMATS:
        source = spark.range(1).write.format({"json_lines": "json"}.get(file_format, file_format))
        source.save(str(tmp_path / file_format / "raw/events/day=1"))
        source.save(str(tmp_path / file_format / "raw/events/late"))
        with pytest.raises(InvalidSource, match="do not both have a folder for 'day'"):
            rows(files(tmp_path / file_format, file_format), spark)


def test_a_load_that_partitions_otherwise_than_the_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    columns = columns_of(id=BigInt(), zone=Text())
    frame = spark.createDataFrame([(1, "a")], "id bigint, zone string")
    load(files(tmp_path), frame, plan_of(columns))
    by_zone = FileOptions(partition_by=["zone"])
    with pytest.raises(IncompatibleSchema, match="partitioned by no column, and this load by 'zone'"):
        load(files(tmp_path), frame, plan_of(columns, options=by_zone))
    assert numbers(files(tmp_path), spark) == [1]
    load(files(tmp_path), frame, plan_of(columns, options=by_zone, mode="truncate"))
    load(files(tmp_path), frame, plan_of(columns, options=by_zone))
    assert numbers(files(tmp_path), spark) == [1, 1]


# ── targets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_opens_the_right_doors(tmp_path: Path) -> None:
    backend = files(tmp_path)
    assert isinstance(backend, WritesFrames) and isinstance(backend, KeepsBooks) and not isinstance(backend, Settles)
    assert backend.capabilities.modes == {"append", "truncate"}
    assert backend.check().ok and files(tmp_path / "not/yet").check().ok
    (tmp_path / "file").write_text("")
    assert not files(tmp_path / "file" / "below").check().ok


@pytest.mark.parametrize("file_format", FORMATS)
def test_append_adds_truncate_replaces_and_an_empty_result_writes_no_file(
    file_format: str, spark: SparkSession, tmp_path: Path
) -> None:
    backend, folder = files(tmp_path, file_format), tmp_path / "raw/events"
    assert load(backend, ids(spark), plan_of(ID)).rows == 0
    assert data_files(folder) == []
    assert rows(backend, spark) == []
    load(backend, ids(spark, 1, 2), plan_of(ID))
    load(backend, ids(spark, 3), plan_of(ID), now=NOW + timedelta(seconds=1))
    assert (numbers(backend, spark), len(data_files(folder))) == ([1, 2, 3], 2)
    assert data_files(folder) == sorted(data_files(folder)) and "20260301T060000" in data_files(folder)[0]
    load(backend, ids(spark, 4), plan_of(ID, mode="truncate"))
    assert (numbers(backend, spark), len(data_files(folder))) == ([4], 1)
    load(backend, ids(spark), plan_of(ID, mode="truncate"))
    assert (rows(backend, spark), data_files(folder)) == ([], [])


def test_files_that_were_there_before_stay_visible_and_a_truncate_removes_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "raw/events/old/a.csv", "id\n1\n")
    put(tmp_path / "raw/events/read.me", "keep")
    backend = files(tmp_path, "csv")
    load(backend, ids(spark, 2), plan_of(ID))
    assert numbers(backend, spark) == [1, 2]
    load(backend, ids(spark, 3), plan_of(ID, mode="truncate"))
    assert numbers(backend, spark) == [3]
    assert [name for name in data_files(tmp_path / "raw/events") if "20260301" not in name] == ["read.me"]


def test_many_small_partitions_become_one_file(spark: SparkSession, tmp_path: Path) -> None:
    load(files(tmp_path), spark.range(1000).repartition(7), plan_of(ID))
    assert len(data_files(tmp_path / "raw/events")) == 1


def test_a_prefix_replaces_schema_and_table(spark: SparkSession, tmp_path: Path) -> None:
    backend, plan = files(tmp_path), plan_of(ID, options=FileOptions(prefix="events/daily/"))
    assert backend.target_ref(plan.target) == TableRef(None, "events/daily")
    load(backend, ids(spark, 1), plan, logical_run="slot")
    assert load(backend, ids(spark, 1), plan, logical_run="slot").replayed
    assert numbers_at(backend, spark, TableRef(None, "events/daily")) == [1]


def test_a_logical_run_is_applied_once(spark: SparkSession, tmp_path: Path) -> None:
    backend, plan = files(tmp_path), plan_of(ID)
    load(backend, ids(spark, 1), plan, logical_run="2026-03-01")
    assert load(files(tmp_path), ids(spark, 1), plan, logical_run="2026-03-01").replayed
    with backend.lease("load"):
        run = opened(backend, plan, logical_run="2026-03-01")
    assert run.applied is not None and run.applied.metrics["rows"] == 1 and not run.resumed
    assert numbers(backend, spark) == [1]


def test_a_failing_truncate_keeps_the_old_rows_and_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    backend = files(tmp_path)
    load(backend, ids(spark, 1, 2), plan_of(ID))
    broken = ids(spark, 3, 4).select(
        F.when(F.col("id") == 4, F.raise_error(F.lit("boom")).cast("bigint")).otherwise(F.col("id")).alias("id")
    )
    with pytest.raises(Exception, match="boom"):
        load(backend, broken, plan_of(ID, mode="truncate"))
    assert numbers(backend, spark) == [1, 2]
    assert not (tmp_path / "raw/events/_ematix_flow_staging").exists()
    assert sorted(record["status"] for record in history(tmp_path)) == ["failed", "success"]


def test_a_dry_run_counts_and_leaves_no_trace(spark: SparkSession, tmp_path: Path) -> None:
    rule = WatermarkRule("id", BigInt(), None)
    report = files(tmp_path).write(ids(spark, 1, 5), plan_of(ID, watermark=rule), None, Stamp("x", NOW), dry_run=True)
    assert (report.rows, report.watermark) == (2, "5")
    assert list(tmp_path.iterdir()) == []


MARKS: list[tuple[ColumnType, str, list[str], str]] = [
    (BigInt(), "bigint", ["9", "10"], "10"),
    (Numeric(10, 2), "decimal(10,2)", ["9.50", "10.25"], "10.25"),
    (Text(), "string", ["b", "a"], "b"),
    (Date(), "date", ["2026-03-01", "2025-12-31"], "2026-03-01"),
    (Timestamp(), "timestamp_ntz", ["2026-03-01T06:00:00.000001", "2026-03-01T05:00:00"], "2026-03-01T06:00:00.000001"),
    (TimestampTZ(), "timestamp", ["2026-03-01T06:00:00+02:00", "2026-03-01T05:00:00Z"], "2026-03-01T05:00:00.000000Z"),
]


# CSV has to find its types again; the other formats are asked about the type that is easiest to get wrong.
MARKED = [("csv", *mark) for mark in MARKS] + [(other, *MARKS[-1]) for other in ("parquet", "json_lines", "orc")]


@pytest.mark.parametrize(
    ("file_format", "kind", "spark_type", "values", "greatest"), MARKED, ids=[f"{m[0]}-{m[2]}" for m in MARKED]
)
def test_the_watermark_is_the_greatest_value_in_its_own_type(
    file_format: str,
    kind: ColumnType,
    spark_type: str,
    values: list[str],
    greatest: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    backend = files(tmp_path, file_format)
    frame = spark.createDataFrame([(v,) for v in [*values, None]], "c string").select(
        F.col("c").cast(spark_type).alias("c")
    )
    plan = plan_of(columns_of(c=kind), watermark=WatermarkRule("c", kind, None))
    assert backend.peek("load") is None
    assert load(backend, frame, plan).watermark == greatest
    assert backend.peek("load") == ("c", greatest)
    assert load(backend, frame.limit(0), plan).watermark is None
    assert backend.peek("load") == ("c", greatest)


def history(root: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((root / "_ematix_flow/run_history").glob("*.json"))]


def test_history_holds_one_json_line_per_run_and_per_step(spark: SparkSession, tmp_path: Path) -> None:
    backend, plan = files(tmp_path), plan_of(ID, pipeline="täglich: a/b \n c")
    with backend.lease(plan.pipeline):
        run = opened(backend, plan)
        assert [record["status"] for record in history(tmp_path)] == ["running"]
        backend.write(ids(spark, 1, 2), plan, run, Stamp(run.run_id, NOW))
        backend.record_step(run, "transform[0]:sql", error=None, metrics={"n": 1}, started=NOW)
        backend.close_run(run, error=None, now=NOW)
    by_mode = {record["mode"]: record for record in history(tmp_path)}
    assert by_mode["append"]["rows_inserted"] == 2 and by_mode["append"]["status"] == "success"
    assert by_mode["append"]["pipeline_name"] == plan.pipeline
    assert by_mode["transform"]["parent_run_id"] == run.run_id
    assert by_mode["transform"]["status"] == "transform_success"
    assert all(len(path.read_text().splitlines()) == 1 for path in (tmp_path / "_ematix_flow/run_history").iterdir())


def test_an_unwritable_place_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConnectionFailed, match="cannot be used"):
        opened(files(tmp_path / "file"), plan_of(ID))


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Killed(BaseException):
    """Stands for the end of the process: nothing after it may touch the disk."""


class DyingStore(LocalStore):
    """A file system whose process is killed before its n-th change; the kernel gives its locks back."""

    def __init__(self, root: str, after: int) -> None:
        super().__init__(root)
        self.left = after
        self.is_dead = False
        self.held: list[HeldLock] = []

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            self.is_dead = True
        if self.is_dead:
            raise Killed

    def bury(self) -> None:
        for lock in self.held:
            lock.release()

    def lock(self, path: str, *, shared: bool = False, wait: bool = False) -> HeldLock | None:
        if self.is_dead:
            raise Killed
        lock = super().lock(path, shared=shared, wait=wait)
        if lock is not None:
            self.held.append(lock)
        return lock

    def write_json(self, path: str, content: Any) -> None:
        self._change()
        super().write_json(path, content)

    def move(self, source: str, destination: str) -> None:
        self._change()
        super().move(source, destination)

    def remove(self, path: str) -> None:
        self._change()
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self._change()
        super().remove_tree(path)

    def remove_if_empty(self, folder: str) -> None:
        self._change()
        super().remove_if_empty(folder)


def dying(path: Path, after: int) -> tuple[FilesBackend, DyingStore]:
    store = DyingStore(str(path), after)

    class DyingFiles(FilesBackend):
        def open_store(self, connection: Connection) -> LocalStore:
            return store

    return DyingFiles(ObjectStoreLocalConnection(name="lake", path=str(path), format="parquet")), store


@pytest.mark.parametrize("mode", ["append", "truncate"])
def test_a_run_killed_before_any_change_on_disk_is_repeated_exactly_once(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    rule = WatermarkRule("id", BigInt(), None)
    first, second = plan_of(ID, watermark=rule), plan_of(ID, mode=mode, watermark=rule)
    wanted = [1, 2, 3, 4] if mode == "append" else [3, 4]
    old, new = ids(spark, 1, 2).coalesce(1), ids(spark, 3, 4).coalesce(1)
    step, survived = 0, False
    load(files(tmp_path / "before"), old, first)
    while not survived:
        root = tmp_path / str(step)
        shutil.copytree(tmp_path / "before", root)
        backend, store = dying(root, step)
        try:
            load(backend, new, second, now=NOW + timedelta(hours=1))
            survived = True
        except Killed:
            store.bury()
        # Whatever the moment, a reader sees the old table or the new one.
        assert numbers(files(root), spark) in ([1, 2], wanted), step
        report = load(files(root), new, second, now=NOW + timedelta(hours=2)) if not survived else None
        assert numbers(files(root), spark) == wanted, (step, report)
        assert len(data_files(root / "raw/events")) == (2 if mode == "append" else 1), step
        assert not (root / "raw/events/_ematix_flow_staging").exists(), step
        assert not (root / "raw/events/_ematix_flow/publishing.json").exists(), step
        assert files(root).peek("load") == ("id", "4"), step
        assert "running" not in [record["status"] for record in history(root)], step
        step += 1
    assert step > 10  # ledger, history, intent, move, manifest and what follows


KILLED_RUN = """
import sys
from datetime import datetime, timezone
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from ematix_flow.contracts.session import SparkSettings
from ematix_flow.spark.session import open_session
from tests.backends.test_files import ID, FilesBackend, files, ids, load, plan_of
spark = open_session(FilesBackend.needs, SparkSettings(master="local[1]"))
load(files(Path(sys.argv[1])), ids(spark, 3, 4), plan_of(ID, mode="truncate"))
print("survived")
"""


@pytest.mark.parametrize("point", ["staged", "mid-settle"])
def test_a_process_that_is_really_killed_is_taken_up_by_the_next(
    point: str, spark: SparkSession, tmp_path: Path
) -> None:
    load(files(tmp_path), ids(spark, 1, 2), plan_of(ID))
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED_RUN), str(tmp_path), str(root)],
        env={**os.environ, "EMATIX_FLOW_CRASH_AT": point},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -9, done.stderr[-2000:]
    assert (tmp_path / "raw/events/_ematix_flow_staging").exists()
    assert numbers(files(tmp_path), spark) == [1, 2]
    with files(tmp_path).lease("load"):
        run = opened(files(tmp_path), plan_of(ID))
        assert run.resumed and run.applied is None
        assert not (tmp_path / "raw/events/_ematix_flow_staging").exists()
        assert len(data_files(tmp_path / "raw/events")) == 1
        files(tmp_path).close_run(run, error="stopped", now=NOW)
    assert sorted(record["error_message"] or "" for record in history(tmp_path)) == ["", "stopped", "worker lost"]


# ── others at the same time ──────────────────────────────────────────────────────────────────────────────────────────

HOLDER = """
import sys
from tests.backends.test_files import files
from pathlib import Path
with files(Path(sys.argv[1])).lease("load"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process_holding(root: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_living_process_keeps_its_lease_and_a_dead_one_loses_it(tmp_path: Path) -> None:
    backend = files(tmp_path)
    with another_process_holding(tmp_path) as process:
        with pytest.raises(AlreadyRunning) as caught, backend.lease("load"):
            pass
        assert f"process {process.pid}" in str(caught.value)
        with backend.lease("another pipeline"):
            pass
        process.kill()
        process.wait()
        with backend.lease("load"), pytest.raises(AlreadyRunning), files(tmp_path).lease("load"):
            pass


def test_the_staging_of_a_living_run_is_left_alone(tmp_path: Path) -> None:
    backend = files(tmp_path)
    table = backend._table(EVENTS)
    with table.staging("alive") as place:
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / "raw/events/_ematix_flow_staging/dead").mkdir()
        opened(files(tmp_path), plan_of(ID, pipeline="other"))
        assert sorted(p.name for p in (tmp_path / "raw/events/_ematix_flow_staging").iterdir()) == [
            "alive",
            "alive.lock",
        ]
    assert not (tmp_path / "raw/events/_ematix_flow_staging").exists()


def test_two_pipelines_append_to_one_table_without_losing_a_row(spark: SparkSession, tmp_path: Path) -> None:
    a, b = plan_of(ID, pipeline="a"), plan_of(ID, pipeline="b")
    one, other = files(tmp_path), files(tmp_path)
    run_a, run_b = opened(one, a), opened(other, b)
    one.write(ids(spark, 1), a, run_a, Stamp(run_a.run_id, NOW))
    other.write(ids(spark, 2), b, run_b, Stamp(run_b.run_id, NOW))
    assert numbers(files(tmp_path), spark) == [1, 2]


def test_a_run_that_was_overtaken_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    backend, plan = files(tmp_path), plan_of(ID)
    slow = opened(backend, plan, logical_run="slow")
    load(files(tmp_path), ids(spark, 1), plan, logical_run="fast")
    with pytest.raises(WriteConflict, match="was faster"):
        backend.write(ids(spark, 2), plan, slow, Stamp(slow.run_id, NOW))
    assert numbers(backend, spark) == [1]


def test_a_reader_keeps_its_rows_while_the_table_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    backend = files(tmp_path)
    load(backend, ids(spark, 1, 2), plan_of(ID))
    source = SourceQuery(table=EVENTS)
    with backend.read(spark, source, reading_of(source)) as frame:
        load(files(tmp_path), ids(spark, 3), plan_of(ID, mode="truncate"))
        assert numbers(files(tmp_path), spark) == [3]
        load(files(tmp_path), ids(spark, 4), plan_of(ID, mode="truncate"), now=NOW + timedelta(seconds=1))
        assert sorted(row.id for row in frame.collect()) == [1, 2]
    assert len(data_files(tmp_path / "raw/events")) == 1
    assert numbers(backend, spark) == [4]


# ── options and names ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("file_format", "options", "said"),
    [
        ("csv", {"parquet_compression": "zstd"}, "parquet"),
        ("parquet", {"csv_delimiter": ";"}, "csv"),
        ("parquet", {"json_read_options": {}}, "json_lines"),
        ("parquet", {"parquet_compression": "lzma"}, "uncompressed"),
        ("parquet", {"partition_by": "day"}, "list of column names"),
        ("parquet", {"partition_by": ["day", "day"]}, "twice"),
        ("parquet", {"prefix": "../up"}, "prefix"),
        ("parquet", {"prefix": "a/_b"}, "hidden"),
        ("parquet", {"prefix": "/abs"}, "empty"),
        ("csv", {"csv_delimiter": ";;"}, "one ASCII character"),
        ("csv", {"csv_quote": "»"}, "one ASCII character"),
        ("csv", {"csv_escape": ""}, "one ASCII character"),
        ("csv", {"csv_header": "yes"}, "True or False"),
        ("csv", {"csv_null_value": 0}, "must be text"),
        ("csv", {"csv_delimiter": '"'}, "both"),
        ("csv", {"csv_delimiter": "\n"}, "csv_delimiter may not be a line break"),
        ("csv", {"csv_quote": "\r"}, "csv_quote may not be a line break"),
        ("csv", {"csv_delimiter": "\\"}, "csv_delimiter may not be a backslash"),
        ("csv", {"csv_delimiter": ";", "csv_escape": ";"}, "csv_escape and csv_delimiter are both ';'"),
        ("csv", {"csv_read_options": {"delimiter": "\\"}}, "may not be a backslash"),
        ("csv", {"csv_read_options": {"delimiter": "|", "quote": "|"}}, r"\['quote'\] and .*\['delimiter'\] are both"),
        ("csv", {"csv_read_options": {"quote": ","}}, r"\['quote'\] and delimiter are both ','"),
        ("csv", {"csv_read_options": {"delimiter": "#", "comment": "#"}}, "are both '#'"),
        ("csv", {"csv_read_options": {"delimeter": ";"}}, "did you mean 'delimiter'"),
        ("csv", {"csv_read_options": {"has_header": 1}}, "True or False"),
        ("csv", {"csv_read_options": {"null_regex": "("}}, "regular expression"),
        ("csv", {"csv_read_options": {"schema_infer_max_records": 0}}, "above zero"),
        ("csv", {"csv_read_options": [("a", 1)]}, "must be a dict"),
        ("json_lines", {"json_read_options": {"batch_size": "8"}}, "above zero"),
        ("json_lines", {"json_read_options": {"batch_size": True}}, "above zero"),
    ],
)
def test_options_that_do_not_fit_are_value_errors(file_format: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_options(file_format, FileOptions(**options))


def test_options_that_fit_pass_and_a_target_is_checked_with_its_table(tmp_path: Path) -> None:
    read = {"has_header": True, "terminator": "\n", "schema_infer_max_records": 10}
    check_options("csv", FileOptions(csv_delimiter="\t", csv_escape="\\", csv_read_options=read, partition_by=("a",)))
    backend = files(tmp_path)
    backend.check_target(plan_of(columns_of(id=BigInt(), day=Date()), options=FileOptions(partition_by=["day"])).target)
    for partitions, said in (([" day"], "not a column"), (["id"], "every column")):
        with pytest.raises(ValueError, match=said):
            backend.check_target(plan_of(ID, options=FileOptions(partition_by=partitions)).target)


def test_a_connection_says_how_its_files_are_read(tmp_project: Path) -> None:
    (tmp_project / ".ematix-flow.toml").write_text(
        '[connections.dumps]\nkind = "object_store_local"\npath = "dumps"\nformat = "csv"\n'
        "[connections.dumps.csv_read_options]\nhas_header = false\ndelimiter = 59\ncomment = '#'\n"
    )
    connection = resolve("dumps").connection
    backend = FilesBackend(connection)
    assert backend.options.csv_read_options == {"has_header": False, "delimiter": ";", "comment": "#"}
    assert "'delimiter': 59" in repr(connection) and hash(connection) == hash(resolve("dumps").connection)


@pytest.mark.parametrize(
    ("file_format", "options", "said"),
    [
        ("csv", {"csv_read_options": {"delimeter": ";"}}, "did you mean 'delimiter'"),
        ("csv", {"csv_read_options": {"delimiter": 300}}, "one ASCII character"),
        ("csv", {"csv_read_options": {"has_header": 1}}, "True or False"),
        ("csv", {"csv_read_options": "has_header"}, "must be a table of settings"),
        ("csv", {"json_read_options": {"batch_size": 8}}, "json_lines"),
        ("parquet", {"csv_read_options": {"has_header": False}}, "csv"),
    ],
)
def test_read_options_that_do_not_fit_are_told_before_anything_is_read(
    file_format: str, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        files(tmp_path, file_format, **options)


def test_one_folder_that_is_read_in_two_ways_is_two_sources(tmp_path: Path) -> None:
    ways = [files(tmp_path), files(tmp_path, "csv"), files(tmp_path, "csv", csv_read_options={"has_header": False})]
    assert len({way.connection.identity() for way in ways}) == 3
    assert files(tmp_path).connection.identity() == files(tmp_path / "." / "").connection.identity()


@pytest.mark.parametrize("mode", ["merge", "scd2"])
def test_a_mode_that_looks_rows_up_names_the_lake_tables_that_can(mode: str, tmp_path: Path) -> None:
    place = ObjectStoreLocalConnection(name="place", path=str(tmp_path), format="parquet")
    with isolated_registry():

        class Things(ManagedTable):
            __schema__, __tablename__ = "raw", "loaded"
            id = Column(BigInt(), primary_key=True)
            v = Column(Text())

        target = {"source_connection": place, "target_connection": place, "target": Things, "mode": mode}
        pipeline = ematix.pipeline(**target)(lambda conn: "raw/things")
        with pytest.raises(UnsupportedMode, match="not possible on object_store_local") as caught:
            pipeline.preview()
    assert "(Delta, Iceberg)" in str(caught.value.fix)


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "../x", "a/b", "a\\b", "_x", ".x", "a:b", "a\x00b", "a\nb", "ü" * 200]
)
def test_names_that_cannot_be_folders_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidIdentifier):
        files(tmp_path).table_ref("raw", name)
    with pytest.raises(InvalidIdentifier):
        files(tmp_path).table_ref(name, "events")


def test_odd_but_possible_names_are_allowed(spark: SparkSession, tmp_path: Path) -> None:
    backend = files(tmp_path)
    for name in ("Ünï 😀", "a;b", "it's", 'say "x"', "select", "x" * 100, "k=v", "100%"):
        ref = backend.table_ref("s p", name)
        plan = plan_of(ID, pipeline=f"p {name}")
        plan = BatchPlan(**{**vars(plan), "table": ref})
        load(backend, ids(spark, 1), plan)
        assert numbers_at(backend, spark, ref) == [1], name
        assert rows(backend, spark, ref)[0].asDict() == {"id": 1}, name
