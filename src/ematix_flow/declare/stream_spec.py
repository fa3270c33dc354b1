"""A stream as data: what TOML and Python both become, and what the engine runs. A spec that exists has been checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, cast, get_args

from ematix_flow.declare.connection import Connection
from ematix_flow.declare.pipeline import CLUSTER_ANSWER
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.stream import CDC, Join, Lookup, Source, StateStore, Watermark, Window, own_aggregate
from ematix_flow.declare.stream_checks import check_one_of, check_text, check_whole
from ematix_flow.declare.stream_ends import LAKE_KINDS, check_source, check_target_end, fitted_target, is_same_place
from ematix_flow.declare.stream_modes import check_mode
from ematix_flow.declare.target import ConnectionRef, Target
from ematix_flow.declare.udf import PythonAggregateUdfHandle, PythonScalarUdfHandle, check_udfs as check_udfs
from ematix_flow.errors import ConfigError, DeclarationError, InvalidDeclaration, WrongDeclarationType, closest, listed

StreamDialect = Literal["datafusion", "spark", "duckdb", "postgres"]
StreamEngine = Literal["auto", "distributed"]
TransformOnError = Literal["fail", "drop", "dlq"]
Delivery = Literal["auto", "at_least_once", "exactly_once"]
DlqStore = Literal["auto", "topic", "table", "broker"]
OnGap = Literal["fail", "continue"]

_WITH_BROKER_LETTERS = ("rabbitmq", "pubsub")
"""Kinds of sources that can be told of a message that nobody can use it."""

_DIALECT_NAMES = {"postgresql": "postgres", "pyspark": "spark"}
_ENGINE_NAMES = {"datafusion": "auto", "spark": "auto"}
_VALUES: dict[str, type[Any]] = {
    "window": Window,
    "join": Join,
    "cdc": CDC,
    "state_store": StateStore,
    "watermark": Watermark,
}


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    """A declared stream. Two specs are equal when they mean the same stream, wherever it was written.

    Attributes:
        name: Scope of checkpoint, offsets, metrics and once-only keys.
        where: The declaration, for messages.
        transform_sql: None when there is none; `FROM source` is the micro-batch.
        engine: Where rows are moved; `distributed` needs a cluster.
        transform_on_error: What becomes of a row that cannot be decoded, transformed or fitted.
        checkpoint: A folder; by convention when None.
        max_batch_rows: Bound of one micro-batch.
        on_gap: What to do about messages that the broker no longer has.
    """

    name: str
    where: SourceLocation = field(compare=False)
    sources: tuple[Source, ...]
    targets: tuple[Target, ...]
    transform_sql: str | None = None
    dialect: StreamDialect = "datafusion"
    engine: StreamEngine = "auto"
    peers: tuple[str, ...] = ()
    tls: Mapping[str, Any] | None = None
    transform_on_error: TransformOnError = "fail"
    lookups: Mapping[str, Lookup] = field(default_factory=dict)
    window: Window | None = None
    join: Join | None = None
    cdc: CDC | None = None
    state_store: StateStore | None = None
    watermark: Watermark | None = None
    udfs: tuple[PythonScalarUdfHandle, ...] = ()
    aggregate_udfs: tuple[PythonAggregateUdfHandle, ...] = ()
    idle_pause_ms: int = 500
    delivery: Delivery = "auto"
    continue_on_target_failure: bool = False
    dead_letter_topic: str | None = None
    dlq_store: DlqStore = "auto"
    dlq_max_attempts: int = 3
    metrics_port: int | None = None
    checkpoint: str | None = None
    max_batch_rows: int | None = None
    on_gap: OnGap = "fail"

    def __post_init__(self) -> None:
        with self._named():
            self._fit()
            self.check()

    def check(self) -> None:
        """Refuse what can be seen to be wrong without asking any other system. Called when the spec is made.

        Raises:
            DeclarationError: with the stream's name; the built-in class is ValueError or TypeError.
        """
        with self._named():
            check_text("name", self.name)
            self._check_ends()
            self._check_plain_values()
            for option, wanted in _VALUES.items():
                value = getattr(self, option)
                if value is None:
                    continue
                if not isinstance(value, wanted):
                    raise WrongDeclarationType(f"{option}= takes {wanted.__name__}(...), not {type(value).__name__}.")
                value.check(self.sources) if isinstance(value, Join) else value.check()
            self._check_together()
            self._check_lookups()
            self._check_dead_letters()
            self._check_engine()
            check_udfs(self.udfs, self.aggregate_udfs)
            self._check_functions_are_called()
            if self.aggregate_udfs:  # without any, a TOML file gets them when it is run
                self.check_own_aggregates()

    def check_own_aggregates(self) -> None:
        """Refuse a window that names aggregates which nobody gave; called when no more can come.

        Raises:
            InvalidDeclaration: names what is missing.
        """
        with self._named():
            for aggregation in self.window.aggregations if self.window is not None else ():
                if aggregation.columns is not None:
                    own_aggregate(aggregation, self.aggregate_udfs)

    def advice(self, *, large_state_bytes: int = 1 << 30) -> tuple[str, ...]:
        """What is allowed and probably not meant; said once when the stream starts.

        Args:
            large_state_bytes: From which size on expected state is worth a word; 0 for never.
        """
        said: list[str] = []
        if self.is_stateful and self.forgets:
            said.append("state_store is 'in_memory': windows and joins forget everything when the process ends")
        elif self.window is not None and not self.needs_state_store and self.state_store is not None:
            said.append(f"a {self.window.kind} window keeps its state in the checkpoint; state_store only mirrors it")
        expected = expected_state_bytes(self.window)
        if large_state_bytes and expected > large_state_bytes:
            said.append(
                f"the window may hold {expected / (1 << 30):,.1f} GiB at max_groups_per_window="
                f"{self.window.max_groups_per_window if self.window else 0:,}; lower it, or give it the memory"
            )
        return tuple(said)

    @property
    def forgets(self) -> bool:
        """Whether what it remembers is to go when its process ends."""
        return self.state_store is not None and self.state_store.kind == "in_memory"

    @property
    def needs_state_store(self) -> bool:
        """Whether it remembers rows beyond a batch in a way that must survive the process."""
        return self.join is not None or (self.window is not None and self.window.kind == "session")

    @property
    def is_stateful(self) -> bool:
        """Whether one batch depends on earlier ones."""
        return self.join is not None or self.window is not None

    def with_connections(self, found: Callable[[ConnectionRef], Connection]) -> StreamSpec:
        """A copy in which every connection is an instance, and which is checked again, now that all kinds are known.

        Args:
            found: Gives the connection behind a name, and the filled-in form of an instance.
        """
        return replace(
            self,
            sources=tuple(replace(source, connection=found(source.connection)) for source in self.sources),
            targets=tuple(replace(target, connection=found(target.connection)) for target in self.targets),
            lookups={
                name: replace(lookup, connection=found(lookup.connection)) for name, lookup in self.lookups.items()
            },
        )

    def _fit(self) -> None:
        """Equal meanings in equal forms: tuples, no blank SQL, one word for each dialect and engine."""
        for option in ("sources", "targets", "peers", "udfs", "aggregate_udfs"):
            self._set(option, _as_tuple(option, getattr(self, option)))
        for target in self.targets:
            if not isinstance(target, Target):
                raise WrongDeclarationType(f"targets= takes Target(...) values, not {type(target).__name__}.")
        self._set("targets", tuple(fitted_target(target) for target in self.targets))
        if self.transform_sql is not None:
            if not isinstance(self.transform_sql, str):
                raise WrongDeclarationType(f"transform_sql must be text, not {type(self.transform_sql).__name__}.")
            self._set("transform_sql", self.transform_sql if self.transform_sql.strip() else None)
        if not isinstance(self.lookups, Mapping):
            raise WrongDeclarationType(f"lookups= takes a dict, not {type(self.lookups).__name__}.")
        self._set("lookups", dict(sorted(self.lookups.items(), key=lambda item: str(item[0]))))
        self._set("tls", None if not self.tls else dict(self.tls))
        for option, names in (("dialect", _DIALECT_NAMES), ("engine", _ENGINE_NAMES)):
            written = getattr(self, option)
            word = written.strip().lower() if isinstance(written, str) else written
            self._set(option, names.get(word, word) if isinstance(word, str) else word)

    def _set(self, option: str, value: object) -> None:
        object.__setattr__(self, option, value)

    def _check_ends(self) -> None:
        if not self.sources:
            self._refuse("there is no source", "give source= and source_query=, or sources=[Source(...), …]")
        for source in self.sources:
            if not isinstance(source, Source):
                raise WrongDeclarationType(f"sources= takes Source(...) values, not {type(source).__name__}.")
            check_source(source)
        queries = [source.query for source in self.sources]
        if len(set(queries)) < len(queries):
            self._refuse("two sources have the same query", "the query names a source; read it once")
        if not self.targets:
            self._refuse("there is no target", "give target= or targets=[Target(...), …]")
        for number, target in enumerate(self.targets):
            check_target_end(target, keyword="", is_cdc=self.cdc is not None)
            check_mode(
                target,
                is_cdc=self.cdc is not None,
                gives_again=self.window is not None and getattr(self.window, "late_data", None) == "reopen",
                has_key=self.window is not None,
            )
            if any(is_same_place(target, earlier) for earlier in self.targets[:number]):
                self._refuse("two targets are the same place", "every batch would be written there twice")

    def _check_plain_values(self) -> None:
        for option, allowed in (
            ("dialect", get_args(StreamDialect)),
            ("transform_on_error", get_args(TransformOnError)),
            ("delivery", get_args(Delivery)),
            ("dlq_store", get_args(DlqStore)),
            ("on_gap", get_args(OnGap)),
        ):
            check_one_of(option, getattr(self, option), allowed)
        check_whole("idle_pause_ms", self.idle_pause_ms, least=0)
        check_whole("dlq_max_attempts", self.dlq_max_attempts, least=1)
        check_whole("metrics_port", self.metrics_port, least=0, most=65_535)
        check_whole("max_batch_rows", self.max_batch_rows, least=1)
        for option in ("idle_pause_ms", "dlq_max_attempts"):
            if getattr(self, option) is None:
                self._refuse(f"{option} must be a whole number, not None", None)
        if not isinstance(self.continue_on_target_failure, bool):
            self._refuse("continue_on_target_failure must be True or False", None)
        for option in ("checkpoint", "dead_letter_topic"):
            if getattr(self, option) is not None:
                check_text(option, getattr(self, option))

    def _check_together(self) -> None:
        """What excludes what: one of window, join and cdc; SQL in front of a window only; state for what lasts."""
        stateful = [option for option in ("window", "join", "cdc") if getattr(self, option) is not None]
        if len(stateful) > 1:
            self._refuse(f"{stateful[0]}= and {stateful[1]}= cannot go together", "split it into two streams")
        for option in ("join", "cdc"):
            if self.transform_sql is not None and getattr(self, option) is not None:
                self._refuse(f"{option}= cannot go with transform_sql=", None)
        if self.join is not None and len(self.sources) > 2:
            others = [s.query for s in self.sources if s.query not in (self.join.left_source, self.join.right_source)]
            self._refuse(f"join= matches two sources, and {listed(others)} would be read for nothing", "remove it")
        if self.needs_state_store and self.state_store is None:
            self._refuse(
                "a session window or a join needs state_store=",
                'state_store=StateStore(kind="postgres", url="${STATE_DSN}"); in TOML, [state_store] with kind and url',
            )

    def _check_functions_are_called(self) -> None:
        """Refuse functions that nothing of this stream can call."""
        if self.transform_sql is not None:
            return
        if self.udfs:
            self._refuse("udfs= needs transform_sql=", "call them by name in the SQL")
        if self.aggregate_udfs and self.window is None:
            self._refuse(
                "aggregate_udfs= needs transform_sql= or window=",
                "call them by name in the SQL, or name them in an Aggregation of the window",
            )

    def _check_lookups(self) -> None:
        if self.lookups and self.transform_sql is None:
            self._refuse("lookups= needs transform_sql=", "join them by name in the SQL")
        for name, lookup in self.lookups.items():
            check_text("the name of a lookup", name)
            if not isinstance(lookup, Lookup):
                raise WrongDeclarationType(f"lookups['{name}'] takes Lookup(...), not {type(lookup).__name__}.")
            if name.lower() == "source":
                self._refuse(f"a lookup cannot be called '{name}'", "that is the stream itself in the SQL")
            lookup.check()
            kind = lookup.connection.kind if isinstance(lookup.connection, Connection) else None
            if self.window is not None and lookup.refresh_interval_ms and kind not in (None, *LAKE_KINDS):
                self._refuse(
                    f"lookup '{name}' is read again every {lookup.refresh_interval_ms:,} ms and stands in front of "
                    "window=: one window would be made of rows that saw different tables",
                    "leave refresh_interval_ms out, which reads it when the stream starts; or keep it as a lake table",
                )

    def _check_dead_letters(self) -> None:
        first = self.sources[0].connection
        if self.dlq_store == "topic":
            if self.dead_letter_topic is None:
                self._refuse("dlq_store='topic' needs dead_letter_topic=", "or dlq_store='table'")
            if isinstance(first, Connection) and first.kind != "kafka":
                self._refuse(
                    f"dlq_store='topic' needs a kafka source, and the first one is {first.kind}", "dlq_store='table'"
                )
        if self.dlq_store == "broker":
            self._check_broker_letters()
        if self.dead_letter_topic is not None and self.dead_letter_topic in [s.query for s in self.sources]:
            self._refuse(
                f"dead_letter_topic='{self.dead_letter_topic}' is a source of the stream, which would read its own "
                "failures",
                "choose another topic",
            )

    def _check_broker_letters(self) -> None:
        for source in self.sources:
            kind = source.connection.kind if isinstance(source.connection, Connection) else None
            if kind is not None and kind not in _WITH_BROKER_LETTERS:
                self._refuse(
                    f"dlq_store='broker' needs sources of kind {' or '.join(_WITH_BROKER_LETTERS)}, and "
                    f"'{source.query}' is {kind}, which has no dead letters of its own",
                    "dlq_store='table'",
                )
        if self.dead_letter_topic is not None:
            self._refuse(
                "dlq_store='broker' cannot go with dead_letter_topic=",
                "the broker's own settings say where its dead letters go",
            )
        for option in ("window", "join"):
            if getattr(getattr(self, option), "late_data", None) == "dlq":
                self._refuse(
                    f"dlq_store='broker' cannot go with {option}= and late_data='dlq': a broker may give a message "
                    "again, and it would count again",
                    "dlq_store='table'",
                )

    def _check_engine(self) -> None:
        if self.peers or self.tls:
            option = "peers" if self.peers else "tls"
            self._refuse(f"'{option}' is not used: rows are moved by Spark, alone or on a cluster", CLUSTER_ANSWER)
        check_one_of("engine", self.engine, (*get_args(StreamEngine), *_ENGINE_NAMES))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of the parts say which stream they belong to, once, and where it was written."""
        try:
            yield
        except (DeclarationError, ConfigError) as exc:
            if not exc.message.startswith("Stream '"):
                exc.message = f"Stream '{self.name}': {exc.message}"
            exc.at(str(self.where))
            raise

    def _refuse(self, problem: str, fix: str | None) -> NoReturn:
        raise InvalidDeclaration(f"{problem}.", fix=fix)


