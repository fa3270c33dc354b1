"""Writing a stream as TOML: reading the text again gives an equal `StreamSpec`.

Two things cannot travel and are named in a comment: UDFs, and a table class that no module holds by its name.
References (`${…}`) are tried, so that a document which could not run is not handed out, and written as references.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from ematix_flow.config.secrets import expand_field
from ematix_flow.config.stream_connections import registry_name
from ematix_flow.config.stream_keys import PLAIN_KEYS, TRANSFORM_PLAIN_KEYS
from ematix_flow.config.stream_toml import lookup_connection_name
from ematix_flow.config.toml_text import toml_text
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.connection_base import OPTION_FIELDS
from ematix_flow.declare.stream import Source
from ematix_flow.declare.stream_ends import target_primary_key, target_table
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.target import Target
from ematix_flow.errors import FlowError, InvalidConfig


def render(spec: StreamSpec) -> str:
    """The TOML document of a stream.

    Raises:
        MissingSecret: (a KeyError) a reference cannot be filled in.
        InvalidConfig: (a ValueError) a reference is filled in with nothing, or a text that no file can hold.
    """
    check_references(spec)
    comments = "".join(f"# {line}\n" for line in _left_out(spec))
    return comments + toml_text(_document(spec))


def check_references(spec: StreamSpec) -> None:
    """Try every reference of a stream's connections and state store, and forget what was found.

    Raises:
        MissingSecret: (a KeyError) one cannot be filled in.
        InvalidConfig: (a ValueError) one is filled in with nothing.
    """
    for place, text in _references(spec):
        try:
            found = expand_field(text)
        except FlowError as exc:
            exc.at(f"{spec.where}, {place}")
            raise
        if not found.strip():
            raise InvalidConfig(f"{place} is empty: its reference is filled in with nothing.", where=str(spec.where))


def _references(spec: StreamSpec) -> Iterator[tuple[str, str]]:
    ends = [*(source.connection for source in spec.sources), *(target.connection for target in spec.targets)]
    for connection in (*ends, *(lookup.connection for lookup in spec.lookups.values())):
        if isinstance(connection, Connection):
            yield from _references_of(connection)
    if spec.state_store is not None and "${" in (spec.state_store.url or ""):
        yield "url of the state store", str(spec.state_store.url)


def _references_of(connection: Connection) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(connection):
        value = getattr(connection, field.name)
        if isinstance(value, Connection):
            yield from _references_of(value)
        elif isinstance(value, str) and "${" in value and field.name != "name":
            yield f"{field.name} of connection '{connection.name}'", value


def _left_out(spec: StreamSpec) -> Iterator[str]:
    udfs = [*(handle.name for handle in spec.udfs), *(handle.name for handle in spec.aggregate_udfs)]
    if udfs:
        yield f"Not in this document: the Python functions {', '.join(map(repr, udfs))} that the SQL may call."
    for target in spec.targets:
        if target.table is not None and not isinstance(target.table, tuple) and _class_path(target.table) is None:
            yield f"Not in this document: the columns that the class of {target_table(target)!r} declares."


# ── the document as data ─────────────────────────────────────────────────────────────────────────────────────────────


def _document(spec: StreamSpec) -> dict[str, Any]:
    defaults = {field.name: field.default for field in dataclasses.fields(spec)}
    document: dict[str, Any] = {}
    for key, option in PLAIN_KEYS.items():
        if getattr(spec, option) != defaults[option]:
            document[key] = getattr(spec, option)
    if len(spec.sources) == 1:
        document["source_query"] = spec.sources[0].query
        document["source"] = _connection(spec.sources[0].connection, "source")
    else:
        document["sources"] = [_source(source, number) for number, source in enumerate(spec.sources, start=1)]
    if len(spec.targets) == 1:
        document["target"] = _target(spec.targets[0], "target")
    else:
        document["targets"] = [
            _target(target, f"target_{number}") for number, target in enumerate(spec.targets, start=1)
        ]
    transform: dict[str, Any] = {
        key: getattr(spec, option)
        for key, option in TRANSFORM_PLAIN_KEYS.items()
        if getattr(spec, option) != defaults[option]
    }
    for key in ("window", "join", "cdc"):
        if getattr(spec, key) is not None:
            transform[key] = _record(getattr(spec, key))
    if spec.lookups:
        transform["lookups"] = {
            name: {
                **_connection(lookup.connection, lookup_connection_name(name)),
                **{key: value for key, value in _record(lookup).items() if key != "connection"},
            }
            for name, lookup in spec.lookups.items()
        }
    if transform:
        document["transform"] = transform
    for key in ("state_store", "watermark"):
        if getattr(spec, key) is not None:
            document[key] = _record(getattr(spec, key))
    return document


def _source(source: Source, number: int) -> dict[str, Any]:
    return {"query": source.query, **_connection(source.connection, f"source_{number}")}


def _target(target: Target, default_name: str) -> dict[str, Any]:
    reach = _connection(target.connection, default_name)
    if any(option in reach for option in OPTION_FIELDS):
        # In the table of a target these words are the target's own.
        reach = {"connection": reach}
    options = {
        key: value for key, value in _record(target).items() if key not in ("connection", "table", "primary_key")
    }
    key = None if target.primary_key is None else list(target.primary_key)
    if target.table is None:
        return {**reach, **options, **({} if key is None else {"primary_key": key})}
    return {**reach, **options, "table": _table(target, key)}


def _table(target: Target, key: list[str] | None) -> dict[str, Any]:
    path = None if isinstance(target.table, tuple) else _class_path(target.table)
    if path is not None:
        return {"class": path, **({} if key is None else {"primary_key": key})}
    schema, name = target_table(target) or ("", "")
    if not isinstance(target.table, tuple) and key is None:
        key = list(target_primary_key(target)) or None
    return {"schema": schema, "name": name, **({} if key is None else {"primary_key": key})}


def _class_path(table: Any) -> str | None:
    """How a document names a table class, or None when nobody could find it by that name."""
    module, name = getattr(table, "__module__", ""), getattr(table, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is table and module != "__main__" else None


def _connection(connection: Any, default_name: str) -> dict[str, Any]:
    """`connection = "name"`, or kind and fields, with a name when it is not the one it would get anyway."""
    if not isinstance(connection, Connection):
        return {"connection": connection}
    fields: dict[str, Any] = {"kind": connection.kind}
    if connection.name != default_name:
        fields["name"] = connection.name
    for field in dataclasses.fields(connection):
        value = getattr(connection, field.name)
        if field.name == "name" or value is None or value == field.default:
            continue
        fields[field.name] = (
            _connection(value, registry_name(connection.name))
            if isinstance(value, Connection)
            else dict(value)
            if field.name in OPTION_FIELDS
            else value
        )
    return fields


def _record(value: Any) -> dict[str, Any]:
    """The fields of a value that differ from their defaults, in the words and forms of TOML."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        written = getattr(value, field.name)
        always = field.default is dataclasses.MISSING or field.name in ("max_groups_per_window", "envelope")
        if written is None or (not always and written == field.default and type(written) is type(field.default)):
            continue
        found["as" if field.name == "as_" else field.name] = _plain(written)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_record(entry) if dataclasses.is_dataclass(entry) else entry for entry in value]
    return dict(value) if isinstance(value, dict) else value
