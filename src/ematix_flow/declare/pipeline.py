"""Pipelines: what `@ematix.pipeline(...)` checks and returns. Declaring starts nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib import import_module
from typing import Any, Literal

from ematix_flow.declare.connection import Connection
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.schedule import Orchestration, orchestration
from ematix_flow.declare.sql_dialects import SqlDialect, checked_dialect
from ematix_flow.declare.steps import RowStep
from ematix_flow.declare.table import table_spec
from ematix_flow.declare.target import ConnectionRef, Target, TargetSpec, check_target
from ematix_flow.declare.udf import PythonAggregateUdfHandle, PythonScalarUdfHandle, check_udfs
from ematix_flow.errors import InvalidDeclaration, UnsupportedBackend, WrongDeclarationType, closest, listed

Engine = Literal["auto", "pushdown", "spark", "native"]
Mover = Literal["spark", "native"]
"""What moves rows that are not pushed down: Spark on a JVM, or the native engine in this process."""
OnDrift = Literal["evolve", "warn", "error"]

CLUSTER_ANSWER = (
    'in .ematix-flow.toml, [spark] master = "spark://host:7077" or remote = "sc://host:15002"; '
    "TLS is a setting of that cluster"
)
"""How the same is done that `peers`, their TLS and worker processes did."""

DEFAULT_CONNECTION = "default"
_FORCED_PATHS: dict[str, Engine] = {"same_db": "pushdown", "cross_db": "spark"}
_ENGINES = ("auto", "pushdown", "spark", "native")


@dataclass(frozen=True)
class TransformRef:
    """A reference by name to a transform, or to a pipeline, that runs after the load."""

    name: str


PostStep = str | Callable[..., Any] | TransformRef


@dataclass(frozen=True, kw_only=True)
class PipelineSpec(Orchestration):
    """A declared pipeline: every argument checked, synonyms resolved, nothing started."""

    name: str
    function: Callable[..., Any]
    parameters: int
    targets: tuple[TargetSpec, ...]
    is_fan_out: bool
    where: SourceLocation
    source_connection: ConnectionRef | None = None
    source_table: str | None = None
    parallel_reads: int | None = None
    dialect: SqlDialect | None = None
    udfs: tuple[PythonScalarUdfHandle, ...] = ()
    aggregate_udfs: tuple[PythonAggregateUdfHandle, ...] = ()
    on_drift: OnDrift = "evolve"
    engine: Engine = "auto"
    mover: Mover = "spark"
    continue_on_target_failure: bool = False
    transforms_pre: tuple[RowStep, ...] = ()
    transforms_post: tuple[PostStep, ...] = ()
    continue_on_failure_post: bool = False
    quality: Mapping[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> TargetSpec:
        """The first target; the only one unless the pipeline fans out."""
        return self.targets[0]

    def source(self) -> ConnectionRef:
        """The connection the source SQL runs on; that of the (first) target unless another was named."""
        return self.source_connection if self.source_connection is not None else self.target.connection

    @property
    def calls_python(self) -> bool:
        """Whether its SQL may call functions in Python, which Spark alone can."""
        return bool(self.udfs or self.aggregate_udfs)

    def history_name(self, target: TargetSpec) -> str:
        """The name under which watermark and history of one target are kept."""
        return f"{self.name}::{target.table}" if self.is_fan_out else self.name


class Pipeline:
    """What the decorator returns: the spec, and the ways to run it. Calling it, `.run()` and `.sync()` are the same."""

    def __init__(self, spec: PipelineSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.__name__ = spec.function.__name__
        self.__qualname__ = spec.function.__qualname__
        self.__module__ = spec.function.__module__
        self.__doc__ = spec.function.__doc__
        self.__wrapped__ = spec.function

    def __repr__(self) -> str:
        targets = ", ".join(f"{target.mode} → {target.table}" for target in self.spec.targets)
        return f"<pipeline '{self.name}': {targets}>"

    def __call__(self, **overrides: Any) -> Any:
        return self.sync(**overrides)

    def run(self, **overrides: Any) -> Any:
        """Run the pipeline now; the same as `.sync()`."""
        return self.sync(**overrides)

    def sync(
        self, *, keys: Sequence[str] | None = None, run_id: str | None = None, engine: Engine | None = None
    ) -> Any:
        """Run the pipeline now and return its result.

        Args:
            keys: match on these columns instead of the declared ones.
            run_id: the logical run; repeating a run id that has been applied changes nothing.
            engine: take this route instead of the declared one.

        Raises:
            FlowError: the load was refused or failed; the target is as it was before.
        """
        spec = self.spec
        if keys is not None:
            spec = replace(spec, targets=tuple(target.with_keys(keys) for target in spec.targets))
        if engine is not None:
            spec = replace(spec, engine=checked_engine(engine))
        return import_module("ematix_flow.run.runner").run_pipeline(spec, logical_run=run_id)

    def preview(self) -> Any:
        """What a run would do, without doing it."""
        return import_module("ematix_flow.run.preview").preview(self.spec)

    def dry_run(self) -> Any:
        """Run for real inside a transaction, count, and roll back."""
        return import_module("ematix_flow.run.preview").dry_run(self.spec)

    def validate(self) -> Any:
        """Ask the source to explain its SQL and compare columns and types with the declaration."""
        return import_module("ematix_flow.run.preview").validate(self.spec)


def checked_engine(engine: object, force_path: str | None = None) -> Engine:
    """The engine meant by `engine=` and `force_path=`; both may be given when they agree."""
    if force_path is not None and force_path not in _FORCED_PATHS:
        raise InvalidDeclaration(f"force_path must be 'same_db' or 'cross_db', not {force_path!r}.")
    if engine == "datafusion":
        engine = "auto"
    if engine == "distributed":
        raise InvalidDeclaration(
            "engine='distributed' is a setting of the project: where rows are moved is not written into a pipeline.",
            fix='engine="spark" here, and [spark] master = "spark://…" or remote = "sc://…" in .ematix-flow.toml',
        )
    if engine not in _ENGINES:
        raise InvalidDeclaration(
            f"engine must be one of {listed(_ENGINES)}, not {engine!r}.", fix=closest(str(engine), _ENGINES)
        )
    forced = _FORCED_PATHS[force_path] if force_path else engine
    if engine not in ("auto", forced):
        raise InvalidDeclaration(f"engine={engine!r} and force_path={force_path!r} contradict each other.")
    return forced  # type: ignore[return-value]  # checked against _ENGINES above


def seconds(option: str, written: object) -> timedelta:
    """A duration given as timedelta or as a number of seconds."""
    if isinstance(written, timedelta):
        return written
    if isinstance(written, int | float) and not isinstance(written, bool):
        return timedelta(seconds=written)
    raise InvalidDeclaration(f"{option} must be a timedelta or a number of seconds, not {written!r}.")


def one_of(names: tuple[str, str], first: Any, second: Any, empty: Any = None) -> Any:
    """The value of an option with two names; an error when both are given and differ."""
    if first is not empty and second is not empty and first != second:
        raise InvalidDeclaration(f"{names[0]}= and {names[1]}= are the same option; give one of them.")
    return second if first is empty else first


def parameter_count(function: Callable[..., Any], *, allowed: tuple[int, ...], what: str) -> int:
    """How many arguments the user's function takes; `TypeError` when that is not among `allowed`."""
    taken = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(taken) not in allowed:
        raise WrongDeclarationType(
            f"{what} '{function.__name__}' takes {len(taken)} arguments; allowed: {', '.join(map(str, allowed))}."
        )
    return len(taken)


