"""The two ends of a stream: which systems can be read and written, where in them, and what does not fit together.

A connection given by name is not known here; its end is looked at again when the name has become a connection
(`StreamSpec.with_connections`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, cast

from ematix_flow.declare.capture import captured_tables, check_slot_options
from ematix_flow.declare.connection import (
    KINDS,
    Connection,
    GlueSchemaRegistryConnection,
    KafkaConnection,
    KinesisConnection,
    MySQLConnection,
    PostgresConnection,
    SchemaRegistryConnection,
)
from ematix_flow.declare.connection_base import HoldsFiles
from ematix_flow.declare.pipeline import as_names
from ematix_flow.declare.stream import Source
from ematix_flow.declare.stream_checks import check_connection, check_one_of, check_text
from ematix_flow.declare.stream_modes import WAREHOUSES, check_whole_source_options
from ematix_flow.declare.table import TableSpec, table_spec
from ematix_flow.declare.target import MODES, Target
from ematix_flow.errors import InvalidDeclaration, WrongDeclarationType, listed

FILE_KINDS = tuple(kind for kind, cls in KINDS.items() if issubclass(cls, HoldsFiles))
LAKE_KINDS = tuple(kind for kind in KINDS if kind.startswith("delta_") or kind == "iceberg")
SOURCE_KINDS = ("kafka", "rabbitmq", "pubsub", "kinesis", *FILE_KINDS, *LAKE_KINDS, "postgres", "mysql")
PLACEMENTS: dict[str, str] = {
    **dict.fromkeys(("postgres", "mysql", "sqlite", "duckdb", *LAKE_KINDS), "table"),
    **dict.fromkeys(WAREHOUSES, "table"),
    **dict.fromkeys(FILE_KINDS, "prefix"),
    **dict.fromkeys(("kafka", "pubsub"), "topic"),
    "rabbitmq": "queue",
    "kinesis": "partition_key_prefix",
}
"""Where in its system a target of a kind is: `Target(...)` takes this word, the keyword is `target_` and this word."""

PAYLOAD_FORMATS = ("json", "raw_bytes", "avro", "protobuf")
OFFSET_RESETS = ("earliest", "latest")
_PLACES = ("topic", "queue", "partition_key_prefix", "prefix")
_CHARACTER_OPTIONS = ("delimiter", "quote", "escape", "terminator", "comment")
_NAMES = ("partition_by", "primary_key", "keys", "update_columns", "compare_columns")
_TEXTS = ("topic", "queue", "partition_key_prefix", "prefix", "message_key_column", "event_timestamp_column")


def target_table(target: Target) -> tuple[str, str] | None:
    """Schema and name of the table that a target writes; None when it writes no table."""
    if target.table is None or isinstance(target.table, tuple):
        return cast("tuple[str, str] | None", target.table)
    declared = table_spec(target.table)
    return declared.schema, declared.name


def target_table_spec(target: Target) -> TableSpec | None:
    """The table as a class declares it, with its columns; None when only its name is known."""
    return None if target.table is None or isinstance(target.table, tuple) else table_spec(target.table)


def target_primary_key(target: Target) -> tuple[str, ...]:
    """The key columns that a target names itself, or else those of its table class; empty when neither does."""
    if target.primary_key:
        return tuple(target.primary_key)
    declared = target_table_spec(target)
    return declared.primary_key if declared else ()


def is_same_place(one: Target, other: Target) -> bool:
    """Whether two fitted targets write to the same table, topic, queue or folder of the same connection."""
    places = [(target_table(target), *(getattr(target, word) for word in _PLACES)) for target in (one, other)]
    return one.connection == other.connection and places[0] == places[1]


def fitted_target(target: Target) -> Target:
    """The target with lists as tuples and characters as text, so that equal targets compare equal.

    Raises:
        DeclarationError: an option has the wrong type, or a word that is not known.
    """
    check_connection("Target", target.connection)
    changes: dict[str, Any] = {"table": _fitted_table(target.table)}
    for option in _NAMES:
        changes[option] = _fitted_names(option, getattr(target, option))
    for option in _TEXTS:
        if getattr(target, option) is not None:
            check_text(f"Target: {option}", getattr(target, option))
    for option in ("csv_read_options", "json_read_options", "column_map"):
        changes[option] = _fitted_mapping(option, getattr(target, option))
    for column, written in (changes["column_map"] or {}).items():
        check_text(f"Target: column_map['{column}']", written)
    if target.mode is not None:
        check_one_of("Target: mode", target.mode, MODES)
    check_whole_source_options(target)
    return replace(target, **changes)


def check_source(source: Source) -> None:
    """Refuse a source without a query, one that cannot be read as a stream, and what does not fit its system."""
    source.check()
    connection = source.connection
    if not isinstance(connection, Connection):
        return
    if connection.kind not in SOURCE_KINDS:
        raise InvalidDeclaration(
            f"source '{source.query}' is on a {connection.kind} connection, which cannot be read as a stream.",
            fix=f"streams read {listed(SOURCE_KINDS)}; load a database in batches with @ematix.pipeline(...)",
        )
    if isinstance(connection, KafkaConnection):
        if not (connection.group_id or "").strip():
            raise InvalidDeclaration(
                f"group_id is required to consume from '{source.query}', and connection '{connection.name}' has none.",
                fix='group_id="…" on the connection',
            )
        _check_kafka(connection)
    if isinstance(connection, KinesisConnection):
        _check_kinesis(connection)
    if isinstance(connection, PostgresConnection | MySQLConnection):
        captured_tables(source.query)
    if isinstance(connection, PostgresConnection):
        what = f"connection '{connection.name}'"
        check_slot_options(what, connection.slot, connection.on_full_slot, connection.max_slot_bytes)


def check_target_end(target: Target, *, keyword: str, is_cdc: bool) -> None:
    """Refuse a missing placement, one of another system, and what cannot hold changes when changes are applied.

    Args:
        target: A fitted target.
        keyword: In front of option names in messages: `target_` when they were written as keywords.
        is_cdc: Whether change events are applied to it.
    """
    connection = target.connection
    if not isinstance(connection, Connection):
        return
    word = PLACEMENTS.get(connection.kind)
    if word is None:
        raise InvalidDeclaration(f"a {connection.kind} connection cannot be a target.")
    if not getattr(target, word):
        raise InvalidDeclaration(f"a target on a {connection.kind} connection needs {keyword}{word}=.")
    for other in sorted(set(PLACEMENTS.values()) - {word}):
        if getattr(target, other) is not None:
            raise InvalidDeclaration(
                f"{keyword}{other}= does not go with a {connection.kind} connection.", fix=f"remove {keyword}{other}="
            )
    if target.message_key_column is not None and connection.kind != "kafka":
        raise InvalidDeclaration(f"{keyword}message_key_column= needs a kafka connection, not {connection.kind}.")
    if target.partition_by and connection.kind not in (*LAKE_KINDS, *FILE_KINDS):
        raise InvalidDeclaration(
            f"{keyword}partition_by= does not go with a {connection.kind} connection.", fix="it is for lakes and files"
        )
    _check_file_options(target, connection.kind, keyword)
    table = target_table(target)
    if connection.kind == "sqlite" and table is not None and table[0] != "main":
        raise InvalidDeclaration(f"SQLite has no schema '{table[0]}' (table '{table[1]}').", fix='use ("main", "…")')
    if isinstance(connection, KafkaConnection):
        _check_kafka(connection)
    if isinstance(connection, KinesisConnection):
        _check_kinesis(connection)
    if is_cdc and word != "table":
        raise InvalidDeclaration(
            f"cdc= cannot be applied to a {connection.kind} target: what is written there is never changed.",
            fix="write to a database or a lake table",
        )
    if is_cdc and connection.kind in WAREHOUSES:
        raise InvalidDeclaration(
            f"cdc= cannot be applied to a {connection.kind} target in this version.",
            fix="write to a database or a lake table, and load the warehouse from it",
        )
    if is_cdc and connection.kind in LAKE_KINDS and not target_primary_key(target):
        raise InvalidDeclaration(
            f"cdc= into a {connection.kind} table needs its key.",
            fix=f'{keyword}primary_key=("id",), or a table class with pk()',
        )


def _check_file_options(target: Target, kind: str, keyword: str) -> None:
    """Options of files belong to files; whether they fit the format is asked of the files backend."""
    if kind in FILE_KINDS:
        return
    for field in fields(target):
        if field.name.startswith(("csv_", "json_", "parquet_")) and getattr(target, field.name) is not None:
            raise InvalidDeclaration(
                f"{keyword}{field.name}= is for files and does not go with a {kind} connection.",
                fix=f"remove {keyword}{field.name}=",
            )


def _check_kafka(connection: KafkaConnection) -> None:
    """The words of a Kafka connection that decide how messages are read; logins are checked by the backend."""
    what = f"connection '{connection.name}'"
    check_text(f"{what}: bootstrap_servers", connection.bootstrap_servers)
    if isinstance(connection.schema_registry, str) and connection.schema_registry:
        check_text(f"{what}: schema_registry", connection.schema_registry)
    payload = connection.payload_format or "json"
    if "${" not in payload:
        check_one_of(f"{what}: payload_format", payload, PAYLOAD_FORMATS)
    if connection.auto_offset_reset is not None and "${" not in connection.auto_offset_reset:
        check_one_of(f"{what}: auto_offset_reset", connection.auto_offset_reset, OFFSET_RESETS)
    registry = connection.schema_registry
    if payload in ("avro", "protobuf") and not (registry or connection.schema_registry_url):
        raise InvalidDeclaration(
            f"{what}: payload_format '{payload}' needs schema_registry_url or schema_registry.",
            fix='schema_registry_url = "http://registry:8081"',
        )
    if isinstance(registry, GlueSchemaRegistryConnection) and payload != "avro" and "${" not in payload:
        raise InvalidDeclaration(
            f"{what}: a Glue schema registry is for payload_format 'avro', not '{payload}'.",
            fix="set payload_format = 'avro', or remove schema_registry",
        )
    if isinstance(registry, SchemaRegistryConnection) and bool(registry.basic_auth_user) != bool(
        registry.basic_auth_password
    ):
        raise InvalidDeclaration(
            f"{what}: the user and the password of its schema registry go together.", fix="give both or none"
        )


def _check_kinesis(connection: KinesisConnection) -> None:
    if bool(connection.access_key_id) != bool(connection.secret_access_key):
        raise InvalidDeclaration(
            f"connection '{connection.name}': access_key_id and secret_access_key go together.", fix="give both or none"
        )


def _fitted_table(table: Any) -> Any:
    """`(schema, name)`, or a table class as it is."""
    if table is None or isinstance(getattr(table, "__table_spec__", None), TableSpec):
        return table
    if isinstance(table, (tuple, list)):
        if len(table) != 2:
            raise WrongDeclarationType(f"a table is given as (schema, name), not {table!r}.")
        check_text("the schema of the target table", table[0])
        check_text("the name of the target table", table[1])
        return (table[0], table[1])
    raise WrongDeclarationType(
        f"a table is given as (schema, name) or as a table class, not as {type(table).__name__}.",
        fix='("public", "events")',
    )


def _fitted_names(option: str, written: Any) -> tuple[str, ...] | None:
    if written is not None and (isinstance(written, Mapping) or not isinstance(written, Iterable)):
        raise WrongDeclarationType(f"Target: {option} takes a list of column names, not {type(written).__name__}.")
    names = as_names(f"Target: {option}", written)
    if names is not None:
        if not names:
            raise InvalidDeclaration(f"Target: {option} names no column.", fix="leave it out")
        for name in names:
            check_text(f"Target: a column of {option}", name)
            if names.count(name) > 1:
                raise InvalidDeclaration(f"Target: {option} names '{name}' twice.")
    return names


def _fitted_mapping(option: str, written: Any) -> dict[str, Any] | None:
    if written is None:
        return None
    if not isinstance(written, Mapping):
        raise WrongDeclarationType(f"Target: {option} takes a dict, not {type(written).__name__}.")
    return {str(key): _fitted_setting(option, str(key), value) for key, value in written.items()}


def _fitted_setting(option: str, key: str, value: Any) -> Any:
    """A character of a CSV file may be written as its number."""
    is_number = option == "csv_read_options" and key in _CHARACTER_OPTIONS and type(value) is int and 0 < value < 128
    return chr(value) if is_number else value
