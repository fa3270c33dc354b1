"""What a pipeline reads and writes, table by table and column by column, and the graph that all pipelines make.

Datasets are named by the rules of OpenLineage, so that the target of one pipeline and the source of the next are the
same dataset, whatever their connections are called. A column of a target keeps its origins through `column_map=`,
markers, `merge` and `scd2`; columns that the load itself adds are marked as made here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from ematix_flow.contracts.plans import SourceQuery
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.connection_base import DatabaseFileConnection, FolderConnection, ServerUrlConnection
from ematix_flow.declare.normalizers import Derive
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.steps import DeduplicateBy, FilterWhere
from ematix_flow.declare.table import ColumnSpec, TableSpec
from ematix_flow.declare.target import STAMP_COLUMNS, TargetSpec
from ematix_flow.watch.column_lineage import How, Origin, QueryLineage, SqlTable

KINDS_OF_SQL = frozenset({"postgres", "mysql", "sqlite", "duckdb", "snowflake", "bigquery", "redshift"})
"""Kinds of connections whose SQL is their own; that of all others is Spark's."""

_REDSHIFT_HOST = re.compile(r"^([^.]+)\.[^.]+\.([^.]+)\.redshift(-serverless)?\.amazonaws\.com$")


@dataclass(frozen=True, order=True)
class Dataset:
    """A table, a folder of files or a topic, by its name in OpenLineage."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, order=True)
class FieldOrigin:
    """A column of another dataset that a column, or a whole dataset, depends on."""

    dataset: Dataset
    column: str
    how: How
    masked: bool = False

    @property
    def is_direct(self) -> bool:
        """Whether its value goes in, rather than only deciding something."""
        return self.how in ("IDENTITY", "TRANSFORMATION", "AGGREGATION")


@dataclass(frozen=True)
class LineageColumn:
    """A column of a target. `made_here` says that the load adds it."""

    name: str
    type: str
    origins: tuple[FieldOrigin, ...] = ()
    made_here: bool = False


@dataclass(frozen=True)
class Output:
    """A dataset that a pipeline writes. `influences` decide which rows come, whatever the column."""

    dataset: Dataset
    mode: str
    columns: tuple[LineageColumn, ...] = ()
    influences: tuple[FieldOrigin, ...] = ()


@dataclass(frozen=True)
class Lineage:
    """What one pipeline reads and writes. `gaps` says in words what could not be told."""

    pipeline: str
    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Output, ...] = ()
    sql: str | None = None
    dialect: str = ""
    gaps: tuple[str, ...] = ()

    def __or__(self, other: Lineage) -> Lineage:
        """Both targets of a pipeline that fans out."""
        return replace(
            self,
            inputs=tuple(dict.fromkeys([*self.inputs, *other.inputs])),
            outputs=(*self.outputs, *other.outputs),
            gaps=tuple(dict.fromkeys([*self.gaps, *other.gaps])),
        )


KnownColumns = Callable[[Dataset], Collection[str] | None]
"""What is known of a dataset's columns; None when nothing is."""


def lineage_of(
    spec: PipelineSpec,
    target: TargetSpec,
    query: SourceQuery,
    source: Connection,
    sink: Connection,
    *,
    known: KnownColumns = lambda dataset: None,
) -> Lineage:
    """The lineage of one target's load. Asks nobody: the SQL's text and the declarations are enough.

    Args:
        query: What the pipeline's function gave.
        source: Where the query runs.
        sink: Where the target is.
        known: Columns of tables, where other declarations say them.
    """
    dialect = spec.dialect or (source.kind if source.kind in KINDS_OF_SQL else "spark")
    output = Output(target_dataset(sink, target), target.mode)
    bare = replace(output, columns=tuple(column for column, _ in _columns(target)))
    if query.table is not None:
        table = SqlTable("", query.table.schema or "", query.table.name)
        return _of_table(spec, target, output, table, source, dialect)
    if query.sql is None:
        gap = f"the rows of '{spec.name}' come from a {type(query.frame).__name__} that Python made"
        return Lineage(spec.name, outputs=(bare,), gaps=(gap,))
    try:
        read = QueryLineage(query.sql, dialect, lambda table: known(table_dataset(source, table)))
    except Exception as exc:  # whatever a parser of foreign SQL raises, lineage is only a note beside the run
        gap = f"the SQL of '{spec.name}' cannot be read as {dialect}: {(str(exc).splitlines() or [''])[0]}"
        return Lineage(spec.name, outputs=(bare,), sql=query.sql, dialect=dialect, gaps=(gap,))
    return _of_query(spec, target, output, read, source, Lineage(spec.name, sql=query.sql, dialect=dialect))


