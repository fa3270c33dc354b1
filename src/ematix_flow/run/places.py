"""A pipeline's connections, resolved and opened: where rows come from, where they go, and what is known of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.config.resolve import ResolvedConnection, resolve
from ematix_flow.config.spark_place import spark_settings
from ematix_flow.contracts.backend import Backend, KeepsBooks, RunsOnSpark, Settles, SpeaksSql
from ematix_flow.contracts.maintenance import Maintains, TableMaintenance
from ematix_flow.contracts.plans import SourceQuery
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare import registry
from ematix_flow.declare.pipeline import Mover, PipelineSpec, PostStep, TransformRef
from ematix_flow.declare.table import TableSpec
from ematix_flow.declare.target import TargetSpec
from ematix_flow.declare.transform import TransformSpec
from ematix_flow.errors import FlowError, InvalidPlan, MissingDriver, UnsupportedBackend
from ematix_flow.plan.batch import SourceSide, TargetSide, describable, user_sql_probe
from ematix_flow.plan.history import events_table
from ematix_flow.run.queried_in_spark import QueriedInSpark, refuse_native

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Places:
    """Both ends of one load. Nothing has connected yet."""

    source_name: str
    source_connection: ResolvedConnection
    source: Backend
    target_connection: ResolvedConnection
    target: Backend
    table: TableRef

    @property
    def is_same_place(self) -> bool:
        """Same server, port, database and user on both ends."""
        return self.source_connection.connection.identity() == self.target_connection.connection.identity()

    def books(self) -> KeepsBooks:
        """The target as the keeper of its own books.

        Raises:
            UnsupportedBackend: it cannot be the target of a load.
        """
        if not isinstance(self.target, KeepsBooks):
            raise UnsupportedBackend(f"{self.target_connection.connection.kind} cannot be the target of a load.")
        return self.target

    def source_side(self, query: SourceQuery, target: TargetSpec | None = None) -> SourceSide:
        """The source as the planner wants it: described, when it speaks SQL."""
        if query.frame is None and not self.source.capabilities.reads:
            raise UnsupportedBackend(
                f"'{self.source_name}' ({self.source_connection.connection.kind}) cannot be the source of a batch "
                "pipeline.",
                fix="name another source with source_connection=",
            )
        if query.frame is not None or not isinstance(self.source, SpeaksSql):
            if query.frame is not None:
                return SourceSide(query)
            kind = self.source_connection.connection.kind
            return SourceSide(
                query,
                kind=kind,
                file_format=getattr(self.source, "file_format", None),
                spark_dialect=self.source.spark_dialect if isinstance(self.source, QueriedInSpark) else "spark",
            )
        dialect = self.source.dialect
        shapes = self.source.describe_query(describable(query, target, dialect))
        side = SourceSide(query, dialect, shapes, kind=self.source_connection.connection.kind)
        probe = user_sql_probe(target, side) if target is not None else None
        if probe is None:
            return side
        return replace(side, user_sql_types={shape.name: shape.type for shape in self.source.describe_query(probe)})

    def target_side(self, target: TargetSpec, *, describe: bool = True) -> TargetSide:
        """The target as the planner wants it."""
        settles = isinstance(self.target, Settles)
        live = self.target.describe(self.table) if describe else None
        with_events = describe and settles and target.exact_history
        return TargetSide(
            table=self.table,
            modes=self.target.capabilities.modes,
            kind=self.target_connection.connection.kind,
            dialect=self.target.dialect if isinstance(self.target, Settles) else None,
            live=live,
            live_events=self.target.describe(events_table(self.table)) if with_events else None,
            is_same_place=self.is_same_place,
            file_format=getattr(self.target, "file_format", None),
        )


@contextmanager
def opened(spec: PipelineSpec, target: TargetSpec) -> Iterator[Places]:
    """Resolve and open both ends of one load; closes them again."""
    where = str(spec.where)
    target_connection = resolve(target.connection, where=where)
    source_connection = resolve(spec.source(), where=where)
    sink = open_backend(target_connection.connection)
    sink.check_target(target)
    if target.table.maintenance is not None:
        maintenance_of(sink, target.table)
    if spec.transforms_post:
        _require_sql_for_steps(spec, sink if target is spec.targets[-1] else None)
    same = source_connection.connection.identity() == target_connection.connection.identity()
    source = sink if same and type(source_connection.connection) is type(target_connection.connection) else None
    source = source or open_backend(source_connection.connection)
    lend_spark(source, sink, engine=_mover_of(spec))
    try:
        yield Places(
            source_name=source_connection.connection.name,
            source_connection=source_connection,
            source=source,
            target_connection=target_connection,
            target=sink,
            table=sink.target_ref(target),
        )
    finally:
        for backend in {id(source): source, id(sink): sink}.values():
            backend.close()


def _require_sql_for_steps(spec: PipelineSpec, sink: Backend | None) -> None:
    """Refuse after-load steps that want SQL where none is spoken, before the rows they would follow are loaded.

    They run where the last target is. `sink` is that target; None to look for it, when an earlier one is opened.
    """
    if sink is None:
        with suppress(FlowError):  # a target that cannot be had says so in its own turn
            sink = open_backend(resolve(spec.targets[-1].connection, where=str(spec.where)).connection)
    if sink is None or isinstance(sink, SqlBackend):
        return
    for index, step in enumerate(spec.transforms_post):
        what = _step_on_target(step)
        if what is not None:
            raise InvalidPlan(
                f"transforms_post[{index}] of '{spec.name}' is {what}, and '{sink.connection.name}' "
                f"({sink.connection.kind}) runs no SQL steps after a load.",
                where=str(spec.where),
                fix="make the step a pipeline of its own that reads the table; ematix.transform_ref(…) may name it",
            )


def _step_on_target(step: PostStep) -> str | None:
    """What a step is that is run through a SQL connection to the target; None when it does without one."""
    if isinstance(step, str):
        return "SQL"
    if not isinstance(step, TransformRef):
        return "a function that is given a SQL connection"
    found = registry.current().transform(step.name)
    uses_target = found is not None and isinstance(found.thing, TransformSpec) and found.thing.target_connection is None
    return f"the transform '{step.name}', which is given a SQL connection" if uses_target else None


@contextmanager
def reading_from(places: Places, query: SourceQuery, spec: PipelineSpec) -> Iterator[Places]:
    """The same places, with the source that a query names for itself; SQL that calls Python is run over its tables."""
    with _reading_from(places, query, spec) as there:
        if query.sql is None or not spec.calls_python:
            yield there
        else:
            refuse_native(spec, _mover_of(spec))
            yield replace(there, source=QueriedInSpark(there.source, spec))


@contextmanager
def _reading_from(places: Places, query: SourceQuery, spec: PipelineSpec) -> Iterator[Places]:
    if query.connection is None:
        yield places
        return
    resolved = resolve(query.connection, where=str(spec.where))
    for known in (places.source_connection, places.target_connection):
        if known.connection.identity() == resolved.connection.identity():
            backend = places.source if known is places.source_connection else places.target
            yield replace(places, source_name=resolved.connection.name, source_connection=known, source=backend)
            return
    backend = open_backend(resolved.connection)
    lend_spark(backend, places.target, engine=_mover_of(spec))
    try:
        yield replace(places, source_name=resolved.connection.name, source_connection=resolved, source=backend)
    finally:
        backend.close()


@contextmanager
def needing_spark(why: str) -> Iterator[None]:
    """Import the engine room inside: a package that is not installed is one error, `why` says what it is needed for."""
    try:
        yield
    except ImportError as exc:
        if (exc.name or "").startswith("ematix_flow"):
            raise
        raise MissingDriver(
            f"{why} and needs '{exc.name or 'pyspark'}'.", fix='pip install "ematix-flow[spark]"'
        ) from exc


def _mover_of(spec: PipelineSpec) -> Mover:
    """What moves the rows of a pipeline, if they are moved."""
    if spec.engine == "auto":
        return spec.mover
    return "native" if spec.engine == "native" else "spark"


def lend_spark(*backends: Backend, engine: Mover | None = None) -> None:
    """Let systems that Spark works for have the session, with what all of them need; it starts when one asks.

    Args:
        engine: Whose session that is; the project's when nothing is said.
    """
    engine = engine or spark_settings().engine

    def session() -> SparkSession:
        from ematix_flow.spark.session import open_session

        needs = SessionNeeds()
        for backend in backends:
            needs = needs | backend.needs
        return open_session(needs, replace(spark_settings(), engine=engine))

    for backend in backends:
        if isinstance(backend, RunsOnSpark):
            backend.use_spark(session, native=engine == "native")


def maintenance_of(backend: Backend, table: TableSpec) -> TableMaintenance:
    """Who looks after a table.

    Raises:
        InvalidPlan: there is nothing to be looked after, because it is no lake table.
    """
    if not isinstance(backend, Maintains):
        raise InvalidPlan(
            f"Only lake tables (Delta, Iceberg) are maintained, and {table} is in '{backend.connection.name}' "
            f"({backend.connection.kind}).",
            fix="leave maintenance= out, or keep the table in a lake",
        )
    return backend.maintenance()


def connection_info(resolved: ResolvedConnection) -> dict[str, Any]:
    """A connection for people: kind, where it was found, and its address without secrets."""
    connection = resolved.connection
    return {"kind": connection.kind, "origin": resolved.origin, "address": connection.display()}
