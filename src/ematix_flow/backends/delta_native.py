"""Delta tables without a JVM: the native engine works out rows, delta-rs reads the log and makes the commits.

Commits carry the very marks that Spark's carry, so both engines may take turns at a table. delta-rs also says which
files a version has, and the engine reads those as plain Parquet: its own reader of Delta tables takes values from the
log's statistics, which hold no exact decimals and floating-point numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ematix_flow.backends.files_native import encoded_uri, put_together
from ematix_flow.backends.files_store import require_no_pattern
from ematix_flow.backends.transport import quoted, spark_type
from ematix_flow.contracts.table_writes import MergeClause, TableChange, TableWrite
from ematix_flow.declare.columns import Timestamp
from ematix_flow.declare.instants import instant_of
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.declare.withheld import HOW_TO_SEE
from ematix_flow.errors import BackendError, InvalidSource, MissingDriver, RouteImpossible, WriteConflict

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, WriterProperties
    from pyspark.sql import DataFrame, SparkSession, types as t

_READS = frozenset({"timestampNtz"})
_WRITES = _READS | {"appendOnly", "invariants"}
_PLAIN_WRITER, _LISTS_FEATURES = 2, 7
"""Versions of the protocol for writers: the plain one, and the one that lists features. Between, they are implied."""

_EXACT_DIGITS = 15
"""More digits than these and a double, which is what delta-rs keeps statistics of decimals as, is not exact."""

_BATCH_ROWS = 32 * 1024
_TYPES = {"smallint": "short", "int": "integer", "bigint": "long"}
"""Types that the log calls by another name than SQL."""


def opened(path: str, version: int | None = None) -> DeltaTable:
    """A table, at a version or as it is now.

    Raises:
        MissingDriver: delta-rs is not installed.
        RouteImpossible: delta-rs does not know something that the table uses.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaProtocolError
    except ImportError as exc:
        raise MissingDriver(
            "Delta tables on the native engine need 'deltalake', which is not installed.",
            fix='pip install "ematix-flow[native]"',
        ) from exc
    require_no_pattern(path)
    try:
        with _explained("read"):
            return DeltaTable(path, version=version)
    except DeltaProtocolError as exc:
        raise _refused(path, "a feature that delta-rs does not know") from exc


def require_known(table: DeltaTable, *, writes: bool) -> None:
    """Refuse a table whose features delta-rs and the native engine do not both keep.

    Raises:
        RouteImpossible: there is one; it is named.
    """
    protocol = table.protocol()
    unknown = sorted({*(protocol.reader_features or ())} - _READS)
    if protocol.min_reader_version == 2:
        unknown.append("columnMapping")
    if writes:
        unknown += sorted({*(protocol.writer_features or ())} - _WRITES - set(unknown))
        if _PLAIN_WRITER < protocol.min_writer_version < _LISTS_FEATURES:
            unknown.append(f"version {protocol.min_writer_version} for writers")
    if unknown:
        raise _refused(table.table_uri, ", ".join(f"'{name}'" for name in unknown))


def _refused(path: str, what: str) -> RouteImpossible:
    return RouteImpossible(
        f"The native engine does not work with {what}, which this Delta table uses.",
        where=path.removeprefix("file://"),
        fix="engine='spark' on this pipeline, and run it in a process of its own",
    )


def columns(table: DeltaTable) -> list[tuple[str, str, bool]]:
    """The table's columns: name, type in Spark SQL, and whether they may be NULL."""
    return [(field.name, field.dataType.simpleString(), field.nullable) for field in _fields(table)]


def _fields(table: DeltaTable) -> list[t.StructField]:
    from pyspark.sql import types as t

    return list(t.StructType.fromJson(json.loads(table.schema().to_json())).fields)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def rows_of(spark: SparkSession, path: str, moment: int | str | None) -> DataFrame:
    """The rows of a table: of a version (a number), at a time (a text), or now."""
    version = _version_at(path, moment) if isinstance(moment, str) else moment
    try:
        table = opened(path, version)
    except BackendError as exc:
        if isinstance(exc, MissingDriver) or version is None:
            raise
        raise InvalidSource(
            f"This table has no version {version}, or it can no longer be read.", where=path, fix="ask for another one"
        ) from exc
    if isinstance(moment, str) and "inCommitTimestamp" in (table.protocol().writer_features or ()):
        raise _refused(path, "times that commits carry themselves")
    require_known(table, writes=False)
    return _rows_of_files(spark, table, path)


