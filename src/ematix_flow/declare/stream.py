"""The values a stream is declared with: where it reads, how it joins and windows, what it remembers.

Everything is frozen and nothing connects. What a value can know of itself is checked when it is written; a `Window`, an
`Aggregation` and a `StateStore` are checked by their `check()`, which a planner calls before anything starts. Every
class has `check()`, so that a planner need not know which is which. `Target` is in `declare/target.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from ematix_flow.declare.connection import Connection
from ematix_flow.declare.redaction import redact_url, remember_secret, url_secrets
from ematix_flow.declare.server_address import url_scheme
from ematix_flow.declare.stream_checks import (
    LateData as LateData,
    check_connection,
    check_late_data,
    check_one_of,
    check_text,
    check_whole,
)
from ematix_flow.declare.target import ConnectionRef
from ematix_flow.declare.udf import PythonAggregateUdfHandle
from ematix_flow.errors import InvalidDeclaration, WrongDeclarationType, closest, counted, listed

WindowKind = Literal["tumbling", "hopping", "session"]
TimeMode = Literal["event", "processing"]
OnStateCap = Literal["fail", "drop_new_groups"]
Agg = Literal["count", "count_col", "sum", "min", "max", "avg", "first", "last", "count_distinct"]
DistinctMode = Literal["approximate", "exact"]
JoinKind = Literal["inner", "stream_stream_join", "left_outer", "right_outer", "full_outer"]
StateStoreKind = Literal["postgres", "in_memory", "rocksdb"]
Envelope = Literal["debezium", "maxwell", "custom"]
DeleteMode = Literal["hard", "soft"]
SchemaEvolution = Literal["skip", "fail", "add"]
ChangeOp = Literal["create", "update", "delete", "read", "truncate"]

LOOKUP_KINDS = (
    *("postgres", "mysql", "sqlite", "duckdb"),
    *("delta_local", "delta_s3", "iceberg"),
    *("object_store_local", "object_store_s3", "object_store_gcs", "object_store_azure"),
    *("snowflake", "bigquery", "redshift"),
)
"""Whatever can be read in a batch; brokers cannot."""


@dataclass(frozen=True)
class Source:
    """One stream to read: a connection and the topic, queue, subscription, table or prefix on it.

    The query is also the name of the source: watermarks, offsets and `Join` refer to it.
    """

    connection: ConnectionRef
    query: str

    def check(self) -> None:
        """Refuse a source without a connection or without a query."""
        check_connection("Source", self.connection)
        check_text("Source: query", self.query)


@dataclass(frozen=True)
class Aggregation:
    """One output column of a window: `Aggregation(agg="sum", column="amount", as_="total")`.

    With `columns`, `agg` names an aggregate of the stream's `aggregate_udfs`, which takes these.
    """

    agg: Agg | str
    as_: str
    column: str | None = None
    mode: DistinctMode | None = None
    max_distinct_values_per_group: int | None = None
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.columns is not None:
            _freeze(self, "columns")

    def check(self) -> None:
        """Refuse an unknown function, a missing column, and options of `count_distinct` on another function."""
        what = f"Aggregation '{self.as_}'"
        check_text("Aggregation: as_", self.as_)
        if self.columns is not None:
            self._check_own(what)
        else:
            self._check_known(what)
        if self.agg != "count_distinct":
            for option in ("mode", "max_distinct_values_per_group"):
                if getattr(self, option) is not None:
                    raise InvalidDeclaration(f"{what}: {option} needs agg='count_distinct', not '{self.agg}'.")
        if self.mode is not None:
            check_one_of(f"{what}: mode", self.mode, get_args(DistinctMode))
        check_whole(f"{what}: max_distinct_values_per_group", self.max_distinct_values_per_group, least=1)
        if self.max_distinct_values_per_group is not None and self.mode != "exact":
            raise InvalidDeclaration(f"{what}: max_distinct_values_per_group needs mode='exact'.")

    def _check_known(self, what: str) -> None:
        check_one_of(f"{what}: agg", self.agg, get_args(Agg))
        if self.agg != "count":
            check_text(f"{what}: column", self.column)
        elif self.column is not None:
            raise InvalidDeclaration(
                f"{what}: agg='count' counts rows and takes no column.",
                fix="use agg='count_col' to count the values of a column",
            )

    def _check_own(self, what: str) -> None:
        """An aggregate of the user's own; whether there is one of that name is known when the stream starts."""
        check_text(f"{what}: agg", self.agg)
        if self.agg in get_args(Agg):
            raise InvalidDeclaration(f"{what}: agg='{self.agg}' takes column=, not columns=.")
        if self.column is not None or not self.columns:
            raise InvalidDeclaration(f"{what}: columns= names at least one column, and column= none.")
        for name in self.columns:
            check_text(f"{what}: columns", name)