def expected_state_bytes(window: Window | None) -> int:
    """A rough size of what a window remembers when it is full: its open windows, their groups, their values.

    >>> from ematix_flow.declare.stream import Aggregation
    >>> expected_state_bytes(Window("tumbling", [Aggregation("count", "n")], duration_ms=60_000)) >> 20
    122
    """
    if window is None:
        return 0
    open_windows = 1
    if window.kind == "hopping" and window.hop_ms:
        open_windows = -(-window.duration_ms // window.hop_ms)
    per_group = 64 + 32 * len(window.group_by)
    for aggregation in window.aggregations:
        if aggregation.agg != "count_distinct":
            per_group += 64
        elif aggregation.mode == "exact":
            per_group += 32 * (aggregation.max_distinct_values_per_group or 1_000)
        else:
            per_group += 1 << 14
    return open_windows * window.max_groups_per_window * per_group


def unknown_option(who: str, key: str, known: Sequence[str]) -> WrongDeclarationType:
    """The answer to a keyword that does not exist."""
    return WrongDeclarationType(f"{who} has no argument '{key}'.", fix=closest(key, known) or f"known: {listed(known)}")


def _as_tuple(option: str, written: Any) -> tuple[Any, ...]:
    if written is None:
        return ()
    if isinstance(written, (str, Mapping)) or not hasattr(written, "__iter__"):
        raise WrongDeclarationType(f"{option}= takes a list, not {type(written).__name__}.")
    return tuple(cast("Sequence[Any]", written))