def _of_table(
    spec: PipelineSpec, target: TargetSpec, output: Output, table: SqlTable, source: Connection, dialect: str
) -> Lineage:
    """A whole table is read: every column comes from the one of its name."""
    read = QueryLineage("SELECT * FROM whole_table", dialect)
    lineage = _of_query(spec, target, output, read, source, Lineage(spec.name, dialect=dialect), only=table)
    return replace(lineage, inputs=(table_dataset(source, table),))


def _of_query(
    spec: PipelineSpec,
    target: TargetSpec,
    output: Output,
    read: QueryLineage,
    source: Connection,
    lineage: Lineage,
    only: SqlTable | None = None,
) -> Lineage:
    def placed(origins: Iterable[Origin]) -> tuple[FieldOrigin, ...]:
        found = (
            FieldOrigin(table_dataset(source, only or origin.table), origin.column, origin.how, origin.masked)
            for origin in origins
        )
        return tuple(dict.fromkeys(found))

    def arriving(column: ColumnSpec) -> tuple[Origin, ...]:
        """Where a column's values come from, through its markers."""
        first = column.normalizers[0] if column.normalizers else None
        if isinstance(first, Derive):
            return read.of_expression(first.expression)
        origins = read.of(target.column_map.get(column.name, column.name))
        return tuple(origin.through("TRANSFORMATION") for origin in origins) if column.normalizers else origins

    def of(name: str) -> tuple[Origin, ...]:
        return arriving(target.table.column(name))

    columns = tuple(replace(column, origins=placed(origins)) for column, origins in _columns(target, of))
    influences: list[Origin] = [*read.influences(), *_row_decisions(spec, target, read, of)]
    output = replace(output, columns=columns, influences=placed(influences))
    gaps = [f"'{spec.name}': the SQL does not say which table '{name}' is of" for name in sorted(read.unknown - {"*"})]
    inputs = tuple(dict.fromkeys(table_dataset(source, table) for table in read.tables))
    return replace(lineage, inputs=inputs, outputs=(output,), gaps=tuple(gaps))


def _columns(
    target: TargetSpec, of: Callable[[str], tuple[Origin, ...]] = lambda name: ()
) -> Iterator[tuple[LineageColumn, tuple[Origin, ...]]]:
    """The columns of a target and their origins: those declared, and those that its mode adds."""
    for column in target.table.columns:
        yield LineageColumn(column.name, str(column.type)), of(column.name)
    if target.is_versioned:
        began = of(target.event_timestamp_column) if target.event_timestamp_column else ()
        compared = [origin for name in target.resolved_compare_columns()[0] for origin in of(name)]
        hashed = tuple(origin.through("TRANSFORMATION", masked=True) for origin in compared)
        yield LineageColumn("valid_from", "TimestampTZ", made_here=True), began
        yield (
            LineageColumn("valid_to", "TimestampTZ", made_here=True),
            tuple(origin.through("TRANSFORMATION") for origin in began),
        )
        yield LineageColumn("is_current", "Boolean", made_here=True), ()
        yield LineageColumn("row_hash", "Text", made_here=True), hashed
    for name, kind in zip(STAMP_COLUMNS, ("TimestampTZ", "Text"), strict=True) if target.stamped else ():
        yield LineageColumn(name, kind, made_here=True), ()


