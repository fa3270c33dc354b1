"""Pipelines and transforms by name: listing, running and looking at what has been declared in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ematix_flow.config.handles import ConnectionHandle
from ematix_flow.declare import registry
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.pipeline import Pipeline, PipelineSpec, as_names, checked_engine, seconds
from ematix_flow.declare.registry import caller_location, function_location
from ematix_flow.declare.schedule import check_schedule, retry_policy
from ematix_flow.declare.source import BatchSource
from ematix_flow.declare.table import table_spec
from ematix_flow.declare.target import TargetSpec, check_target
from ematix_flow.errors import UnknownName, WrongDeclarationType, closest, listed
from ematix_flow.run import preview as looking, runner
from ematix_flow.run.preview_result import PreviewResult, ValidateResult


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


class RegisteredFunction:
    """A bare function registered by name: it runs itself and returns a dict."""

    def __init__(self, name: str, function: Callable[[], Any], schedule: str | None, timezone: str | None) -> None:
        self.name, self.function, self.schedule, self.timezone = name, function, schedule, timezone
        self.__name__ = getattr(function, "__name__", name)

    def __call__(self) -> Any:
        return self.function()


def register(
    *,
    name: str,
    schedule: str | None,
    depends_on: Sequence[str] | None = None,
    upstream_freshness_secs: float | None = None,
    retry: dict[str, Any] | None = None,
    timezone: str | None = None,
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function without arguments as a pipeline. Returns the function unchanged."""
    check_schedule(name, schedule, timezone)
    retry_policy(name, retry)

    def declare(function: Callable[[], Any]) -> Callable[[], Any]:
        entry = RegisteredFunction(name, function, schedule, timezone)
        registry.current().add_pipeline(name, entry, function_location(function))
        return function

    return declare


def list_pipelines() -> list[ScheduledPipeline]:
    """Every pipeline, in the order of registration."""
    found = []
    for entry in registry.current().pipelines():
        thing: Any = entry.thing
        spec = thing.spec if isinstance(thing, Pipeline) else thing
        found.append(ScheduledPipeline(entry.name, spec.schedule, thing, spec.timezone))
    return found


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
