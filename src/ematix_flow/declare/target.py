"""Where a pipeline writes: the `Target` a user may write, and the checked `TargetSpec` it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Literal

from ematix_flow.declare.connection import Connection
from ematix_flow.declare.table import TableSpec
from ematix_flow.errors import InvalidDeclaration, MissingKeys, UnsupportedMode, closest, listed

Mode = Literal["append", "truncate", "merge", "scd1", "scd2"]
MODES: tuple[Mode, ...] = ("append", "truncate", "merge", "scd1", "scd2")
HandleDeletes = Literal["hard", "soft"]
LateArrivals = Literal["splice", "error"]
ConnectionRef = str | Connection

VERSION_COLUMNS = ("valid_from", "valid_to", "is_current", "row_hash")
STAMP_COLUMNS = ("_loaded_at", "_batch_id")
EVENT_COLUMNS = ("event_at", "is_closing")


@dataclass(frozen=True, kw_only=True)
class Target:
    """One target of a pipeline, batch or streaming. Options that do not fit the connection are refused when planned."""

    connection: Any = None
    table: Any = None
    topic: str | None = None
    queue: str | None = None
    partition_key_prefix: str | None = None
    prefix: str | None = None
    message_key_column: str | None = None
    partition_by: Sequence[str] | None = None
    parquet_compression: str | None = None
    csv_delimiter: str | None = None
    csv_header: bool | None = None
    csv_quote: str | None = None
    csv_escape: str | None = None
    csv_null_value: str | None = None
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None
    primary_key: Sequence[str] | None = None
    mode: str | None = None
    keys: Sequence[str] | None = None
    update_columns: Sequence[str] | None = None
    compare_columns: Sequence[str] | None = None
    event_timestamp_column: str | None = None
    handle_deletes: str | None = None
    ttl: Any = None
    column_map: Mapping[str, str] | None = None

    def file_options(self) -> FileOptions:
        """The options that only files know, as one value."""
        return FileOptions(**{f.name: getattr(self, f.name) for f in fields(FileOptions)})

    def broker_options(self) -> BrokerOptions:
        """The options that only brokers know, as one value."""
        return BrokerOptions(**{f.name: getattr(self, f.name) for f in fields(BrokerOptions)})


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """How files are written and read; checked against the format by the files backend."""

    prefix: str | None = None
    partition_by: Sequence[str] | None = None
    parquet_compression: str | None = None
    csv_delimiter: str | None = None
    csv_header: bool | None = None
    csv_quote: str | None = None
    csv_escape: str | None = None
    csv_null_value: str | None = None
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None

    def given(self) -> dict[str, Any]:
        """Only what the user wrote."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """Where in a broker messages go, and what their key is; checked by the backend."""

    topic: str | None = None
    queue: str | None = None
    partition_key_prefix: str | None = None
    message_key_column: str | None = None

    def given(self) -> dict[str, Any]:
        """Only what the user wrote."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


@dataclass(frozen=True, kw_only=True)
class TargetSpec:
    """One table to load and how: every option checked, synonyms resolved.

    `stamped` says that rows carry the run that wrote them; without it the table has the declared columns and no more.
    """

    table: TableSpec
    connection: ConnectionRef
    mode: Mode
    keys: tuple[str, ...] | None = None
    update_columns: tuple[str, ...] | None = None
    compare_columns: tuple[str, ...] | None = None
    event_timestamp_column: str | None = None
    handle_deletes: HandleDeletes | None = None
    ttl: timedelta | None = None
    column_map: Mapping[str, str] = field(default_factory=dict)
    incremental_column: str | None = None
    late_arrivals: LateArrivals = "splice"
    exact_history: bool = False
    allow_empty_source: bool = False
    stamped: bool = True
    files: FileOptions = FileOptions()
    broker: BrokerOptions = BrokerOptions()

    @property
    def is_merge(self) -> bool:
        """`merge` and its other name."""
        return self.mode in ("merge", "scd1")

    @property
    def is_versioned(self) -> bool:
        """Whether the table keeps a history of versions."""
        return self.mode == "scd2"

    def resolved_keys(self) -> tuple[tuple[str, ...], str]:
        """The merge keys and the words that say where they come from.

        Raises:
            MissingKeys: none of the four ways gives any.
        """
        ways = (
            (self.keys, "from explicit keys="),
            (self.table.merge_keys, "from __merge_keys__"),
            (self.table.unique[0] if self.table.unique else (), "from natural_key() / __unique_constraints__"),
            (self.table.primary_key, "from primary_key=True"),
        )
        for names, reason in ways:
            if names:
                return tuple(names), reason
        raise MissingKeys(
            f"mode='{self.mode}' on {self.table} needs keys and none are declared.",
            fix="mark the key columns with pk() or natural_key(), set __merge_keys__ on the table, or pass keys=(...)",
        )

    def resolved_compare_columns(self) -> tuple[tuple[str, ...], str]:
        """The columns that decide whether a row changed, and where that choice comes from."""
        if self.compare_columns is not None:
            return self.compare_columns, "from explicit compare_columns="
        if self.is_merge and self.update_columns is not None:
            return self.update_columns, "from explicit update_columns="
        # A merged table may well hold a column called 'valid_from'; a history never does (`check_target`).
        skipped = {*self.resolved_keys()[0], self.event_timestamp_column, *STAMP_COLUMNS}
        return (
            tuple(name for name in self.table.column_names if name not in skipped),
            "auto-derived (non-key non-metadata)",
        )

    def with_keys(self, keys: Sequence[str]) -> TargetSpec:
        """A copy that matches on other keys, checked like declared ones."""
        return check_target(replace(self, keys=tuple(keys)))


