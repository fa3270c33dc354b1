"""The keys of a stream's TOML document: which table knows which, and what is said about one that nobody knows there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import cast

from ematix_flow.declare.connection import KINDS, GlueSchemaRegistryConnection, SchemaRegistryConnection
from ematix_flow.declare.stream import CDC, Aggregation, Join, Lookup, StateStore, Watermark, Window
from ematix_flow.declare.target import Target
from ematix_flow.errors import InvalidConfig, closest, listed

PLAIN_KEYS: dict[str, str] = {
    "pipeline_name": "name",
    "idle_pause_ms": "idle_pause_ms",
    "delivery": "delivery",
    "continue_on_target_failure": "continue_on_target_failure",
    "dead_letter_topic": "dead_letter_topic",
    "dlq_store": "dlq_store",
    "dlq_max_attempts": "dlq_max_attempts",
    "metrics_port": "metrics_port",
    "checkpoint": "checkpoint",
    "max_batch_rows": "max_batch_rows",
    "on_gap": "on_gap",
}
"""Keys at the top whose value is a field of the spec."""

TRANSFORM_PLAIN_KEYS: dict[str, str] = {
    "sql": "transform_sql",
    "dialect": "dialect",
    "engine": "engine",
    "peers": "peers",
    "on_error": "transform_on_error",
}
"""Keys of `[transform]` whose value is a field of the spec."""


def _fields(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


TOP_KEYS = (
    *PLAIN_KEYS,
    "source_query",
    "source",
    "sources",
    "target",
    "targets",
    "transform",
    "state_store",
    "watermark",
)
TRANSFORM_KEYS = (*TRANSFORM_PLAIN_KEYS, "lookups", "window", "join", "cdc", "tls")
TLS_KEYS = ("ca_cert_pem_path", "client_identity", "domain_name_override")
WATERMARK_KEYS = _fields(Watermark)
WINDOW_KEYS = (*_fields(Window), *WATERMARK_KEYS)
AGGREGATION_KEYS = tuple("as" if name == "as_" else name for name in _fields(Aggregation))
JOIN_KEYS, CDC_KEYS, STATE_STORE_KEYS = _fields(Join), _fields(CDC), _fields(StateStore)
LOOKUP_KEYS = tuple(name for name in _fields(Lookup) if name != "connection")
TARGET_KEYS = tuple(name for name in _fields(Target) if name not in ("connection", "table"))
TABLE_KEYS = ("schema", "name", "primary_key", "class")

CONNECTION_KEYS = ("connection", "kind", "name")
"""How a table says which connection it means: by its name, or by a kind, its fields and, if wanted, a name."""

REGISTRY_KEYS: dict[str, str] = {
    **{f"schema_registry_{name}": name for name in _fields(GlueSchemaRegistryConnection) if name != "name"},
    **{f"schema_registry_{name}": name for name in _fields(SchemaRegistryConnection) if name != "name"},
    "schema_registry_name": "registry_name",
    "schema_registry_kind": "kind",
}
"""The schema registry of a Kafka connection, written beside the other fields: the key and the registry's field."""

SOURCE_CSV_KEYS: dict[str, str] = {
    "csv_delimiter": "delimiter",
    "csv_header": "has_header",
    "csv_quote": "quote",
    "csv_escape": "escape",
    "csv_null_value": "null_regex",
}
"""The words of a CSV target, understood for a source too: the key and the read option it means."""


def connection_keys(kind: str) -> tuple[str, ...]:
    """The fields of a kind as a document writes them."""
    own = [name for name in _fields(KINDS[kind]) if name != "name"]
    if "url" in own or kind in ("sqlite", "duckdb"):
        own += ["dsn", "url"]
    if kind == "kafka":
        own += REGISTRY_KEYS
    return tuple(dict.fromkeys(own))


_PLACES: dict[str, tuple[str, ...]] = {
    "at the top of the document, in front of the first [table]": TOP_KEYS,
    "in [transform]": TRANSFORM_KEYS,
    "in [target]": TARGET_KEYS,
    "in [target.table]": TABLE_KEYS,
    "in [transform.window]": WINDOW_KEYS,
    "in [transform.join]": JOIN_KEYS,
    "in [transform.cdc]": CDC_KEYS,
    "in [state_store]": STATE_STORE_KEYS,
}
_OTHER_WORDS = {
    "name": "pipeline_name",
    "pipeline": "pipeline_name",
    "query": "source_query",
    "transform_sql": "sql",
    "transform_on_error": "on_error",
    "as_": "as",
    "aggregation": "aggregations",
}
_ANSWERS = {
    "topic": "what a source reads is its source_query, or query in [[sources]]",
    "queue": "what a source reads is its source_query, or query in [[sources]]",
    "subscription": "what a source reads is its source_query, or query in [[sources]]",
    "crash_recovery": "leave it out: open windows are kept in the checkpoint",
}


def refuse_unknown(table: Mapping[str, object], known: Sequence[str], place: str) -> None:
    """Refuse a key that a table does not know, with the one that was probably meant or the table it belongs to.

    Raises:
        InvalidConfig: (a ValueError) names the key and its place.
    """
    for key in table:
        if key not in known:
            raise InvalidConfig(f"Unknown key '{key}'.", where=place, fix=_meant(key, known))


def _meant(key: str, known: Sequence[str]) -> str:
    word = _OTHER_WORDS.get(key)
    if word in known:
        return f"did you mean '{word}'?"
    elsewhere = {name: place for place, names in reversed(_PLACES.items()) if names is not known for name in names}
    if key in _ANSWERS:
        return _ANSWERS[key]
    if key in elsewhere:
        return f"it belongs {elsewhere[key]}"
    if near := closest(key, known):
        return near
    far = get_close_matches(key, list(elsewhere), n=1, cutoff=0.75)
    if far:
        return f"did you mean '{far[0]}'? It belongs {elsewhere[far[0]]}"
    return f"remove it; known are {listed(known)}"


def table_in(table: Mapping[str, object], key: str, place: str) -> Mapping[str, object] | None:
    """The table under a key, or None when there is none.

    Raises:
        InvalidConfig: something else is there.
    """
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidConfig(f"'{key}' must be a table.", where=place, fix=f"write [{key}] on a line of its own")
    return cast("Mapping[str, object]", value)


def tables_in(table: Mapping[str, object], key: str, place: str) -> list[Mapping[str, object]] | None:
    """The tables under a key, or None when there are none.

    Raises:
        InvalidConfig: something else is there, or the list is empty.
    """
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(entry, dict) for entry in value):
        raise InvalidConfig(
            f"'{key}' must be a list of tables.", where=place, fix=f"write [[{key}]] in front of each of them"
        )
    return cast("list[Mapping[str, object]]", value)


def inside(place: str, key: str) -> str:
    """The place of a table within another: `pipeline.toml [target.table]`."""
    return f"{place[:-1]}.{key}]" if place.endswith("]") else f"{place} [{key}]"


def only(table: Mapping[str, object], keys: Iterable[str]) -> dict[str, object]:
    """The part of a table with these keys."""
    wanted = set(keys)
    return {key: value for key, value in table.items() if key in wanted}
