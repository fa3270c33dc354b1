"""Pipelines and transforms by name: listing, running and looking at what has been declared in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any, Literal, TypeVar

from ematix_flow.config.handles import ConnectionHandle
from ematix_flow.config.resolve import connection_kind
from ematix_flow.declare import registry
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.dependencies import refuse_cycle
from ematix_flow.declare.pipeline import Pipeline, PipelineSpec, as_names, checked_engine, seconds
from ematix_flow.declare.registry import Declared, caller_location, function_location
from ematix_flow.declare.schedule import Orchestration, RetryPolicy, orchestration
from ematix_flow.declare.source import BatchSource
from ematix_flow.declare.table import table_spec
from ematix_flow.declare.target import TargetSpec, check_target
from ematix_flow.declare.trigger import TriggerOp
from ematix_flow.declare.workflow import Workflow, jobs_by_workflow, topic_place
from ematix_flow.errors import FlowError, InvalidDeclaration, UnknownName, WrongDeclarationType, closest, listed
from ematix_flow.plan import cron
from ematix_flow.plan.due import DueRule
from ematix_flow.plan.graph import Graph
from ematix_flow.run import preview as looking, runner
from ematix_flow.run.preview_result import PreviewResult, ValidateResult

_Function = TypeVar("_Function", bound=Callable[[], Any])

_WITHOUT_BOOKS = ("rabbitmq", "pubsub", "kinesis")
"""Kinds of targets where what has been sent cannot be found again, so that a second run would send it twice."""


@dataclass(frozen=True)
class ScheduledPipeline:
    """A registered pipeline as the orchestrator sees it."""

    name: str
    schedule: str | None
    fn: Callable[..., Any]
    timezone: str | None = None


@dataclass(frozen=True)
class RegistryEntry:
    """One line of `flow list`."""

    name: str
    kind: str
    schedule: str | None


@dataclass(frozen=True)
class Orchestrated:
    """A pipeline, a workflow or a transform with a schedule, with everything the orchestrator needs to know of it.

    Attributes:
        due: Its schedule with what becomes of missed times; None when no clock starts it.
        upstreams: Pipelines that must have succeeded before; a workflow has `triggered_by` instead.
        freshness_s: How old their success may be.
        is_repeatable: Whether a run that was cut off may be started again without asking anybody.
        jobs: The pipelines of a workflow, upstreams first; streams are not among them, since they run all the time.
        triggered_by: What must have succeeded since the workflow last did.
        on_message: The topic whose new messages start the workflow, as `connection/topic`.
        thing: What was declared; a pipeline can be called.
    """

    name: str
    kind: Literal["pipeline", "workflow", "transform"]
    due: DueRule | None
    upstreams: tuple[str, ...]
    freshness_s: float | None
    retry: RetryPolicy
    is_repeatable: bool
    priority: int
    concurrency_group: str | None
    jobs: tuple[str, ...]
    triggered_by: TriggerOp | None
    thing: Any
    on_message: str | None = None


class RegisteredFunction:
    """A bare function registered by name: it runs itself and returns a dict."""

    def __init__(self, name: str, function: Callable[[], Any], orchestration: Orchestration) -> None:
        self.name, self.function, self.orchestration = name, function, orchestration
        self.schedule, self.timezone = orchestration.schedule, orchestration.timezone
        self.__name__ = getattr(function, "__name__", name)

    def __call__(self) -> Any:
        return self.function()


def register(
    *,
    name: str,
    schedule: str | None,
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
) -> Callable[[_Function], _Function]:
    """Register a function without arguments as a pipeline. Returns the function unchanged.

    Nobody but its author knows whether such a function may be repeated after a crash: `idempotent=True` says so.

    Raises:
        DeclarationError: an option is wrong, or the pipeline would wait for itself. Nothing is registered then.
    """
    orchestrated = orchestration(name, locals())

    def declare(function: _Function) -> _Function:
        where = function_location(function)
        refuse_cycle(name, orchestrated.depends_on, where)
        entry = RegisteredFunction(name, function, orchestrated)
        registry.current().add_pipeline(name, entry, where, orchestrated.depends_on)
        return function

    return declare


def list_pipelines() -> list[ScheduledPipeline]:
    """Every pipeline, in the order of registration."""
    found = []
    for entry in registry.current().pipelines():
        thing: Any = entry.thing
        declared = _orchestration(thing)
        found.append(ScheduledPipeline(entry.name, declared.schedule, thing, declared.timezone))
    return found


def orchestrated() -> tuple[Orchestrated, ...]:
    """Every pipeline, every workflow and every transform with a schedule, in this order, each as declared.

    Raises:
        InvalidDeclaration: (a ValueError) a transform with a schedule has the name of one of the others.
    """
    pipelines = [_orchestrated(entry, "pipeline") for entry in registry.current().pipelines()]
    repeatable = {entry.name for entry in pipelines if entry.is_repeatable}
    graph = Graph({entry.name: entry.upstreams for entry in pipelines})
    members = jobs_by_workflow()
    return (
        *pipelines,
        *(
            _orchestrated_workflow(entry, graph.order(job for job in members[entry.name] if job in graph), repeatable)
            for entry in registry.current().workflows()
        ),
        *_scheduled_transforms(),
    )


def _scheduled_transforms() -> Iterator[Orchestrated]:
    declared = registry.current()
    for entry in declared.transforms():
        if _orchestration(entry.thing).schedule is None:
            continue
        other = declared.pipeline(entry.name) or declared.workflow(entry.name)
        if other is not None:  # their runs would be each other's in the run log
            raise InvalidDeclaration(
                f"'{entry.name}' is a transform with a schedule, and something else of that name is run, too.",
                where=f"{entry.where} and {other.where}",
                fix="give one of them another name",
            )
        yield _orchestrated(entry, "transform")


def depends_on_of(name: str) -> tuple[str, ...]:
    """The names a pipeline waits for. KeyError for an unknown one."""
    return _orchestration(get_pipeline(name)).depends_on


def upstream_freshness_secs_of(name: str) -> float | None:
    """How old the success of its upstreams may be. KeyError for an unknown one."""
    return _orchestration(get_pipeline(name)).upstream_freshness_secs


def retry_policy_of(name: str) -> RetryPolicy:
    """How it is tried again. KeyError for an unknown one."""
    return _orchestration(get_pipeline(name)).retry


def order_for_run_due(names: Iterable[str]) -> list[str]:
    """Some pipelines so that upstreams come first; the given order is kept where nothing speaks against it."""
    return list(Graph(registry.current().upstreams()).order(names))


def forecast_next_run(
    schedule: str | None, *, now: datetime | None = None, timezone: str | tzinfo | None = None
) -> datetime | None:
    """The first fire time later than `now` (this moment without it), in UTC; None without a schedule."""
    return cron.forecast_next_run(schedule, now=now or datetime.now(cron.UTC), timezone=timezone)


def list_transforms() -> list[RegistryEntry]:
    """Every transform, by name."""
    entries = registry.current().transforms()
    return sorted(
        (RegistryEntry(e.name, "transform", getattr(e.thing, "schedule", None)) for e in entries), key=lambda e: e.name
    )


def list_entries() -> list[RegistryEntry]:
    """Pipelines and transforms, by name."""
    pipelines = [RegistryEntry(p.name, "pipeline", p.schedule) for p in list_pipelines()]
    return sorted([*pipelines, *list_transforms()], key=lambda entry: entry.name)


def list_feature_views() -> list[str]:
    """The registered feature views."""
    return [entry.name for entry in registry.current().feature_views()]


def get_pipeline(name: str) -> Any:
    """The pipeline of that name.

    Raises:
        UnknownName: (a KeyError) nothing is registered under it.
    """
    found = registry.current().pipeline(name)
    if found is None:
        known = [entry.name for entry in registry.current().pipelines()]
        raise UnknownName(f"No pipeline is named '{name}'.", fix=closest(name, known) or f"known: {listed(known)}")
    return found.thing


def run_pipeline(name: str) -> Any:
    """Run a registered pipeline and return its result."""
    return get_pipeline(name)()


def preview(name: str) -> PreviewResult:
    """What a run of the named pipeline would do."""
    return looking.preview(_decorated(name))


def dry_run(name: str) -> PreviewResult:
    """Run the named pipeline inside transactions that are rolled back."""
    return looking.dry_run(_decorated(name))


def validate(name: str) -> ValidateResult:
    """Ask the source of the named pipeline whether its SQL and columns fit."""
    return looking.validate(_decorated(name))


def sync(
    *,
    target: Any,
    source: Any,
    target_connection: Any,
    mode: str = "append",
    pipeline_name: str | None = None,
    on_drift: str = "evolve",
    keys: Sequence[str] | None = None,
    update_columns: Sequence[str] | None = None,
    compare_columns: Sequence[str] | None = None,
    force_path: str | None = None,
    incremental_column: str | None = None,
    handle_deletes: str | None = None,
    event_timestamp_column: str | None = None,
    ttl: timedelta | float | None = None,
    dry_run: bool = False,
) -> Any:
    """Load once, without declaring a pipeline: `source` is SQL text or a `Source`, connections may be open handles."""
    table = table_spec(target)
    spec = TargetSpec(
        table=table,
        connection=_connection(target_connection),
        mode=mode,  # type: ignore[arg-type]  # checked by check_target
        keys=as_names("keys", keys),
        update_columns=as_names("update_columns", update_columns),
        compare_columns=as_names("compare_columns", compare_columns),
        event_timestamp_column=event_timestamp_column,
        handle_deletes=handle_deletes,  # type: ignore[arg-type]
        ttl=None if ttl is None else seconds("ttl", ttl),
        incremental_column=incremental_column,
    )
    origin = (
        _connection(source.connection) if isinstance(source, BatchSource) and source.connection is not None else None
    )
    pipeline = PipelineSpec(
        name=pipeline_name or f"sync:{table}",
        function=lambda _conn: source,
        parameters=1,
        targets=(check_target(spec),),
        is_fan_out=False,
        where=caller_location(1),
        source_connection=origin,
        on_drift=on_drift,  # type: ignore[arg-type]
        engine=checked_engine("auto", force_path),
    )
    return looking.dry_run(pipeline) if dry_run else runner.run_pipeline(pipeline)


def _orchestration(thing: Any) -> Orchestration:
    """A declared pipeline is one itself; everything else that is registered has one."""
    found: Orchestration = thing.spec if isinstance(thing, Pipeline) else thing.orchestration
    return found


def _due_rule(declared: Orchestration) -> DueRule | None:
    if declared.schedule is None:
        return None
    schedule = cron.Schedule(
        declared.schedule, declared.timezone, repeated_hour=declared.repeated_hour, missing_hour=declared.missing_hour
    )
    return DueRule(schedule, catchup=declared.catchup, max_catchup=declared.max_catchup)


def _orchestrated(entry: Declared, kind: Literal["pipeline", "transform"]) -> Orchestrated:
    declared = _orchestration(entry.thing)
    return Orchestrated(
        name=entry.name,
        kind=kind,
        due=_due_rule(declared),
        upstreams=declared.depends_on,
        freshness_s=declared.upstream_freshness_secs,
        retry=declared.retry,
        is_repeatable=_is_repeatable(declared),
        priority=declared.priority,
        concurrency_group=declared.concurrency_group,
        jobs=(),
        triggered_by=None,
        thing=entry.thing,
    )


def _is_repeatable(declared: Orchestration) -> bool:
    """What its author says; else every load may be repeated into targets that know which logical runs they hold.

    There, a run is applied once however often it is started. Of a bare function nothing is known.
    """
    if declared.idempotent is not None or not isinstance(declared, PipelineSpec):
        return bool(declared.idempotent)
    try:
        return not any(connection_kind(target.connection) in _WITHOUT_BOOKS for target in declared.targets)
    except FlowError:  # where it goes cannot be told; whoever runs it hears why
        return False


def _orchestrated_workflow(entry: Declared, jobs: tuple[str, ...], repeatable: set[str]) -> Orchestrated:
    workflow = entry.thing
    assert isinstance(workflow, Workflow)
    if workflow.on_message is not None:
        _check_topic(workflow)
    follows = all(job in repeatable for job in jobs)
    return Orchestrated(
        name=entry.name,
        kind="workflow",
        due=_due_rule(workflow),
        upstreams=(),
        freshness_s=None,
        retry=workflow.retry,
        is_repeatable=follows if workflow.idempotent is None else workflow.idempotent,
        priority=workflow.priority,
        concurrency_group=workflow.concurrency_group,
        jobs=jobs,
        triggered_by=workflow.triggered_by,
        thing=workflow,
        on_message=workflow.on_message,
    )


def _check_topic(workflow: Workflow) -> None:
    """Of other brokers nobody can be asked how far a topic has come without taking its messages."""
    connection, _ = topic_place(workflow.on_message or "")
    try:
        kind = connection_kind(connection)
    except FlowError:  # whoever looks at the topic says why
        return
    if kind not in (None, "kafka"):
        raise InvalidDeclaration(
            f"Workflow '{workflow.name}': on_message= looks at topics of Kafka, and connection '{connection}' is of "
            f"kind '{kind}'.",
            where=str(workflow.where),
            fix="name a connection of kind 'kafka'; of other brokers a stream loads the messages, or whoever receives "
            f'one asks for a run: enqueue_run("{workflow.name}") of the run log',
        )


def _connection(given: Any) -> str | Connection:
    if isinstance(given, ConnectionHandle):
        return given.connection
    if isinstance(given, str | Connection):
        return given
    raise WrongDeclarationType(f"A connection, its name or an open handle is needed, not {given!r}.")


def _decorated(name: str) -> PipelineSpec:
    thing = get_pipeline(name)
    if not isinstance(thing, Pipeline):
        raise WrongDeclarationType(
            f"Pipeline '{name}' is a bare function; there is nothing to look at before it runs.",
            fix="declare it with @ematix.pipeline(...)",
        )
    return thing.spec
