"""Streams as declarations: `@ematix.streaming_pipeline(...)` keeps its arguments under a name, and runs by it.

The arguments are kept as they were given, so that a module can be imported and its streams listed whatever one of them
says. They become a `StreamSpec`, checked as a whole, when the stream is run, rendered or looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from importlib import import_module
from os import PathLike
from typing import Any

from ematix_flow.declare import registry
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.pipeline import parameter_count
from ematix_flow.declare.registry import SourceLocation, function_location, user_location
from ematix_flow.declare.stream import Source
from ematix_flow.declare.stream_ends import check_target_end, fitted_target
from ematix_flow.declare.stream_spec import StreamSpec as StreamSpec, unknown_option
from ematix_flow.declare.table import TableSpec
from ematix_flow.declare.target import Target
from ematix_flow.errors import (
    ConfigError,
    DeclarationError,
    InvalidDeclaration,
    UnknownName,
    WrongDeclarationType,
    closest,
    listed,
)

_SPEC_OPTIONS = tuple(
    field.name for field in fields(StreamSpec) if field.name not in ("where", "sources", "targets", "peers", "tls")
)
_TARGET_OPTIONS = (
    "table",
    "topic",
    "queue",
    "partition_key_prefix",
    "prefix",
    "message_key_column",
    "partition_by",
    "primary_key",
)
STREAM_OPTIONS = (
    *("name", "source", "source_query", "sources", "target", "target_connection"),
    *(f"target_{option}" for option in _TARGET_OPTIONS),
    "targets",
    *(option for option in _SPEC_OPTIONS if option != "name"),
)
"""Every keyword that describes a stream; `run_streaming_pipeline` and the decorator take the same."""

RUN_OPTIONS = ("once", "max_batches", "run_log_url")
"""What `run_streaming_pipeline` and `.run()` take beside: not part of the stream, but of one run of it."""


class StreamingPipeline:
    """What the decorator returns: the declaration. Calling it, or `.run()`, runs the stream."""

    def __init__(
        self, options: Mapping[str, Any], where: SourceLocation, function: Callable[..., Any] | None = None
    ) -> None:
        self.name: str = options["name"]
        self.options = dict(options)
        self.where = where
        if function is not None:
            self.__name__ = function.__name__
            self.__qualname__ = function.__qualname__
            self.__module__ = function.__module__
            self.__doc__ = function.__doc__
            self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<streaming pipeline '{self.name}'>"

    def __call__(self) -> dict[str, Any]:
        return self.run()

    @cached_property
    def spec(self) -> StreamSpec:
        """The stream as data.

        Raises:
            DeclarationError: an argument is wrong, or two do not go together.
        """
        return stream_spec(self.options, self.where)

    def run(
        self,
        *,
        metrics_port: int | None = None,
        run_log_url: str | None = None,
        once: bool = False,
        max_batches: int | None = None,
    ) -> dict[str, Any]:
        """Run the stream until it is stopped.

        Args:
            metrics_port: Where to serve metrics, instead of the declared port.
            run_log_url: Run log, instead of the configured one.
            once: Process what is there, then stop.
            max_batches: Stop after so many batches.

        Returns:
            `{"total_rows": …, "iterations": …, "shutdown_triggered": …}`.

        Raises:
            DeclarationError: The declaration is wrong; nothing was connected.
            FlowError: The stream could not start or go on.
        """
        return _run(self.spec, metrics_port=metrics_port, run_log_url=run_log_url, once=once, max_batches=max_batches)


def streaming_pipeline(**options: Any) -> Callable[[Callable[..., Any]], StreamingPipeline]:
    """Declare a stream: the keywords of `run_streaming_pipeline` that describe it, over a function without arguments.

    Arguments are kept as given; they are held against each other when the stream is run.

    Raises:
        WrongDeclarationType: (a TypeError) a keyword that does not exist, no name, or a function with arguments.
        DuplicateName: (a ValueError) another place declares a stream of this name.
    """
    known = _known_options("@ematix.streaming_pipeline", options, STREAM_OPTIONS)

    def declare(function: Callable[..., Any]) -> StreamingPipeline:
        parameter_count(function, allowed=(0,), what="streaming pipeline")
        where = function_location(function)
        pipeline = StreamingPipeline(known, where, function)
        registry.current().add_streaming_pipeline(pipeline.name, pipeline, where)
        return pipeline

    return declare


def run_streaming_pipeline(**options: Any) -> dict[str, Any]:
    """Run a stream that is declared by the call itself, until it is stopped; nothing is registered.

    Raises:
        DeclarationError: A keyword does not exist, or the arguments are wrong; nothing was connected.
        FlowError: The stream could not start or go on.
    """
    known = _known_options("run_streaming_pipeline", options, (*STREAM_OPTIONS, *RUN_OPTIONS))
    how = {option: known.pop(option) for option in RUN_OPTIONS if known.get(option) is not None}
    for option in RUN_OPTIONS:
        known.pop(option, None)
    return StreamingPipeline(known, user_location("run_streaming_pipeline")).run(**how)


def run_pipeline(
    config: str | PathLike[str] | None = None,
    *,
    config_str: str | None = None,
    metrics_port: int | None = None,
    pipeline_name: str | None = None,
    run_log_url: str | None = None,
    once: bool = False,
    max_batches: int | None = None,
    udfs: Sequence[Any] | None = None,
    aggregate_udfs: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """Run the stream that a TOML file, or TOML text, describes, until it is stopped.

    Args:
        config: Path of the file.
        config_str: The text itself, instead of a file.
        metrics_port: Where to serve metrics while it runs.
        pipeline_name: Name for the run log, instead of the one in the file.
        run_log_url: Run log, instead of the configured one.
        once: Process what is there, then stop.
        max_batches: Stop after so many batches.
        udfs: Functions that its SQL may call, which TOML cannot hold.
        aggregate_udfs: Aggregates that its SQL may call.

    Raises:
        InvalidDeclaration: (a ValueError) not exactly one of `config` and `config_str`.
        WrongDeclarationType: (a TypeError) one of them is no path, or no text.
        InvalidConfig: (a ValueError) the file cannot be read, is not TOML, or says something unknown.
        FlowError: The stream could not start or go on.
    """
    if (config is None) == (config_str is None):
        raise InvalidDeclaration("run_pipeline takes exactly one of config= and config_str=.")
    if not isinstance(config, str | PathLike | None):
        raise WrongDeclarationType(f"config= takes the path of a file, not {type(config).__name__}.")
    if not isinstance(config_str, str | None):
        raise WrongDeclarationType(f"config_str= takes a TOML document as text, not {type(config_str).__name__}.")
    reader = import_module("ematix_flow.config.stream_toml")
    spec = reader.read_stream_file(config) if config is not None else reader.read_stream_toml(config_str)
    if udfs or aggregate_udfs:
        spec = replace(spec, udfs=tuple(udfs or ()), aggregate_udfs=tuple(aggregate_udfs or ()))
    return _run(
        spec,
        metrics_port=metrics_port,
        run_log_url=run_log_url,
        pipeline_name=pipeline_name,
        once=once,
        max_batches=max_batches,
    )


def _run(spec: StreamSpec, **how: Any) -> dict[str, Any]:
    import_module("ematix_flow.config.stream_ready").check_stream(spec)
    result: dict[str, Any] = import_module("ematix_flow.run.streams").run_stream(spec, **how)
    return result


# ── streams by name ──────────────────────────────────────────────────────────────────────────────────────────────────


def register_streaming_pipeline(name: str, captured: StreamingPipeline | Mapping[str, Any]) -> None:
    """Register a stream without the decorator: the arguments it would have been given.

    Raises:
        DuplicateName: (a ValueError) another place declares a stream of this name.
    """
    if not isinstance(captured, StreamingPipeline):
        known = _known_options("register_streaming_pipeline", {**captured, "name": name}, STREAM_OPTIONS)
        captured = StreamingPipeline(known, user_location())
    registry.current().add_streaming_pipeline(name, captured, captured.where)


def get_streaming_pipeline(name: str) -> StreamingPipeline | None:
    """The stream of this name, or None."""
    found = registry.current().streaming_pipeline(name)
    return found.thing if found is not None and isinstance(found.thing, StreamingPipeline) else None


def list_streaming_pipelines() -> list[str]:
    """The names of all streams, sorted."""
    return sorted(entry.name for entry in registry.current().streaming_pipelines())


def render_streaming_pipeline_toml(name: str) -> str:
    """The TOML document that says the same as a declared stream, with its `${…}` references as references.

    Raises:
        UnknownName: (a KeyError) no such stream.
        MissingSecret: (a KeyError) a reference cannot be filled in.
        DeclarationError: the declaration is wrong, or a reference is filled in with nothing.
    """
    pipeline = get_streaming_pipeline(name)
    if pipeline is None:
        known = list_streaming_pipelines()
        raise UnknownName(
            f"No streaming pipeline is named '{name}'.", fix=closest(name, known) or f"declared are: {listed(known)}"
        )
    rendered: str = import_module("ematix_flow.config.stream_render").render(pipeline.spec)
    return rendered


# ── from keywords to a spec ──────────────────────────────────────────────────────────────────────────────────────────


def stream_spec(options: Mapping[str, Any], where: SourceLocation) -> StreamSpec:
    """The spec that keywords describe. What is None is left to its default.

    Raises:
        DeclarationError: the built-in class is ValueError or TypeError.
    """
    given = {key: value for key, value in options.items() if value is not None}
    try:
        sources, targets = _sources(given), _targets(given)
    except (DeclarationError, ConfigError) as exc:
        exc.message = f"Stream '{given.get('name')}': {exc.message}"
        exc.at(str(where))
        raise
    plain = {option: given[option] for option in _SPEC_OPTIONS if option in given}
    return StreamSpec(where=where, sources=sources, targets=targets, **plain)


def _sources(given: Mapping[str, Any]) -> tuple[Source, ...]:
    source, query, sources = (given.get(key) for key in ("source", "source_query", "sources"))
    if sources is not None:
        if source is not None or query is not None:
            raise InvalidDeclaration(
                "sources= cannot go with source= and source_query=.", fix="give one of the two forms"
            )
        if isinstance(sources, (str, Mapping, Source)):
            raise WrongDeclarationType(f"sources= takes a list of Source(...) values, not {type(sources).__name__}.")
        if not sources:
            raise InvalidDeclaration("sources= is empty.", fix="give at least one Source(connection=…, query=…)")
        return tuple(sources)
    if source is None or query is None:
        raise InvalidDeclaration(
            "source= and source_query= are needed together.", fix="or give sources=[Source(...), …]"
        )
    return (Source(connection=source, query=query),)


def _targets(given: Mapping[str, Any]) -> tuple[Target, ...]:
    target, targets = given.get("target"), given.get("targets")
    if (target is None) == (targets is None):
        raise InvalidDeclaration("give exactly one of target= and targets=.")
    if targets is None:
        return (_single_target(given),)
    if isinstance(targets, (str, Mapping, Target)):
        raise WrongDeclarationType(f"targets= takes a list of Target(...) values, not {type(targets).__name__}.")
    if not targets:
        raise InvalidDeclaration("targets= is empty.", fix="give at least one Target(connection=…, …)")
    lonely = [key for key in given if key.startswith("target_")]
    if lonely:
        raise InvalidDeclaration(f"{lonely[0]}= cannot go with targets=.", fix="write it inside the Target(...)")
    return tuple(targets)


def _single_target(given: Mapping[str, Any]) -> Target:
    """`target=` is a connection with a placement, or a table class whose place `target_connection=` names."""
    written, connection = given["target"], given.get("target_connection")
    placed = {option: given[f"target_{option}"] for option in _TARGET_OPTIONS if f"target_{option}" in given}
    if isinstance(written, Target):
        raise WrongDeclarationType("target= takes a connection or a table class.", fix="targets=[Target(...)]")
    if isinstance(getattr(written, "__table_spec__", None), TableSpec):
        if connection is None:
            raise InvalidDeclaration("target= is a table, so target_connection= must say where it is.")
        if "table" in placed:
            raise InvalidDeclaration("target= is a table, so target_table= cannot name another.")
        target = Target(connection=connection, table=written, **placed)
    elif connection is not None:
        if isinstance(written, str | Connection):
            raise InvalidDeclaration(
                "target= and target_connection= are both connections.", fix="give target= a table class, or one of them"
            )
        raise WrongDeclarationType(
            f"target= takes a connection or a table class, not {written!r}.",
            fix="declare the table with @ematix.table(...)",
        )
    else:
        target = Target(connection=written, **placed)
    check_target_end(fitted_target(target), keyword="target_", is_cdc=given.get("cdc") is not None)
    return target


def _known_options(who: str, options: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    for key in options:
        if key not in known:
            raise unknown_option(who, key, known)
    name = options.get("name")
    if not isinstance(name, str) or not name.strip():
        raise WrongDeclarationType(f"{who} needs name=.", fix='name="orders_to_warehouse"')
    return dict(options)