def own_aggregate(wanted: Aggregation, handles: Sequence[PythonAggregateUdfHandle]) -> PythonAggregateUdfHandle:
    """What an aggregation with `columns` names.

    Raises:
        InvalidDeclaration: there is none of that name, or it takes another number of columns.
    """
    named = {handle.name.lower(): handle for handle in handles}  # as in SQL
    handle = named.get(wanted.agg.lower())
    if handle is None:
        raise InvalidDeclaration(
            f"Aggregation '{wanted.as_}': there is no aggregate '{wanted.agg}'.",
            fix=closest(wanted.agg, list(named)) or "give what @udaf made: aggregate_udfs=[…]",
        )
    columns = wanted.columns or ()
    if len(columns) != len(handle.args):
        takes = counted(len(handle.args), "column")
        raise InvalidDeclaration(f"Aggregation '{wanted.as_}': '{handle.name}' takes {takes}, not {len(columns)}.")
    return handle


@dataclass(frozen=True)
class Window:
    """Rows gathered by event time: over a fixed length (tumbling, hopping), or until a key falls silent (session).

    `time_mode="processing"` takes the time of arrival for the event time. `on_state_cap` says what becomes of a group
    beyond `max_groups_per_window`: it stops the stream, or its rows are left out.
    """

    kind: WindowKind
    aggregations: Sequence[Aggregation]
    duration_ms: int = 0
    hop_ms: int | None = None
    gap_ms: int | None = None
    max_session_duration_ms: int | None = None
    event_time_column: str = "_event_ts"
    group_by: Sequence[str] = ()
    late_data: LateData = "drop"
    allowed_lateness_ms: int | None = None
    max_groups_per_window: int = 1_000_000
    window_start_column: str = "window_start"
    window_end_column: str = "window_end"
    session_id_column: str = "session_id"
    time_mode: TimeMode = "event"
    on_state_cap: OnStateCap = "fail"

    def __post_init__(self) -> None:
        _freeze(self, "aggregations", "group_by")

    def check(self) -> None:
        """Refuse lengths that do not fit the kind, lateness that does not fit the policy, and clashing output names."""
        check_one_of("Window: kind", self.kind, get_args(WindowKind))
        if self.kind == "session":
            self._check_session()
        else:
            self._check_steps()
        check_late_data("Window", self.late_data, self.allowed_lateness_ms)
        check_whole("Window: max_groups_per_window", self.max_groups_per_window, least=1)
        check_text("Window: event_time_column", self.event_time_column)
        check_one_of("Window: time_mode", self.time_mode, get_args(TimeMode))
        check_one_of("Window: on_state_cap", self.on_state_cap, get_args(OnStateCap))
        if not self.aggregations:
            raise InvalidDeclaration(
                "Window: aggregations is empty.", fix='give at least one: Aggregation(agg="count", as_="n")'
            )
        for aggregation in self.aggregations:
            if not isinstance(aggregation, Aggregation):
                raise WrongDeclarationType(
                    f"Window: aggregations takes Aggregation(...) values, not {type(aggregation).__name__}."
                )
            aggregation.check()
        names = self.output_columns()
        for number, name in enumerate(names):
            check_text("Window: an output column", name)
            # Spark and most databases take names that differ in case only for one.
            earlier = next((known for known in names[:number] if known.casefold() == name.casefold()), None)
            if earlier is not None:
                alike = f", beside '{earlier}', which differs in case only" if name != earlier else ""
                raise InvalidDeclaration(
                    f"Window: '{name}' would be the name of two output columns{alike}.",
                    fix="rename one: as_=, window_start_column=, window_end_column= or session_id_column=",
                )

    def output_columns(self) -> tuple[str, ...]:
        """The columns that come out, in order."""
        session = (self.session_id_column,) if self.kind == "session" else ()
        aliases = (aggregation.as_ for aggregation in self.aggregations)
        return (self.window_start_column, self.window_end_column, *session, *self.group_by, *aliases)

    def _check_steps(self) -> None:
        for option in ("gap_ms", "max_session_duration_ms"):
            if getattr(self, option) is not None:
                raise InvalidDeclaration(f"Window: {option} needs kind='session', not '{self.kind}'.")
        check_whole("Window: duration_ms", self.duration_ms, least=1)
        if self.kind == "tumbling":
            if self.hop_ms is not None and self.hop_ms != self.duration_ms:
                raise InvalidDeclaration(
                    "Window: a tumbling window moves by its own length, so hop_ms cannot differ from duration_ms.",
                    fix="leave hop_ms out, or use kind='hopping'",
                )
            return
        if self.hop_ms is None:
            raise InvalidDeclaration("Window: kind='hopping' needs hop_ms.")
        check_whole("Window: hop_ms", self.hop_ms, least=1)
        if self.hop_ms > self.duration_ms:
            raise InvalidDeclaration(
                "Window: hop_ms is longer than duration_ms, so rows between two windows would be lost.",
                fix="choose hop_ms no longer than duration_ms",
            )

    def _check_session(self) -> None:
        for option, empty in (("duration_ms", 0), ("hop_ms", None)):
            if getattr(self, option) != empty:
                raise InvalidDeclaration(
                    f"Window: {option} cannot go with kind='session'.", fix="a session ends by gap_ms"
                )
        for option in ("gap_ms", "max_session_duration_ms"):
            if getattr(self, option) is None:
                raise InvalidDeclaration(f"Window: kind='session' needs {option}.")
            check_whole(f"Window: {option}", getattr(self, option), least=1)
        assert self.gap_ms is not None and self.max_session_duration_ms is not None
        if self.max_session_duration_ms <= self.gap_ms:
            raise InvalidDeclaration("Window: max_session_duration_ms must be longer than gap_ms.")
        if not self.group_by:
            raise InvalidDeclaration(
                "Window: kind='session' needs group_by.", fix='name the key: group_by=("user_id",)'
            )