def check_target(spec: TargetSpec) -> TargetSpec:
    """Refuse options that cannot go together, before anything connects. Returns the spec for chaining."""
    table, mode = spec.table, spec.mode
    if mode not in MODES:
        raise InvalidDeclaration(
            f"Unknown mode '{mode}' for {table}.", fix=closest(str(mode), MODES) or f"choose one of {listed(MODES)}"
        )
    for option in ("keys", "update_columns", "compare_columns"):
        table.require(getattr(spec, option) or (), f"{option}=")
    table.require(tuple(spec.column_map), "column_map=")
    _only_with(spec, "event_timestamp_column", ("scd2",))
    _only_with(spec, "ttl", ("scd2",))
    _only_with(spec, "update_columns", ("merge", "scd1"))
    _only_with(spec, "compare_columns", ("merge", "scd1", "scd2"))
    _only_with(spec, "handle_deletes", ("merge", "scd1", "scd2"))
    if spec.exact_history and not spec.is_versioned:
        raise InvalidDeclaration(f"exact_history= needs mode='scd2', not '{mode}'.")
    if spec.late_arrivals not in ("splice", "error"):
        raise InvalidDeclaration(f"late_arrivals must be 'splice' or 'error', not {spec.late_arrivals!r}.")
    if spec.handle_deletes not in (None, "hard", "soft"):
        raise InvalidDeclaration(f"handle_deletes must be 'hard' or 'soft', not {spec.handle_deletes!r}.")
    if spec.handle_deletes == "soft" and spec.is_merge:
        raise UnsupportedMode(
            "handle_deletes='soft' needs mode='scd2'.", fix="use mode='scd2', or handle_deletes='hard'"
        )
    if spec.handle_deletes == "hard" and spec.is_versioned:
        raise InvalidDeclaration(
            "handle_deletes='hard' would erase history under mode='scd2'.", fix="use handle_deletes='soft'"
        )
    if spec.ttl is not None and spec.ttl <= timedelta(0):
        raise InvalidDeclaration("ttl must be longer than zero.")
    if spec.incremental_column is not None:
        table.require((spec.incremental_column,), "incremental_column=")
        if spec.handle_deletes:
            raise InvalidDeclaration(
                "handle_deletes cannot go with an incremental load.",
                fix="a part of the source cannot tell which keys are gone: drop one of the two",
            )
        if mode != "append":
            raise InvalidDeclaration(f"An incremental load needs mode='append', not '{mode}'.")
    if spec.event_timestamp_column is not None:
        table.require((spec.event_timestamp_column,), "event_timestamp_column=")
        if spec.event_timestamp_column in spec.resolved_keys()[0]:
            raise InvalidDeclaration(
                f"event_timestamp_column='{spec.event_timestamp_column}' is part of the key of {table}; "
                "no version would ever end.",
                fix="leave the time out of the key: scd2 adds valid_from to the primary key itself",
            )
    if spec.is_merge or spec.is_versioned:
        keys, _ = spec.resolved_keys()
        for option in ("update_columns", "compare_columns"):
            both = [name for name in getattr(spec, option) or () if name in keys]
            if both:
                raise InvalidDeclaration(f"{option}= names the key column '{both[0]}' of {table}.")
    if spec.is_versioned:
        for name in VERSION_COLUMNS:
            if name in table.column_names:
                raise InvalidDeclaration(f"{table} declares '{name}', which mode='scd2' adds itself.", fix="remove it")
        for name in EVENT_COLUMNS if spec.exact_history else ():
            if name in table.column_names:
                raise InvalidDeclaration(
                    f"{table} declares '{name}', which the companion table of exact_history= adds itself.",
                    fix="rename it; column_map= gives it its name in the source",
                )
        if not spec.resolved_compare_columns()[0]:
            raise InvalidDeclaration(
                f"mode='scd2' on {table} has no column to compare.",
                fix="declare a column beside the key and event time",
            )
    return spec


def _only_with(spec: TargetSpec, option: str, modes: tuple[str, ...]) -> None:
    if getattr(spec, option) is not None and spec.mode not in modes:
        raise InvalidDeclaration(
            f"{option}= needs mode={' or '.join(repr(m) for m in modes if m != 'scd1')}, not '{spec.mode}'."
        )