def _version_at(path: str, moment: str) -> int:
    """The version that was the newest at a time, which commits have by their files: what Spark goes by."""
    micros = round((instant_of(moment) - datetime(1970, 1, 1, tzinfo=timezone.utc)).total_seconds() * 1e6)
    found: int | None = None
    last = -1
    for file in sorted(Path(path, "_delta_log").glob("[0-9]*.json")):
        last = max(last + 1000, file.stat().st_mtime_ns // 1_000_000 * 1000)  # milliseconds, and never backwards
        if last <= micros:
            found = int(file.stem)
    if found is None:
        raise InvalidSource(
            f"There is no version of this table at {moment}: that is before the first commit of its log.",
            where=path,
            fix="ask for a later time, or for a version",
        )
    return found


def _rows_of_files(spark: SparkSession, table: DeltaTable, path: str) -> DataFrame:
    from pyspark.sql import functions as F, types as t

    columns = _fields(table)
    partitions = table.metadata().partition_columns
    # Files may call a column nullable that the table does not, which the engine would take for another type.
    in_files = t.StructType([t.StructField(f.name, f.dataType) for f in columns if f.name not in partitions])
    groups = _files_by_partition(table, path, partitions)
    if not groups:
        return spark.createDataFrame([], t.StructType(columns))
    frames = []
    for values, files in groups.items():
        given = dict(zip(partitions, values, strict=True))
        wanted = [
            F.lit(given[field.name]).cast(field.dataType).alias(field.name)
            if field.name in given
            else F.col(quoted(field.name))
            for field in columns
        ]
        frames.append(spark.read.schema(in_files).parquet(*files).select(*wanted))
    return put_together(frames)


def _files_by_partition(table: DeltaTable, path: str, partitions: Sequence[str]) -> dict[tuple[Any, ...], list[str]]:
    """The files of each partition, by its values.

    Raises:
        InvalidSource: a file is damaged or not there. The engine would read nothing in its place, without a word.
    """
    import pyarrow as pa

    actions = pa.table(table.get_add_actions(flatten=True))
    sizes = actions.column("size_bytes").to_pylist()
    values = [actions.column(f"partition.{name}").to_pylist() for name in partitions]
    groups: dict[tuple[Any, ...], list[str]] = {}
    for file, size, *key in zip(actions.column("path").to_pylist(), sizes, *values, strict=True):
        full = os.path.join(path, unquote(file))
        there = os.path.getsize(full) if os.path.isfile(full) else None
        if there != size:
            wrong = "is not there" if there is None else f"has {there} bytes, and had {size} when it was written"
            raise InvalidSource(
                f"A file of this Delta table {wrong}.", where=full, fix="restore it, or read a version without it"
            )
        groups.setdefault(tuple(key), []).append(encoded_uri(full))
    return groups


# ── the table itself ─────────────────────────────────────────────────────────────────────────────────────────────────


def change(path: str, changes: Sequence[TableChange], partition_by: Sequence[str]) -> None:
    """Create or change a table. Deletion vectors are not asked for: delta-rs does not write them."""
    from deltalake import DeltaTable
    from deltalake.schema import Schema

    for wanted in changes:
        with _explained("change"):
            if wanted.kind == "create":
                made = Schema([_field(column, nullable=column.nullable) for column in wanted.columns])
                DeltaTable.create(path, made, partition_by=list(partition_by) or None)
            elif wanted.kind == "add":
                if any(isinstance(column.type, Timestamp) for column in wanted.columns):
                    _list_features(opened(path), before_others=True)
                opened(path).alter.add_columns([_field(column, nullable=True) for column in wanted.columns])
            elif wanted.kind == "relax":
                for column in wanted.columns:
                    opened(path).alter.drop_column_not_null(column.name)
            else:
                raise _refused(path, "a wider type of a column that is there")
    with _explained("change"):
        _list_features(opened(path))  # also when a run was killed before it came to that


def _list_features(table: DeltaTable, *, before_others: bool = False) -> None:
    """Name the features that tables of the older protocol have unsaid.

    A type with a feature of its own takes a table to the protocol that lists features, where delta-rs forgets these;
    Spark does not open a table with a NOT NULL column then.

    Args:
        before_others: Go to that protocol, so that a type that is added later finds them there.
    """
    from deltalake import TableFeatures

    known = {*(table.protocol().writer_features or ())}
    listed = table.protocol().min_writer_version >= _LISTS_FEATURES
    is_wrong = listed and "invariants" not in known and not all(field.nullable for field in table.schema().fields)
    if is_wrong or (before_others and not listed):
        unsaid = [TableFeatures.AppendOnly, TableFeatures.Invariants]
        table.alter.add_feature(unsaid, allow_protocol_versions_increase=True)


def _field(column: ColumnSpec, *, nullable: bool) -> Any:
    from deltalake.schema import Field, PrimitiveType

    named = spark_type(column.type)
    return Field(column.name, PrimitiveType(_TYPES.get(named, named)), nullable=nullable)


# ── commits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def commit(
    path: str,
    version: int | None,
    write: TableWrite,
    files: Sequence[str],
    *,
    metadata: str,
    application: str,
    number: int,
) -> None:
    """Make one commit.

    Args:
        version: That of the table for which the rows were worked out: nobody may have changed it since. None for rows
            that are added whatever others do.
        files: The rows of `write`, in Parquet files.
        metadata: What marks the commit as the run's own.
        application: The pipeline's name in the table, and `number`, which grows with each of its commits.

    Raises:
        WriteConflict: somebody else committed meanwhile, or this number is taken.
    """
    from deltalake import CommitProperties, Transaction, write_deltalake

    table = opened(path, version)
    require_known(table, writes=True)
    taken = table.transaction_version(application)
    if taken is not None and taken >= number:
        raise WriteConflict(f"The table already holds commit {number} of another run.", where=path, fix="run it again")
    marked = CommitProperties(
        custom_metadata={"userMetadata": metadata},
        app_transactions=[Transaction(application, number)],
        max_commit_retries=15 if version is None else 0,
    )
    shape = _arrow_schema(table)
    with _explained("write"):
        if write.kind == "merge":
            _merge(table, write, _rows(files, _merged_shape(shape, write)), marked, _properties(shape))
        else:
            write_deltalake(
                table,
                _rows(files, shape),
                mode="append" if write.kind == "append" else "overwrite",
                writer_properties=_properties(shape),
                commit_properties=marked,
            )