@dataclass(frozen=True)
class Join:
    """Two streams matched by equal keys within a span of event time.

    `time_window_ms` bounds the span on both sides alike; `min_delta_ms` and `max_delta_ms` bound "right time minus left
    time" and win over it.
    """

    left_source: str
    right_source: str
    left_keys: Sequence[str]
    right_keys: Sequence[str]
    time_window_ms: int = 0
    kind: JoinKind = "inner"
    min_delta_ms: int | None = None
    max_delta_ms: int | None = None
    event_time_column: str = "_event_ts"
    late_data: LateData = "drop"
    allowed_lateness_ms: int | None = None
    left_column_prefix: str = "left_"
    right_column_prefix: str = "right_"

    def __post_init__(self) -> None:
        _freeze(self, "left_keys", "right_keys")
        self.check()

    def check(self, sources: Iterable[Source] | None = None) -> None:
        """Refuse keys that do not pair, a span without bounds, and, with `sources`, sides that nobody reads."""
        check_text("Join: left_source", self.left_source)
        check_text("Join: right_source", self.right_source)
        if self.left_source == self.right_source:
            raise InvalidDeclaration(f"Join: both sides are '{self.left_source}'.", fix="join two different sources")
        check_one_of("Join: kind", self.kind, get_args(JoinKind))
        if not self.left_keys or len(self.left_keys) != len(self.right_keys):
            raise InvalidDeclaration(
                f"Join: {len(self.left_keys)} left_keys and {len(self.right_keys)} right_keys.",
                fix="give as many on both sides, at least one",
            )
        for side in ("left_keys", "right_keys"):
            for key in getattr(self, side):
                check_text(f"Join: a column of {side}", key)
        for prefix in ("left_column_prefix", "right_column_prefix"):
            if not isinstance(getattr(self, prefix), str):
                raise WrongDeclarationType(f"Join: {prefix} must be text.")
        self._check_span()
        check_late_data("Join", self.late_data, self.allowed_lateness_ms)
        check_text("Join: event_time_column", self.event_time_column)
        if self.left_column_prefix.casefold() == self.right_column_prefix.casefold():
            raise InvalidDeclaration("Join: left_column_prefix and right_column_prefix must differ.")
        if sources is not None:
            known = [source.query for source in sources]
            for side in (self.left_source, self.right_source):
                if side not in known:
                    raise InvalidDeclaration(
                        f"Join: '{side}' is not the query of any source.",
                        fix=closest(side, known) or f"sources: {listed(known)}",
                    )

    @property
    def span_ms(self) -> tuple[int, int]:
        """The least and the greatest "right time minus left time" that match."""
        if self.min_delta_ms is not None and self.max_delta_ms is not None:
            return self.min_delta_ms, self.max_delta_ms
        return -self.time_window_ms, self.time_window_ms

    def _check_span(self) -> None:
        check_whole("Join: time_window_ms", self.time_window_ms, least=0)
        check_whole("Join: min_delta_ms", self.min_delta_ms)
        check_whole("Join: max_delta_ms", self.max_delta_ms)
        if (self.min_delta_ms is None) != (self.max_delta_ms is None):
            raise InvalidDeclaration("Join: min_delta_ms and max_delta_ms go together.", fix="give both, or neither")
        if self.min_delta_ms is not None and self.max_delta_ms is not None:
            if self.min_delta_ms >= self.max_delta_ms:
                raise InvalidDeclaration("Join: min_delta_ms must be less than max_delta_ms.")
        elif self.time_window_ms == 0:
            raise InvalidDeclaration(
                "Join: the span of time is not bounded.",
                fix="give time_window_ms above 0, or min_delta_ms and max_delta_ms",
            )