def as_names(option: str, written: Any) -> tuple[str, ...] | None:
    """A sequence of column names; a single string is refused, since it would be read letter by letter."""
    if written is None:
        return None
    if isinstance(written, str) or not all(isinstance(name, str) for name in written):
        raise WrongDeclarationType(f"{option}= takes a tuple or list of column names, not {written!r}.")
    return tuple(written)


def checked_source_table(source_table: str | None) -> str | None:
    """`schema.table`, or an error."""
    if source_table is not None and (source_table.count(".") != 1 or not all(source_table.split("."))):
        raise InvalidDeclaration(f"source_table must be 'schema.table', not '{source_table}'.")
    return source_table


def checked_parallel_reads(written: object) -> int | None:
    """How many readers a source that cannot share a snapshot may have; None for one."""
    if written is not None and (type(written) is not int or not 2 <= written <= 256):
        raise InvalidDeclaration(
            f"parallel_reads must be a whole number from 2 to 256, not {written!r}.", fix="leave it out for one reader"
        )
    return written


def as_post_steps(written: Sequence[Any] | None) -> tuple[PostStep, ...]:
    """The after-load steps: SQL text, callables, references."""
    steps = tuple(written or ())
    for step in steps:
        if not (isinstance(step, str | TransformRef) or callable(step)):
            raise WrongDeclarationType(
                f"transforms_post takes SQL text, callables and ematix.transform_ref(...), not {step!r}."
            )
        if callable(step) and not isinstance(step, str | TransformRef):
            parameter_count(step, allowed=(1, 2), what="post transform")
    return steps


