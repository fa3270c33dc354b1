"""The `ematix` object: every decorator a user writes, in one place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ematix_flow.declare import registry
from ematix_flow.declare.connection import Connection, declare_connection
from ematix_flow.declare.dependencies import refuse_cycle
from ematix_flow.declare.maintenance import Maintenance
from ematix_flow.declare.pipeline import Pipeline, TransformRef, build_spec, parameter_count
from ematix_flow.declare.registry import function_location, user_location
from ematix_flow.declare.schedule import check_schedule
from ematix_flow.declare.table import ManagedTable, declare_table
from ematix_flow.declare.target import ConnectionRef, Target
from ematix_flow.declare.transform import TransformSpec
from ematix_flow.errors import UnsupportedBackend, WrongDeclarationType, closest

if TYPE_CHECKING:
    from ematix_flow.declare.workflow import Workflow

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Ematix:
    """The decorators. Declaring starts nothing; what is declared is found again by name."""

    def connection(self, cls: type) -> Connection:
        """Declare a connection: `kind` and its fields in a class body. The class name becomes the connection."""
        return declare_connection(cls)

    def table(
        self, *, schema: str, name: str | None = None, maintenance: Maintenance | bool | None = None
    ) -> Callable[[type], type[ManagedTable]]:
        """Declare a table: annotations are columns, the class name in snake case is the table's name.

        `maintenance=` says how a lake table is looked after; True means the defaults of `Maintenance`.
        """
        frame_names = dict(sys._getframe(1).f_locals)

        def declare(cls: type) -> type[ManagedTable]:
            return declare_table(cls, schema=schema, name=name, frame_names=frame_names, maintenance=maintenance)

        return declare

    def pipeline(
        self,
        *,
        target: Any = None,
        targets: Sequence[Target] | None = None,
        schedule: str | None = None,
        mode: str | None = None,
        name: str | None = None,
        source_connection: ConnectionRef | None = None,
        target_connection: ConnectionRef | None = None,
        source_table: str | None = None,
        parallel_reads: int | None = None,
        dialect: str | None = None,
        udfs: Sequence[Any] | None = None,
        aggregate_udfs: Sequence[Any] | None = None,
        column_map: Mapping[str, str] | None = None,
        keys: Sequence[str] | None = None,
        update_columns: Sequence[str] | None = None,
        compare_columns: Sequence[str] | None = None,
        event_timestamp_column: str | None = None,
        handle_deletes: str | None = None,
        incremental_column: str | None = None,
        incremental: bool = False,
        watermark_column: str | None = None,
        on_drift: str = "evolve",
        engine: str = "auto",
        force_path: str | None = None,
        continue_on_failure: bool = False,
        continue_on_target_failure: bool | None = None,
        transforms_pre: Sequence[Any] | None = None,
        transforms_post: Sequence[Any] | None = None,
        continue_on_failure_post: bool = False,
        ttl: timedelta | float | None = None,
        ttl_seconds: float | None = None,
        late_arrivals: str = "splice",
        exact_history: bool = False,
        allow_empty_source: bool = False,
        depends_on: Any = None,
        upstream_freshness_secs: float | None = None,
        retry: Mapping[str, Any] | None = None,
        timezone: str | None = None,
        catchup: str = "none",
        max_catchup: int = 100,
        repeated_hour: str = "once",
        missing_hour: str = "shift",
        idempotent: bool | None = None,
        priority: int = 0,
        concurrency_group: str | None = None,
        expectations: Callable[..., Any] | None = None,
        on_quality_failure: str = "warn",
        freshness_sla: Any = None,
        freshness_column: str | None = None,
        alert_on_quality_warn: bool = False,
        **unknown: Any,
    ) -> Callable[[Callable[..., Any]], Pipeline]:
        """Declare a pipeline: the function gives the source, the arguments say where and how it is loaded.

        Options with two names (`incremental_column` / `watermark_column`, `ttl` / `ttl_seconds`,
        `continue_on_failure` / `continue_on_target_failure`, `engine` / `force_path`) are the same option.

        Raises:
            DeclarationError: an option is unknown to the table, out of range, or contradicts another.
        """
        options = {key: value for key, value in locals().items() if key not in ("self", "unknown")}
        for name_given in unknown:
            raise WrongDeclarationType(
                f"@ematix.pipeline has no option '{name_given}'.",
                fix=closest(name_given, options) or "see the list of options in the documentation of pipelines",
            )

        def declare(function: Callable[..., Any]) -> Pipeline:
            where = function_location(function)
            pipeline = Pipeline(build_spec(function, where, options))
            refuse_cycle(pipeline.name, pipeline.spec.depends_on, where)
            registry.current().add_pipeline(pipeline.name, pipeline, where, pipeline.spec.depends_on)
            return pipeline

        return declare

    job = pipeline

    def target(
        self,
        target_class: Any,
        *,
        mode: str,
        target_connection: ConnectionRef | None = None,
        keys: Sequence[str] | None = None,
        update_columns: Sequence[str] | None = None,
        compare_columns: Sequence[str] | None = None,
        event_timestamp_column: str | None = None,
        handle_deletes: str | None = None,
        column_map: Mapping[str, str] | None = None,
        ttl: timedelta | float | None = None,
    ) -> Target:
        """One entry of `targets=[...]`, with options of its own."""
        return Target(
            table=target_class,
            connection=target_connection,
            mode=mode,
            keys=keys,
            update_columns=update_columns,
            compare_columns=compare_columns,
            event_timestamp_column=event_timestamp_column,
            handle_deletes=handle_deletes,
            column_map=column_map,
            ttl=ttl,
        )

    def transform(
        self,
        *,
        name: str | None = None,
        target_connection: ConnectionRef | None = None,
        schedule: str | None = None,
    ) -> Callable[[_Function], _Function]:
        """Declare a named transform: `f(conn)` or `f(conn, parent)`. The function itself stays as it is."""

        def declare(function: _Function) -> _Function:
            chosen = name or function.__name__
            where = function_location(function)
            check_schedule(chosen, schedule, None)
            spec = TransformSpec(
                name=chosen,
                function=function,
                parameters=parameter_count(function, allowed=(1, 2), what="transform"),
                where=where,
                target_connection=target_connection,
                schedule=schedule,
            )
            registry.current().add_transform(chosen, spec, where)
            return function

        return declare

    def transform_ref(self, name: str) -> TransformRef:
        """A transform, or else a pipeline, by its name; looked up when it runs."""
        if not isinstance(name, str) or not name:
            raise WrongDeclarationType(f"transform_ref takes a name, not {name!r}.")
        return TransformRef(name)

    def streaming_pipeline(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        """Declare a stream."""
        from ematix_flow.declare.stream_pipeline import streaming_pipeline

        return streaming_pipeline(**options)

    def feature_view(self, **options: Any) -> Any:
        """Declare a feature view."""
        raise _not_yet("ematix.feature_view")

    def training_set(self, *arguments: Any, **options: Any) -> Any:
        """Build a training set from feature views."""
        raise _not_yet("ematix.training_set")

    def warehouse_pipeline(
        self,
        *,
        source: Any,
        target: Any,
        schedule: str | None,
        name: str | None = None,
        depends_on: Any = None,
        upstream_freshness_secs: float | None = None,
        retry: Mapping[str, Any] | None = None,
        incremental_column: str | None = None,
        watermark_store: Any = None,
        dialect: str = "spark",
    ) -> Callable[[Callable[[], str | None]], Any]:
        """Declare a pipeline between warehouses; the function gives the SQL that transforms the rows, or None."""
        from ematix_flow.declare.warehouse import warehouse_pipeline

        return warehouse_pipeline(
            source=source,
            target=target,
            schedule=schedule,
            name=name,
            depends_on=depends_on,
            upstream_freshness_secs=upstream_freshness_secs,
            retry=retry,
            incremental_column=incremental_column,
            watermark_store=watermark_store,
            dialect=dialect,
        )

    def workflow(
        self,
        *,
        name: str,
        jobs: Sequence[Any],
        triggered_by: Any = None,
        schedule: str | None = None,
        timezone: str | None = None,
        on_message: str | None = None,
        **options: Any,
    ) -> Workflow:
        """Declare a workflow: pipelines that run as one, in the order of their own dependencies.

        It runs when every condition that is given is met: each name in `triggered_by` (a pipeline, a workflow, a list
        of them, `AllOf(...)`, `AnyOf(...)`) has succeeded since the workflow last did, and its schedule has come. Or it
        runs when the topic that `on_message="connection/topic"` names has new messages, once for all that have come.
        Further keywords are those of pipelines: `catchup`, `max_catchup`, `repeated_hour`, `missing_hour`, `retry`,
        `priority`, `concurrency_group`.

        Raises:
            DeclarationError: no job, no trigger, triggers that exclude each other, or `depends_on=`.
        """
        from ematix_flow.declare.workflow import declare_workflow

        return declare_workflow(
            name=name,
            jobs=jobs,
            where=user_location(),
            triggered_by=triggered_by,
            schedule=schedule,
            timezone=timezone,
            on_message=on_message,
            **options,
        )


def _not_yet(what: str) -> UnsupportedBackend:
    return UnsupportedBackend(f"{what} is not part of this version.")


ematix = Ematix()