def _row_decisions(
    spec: PipelineSpec, target: TargetSpec, read: QueryLineage, of: Callable[[str], tuple[Origin, ...]]
) -> Iterator[Origin]:
    """What of the declaration decides about rows: keys, row steps, the watermark."""
    names: list[tuple[str, How]] = []
    if target.is_merge or target.is_versioned:
        names += [(key, "JOIN") for key in target.resolved_keys()[0]]
    if target.incremental_column is not None:
        names.append((target.incremental_column, "FILTER"))
    for step in spec.transforms_pre:
        if isinstance(step, FilterWhere):
            yield from (origin.through("FILTER") for origin in read.of_expression(step.condition))
        elif isinstance(step, DeduplicateBy):
            names += [(name, "FILTER") for name in (*step.keys, *(term.column for term in step.order_by))]
    for name, how in names:
        if name in target.table.column_names:
            yield from (origin.through(how) for origin in of(name))


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def target_dataset(connection: Connection, target: TargetSpec) -> Dataset:
    """The dataset that a target is."""
    place = target.broker.topic or target.broker.queue or target.files.prefix
    table = target.table
    return table_dataset(connection, SqlTable("", "", place) if place else _declared(connection, table))


def _declared(connection: Connection, table: TableSpec) -> SqlTable:
    has_schemas = connection.kind not in ("kafka", "rabbitmq", "pubsub", "kinesis")
    return SqlTable("", table.schema if has_schemas else "", table.name)


def table_dataset(connection: Connection, table: SqlTable) -> Dataset:
    """The dataset behind a table's name on a connection.

    Namespaces of SQLite, RabbitMQ and Kinesis are in the manner of the others: OpenLineage has none for them. A
    connection whose address is not known (a reference that is not filled in) gives a namespace by its name.
    """
    try:
        return _named(connection, table)
    except (ValueError, IndexError):
        return Dataset(f"connection://{connection.name}", str(table))


def _named(connection: Any, table: SqlTable) -> Dataset:
    kind, schema = connection.kind, table.schema
    if any(isinstance(value, str) and "${" in value for value in (getattr(connection, "url", ""),)):
        raise ValueError("not filled in")
    if isinstance(connection, ServerUrlConnection):
        address = connection.address()
        database = address.database or ""
        server = f"{kind}://{address.host or 'localhost'}:{address.port}"
        if kind == "mysql":
            return Dataset(server, f"{schema or database}.{table.name}")
        return Dataset(server, f"{table.catalog or database}.{schema or 'public'}.{table.name}")
    if isinstance(connection, DatabaseFileConnection):
        path = connection.path if connection.is_memory else os.path.realpath(connection.path)
        return Dataset(f"{kind}://{path}", f"{schema or 'main'}.{table.name}")
    if isinstance(connection, FolderConnection):
        return Dataset("file", "/".join(filter(None, (os.path.realpath(connection.path), schema, table.name))))
    if kind == "iceberg":
        inside = [part for part in (connection.prefix, schema, table.name) if part]
        if connection.bucket:
            return Dataset(f"s3://{connection.bucket}", "/".join(inside))
        return Dataset("file", "/".join((os.path.realpath(connection.warehouse), *inside)))
    return Dataset(*_elsewhere(connection, kind, table))


def _elsewhere(connection: Any, kind: str, table: SqlTable) -> tuple[str, str]:
    """Namespace and name in buckets, brokers and warehouses."""
    schema, name = table.schema, table.name
    folder = "/".join(part for part in (getattr(connection, "prefix", ""), schema, name) if part)
    if kind in ("object_store_s3", "delta_s3"):
        return f"s3://{connection.bucket}", folder
    if kind == "object_store_gcs":
        return f"gs://{connection.bucket}", folder
    if kind == "object_store_azure":
        return f"abfss://{connection.container}@{connection.place().account}.dfs.core.windows.net", folder
    if kind == "kafka":
        return f"kafka://{connection.bootstrap_servers.split(',')[0].strip()}", name
    if kind == "pubsub":
        return "pubsub", f"topic:{connection.project_id}:{name}"
    if kind == "kinesis":
        return f"kinesis://{connection.region or 'default'}", name
    if kind == "rabbitmq":
        address = urlsplit(connection.amqp_url)
        return f"amqp://{address.hostname}:{address.port or 5672}", f"{address.path.strip('/') or '/'}.{name}"
    if kind == "snowflake":
        parts = (table.catalog or connection.database, schema or connection.schema or "PUBLIC", name)
        return f"snowflake://{connection.account}", ".".join(part for part in parts if part)
    if kind == "bigquery":
        return "bigquery", ".".join((table.catalog or connection.project, schema or connection.dataset, name))
    if kind == "redshift":
        found = _REDSHIFT_HOST.match(connection.host.lower())
        host = f"{found[1]}.{found[2]}" if found else connection.host.lower()
        return f"redshift://{host}:{connection.port}", f"{connection.database}.{schema or 'public'}.{name}"
    raise ValueError(f"no names for {kind}")


