"""The lineage of everything that is declared, without running or connecting to anything.

Functions are called as a preview calls them: with connections that refuse to be used. What cannot be told that way is
a gap in words, never an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ematix_flow.config.resolve import ResolvedConnection, resolve
from ematix_flow.contracts.plans import SourceQuery
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare import registry
from ematix_flow.declare.capture import captured_tables
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.pipeline import Pipeline, PipelineSpec
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.source import BatchSource
from ematix_flow.declare.stream import Lookup, Source
from ematix_flow.declare.stream_ends import LAKE_KINDS, target_table, target_table_spec
from ematix_flow.declare.stream_pipeline import StreamingPipeline
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.target import ConnectionRef, Target
from ematix_flow.declare.warehouse import WarehousePipeline
from ematix_flow.errors import FlowError
from ematix_flow.run.source_rows import Placeholder
from ematix_flow.watch.column_lineage import QueryLineage, SqlTable
from ematix_flow.watch.lineage import (
    KINDS_OF_SQL,
    Dataset,
    FieldOrigin,
    Lineage,
    LineageColumn,
    LineageGraph,
    Output,
    lineage_of,
    table_dataset,
    target_dataset,
)


def declared_lineage() -> LineageGraph:
    """What all pipelines and streams of this process read and write; bare functions do not say it beforehand."""
    declared: list[Any] = [entry.thing for entry in registry.current().pipelines()]
    pipelines = [thing.spec for thing in declared if isinstance(thing, Pipeline)]
    columns = _declared_columns(pipelines)
    found = [_of_pipeline(spec, columns) for spec in pipelines]
    found += [_of_warehouse(thing) for thing in declared if isinstance(thing, WarehousePipeline)]
    streams: list[Any] = [entry.thing for entry in registry.current().streaming_pipelines()]
    return LineageGraph((*found, *map(_of_stream, streams)))


def _of_pipeline(spec: PipelineSpec, columns: Mapping[Dataset, Collection[str]]) -> Lineage:
    try:
        query = _query(spec)
    except Exception as exc:  # the user's function may raise anything
        return Lineage(spec.name, gaps=(f"'{spec.name}' does not say its source beforehand: {_reason(exc)}",))
    if query is None:
        return Lineage(spec.name, gaps=(f"'{spec.name}' gives a result of its own, not a source",))
    source = _connection(query.connection if query.connection is not None else spec.source())
    whole: Lineage | None = None
    for target in spec.targets:
        one = lineage_of(spec, target, query, source, _connection(target.connection), known=columns.get)
        whole = one if whole is None else whole | one
    assert whole is not None
    return whole


def _query(spec: PipelineSpec) -> SourceQuery | None:
    ends = (_connection(spec.source()), _connection(spec.target.connection))
    handles = [Placeholder(ResolvedConnection(end, "given", "")) for end in ends][: spec.parameters]
    given = spec.function(*handles)
    if isinstance(given, str):
        return SourceQuery(sql=given)
    if given is None and spec.source_table is not None:
        return SourceQuery(table=TableRef(*spec.source_table.split(".")))
    if isinstance(given, BatchSource):
        there = given.connection
        connection = there.resolved.connection if isinstance(there, Placeholder) else there
        if given.query is not None:
            return SourceQuery(sql=given.query, connection=connection)
        return SourceQuery(table=TableRef(given.schema, given.table or ""), connection=connection)
    return None if given is None or isinstance(given, Mapping) else SourceQuery(frame=given)


def _of_warehouse(pipeline: WarehousePipeline) -> Lineage:
    """Without SQL in between, columns keep their names; with it, only the tables are known."""
    source, sink = _connection(pipeline.source.connection), _connection(pipeline.target.connection)
    parts = pipeline.target.table_name.split(".")
    table = SqlTable(*(["", ""] + parts)[-3:])
    output = Output(table_dataset(sink, table), "append")
    lineage = Lineage(pipeline.name, outputs=(output,), sql=pipeline.source.sql, dialect=pipeline.source.kind)
    try:
        read = QueryLineage(pipeline.source.sql, pipeline.source.kind)
        is_plain = pipeline.function() is None
    except Exception as exc:  # foreign SQL, or the user's function
        return replace(lineage, gaps=(f"'{pipeline.name}' cannot be told: {_reason(exc)}",))
    columns = tuple(
        LineageColumn(
            name,
            "",
            tuple(FieldOrigin(table_dataset(source, o.table), o.column, o.how, o.masked) for o in read.of(name)),
        )
        for name in read.names
        if is_plain and name != "*"
    )
    inputs = tuple(dict.fromkeys(table_dataset(source, table) for table in read.tables))
    return replace(lineage, inputs=inputs, outputs=(replace(output, columns=columns),))


def _of_stream(pipeline: StreamingPipeline) -> Lineage:
    try:
        return stream_lineage(pipeline.spec)
    except Exception as exc:  # a declaration is judged when its stream runs, not here
        return Lineage(pipeline.name, gaps=(f"'{pipeline.name}' cannot be told: {_reason(exc)}",))


def stream_lineage(spec: StreamSpec) -> Lineage:
    """Tables and topics of a stream; its columns where each row becomes one row: no window, no join, no change feed."""
    sources = [dataset for source in spec.sources for dataset in _stream_source(source)]
    lookups = {name: _lookup(lookup) for name, lookup in spec.lookups.items()}
    inputs = tuple(dict.fromkeys([*sources, *(dataset for tables in lookups.values() for dataset in tables)]))
    is_row_by_row = len(sources) == 1 and not (spec.window or spec.join or spec.cdc)
    read: QueryLineage | None = None
    gaps: tuple[str, ...] = ()
    if is_row_by_row:
        try:
            read = QueryLineage(spec.transform_sql or "SELECT * FROM source", spec.dialect)
        except ValueError as exc:
            gaps = (f"the SQL of '{spec.name}' cannot be read as {spec.dialect}: {exc}",)
    at = {"source": sources[0], **{name: tables[0] for name, tables in lookups.items() if len(tables) == 1}}
    outputs = tuple(_stream_output(target, read, at) for target in spec.targets)
    return Lineage(spec.name, inputs, outputs, spec.transform_sql, spec.dialect, gaps)


def _stream_source(source: Source) -> list[Dataset]:
    connection = _connection(source.connection)
    if connection.kind in ("postgres", "mysql"):
        schema = "public" if connection.kind == "postgres" else ""
        return [table_dataset(connection, SqlTable("", *table)) for table in captured_tables(source.query, schema)]
    if connection.kind == "pubsub":  # what is read is a subscription, which has a name of its own beside its topic's
        named = source.query.split("/")  # in full: projects/…/subscriptions/…
        project = named[1] if len(named) == 4 else getattr(connection, "project_id", "")
        return [Dataset("pubsub", f"subscription:{project}:{named[-1]}")]
    schema, _, table = source.query.rpartition(".") if connection.kind in LAKE_KINDS else ("", "", source.query)
    return [table_dataset(connection, SqlTable("", schema, table))]


def _lookup(lookup: Lookup) -> list[Dataset]:
    connection = _connection(lookup.connection)
    if lookup.query is not None:
        tables = QueryLineage(lookup.query, connection.kind if connection.kind in KINDS_OF_SQL else "spark").tables
        return [table_dataset(connection, table) for table in tables]
    return [table_dataset(connection, SqlTable("", lookup.schema, lookup.table or ""))]


def _stream_output(target: Target, read: QueryLineage | None, at: Mapping[str, Dataset]) -> Output:
    connection = _connection(target.connection)
    table = target_table(target)
    place = target.topic or target.queue or target.prefix or getattr(connection, "stream_name", None)
    named = SqlTable("", *table) if table and not place else SqlTable("", "", str(place))
    declared = target_table_spec(target)
    types = {column.name: str(column.type) for column in declared.columns} if declared else {}
    renamed = target.column_map or {}
    names = tuple(types) or tuple(name for name in (read.names if read else ()) if name != "*")
    columns = tuple(
        LineageColumn(name, types.get(name, ""), _placed(read, renamed.get(name, name), at) if read else ())
        for name in names
    )
    return Output(table_dataset(connection, named), target.mode or "append", columns)


def _placed(read: QueryLineage, column: str, at: Mapping[str, Dataset]) -> tuple[FieldOrigin, ...]:
    return tuple(
        FieldOrigin(at[origin.table.name], origin.column, origin.how, origin.masked)
        for origin in read.of(column)
        if origin.table.name in at
    )


def _connection(wanted: ConnectionRef | Any) -> Connection:
    """The connection as far as it is known: one that cannot be resolved here still has a name, and mostly a kind."""
    wanted = getattr(wanted, "connection", wanted)
    try:
        return resolve(wanted).connection
    except FlowError:
        if isinstance(wanted, Connection):
            return wanted
        return registry.current().connection(wanted) or Connection(name=str(wanted) or "unknown")


def _reason(exc: Exception) -> str:
    return scrub(exc.message if isinstance(exc, FlowError) else f"{type(exc).__name__}: {exc}")


def _declared_columns(pipelines: list[PipelineSpec]) -> dict[Dataset, Collection[str]]:
    """The columns of every declared target, for queries that read one of them."""
    return {
        target_dataset(_connection(target.connection), target): target.table.column_names
        for spec in pipelines
        for target in spec.targets
    }
