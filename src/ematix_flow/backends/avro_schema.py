"""Avro schemas as data: with everything they refer to inside, and one schema that reads what many have written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ematix_flow.backends.schema_registry import Schema
from ematix_flow.errors import UnfitValue

PRESENT = "__present"
"""A field that every message gets when it is read, so that one that cannot be read shows: there it is NULL."""

_PLAIN = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = ("record", "enum", "fixed", "error")


def whole(schema: Schema) -> dict[str, Any]:
    """A registry's Avro schema, with the schemas it refers to inside.

    Raises:
        UnfitValue: it is not a record, or not Avro.
    """
    definitions: dict[str, Any] = {}
    for reference in _references(schema):
        _with_full_names(_parsed(reference), "", definitions)
    top = _with_full_names(_parsed(schema), "", definitions)
    name = top if isinstance(top, str) else top.get("name") if isinstance(top, dict) else None
    if name is None or definitions.get(name, {}).get("type") not in ("record", "error"):
        raise UnfitValue(f"Schema {schema.id} is not a record, so its messages have no columns.")
    _refuse_endless(name, definitions, ())
    return dict(_inside(name, definitions, set()))


def reading_all(newest: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema that messages of all these are read with: the newest, then fields that only others have.

    What a message lacks is its default, or NULL. All of them are records with everything inside (`whole`).
    """
    definitions: dict[str, Any] = {}
    for record in (newest, *others):
        _collect(record, definitions)
    fields = list(newest["fields"])
    known = {field["name"].lower() for field in fields}
    for other in others:
        for field in other["fields"]:
            if field["name"].lower() not in known:
                known.add(field["name"].lower())
                fields.append({"name": field["name"], "type": field["type"]})
    optional = {name: _optional(definition) for name, definition in definitions.items()}
    top = newest["name"]
    present = {"name": PRESENT, "type": "int", "default": 1}
    optional[top] = {**_optional({**newest, "fields": fields}), "name": top}
    optional[top]["fields"].append(present)
    return dict(_inside(top, optional, set()))


def bare_kind(schema: Schema) -> Any:
    """The type of a schema that is no record but one plain value; None for any other.

    Raises:
        UnfitValue: it is not Avro.
    """
    kind = _parsed(schema)
    plain = kind.get("type") if isinstance(kind, dict) else kind
    return kind if isinstance(plain, str) and plain in _PLAIN else None


def _references(schema: Schema) -> list[Schema]:
    return [one for reference in schema.references.values() for one in (*_references(reference), reference)]


def _parsed(schema: Schema) -> Any:
    if schema.type != "AVRO":
        raise UnfitValue(f"Schema {schema.id} is {schema.type}, not Avro.", fix="set payload_format to what it is")
    try:
        return json.loads(schema.text)
    except ValueError:
        if schema.text.strip('" ') in _PLAIN:
            return schema.text.strip('" ')
        raise UnfitValue(f"Schema {schema.id} is not JSON, as Avro's schemas are.") from None


def _with_full_names(kind: Any, namespace: str, definitions: dict[str, Any]) -> Any:
    """The schema in which every name is complete; named types are put into `definitions`, and named in their places."""
    if isinstance(kind, str):
        return kind if kind in _PLAIN or "." in kind or not namespace else f"{namespace}.{kind}"
    if isinstance(kind, list):
        return [_with_full_names(one, namespace, definitions) for one in kind]
    inner = kind["type"]
    if isinstance(inner, dict | list):  # {"type": {"type": …}} is the same as its inside
        return _with_full_names(inner, namespace, definitions)
    if inner == "array":
        return {**kind, "items": _with_full_names(kind["items"], namespace, definitions)}
    if inner == "map":
        return {**kind, "values": _with_full_names(kind["values"], namespace, definitions)}
    if inner not in _NAMED:
        return kind if inner in _PLAIN else _with_full_names(inner, namespace, definitions)
    given = kind["name"]
    within = kind.get("namespace", namespace) if "." not in given else given.rpartition(".")[0]
    name = given if "." in given or not within else f"{within}.{given}"
    found = {key: value for key, value in kind.items() if key not in ("namespace", "fields", "doc", "aliases")}
    found["name"] = name
    definitions[name] = found
    if inner in ("record", "error"):
        found["type"] = "record"
        found["fields"] = [
            {
                **{key: value for key, value in field.items() if key not in ("doc", "order")},
                "type": _with_full_names(field["type"], within, definitions),
            }
            for field in kind["fields"]
        ]
    return name


def _refuse_endless(kind: Any, definitions: Mapping[str, Any], within: tuple[str, ...]) -> None:
    """Refuse a record that holds itself: it has no columns of its own."""
    if isinstance(kind, list):
        for one in kind:
            _refuse_endless(one, definitions, within)
    elif isinstance(kind, dict):
        _refuse_endless(kind.get("items", kind.get("values", "null")), definitions, within)
    elif kind in within:
        raise UnfitValue(f"The Avro record '{kind}' holds itself, so it has no columns of its own.")
    elif definitions.get(kind, {}).get("type") == "record":
        for field in definitions[kind]["fields"]:
            _refuse_endless(field["type"], definitions, (*within, kind))


def _inside(kind: Any, definitions: Mapping[str, Any], seen: set[str]) -> Any:
    """The schema with each named type written out where it comes first."""
    if isinstance(kind, str):
        if kind in _PLAIN or kind in seen or kind not in definitions:
            return kind
        seen.add(kind)
        found = definitions[kind]
        if found["type"] != "record":
            return found
        fields = [{**field, "type": _inside(field["type"], definitions, seen)} for field in found["fields"]]
        return {**found, "fields": fields}
    if isinstance(kind, list):
        return [_inside(one, definitions, seen) for one in kind]
    if kind["type"] == "array":
        return {**kind, "items": _inside(kind["items"], definitions, seen)}
    if kind["type"] == "map":
        return {**kind, "values": _inside(kind["values"], definitions, seen)}
    if kind["type"] in _NAMED and kind.get("name") in definitions:
        return _inside(kind["name"], definitions, seen)
    return kind


def _collect(kind: Any, definitions: dict[str, Any]) -> Any:
    """Take named types out of a schema that has them inside; the first of a name counts."""
    if isinstance(kind, str):
        return kind
    if isinstance(kind, list):
        return [_collect(one, definitions) for one in kind]
    if kind["type"] == "array":
        return {**kind, "items": _collect(kind["items"], definitions)}
    if kind["type"] == "map":
        return {**kind, "values": _collect(kind["values"], definitions)}
    if kind["type"] not in _NAMED:
        return kind
    found = dict(kind)
    if kind["type"] == "record":
        found["fields"] = [{**field, "type": _collect(field["type"], definitions)} for field in kind["fields"]]
    definitions.setdefault(kind["name"], found)
    return kind["name"]


def _optional(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A record whose fields may all be missing; other named types stay as they are."""
    if definition["type"] != "record":
        return dict(definition)
    fields = []
    for field in definition["fields"]:
        if "default" in field:
            fields.append(dict(field))
            continue
        kind = field["type"]
        branches = [one for one in kind if one != "null"] if isinstance(kind, list) else [kind]
        fields.append({**field, "type": ["null", *branches], "default": None})
    return {**definition, "fields": fields}