@dataclass(frozen=True, repr=False)
class StateStore:
    """Where a stream keeps what it must remember over a restart. The address may hold a password, so it never shows."""

    kind: StateStoreKind
    url: str | None = None
    schema: str = "public"
    checkpoint_interval_ms: int = 60_000
    path: str | None = None

    def __post_init__(self) -> None:
        for secret in url_secrets(self.url) if isinstance(self.url, str) else ():
            if "${" not in secret:
                remember_secret(secret)

    def __repr__(self) -> str:
        return _shown(self, url=redact_url(self.url) if isinstance(self.url, str) else self.url)

    def check(self) -> None:
        """Refuse an unknown kind, a missing address, and an address of another kind."""
        check_one_of("StateStore: kind", self.kind, get_args(StateStoreKind))
        if self.kind == "postgres":
            check_text("StateStore: url", self.url)
            scheme = url_scheme(self.url or "")
            if "${" not in (self.url or "") and scheme not in ("postgres", "postgresql"):
                raise InvalidDeclaration(
                    "StateStore: url is not the address of a PostgreSQL database.",
                    fix="write postgres://user:${STATE_PASSWORD}@host/database",
                )
            check_text("StateStore: schema", self.schema)
        elif self.url is not None:
            raise InvalidDeclaration(f"StateStore: url needs kind='postgres', not '{self.kind}'.")
        if self.path is not None:
            if self.kind != "rocksdb":
                raise InvalidDeclaration(f"StateStore: path needs kind='rocksdb', not '{self.kind}'.")
            check_text("StateStore: path", self.path)
        check_whole("StateStore: checkpoint_interval_ms", self.checkpoint_interval_ms, least=1)