# ── the graph of all pipelines ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, order=True)
class Node:
    """A dataset, or one column of it."""

    dataset: Dataset
    column: str = ""

    def key(self) -> tuple[str, str, str]:
        """Names that differ in case only are the same table."""
        return self.dataset.namespace.casefold(), self.dataset.name.casefold(), self.column.casefold()


@dataclass(frozen=True)
class Edge:
    """One dependency: what a pipeline makes of `source` in `target`."""

    source: Node
    target: Node
    pipeline: str
    how: str = ""


@dataclass(frozen=True)
class LineageGraph:
    """The dependencies of several pipelines together."""

    lineages: tuple[Lineage, ...]
    _edges: dict[bool, list[Edge]] = field(default_factory=dict, repr=False)

    def edges(self, *, columns: bool) -> list[Edge]:
        """All dependencies, between tables or between columns."""
        if columns not in self._edges:
            self._edges[columns] = list(dict.fromkeys(self._column_edges() if columns else self._table_edges()))
        return self._edges[columns]

    def datasets(self) -> tuple[Dataset, ...]:
        """Everything that is read or written, once each."""
        found: dict[tuple[str, str, str], Dataset] = {}
        for lineage in self.lineages:
            for dataset in (*(output.dataset for output in lineage.outputs), *lineage.inputs):
                found.setdefault(Node(dataset).key(), dataset)
        return tuple(found.values())

    def columns_of(self, dataset: Dataset) -> tuple[str, ...]:
        """The columns that are known of a dataset: declared ones first, then those that others read."""
        mine = Node(dataset).key()
        names: dict[str, str] = {}
        for lineage in self.lineages:
            for output in lineage.outputs:
                if Node(output.dataset).key() == mine:
                    for column in output.columns:
                        names.setdefault(column.name.casefold(), column.name)
        for edge in self.edges(columns=True):
            if Node(edge.source.dataset).key() == mine:
                names.setdefault(edge.source.column.casefold(), edge.source.column)
        return tuple(names.values())

    def upstream(self, node: Node) -> list[Edge]:
        """Every dependency that leads to a node, nearest first."""
        return self._reached(node, lambda edge: (edge.target, edge.source))

    def downstream(self, node: Node) -> list[Edge]:
        """Every dependency that starts at a node, nearest first."""
        return self._reached(node, lambda edge: (edge.source, edge.target))

    def _reached(self, node: Node, ends: Callable[[Edge], tuple[Node, Node]]) -> list[Edge]:
        by_end: dict[tuple[str, str, str], list[Edge]] = {}
        for edge in self.edges(columns=bool(node.column)):
            by_end.setdefault(ends(edge)[0].key(), []).append(edge)
        found: dict[Edge, None] = {}
        seen, waiting = {node.key()}, [node.key()]
        while waiting:
            for edge in by_end.get(waiting.pop(0), ()):
                found.setdefault(edge)
                if (following := ends(edge)[1].key()) not in seen:
                    seen.add(following)
                    waiting.append(following)
        return list(found)

    def _table_edges(self) -> Iterator[Edge]:
        for lineage in self.lineages:
            for output in lineage.outputs:
                for given in lineage.inputs:
                    yield Edge(Node(given), Node(output.dataset), lineage.pipeline, output.mode)

    def _column_edges(self) -> Iterator[Edge]:
        for lineage in self.lineages:
            for output in lineage.outputs:
                for column in output.columns:
                    for origin in column.origins:
                        source = Node(origin.dataset, origin.column)
                        yield Edge(source, Node(output.dataset, column.name), lineage.pipeline, origin.how)
