"""The connections in a stream's TOML document: by name, or by kind and fields beside what else their table says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from ematix_flow.backends.files_options import given_read_options
from ematix_flow.config.loader import load_module
from ematix_flow.config.stream_keys import (
    CONNECTION_KEYS,
    REGISTRY_KEYS,
    SOURCE_CSV_KEYS,
    TABLE_KEYS,
    TARGET_KEYS,
    connection_keys,
    inside,
    only,
    refuse_unknown,
    table_in,
)
from ematix_flow.declare.connection import KINDS, Connection, connection_from_fields
from ematix_flow.declare.connection_base import OPTION_FIELDS
from ematix_flow.declare.redaction import is_secret_field, url_secrets
from ematix_flow.declare.stream_ends import FILE_KINDS
from ematix_flow.declare.table import TableSpec
from ematix_flow.declare.target import ConnectionRef
from ematix_flow.errors import FlowError, InvalidConfig, closest, listed

Table = Mapping[str, object]

FORMAT_NAMES = {"jsonl": "json_lines"}
REGISTRY_KINDS = {
    "confluent": "schema_registry",
    "apicurio": "schema_registry",
    "schema_registry": "schema_registry",
    "glue": "glue_schema_registry",
    "glue_schema_registry": "glue_schema_registry",
}


def source_connection(table: Table, default_name: str, place: str) -> ConnectionRef:
    """The connection of `[source]` or of an entry of `[[sources]]`.

    How CSV files are to be read may be written in the words of a target, too.
    """
    fields = {key: value for key, value in table.items() if key != "query"}
    if fields.get("kind") in FILE_KINDS:
        fields = _with_read_options(fields, place)
    return connection_of(fields, default_name, place, beside=("query", *SOURCE_CSV_KEYS))


def split_target(table: Table, default_name: str, place: str) -> tuple[ConnectionRef, dict[str, Any]]:
    """The connection of a target, and its own options.

    Read options belong to the target here; those of the connection itself are written in `[target.connection]`.
    """
    kind = table.get("kind")
    fields_of_kind = connection_keys(kind) if isinstance(kind, str) and kind in KINDS else ()
    of_connection = {*CONNECTION_KEYS, *fields_of_kind} - set(OPTION_FIELDS)
    own = {key: value for key, value in table.items() if key in TARGET_KEYS and key not in of_connection}
    fields = {key: value for key, value in table.items() if key not in own and key != "table"}
    return connection_of(fields, default_name, place, beside=("table", *TARGET_KEYS)), dict(own)


def connection_of(table: Table, default_name: str, place: str, *, beside: Sequence[str]) -> ConnectionRef:
    """The connection that a table means: `connection = "name"`, `[….connection]`, or `kind` and its fields.

    Args:
        table: Without the keys that do not concern the connection.
        default_name: What it is called unless the table says so.
        place: For messages.
        beside: The keys that stand beside the connection's, for messages.

    Raises:
        InvalidConfig: An unknown key, or neither a name nor a kind.
        InvalidConnection: The fields do not make a connection.
    """
    named = table.get("connection")
    if isinstance(named, dict):
        refuse_unknown(table, ("connection",), place)
        return _built(cast(Table, named), default_name, inside(place, "connection"), beside=())
    if named is not None:
        if not isinstance(named, str) or not named.strip():
            raise InvalidConfig("connection must be the name of a connection.", where=place)
        for key in table:
            if key in CONNECTION_KEYS and key != "connection":
                raise InvalidConfig(
                    f"'{key}' cannot go with connection.", where=place, fix="the named connection says it already"
                )
        refuse_unknown(table, ("connection", *beside), place)
        return named
    return _built(table, default_name, place, beside=beside)


def registry_name(connection_name: str) -> str:
    """What the schema registry of a connection is called unless it says so itself."""
    return f"{connection_name}_schema_registry"


def _built(table: Table, default_name: str, place: str, *, beside: Sequence[str]) -> Connection:
    kind = table.get("kind")
    if kind is None:
        raise InvalidConfig(
            "There is neither kind nor connection.", where=place, fix=f"kind = one of {listed(KINDS)}, or connection"
        )
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidConfig(
            f"Unknown kind {kind!r}; known are {listed(KINDS)}.", where=place, fix=closest(str(kind), KINDS)
        )
    known = connection_keys(kind)
    refuse_unknown(table, (*CONNECTION_KEYS, *known, *beside), place)
    misplaced = [key for key in table if key in beside and key not in known]
    if misplaced:
        raise InvalidConfig(f"'{misplaced[0]}' does not go with kind '{kind}'.", where=place, fix="remove it")
    name = table.get("name", default_name)
    fields = {key: value for key, value in table.items() if key not in ("kind", "name")}
    if isinstance(fields.get("format"), str):
        fields["format"] = FORMAT_NAMES.get(str(fields["format"]), fields["format"])
    for option in OPTION_FIELDS:
        if isinstance(written := fields.get(option), dict):
            fields[option] = given_read_options(written)
    try:
        if kind == "kafka":
            fields = _with_registry(fields, str(name), place)
        return connection_from_fields(kind, cast(str, name), fields)
    except FlowError as exc:
        exc.at(place)
        raise


def _with_registry(fields: Mapping[str, object], connection_name: str, place: str) -> dict[str, object]:
    """The fields of a Kafka connection with its schema registry as one value: a name, or a connection of its own."""
    own = {key: value for key, value in fields.items() if key not in REGISTRY_KEYS or key == "schema_registry_url"}
    flat = only(fields, REGISTRY_KEYS)
    written = fields.get("schema_registry")
    if isinstance(written, dict):
        doubled = [key for key in flat if key != "schema_registry_url"]
        if doubled:
            raise InvalidConfig(f"'{doubled[0]}' cannot go with [….schema_registry].", where=place)
        fields_of_it = dict(cast(Table, written))
        kind = fields_of_it.pop("kind", "schema_registry")
        name = fields_of_it.pop("name", registry_name(connection_name))
        return {**own, "schema_registry": _registry(kind, cast(str, name), fields_of_it, place)}
    if not [key for key in flat if key != "schema_registry_url"]:
        return own
    if written is not None:
        raise InvalidConfig(f"'{next(iter(flat))}' cannot go with schema_registry.", where=place)
    own.pop("schema_registry_url", None)
    kind = flat.pop("schema_registry_kind", "confluent")
    fields_of_it = {REGISTRY_KEYS[key]: value for key, value in flat.items()}
    return {**own, "schema_registry": _registry(kind, registry_name(connection_name), fields_of_it, place)}


def _registry(kind: object, name: str, fields: Mapping[str, object], place: str) -> Connection:
    if not isinstance(kind, str) or kind not in REGISTRY_KINDS:
        raise InvalidConfig(
            f"Unknown kind of schema registry {kind!r}; known are {listed(REGISTRY_KINDS)}.",
            where=place,
            fix=closest(str(kind), REGISTRY_KINDS),
        )
    return connection_from_fields(REGISTRY_KINDS[kind], name, fields, place)


def _with_read_options(fields: Mapping[str, object], place: str) -> dict[str, object]:
    """A CSV source in the words of a target (`csv_delimiter`), as read options of its connection."""
    words = only(fields, SOURCE_CSV_KEYS)
    if not words:
        return dict(fields)
    options = dict(table_in(fields, "csv_read_options", place) or {})
    for key, value in words.items():
        option = SOURCE_CSV_KEYS[key]
        if option in options:
            raise InvalidConfig(f"'{key}' and csv_read_options.{option} are the same.", where=place, fix="keep one")
        options[option] = f"^{re.escape(value)}$" if key == "csv_null_value" and isinstance(value, str) else value
    return {**{key: value for key, value in fields.items() if key not in words}, "csv_read_options": options}


def target_table_of(table: Table | None, place: str) -> tuple[Any, Any]:
    """The table of a target and the key written beside its name: `(schema, name)`, or the class that declares it."""
    if table is None:
        return None, None
    here = inside(place, "table")
    refuse_unknown(table, TABLE_KEYS, here)
    if "class" in table:
        declared = _declared_class(table["class"], here)
        spec = cast(TableSpec, declared.__table_spec__)
        if (table.get("schema", spec.schema), table.get("name", spec.name)) != (spec.schema, spec.name):
            raise InvalidConfig(f"The class declares the table {spec}.", where=here, fix="remove schema and name")
        return declared, table.get("primary_key")
    for key in ("schema", "name"):
        if not isinstance(table.get(key), str):
            raise InvalidConfig(f"{key} is missing or no text.", where=here, fix=f'{key} = "…"')
    return (table["schema"], table["name"]), table.get("primary_key")


def _declared_class(written: object, place: str) -> Any:
    module, colon, name = written.partition(":") if isinstance(written, str) else ("", "", "")
    if not colon or not module or not name:
        raise InvalidConfig("class is written 'module:Name'.", where=place, fix='class = "my_tables:CustomerMirror"')
    found: Any = load_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(getattr(found, "__table_spec__", None), TableSpec):
        raise InvalidConfig(f"'{written}' is not a declared table.", where=place, fix="declare it with @ematix.table")
    return found


def inline_secrets(document: Mapping[str, object], path: str = "") -> Iterator[str]:
    """Where a document holds a password or key itself: `[source] sasl_plain_password`. Never the value."""
    for key, value in document.items():
        place = f"[{path}] {key}" if path else key
        if isinstance(value, dict):
            yield from inline_secrets(value, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for number, entry in enumerate(value, start=1):
                if isinstance(entry, dict):
                    yield from inline_secrets(entry, f"{path}.{key} {number}" if path else f"{key} {number}")
        elif isinstance(value, str) and path and _holds_secret(path, key, value):
            yield place


_ENDS = ("source", "target", "transform.lookups", "state_store")
_NO_SECRETS = ("primary_key", "message_key_column", "partition_key_prefix", "key_field", "tls_key_path")


def _holds_secret(path: str, key: str, value: str) -> bool:
    if not path.startswith(_ENDS) or path.endswith(".column_map") or key in _NO_SECRETS:
        return False
    found = [value] if is_secret_field(key) and value else url_secrets(value)
    return any("${" not in secret for secret in found)
