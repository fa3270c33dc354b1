"""Streams as declarations: `@ematix.streaming_pipeline(...)` keeps its arguments under a name.

Modules that declare streams can be imported, listed and checked. Running a stream is not part of this version and is
refused with one error, after the declaration itself was found to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, NoReturn

from ematix_flow.declare import registry
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.pipeline import parameter_count
from ematix_flow.declare.registry import SourceLocation, function_location, user_location
from ematix_flow.declare.stream import CDC, Join, Lookup, Source, StateStore, Watermark, Window
from ematix_flow.declare.target import Target
from ematix_flow.declare.udf import PythonAggregateUdfHandle, PythonScalarUdfHandle
from ematix_flow.errors import (
    InvalidDeclaration,
    UnknownName,
    UnsupportedBackend,
    WrongDeclarationType,
    closest,
    listed,
)

STREAM_OPTIONS = (
    "name",
    "source",
    "source_query",
    "sources",
    "target",
    "target_connection",
    "target_table",
    "target_topic",
    "target_queue",
    "target_partition_key_prefix",
    "target_prefix",
    "target_message_key_column",
    "target_partition_by",
    "target_primary_key",
    "targets",
    "idle_pause_ms",
    "dead_letter_topic",
    "dlq_store",
    "dlq_max_attempts",
    "transform_sql",
    "lookups",
    "window",
    "join",
    "state_store",
    "watermark",
    "transform_on_error",
    "metrics_port",
    "udfs",
    "aggregate_udfs",
    "cdc",
    "delivery",
    "continue_on_target_failure",
)
"""Every keyword of `run_streaming_pipeline` and of the decorator; they take the same."""

_CLOSED_SETS = {
    "dlq_store": ("auto", "topic", "table"),
    "transform_on_error": ("fail", "drop", "dlq"),
    "delivery": ("auto", "at_least_once", "exactly_once"),
}
_LEAST = {"idle_pause_ms": 0, "dlq_max_attempts": 1, "metrics_port": 0}
# Where in its system a target of a kind is: the keyword is `target_` and this word, `Target(...)` takes the bare word.
_PLACEMENTS = {
    **dict.fromkeys(("postgres", "mysql", "sqlite", "duckdb", "delta_local", "delta_s3"), "table"),
    **dict.fromkeys(("object_store_local", "object_store_s3"), "prefix"),
    **dict.fromkeys(("kafka", "pubsub"), "topic"),
    "rabbitmq": "queue",
    "kinesis": "partition_key_prefix",
}
_VALUES: dict[str, type[Any]] = {
    "window": Window,
    "join": Join,
    "state_store": StateStore,
    "watermark": Watermark,
    "cdc": CDC,
}


@dataclass(frozen=True)
class StreamSpec:
    """A declared stream: its name and the arguments, kept as they were given until a planner reads them."""

    name: str
    options: Mapping[str, Any]
    where: SourceLocation

    def sources(self) -> tuple[Source, ...]:
        """What the stream reads, whichever of the two forms it was written in.

        Raises:
            InvalidDeclaration: (a ValueError) none, both forms, or half of a pair.
        """
        source, query, sources = (self.options.get(key) for key in ("source", "source_query", "sources"))
        if sources is not None:
            if source is not None or query is not None:
                self._refuse("sources= cannot go with source= and source_query=", "give one of the two forms")
            if not sources:
                self._refuse("sources= is empty", "give at least one Source(connection=…, query=…)")
            for entry in sources:
                if not isinstance(entry, Source):
                    raise WrongDeclarationType(
                        f"Stream '{self.name}': sources= takes Source(...) values, not {type(entry).__name__}.",
                        where=str(self.where),
                    )
            return tuple(sources)
        if source is None or query is None:
            self._refuse("source= and source_query= are needed together", "or give sources=[Source(...), …]")
        return (Source(connection=source, query=query),)

    def check(self) -> None:
        """Refuse what can be seen to be wrong without asking any other system.

        Raises:
            DeclarationError: with the stream's name; the built-in class is ValueError or TypeError.
        """
        options = self.options
        sources = self.sources()
        for source in sources:
            source.check()
        queries = [source.query for source in sources]
        if len(set(queries)) < len(queries):
            self._refuse("two sources have the same query", "the query names a source; read it once")
        self._check_targets()
        self._check_plain_values()
        for option, wanted in _VALUES.items():
            value = options.get(option)
            if value is None:
                continue
            if not isinstance(value, wanted):
                raise WrongDeclarationType(
                    f"Stream '{self.name}': {option}= takes {wanted.__name__}(...), not {type(value).__name__}.",
                    where=str(self.where),
                )
            value.check(sources) if isinstance(value, Join) else value.check()
        self._check_together()
        check_udfs(options.get("udfs"), options.get("aggregate_udfs"))

    def _check_targets(self) -> None:
        target, targets = self.options.get("target"), self.options.get("targets")
        if (target is None) == (targets is None):
            self._refuse("give exactly one of target= and targets=", None)
        if targets is None:
            self._check_placement(target, "target_", self.options)
            return
        if not targets:
            self._refuse("targets= is empty", None)
        for entry in targets:
            if not isinstance(entry, Target):
                raise WrongDeclarationType(
                    f"Stream '{self.name}': targets= takes Target(...) values, not {type(entry).__name__}.",
                    where=str(self.where),
                )
            self._check_placement(entry.connection, "", vars(entry))
        lonely = [key for key in self.options if key.startswith("target_") and self.options[key] is not None]
        if lonely:
            self._refuse(f"{lonely[0]}= cannot go with targets=", "write it inside the Target(...)")

    def _check_placement(self, connection: Any, prefix: str, given: Mapping[str, Any]) -> None:
        """A connection says which system; the placement says where in it. Names are known only when resolved."""
        word = _PLACEMENTS.get(connection.kind) if isinstance(connection, Connection) else None
        if word is not None and not given.get(f"{prefix}{word}"):
            self._refuse(f"a target on a {connection.kind} connection needs {prefix}{word}=", None)

    def _check_plain_values(self) -> None:
        for option, allowed in _CLOSED_SETS.items():
            value = self.options.get(option)
            if value is not None and value not in allowed:
                self._refuse(f"{option} must be one of {listed(allowed)}, not {value!r}", closest(str(value), allowed))
        for option, least in _LEAST.items():
            value = self.options.get(option)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                self._refuse(f"{option} must be a whole number of at least {least}, not {value!r}", None)

    def _check_together(self) -> None:
        """What excludes what: one of window, join and cdc; SQL in front of a window only; lookups only with SQL."""
        options = self.options
        stateful = [option for option in ("window", "join", "cdc") if options.get(option) is not None]
        if len(stateful) > 1:
            self._refuse(f"{stateful[0]}= and {stateful[1]}= cannot go together", "split it into two streams")
        has_sql = bool((options.get("transform_sql") or "").strip())
        for option in ("join", "cdc"):
            if has_sql and options.get(option) is not None:
                self._refuse(f"{option}= cannot go with transform_sql=", None)
        lookups = options.get("lookups")
        if lookups and not has_sql:
            self._refuse("lookups= needs transform_sql=", "join them by name in the SQL")
        for name, lookup in (lookups or {}).items():
            if not isinstance(lookup, Lookup):
                raise WrongDeclarationType(
                    f"Stream '{self.name}': lookups['{name}'] takes Lookup(...), not {type(lookup).__name__}.",
                    where=str(self.where),
                )
            if name == "source":
                self._refuse("a lookup cannot be called 'source'", "that is the name of the stream itself in the SQL")
            lookup.check()
        window = options.get("window")
        needs_state = options.get("join") is not None or (window is not None and window.kind == "session")
        if needs_state and options.get("state_store") is None:
            self._refuse(
                "a session window or a join needs state_store=",
                'state_store=StateStore(kind="postgres", url="${STATE_DSN}")',
            )

    def _refuse(self, problem: str, fix: str | None) -> NoReturn:
        raise InvalidDeclaration(f"Stream '{self.name}': {problem}.", where=str(self.where), fix=fix)


class StreamingPipeline:
    """What the decorator returns: the declaration. Calling it, or `.run()`, would start the stream."""

    def __init__(self, spec: StreamSpec, function: Callable[..., Any] | None = None) -> None:
        self.spec = spec
        self.name = spec.name
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

    def run(self) -> dict[str, Any]:
        """Run the stream until it is stopped.

        Raises:
            DeclarationError: the declaration is wrong.
            UnsupportedBackend: it is right, and streams are not part of this version.
        """
        self.spec.check()
        raise streams_not_here(f"Stream '{self.name}' cannot be run", where=str(self.spec.where))


def streaming_pipeline(**options: Any) -> Callable[[Callable[..., Any]], StreamingPipeline]:
    """Declare a stream: same keywords as `run_streaming_pipeline`, over a function without arguments.

    Arguments are kept as given; they are held against each other when the stream is run.

    Raises:
        WrongDeclarationType: (a TypeError) a keyword that does not exist, no name, or a function with arguments.
        DuplicateName: (a ValueError) another place declares a stream of this name.
    """
    known = _known_options("@ematix.streaming_pipeline", options)

    def declare(function: Callable[..., Any]) -> StreamingPipeline:
        parameter_count(function, allowed=(0,), what="streaming pipeline")
        where = function_location(function)
        pipeline = StreamingPipeline(StreamSpec(known["name"], known, where), function)
        registry.current().add_streaming_pipeline(pipeline.name, pipeline, where)
        return pipeline

    return declare


def run_streaming_pipeline(**options: Any) -> dict[str, Any]:
    """Run a stream that is declared by the call itself; nothing is registered.

    Raises:
        DeclarationError: a keyword does not exist, or the arguments are wrong.
        UnsupportedBackend: they are right, and streams are not part of this version.
    """
    known = _known_options("run_streaming_pipeline", options)
    return StreamingPipeline(StreamSpec(known["name"], known, user_location("run_streaming_pipeline"))).run()


def run_pipeline(
    config: str | PathLike[str] | None = None,
    *,
    config_str: str | None = None,
    metrics_port: int | None = None,
    pipeline_name: str | None = None,
    run_log_url: str | None = None,
) -> dict[str, Any]:
    """Run the stream that a TOML file, or TOML text, describes.

    Args:
        config: Path of the file.
        config_str: The text itself, instead of a file.
        metrics_port: Where to serve metrics while it runs.
        pipeline_name: Name for the run log, instead of the one in the file.
        run_log_url: Run log, instead of the configured one.

    Raises:
        InvalidDeclaration: (a ValueError) not exactly one of `config` and `config_str`.
        UnsupportedBackend: streams are not part of this version.
    """
    if (config is None) == (config_str is None):
        raise InvalidDeclaration("run_pipeline takes exactly one of config= and config_str=.")
    raise streams_not_here("run_pipeline runs streams, and cannot do so")


# ── streams by name ──────────────────────────────────────────────────────────────────────────────────────────────────


def register_streaming_pipeline(name: str, captured: StreamingPipeline | Mapping[str, Any]) -> None:
    """Register a stream without the decorator: the arguments it would have been given.

    Raises:
        DuplicateName: (a ValueError) another place declares a stream of this name.
    """
    if not isinstance(captured, StreamingPipeline):
        known = _known_options("register_streaming_pipeline", {"name": name, **captured})
        captured = StreamingPipeline(StreamSpec(name, known, user_location()))
    registry.current().add_streaming_pipeline(name, captured, captured.spec.where)


def get_streaming_pipeline(name: str) -> StreamingPipeline | None:
    """The stream of this name, or None."""
    found = registry.current().streaming_pipeline(name)
    return found.thing if found is not None and isinstance(found.thing, StreamingPipeline) else None


def list_streaming_pipelines() -> list[str]:
    """The names of all streams, sorted."""
    return sorted(entry.name for entry in registry.current().streaming_pipelines())


def render_streaming_pipeline_toml(name: str) -> str:
    """The TOML document that says the same as a declared stream.

    Raises:
        UnknownName: (a KeyError) no such stream.
        UnsupportedBackend: streams are not part of this version.
    """
    if get_streaming_pipeline(name) is None:
        known = list_streaming_pipelines()
        raise UnknownName(
            f"No streaming pipeline is named '{name}'.", fix=closest(name, known) or f"declared are: {listed(known)}"
        )
    raise streams_not_here(f"Stream '{name}' cannot be written as TOML")


def check_udfs(udfs: Sequence[Any] | None, aggregate_udfs: Sequence[Any] | None) -> None:
    """Refuse what is not a handle, and a name that stands twice.

    Raises:
        WrongDeclarationType: (a TypeError) a list holds something other than what `@udf` or `@udaf` made.
        InvalidDeclaration: (a ValueError) two have the same name.
    """
    seen: set[str] = set()
    for option, handles, wanted, decorator in (
        ("udfs", udfs, PythonScalarUdfHandle, "@udf"),
        ("aggregate_udfs", aggregate_udfs, PythonAggregateUdfHandle, "@udaf"),
    ):
        for handle in handles or ():
            if not isinstance(handle, wanted):
                raise WrongDeclarationType(f"{option}= takes what {decorator} made, not {type(handle).__name__}.")
            if handle.name in seen:
                raise InvalidDeclaration(f"Two UDFs are named '{handle.name}'.", fix="give one another name=")
            seen.add(handle.name)


def streams_not_here(what: str, *, where: str | None = None) -> UnsupportedBackend:
    """The one answer of this version to anything that would move a stream."""
    return UnsupportedBackend(
        f"{what}: streams are not part of this version.",
        where=where,
        fix="load it in batches with @ematix.pipeline(...)",
    )


def _known_options(who: str, options: Mapping[str, Any]) -> dict[str, Any]:
    for key in options:
        if key not in STREAM_OPTIONS:
            raise WrongDeclarationType(
                f"{who} has no argument '{key}'.",
                fix=closest(key, STREAM_OPTIONS) or f"known: {listed(STREAM_OPTIONS)}",
            )
    name = options.get("name")
    if not isinstance(name, str) or not name.strip():
        raise WrongDeclarationType(f"{who} needs name=.", fix='name="orders_to_warehouse"')
    return dict(options)