@dataclass(frozen=True)
class Watermark:
    """How late a row may be, and after how long a silent source is no longer waited for."""

    lateness_ms: int | None = None
    source_idleness_ms: int | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Refuse what is not a whole number of milliseconds of at least 0."""
        check_whole("Watermark: lateness_ms", self.lateness_ms, least=0)
        check_whole("Watermark: source_idleness_ms", self.source_idleness_ms, least=0)


@dataclass(frozen=True)
class Lookup:
    """A table that `transform_sql` may join by its name: a table or a query of any system but a broker.

    It is read when the stream starts, and again every `refresh_interval_ms`, if that is given.
    """

    connection: ConnectionRef
    table: str | None = None
    schema: str = ""
    refresh_interval_ms: int | None = None
    query: str | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Refuse a connection that cannot be read in a batch, and anything but one of table and query."""
        check_connection("Lookup", self.connection)
        if isinstance(self.connection, Connection) and self.connection.kind not in LOOKUP_KINDS:
            raise InvalidDeclaration(
                f"Lookup: '{self.connection.name}' is a {self.connection.kind} connection.",
                fix=f"look up in one of {listed(LOOKUP_KINDS)}",
            )
        if (self.table is None) == (self.query is None):
            raise InvalidDeclaration("Lookup: give exactly one of table and query.")
        if not isinstance(self.schema, str):
            raise WrongDeclarationType(f"Lookup: schema must be text, not {type(self.schema).__name__}.")
        if self.query is not None:
            check_text("Lookup: query", self.query)
            if self.schema:
                raise InvalidDeclaration("Lookup: schema needs table.", fix="name the schema in the query")
        else:
            check_text("Lookup: table", self.table)
        check_whole("Lookup: refresh_interval_ms", self.refresh_interval_ms, least=0)


@dataclass(frozen=True)
class CDC:
    """How change events are read (Debezium, Maxwell, or fields of one's own) and applied to the target table."""

    envelope: Envelope = "debezium"
    op_field: str | None = None
    before_field: str | None = None
    after_field: str | None = None
    key_field: str | None = None
    ts_field: str | None = None
    op_map: Mapping[str, ChangeOp] | None = None
    delete_mode: DeleteMode = "hard"
    soft_delete_column: str | None = None
    schema_evolution: SchemaEvolution = "skip"
    out_of_order_tolerance_ms: int = 5_000

    def __post_init__(self) -> None:
        if self.op_map is not None:
            if not isinstance(self.op_map, Mapping):
                raise WrongDeclarationType(
                    f"CDC: op_map takes a dict, not {type(self.op_map).__name__}.", fix='op_map={"c": "create"}'
                )
            object.__setattr__(self, "op_map", dict(self.op_map))
        self.check()

    def check(self) -> None:
        """Refuse unknown words, a soft delete without its column, and an envelope of one's own without its fields."""
        check_one_of("CDC: envelope", self.envelope, get_args(Envelope))
        check_one_of("CDC: delete_mode", self.delete_mode, get_args(DeleteMode))
        check_one_of("CDC: schema_evolution", self.schema_evolution, get_args(SchemaEvolution))
        for option in ("op_field", "before_field", "after_field", "key_field", "ts_field", "soft_delete_column"):
            written = getattr(self, option)
            if written is not None and (option, written) != ("ts_field", ""):
                check_text(f"CDC: {option}", written)
        for event, op in (self.op_map or {}).items():
            check_one_of(f"CDC: op_map['{event}']", op, get_args(ChangeOp))
        if self.delete_mode == "soft":
            check_text("CDC: delete_mode='soft' needs soft_delete_column, which", self.soft_delete_column)
        elif self.soft_delete_column is not None:
            # Ignoring it would erase rows that the author meant to keep.
            raise InvalidDeclaration("CDC: soft_delete_column needs delete_mode='soft'.")
        if self.envelope == "custom":
            missing = [name for name in ("op_field", "after_field", "key_field", "op_map") if not getattr(self, name)]
            if missing:
                raise InvalidDeclaration(f"CDC: envelope='custom' needs {listed(missing)}.")
        check_whole("CDC: out_of_order_tolerance_ms", self.out_of_order_tolerance_ms, least=0)


def _freeze(value: Any, *options: str) -> None:
    """Lists become tuples; a single text is refused, since it would be read letter by letter."""
    for option in options:
        written = getattr(value, option)
        if isinstance(written, (str, Mapping)) or not isinstance(written, Iterable):
            raise WrongDeclarationType(f"{type(value).__name__}: {option} takes a tuple or list, not {written!r}.")
        object.__setattr__(value, option, tuple(written))


def _shown(value: Any, **instead: object) -> str:
    said = ((field.name, instead.get(field.name, getattr(value, field.name))) for field in fields(value))
    return f"{type(value).__name__}({', '.join(f'{name}={text!r}' for name, text in said)})"
