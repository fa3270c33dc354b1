"""What the user's function gives: called with connections that open only when used, its answer understood."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from ematix_flow.backends.frames import is_in_memory, is_spark
from ematix_flow.config.handles import ConnectionHandle, FrameMethods
from ematix_flow.config.resolve import ResolvedConnection
from ematix_flow.contracts.backend import RunsOnSpark, SpeaksSql
from ematix_flow.contracts.plans import SourceQuery
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.source import BatchSource
from ematix_flow.declare.target import ConnectionRef
from ematix_flow.errors import FlowError, InvalidSource, StepFailed, WrongSourceType
from ematix_flow.run.places import Places, reading_from


class LazyHandle(FrameMethods):
    """A connection handle that connects on first use; most functions never touch it."""

    def __init__(self, resolved: ResolvedConnection) -> None:
        self.resolved = resolved
        self._handle: ConnectionHandle | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._handle is None:
            self._handle = ConnectionHandle(self.resolved)
        return getattr(self._handle, name)

    @property
    def connection(self) -> Connection:
        """The connection as it was resolved; asking for it opens nothing."""
        return self.resolved.connection

    def __repr__(self) -> str:
        return f"<connection '{self.resolved.connection.name}'>"

    def close_if_open(self) -> None:
        """Close what was opened."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None


class Placeholder:
    """What a function gets instead of a connection while it is previewed: nothing may be asked of it."""

    def __init__(self, resolved: ResolvedConnection) -> None:
        self.resolved = resolved

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise InvalidSource(
            f"The function uses connection '{self.resolved.connection.name}' ({name}), which a preview does not open.",
            fix="use `flow dry-run`, which runs for real and rolls back",
        )


def source_of(spec: PipelineSpec, places: Places, *, preview: bool = False) -> SourceQuery | Mapping[str, Any]:
    """Call the function; its query, or the mapping it returned as its own result.

    Raises:
        StepFailed: the function raised.
        InvalidSource: it gave nothing, and no `source_table=` is declared.
        WrongSourceType: it gave something that is no source.
    """
    handles: list[Any] = []
    for resolved in (places.source_connection, places.target_connection)[: spec.parameters]:
        handles.append(Placeholder(resolved) if preview else LazyHandle(resolved))
    try:
        given = _called(spec, handles)
    finally:
        for handle in handles:
            if isinstance(handle, LazyHandle):
                handle.close_if_open()
    return understood(spec, given, places)


def understood(spec: PipelineSpec, given: Any, places: Places) -> SourceQuery | Mapping[str, Any]:
    """The function's answer as a query. A `Source` names the connection it is read from."""
    if isinstance(given, str):
        return SourceQuery(sql=given.strip().rstrip(";").rstrip())
    if isinstance(given, Mapping):
        return given
    if given is None:
        if spec.source_table is None:
            raise InvalidSource(
                f"Pipeline '{spec.name}' gave no source.",
                where=str(spec.where),
                fix='return SQL from the function, or pass source_table="schema.table"',
            )
        schema, table = spec.source_table.split(".")
        return SourceQuery(table=places.source.table_ref(schema, table))
    if isinstance(given, BatchSource):
        return _batch_source(spec, given, places)
    if is_in_memory(given) or is_spark(given):
        return SourceQuery(frame=given)
    raise WrongSourceType(
        f"Pipeline '{spec.name}' returned {type(given).__name__}.",
        where=str(spec.where),
        fix="return SQL text, a Source, a DataFrame, a dict as the result, or None with source_table=",
    )


def _batch_source(spec: PipelineSpec, given: BatchSource, places: Places) -> SourceQuery:
    if spec.transforms_pre:
        raise InvalidSource(
            f"Pipeline '{spec.name}': transforms_pre cannot go with a Source object.", fix="return the SQL text instead"
        )
    connection = _named_by(given)
    if given.query is not None:
        return SourceQuery(sql=given.query.strip().rstrip(";").rstrip(), connection=connection)
    assert given.schema is not None and given.table is not None
    with reading_from(places, SourceQuery(connection=connection), spec) as there:
        table = there.source.table_ref(given.schema, given.table)
        if given.version is not None or given.timestamp is not None:
            return SourceQuery(sql=_at_a_moment(spec, given, there), connection=connection)
        if not given.columns:
            return SourceQuery(table=table, connection=connection)
        if not isinstance(there.source, SpeaksSql):
            raise InvalidSource(f"Pipeline '{spec.name}': columns= of a Source needs a database.")
        dialect = there.source.dialect
        sql = f"SELECT {dialect.columns(given.columns)} FROM {dialect.table(table)}"
        return SourceQuery(sql=sql, connection=connection)


def _at_a_moment(spec: PipelineSpec, given: BatchSource, there: Places) -> str:
    """A lake table as it was, in Spark's words."""
    if not isinstance(there.source, RunsOnSpark):
        raise InvalidSource(
            f"Pipeline '{spec.name}': version= and timestamp= of a Source need a lake table.",
            fix=f"leave them out: tables of {there.source_connection.connection.kind} have no versions",
        )
    quoted = [
        f"`{name.replace('`', '``')}`" for name in (given.schema or "", given.table or "", *(given.columns or ()))
    ]
    moment = f"VERSION AS OF {given.version}" if given.version is not None else f"TIMESTAMP AS OF '{given.timestamp}'"
    return f"SELECT {', '.join(quoted[2:]) or '*'} FROM {quoted[0]}.{quoted[1]} {moment}"


def _named_by(given: BatchSource) -> ConnectionRef:
    """The connection a `Source` names: by name, as an instance, or as a handle."""
    there = given.connection
    if isinstance(there, Placeholder):
        return there.resolved.connection
    return there.connection if isinstance(there, FrameMethods) else there


def _called(spec: PipelineSpec, handles: list[Any]) -> Any:
    try:
        given = spec.function(*handles)
        if inspect.isawaitable(given):
            given = asyncio.run(_awaited(given))
        return given
    except FlowError as exc:
        raise exc.at(str(spec.where)) from exc
    except Exception as exc:
        raise StepFailed(
            f"The function of pipeline '{spec.name}' raised {type(exc).__name__}: {exc}", where=str(spec.where)
        ) from exc


async def _awaited(given: Any) -> Any:
    return await given