def _merge(
    table: DeltaTable, write: TableWrite, rows: pa.RecordBatchReader, marked: CommitProperties, told: WriterProperties
) -> None:
    match = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in write.match)
    merger = table.merge(
        rows, match, source_alias="s", target_alias="t", writer_properties=told, commit_properties=marked
    )
    for clause in write.clauses:
        condition = _condition(write, clause)
        values = {quoted(name): f"s.{quoted(name)}" for name in clause.columns}
        if clause.kind == "delete":
            merger = merger.when_matched_delete(predicate=condition)
        elif clause.kind == "update":
            merger = merger.when_matched_update(values, predicate=condition)
        else:
            merger = merger.when_not_matched_insert(values, predicate=condition)
    merger.execute()


def _condition(write: TableWrite, clause: MergeClause) -> str | None:
    return None if clause.action is None else f"s.{quoted(write.action_column)} = '{clause.action}'"


def _arrow_schema(table: DeltaTable) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def _merged_shape(table: pa.Schema, write: TableWrite) -> pa.Schema:
    """The columns that changes need, all of which may be NULL in a change that deletes."""
    import pyarrow as pa

    written = {*write.match, *(name for clause in write.clauses for name in clause.columns)}
    return pa.schema(
        [
            *(pa.field(field.name, field.type) for field in table if field.name in written),
            pa.field(write.action_column, pa.string()),
        ]
    )


def _rows(files: Sequence[str], shape: pa.Schema) -> pa.RecordBatchReader:
    """The rows of files as a stream of that shape; a column that they do not have is NULL."""
    import pyarrow as pa
    from pyarrow import parquet

    def batches() -> Iterator[pa.RecordBatch]:
        for file in files:
            with parquet.ParquetFile(file, coerce_int96_timestamp_unit="us") as opened_file:
                for batch in opened_file.iter_batches(_BATCH_ROWS):
                    yield _fitted(batch, shape)

    return pa.RecordBatchReader.from_batches(shape, batches())


def _fitted(batch: pa.RecordBatch, shape: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    there = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in there else pa.nulls(batch.num_rows, field.type)
        for field in shape
    ]
    return pa.RecordBatch.from_arrays(columns, schema=shape)


def _properties(shape: pa.Schema) -> WriterProperties:
    """Files without statistics of columns whose statistics readers would take for more than they are.

    NaN is left out of them, though it is the greatest number to Spark, and long decimals are rounded.
    """
    import pyarrow as pa
    from deltalake import ColumnProperties, WriterProperties

    kinds = {field.name: field.type for field in shape}
    silent = [
        name
        for name, kind in kinds.items()
        if pa.types.is_floating(kind) or (pa.types.is_decimal(kind) and kind.precision > _EXACT_DIGITS)
    ]
    none = ColumnProperties(statistics_enabled="NONE")
    return WriterProperties(compression="SNAPPY", column_properties=dict.fromkeys(silent, none) or None)


@contextmanager
def _explained(doing: str) -> Iterator[None]:
    """delta-rs's errors in our words; its own texts may quote rows."""
    from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError

    try:
        yield
    except DeltaProtocolError:
        raise
    except CommitFailedError as exc:
        raise WriteConflict("Another program changed the Delta table at the same time.") from exc
    except DeltaError as exc:
        raise BackendError(
            f"delta-rs could not {doing} the Delta table.",
            fix=f"{HOW_TO_SEE}; engine='spark' may be able to do it",
        ) from exc