def as_row_steps(written: Sequence[Any] | None) -> tuple[RowStep, ...]:
    """The steps in front of the load."""
    steps = tuple(written or ())
    for step in steps:
        if not isinstance(step, RowStep):
            raise WrongDeclarationType(
                f"transforms_pre takes deduplicate_by, filter_where, limit and sample_pct, not {step!r}."
            )
    return steps


def build_spec(function: Callable[..., Any], where: SourceLocation, options: Mapping[str, Any]) -> PipelineSpec:
    """Check everything `@ematix.pipeline` was given and make the spec."""
    given = dict(options)
    name = given["name"] or function.__name__
    source_table = checked_source_table(given["source_table"])
    parameters = parameter_count(function, allowed=(0, 1, 2), what="pipeline")
    if parameters == 0 and source_table is None:
        raise WrongDeclarationType(
            f"Pipeline '{name}' takes no connection and names no source.",
            fix='give it an argument (def f(conn): return "SELECT …") or pass source_table="schema.table"',
        )
    if given["on_drift"] not in ("evolve", "warn", "error"):
        raise InvalidDeclaration(f"on_drift must be 'evolve', 'warn' or 'error', not {given['on_drift']!r}.")
    orchestrated = orchestration(name, given)
    check_udfs(given["udfs"], given["aggregate_udfs"])
    if given["expectations"] is not None or given["freshness_column"] is not None:
        # A gate that is accepted and never closes would be worse than none.
        raise UnsupportedBackend(
            f"Pipeline '{name}': expectations= and freshness_column= are not part of this version.",
            fix="check the data in a transforms_post step",
        )
    return PipelineSpec(
        name=name,
        function=function,
        parameters=parameters,
        targets=_targets(name, given),
        is_fan_out=given["targets"] is not None,
        where=where,
        source_connection=_connection_ref("source_connection", given["source_connection"]),
        source_table=source_table,
        parallel_reads=checked_parallel_reads(given["parallel_reads"]),
        dialect=None if given["dialect"] is None else checked_dialect(given["dialect"]),
        udfs=tuple(given["udfs"] or ()),
        aggregate_udfs=tuple(given["aggregate_udfs"] or ()),
        on_drift=given["on_drift"],
        engine=checked_engine(given["engine"], given["force_path"]),
        continue_on_target_failure=bool(given["continue_on_failure"] or given["continue_on_target_failure"]),
        transforms_pre=as_row_steps(given["transforms_pre"]),
        transforms_post=as_post_steps(given["transforms_post"]),
        continue_on_failure_post=given["continue_on_failure_post"],
        quality={key: given[key] for key in QUALITY_OPTIONS},
        **vars(orchestrated),
    )


QUALITY_OPTIONS = ("expectations", "on_quality_failure", "freshness_sla", "freshness_column", "alert_on_quality_warn")
_PER_TARGET = ("keys", "update_columns", "compare_columns", "event_timestamp_column", "handle_deletes", "column_map")


def _targets(name: str, given: Mapping[str, Any]) -> tuple[TargetSpec, ...]:
    if (given["target"] is None) == (given["targets"] is None):
        both = "both target= and targets=" if given["target"] is not None else "neither target= nor targets="
        raise WrongDeclarationType(f"Pipeline '{name}' has {both}.", fix="give exactly one of them")
    if given["target"] is not None:
        if given["mode"] is None:
            raise WrongDeclarationType(f"Pipeline '{name}': target= needs mode=.")
        entry = Target(table=given["target"], connection=given["target_connection"])
        return (_target_spec(name, entry, given),)
    if not given["targets"]:
        raise WrongDeclarationType(f"Pipeline '{name}': targets= is empty.")
    specs = []
    for entry in given["targets"]:
        if not isinstance(entry, Target):
            raise WrongDeclarationType(
                f"Pipeline '{name}': targets= takes Target(...) and ematix.target(...), not {entry!r}."
            )
        specs.append(_target_spec(name, entry, given))
    tables = [str(spec.table) for spec in specs]
    if len(set(tables)) < len(tables):
        raise InvalidDeclaration(f"Pipeline '{name}': targets= names the same table twice.")
    return tuple(specs)


def _target_spec(name: str, entry: Target, given: Mapping[str, Any]) -> TargetSpec:
    """One entry with the pipeline's own options as defaults."""
    if entry.primary_key is not None:
        raise InvalidDeclaration(
            f"Pipeline '{name}': primary_key= on a Target is for streams; a batch load would not look at it.",
            fix="mark the key columns of the table with pk(), or pass keys=(...)",
        )
    chosen = {key: getattr(entry, key) if getattr(entry, key) is not None else given[key] for key in _PER_TARGET}
    mode = entry.mode or given["mode"]
    if mode is None:
        raise WrongDeclarationType(
            f"Pipeline '{name}': {table_spec(entry.table)} has no mode.", fix='pass mode="append"'
        )
    ttl = one_of(("ttl", "ttl_seconds"), entry.ttl if entry.ttl is not None else given["ttl"], given["ttl_seconds"])
    incremental = one_of(
        ("incremental_column", "watermark_column"), given["incremental_column"], given["watermark_column"]
    )
    if given["incremental"] and incremental is None:
        raise InvalidDeclaration(f"Pipeline '{name}': incremental=True needs watermark_column=.")
    connection = entry.connection if entry.connection is not None else given["target_connection"]
    spec = TargetSpec(
        table=table_spec(entry.table),
        connection=_connection_ref("target_connection", connection) or DEFAULT_CONNECTION,
        mode=mode,  # type: ignore[arg-type]  # checked below
        keys=as_names("keys", chosen["keys"]),
        update_columns=as_names("update_columns", chosen["update_columns"]),
        compare_columns=as_names("compare_columns", chosen["compare_columns"]),
        event_timestamp_column=chosen["event_timestamp_column"],
        handle_deletes=chosen["handle_deletes"],
        ttl=None if ttl is None else seconds("ttl", ttl),
        column_map=dict(chosen["column_map"] or {}),
        incremental_column=incremental,
        late_arrivals=given["late_arrivals"],
        exact_history=given["exact_history"],
        allow_empty_source=given["allow_empty_source"],
        files=entry.file_options(),
        broker=entry.broker_options(),
    )
    return check_target(spec)


def _connection_ref(option: str, written: Any) -> ConnectionRef | None:
    if written is None or isinstance(written, str | Connection):
        return written
    raise WrongDeclarationType(f"{option}= takes a connection or its name, not {written!r}.")
