"""Reading a stream from TOML: every key is known in its table or refused, and what comes out is the same `StreamSpec`
that Python makes.

References (`${…}`) stay references; nothing connects and no secret is fetched.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, cast

from ematix_flow.config.stream_connections import (
    connection_of,
    inline_secrets,
    source_connection,
    split_target,
    target_table_of,
)
from ematix_flow.config.stream_keys import (
    AGGREGATION_KEYS,
    CDC_KEYS,
    JOIN_KEYS,
    LOOKUP_KEYS,
    PLAIN_KEYS,
    STATE_STORE_KEYS,
    TLS_KEYS,
    TOP_KEYS,
    TRANSFORM_KEYS,
    TRANSFORM_PLAIN_KEYS,
    WATERMARK_KEYS,
    WINDOW_KEYS,
    inside,
    only,
    refuse_unknown,
    table_in,
    tables_in,
)
from ematix_flow.config.stream_ready import check_stream
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.stream import CDC, Aggregation, Join, Lookup, Source, StateStore, Watermark, Window
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.target import Target
from ematix_flow.errors import FlowError, InvalidConfig, ModuleNotLoaded, WrongConnectionType, WrongDeclarationType

Table = Mapping[str, object]

IN_CODE = "<config_str>"
"""Where a document is from when it was given as text."""

_QUIET = "EMATIX_FLOW_NO_DEPRECATION"


def read_stream_file(path: str | PathLike[str]) -> StreamSpec:
    """The stream that a file describes.

    Raises:
        InvalidConfig: (a ValueError) the file cannot be read; otherwise as `read_stream_toml`.
    """
    shown = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise InvalidConfig(f"'{shown}' cannot be read: {exc.strerror}.", where=shown) from exc
    except ValueError as exc:
        reason = "it is not UTF-8 text" if isinstance(exc, UnicodeDecodeError) else "no file can have this name"
        raise InvalidConfig(f"'{shown}' cannot be read: {reason}.", where=shown) from exc
    return read_stream_toml(text, shown)


def read_stream_toml(text: str, where: str = IN_CODE) -> StreamSpec:
    """The stream that a TOML document describes.

    A password or key that stands in the document itself is one warning each, which `EMATIX_FLOW_NO_DEPRECATION=1`
    silences.

    Args:
        text: The document.
        where: Its path, for messages.

    Raises:
        InvalidConfig: (a ValueError) it is not TOML, or holds an unknown key; says which, where, and what was meant.
        DeclarationError: (a ValueError) values are wrong or do not go together.
    """
    document = _parsed(text, where)
    with _as_value_errors(where):
        spec = _spec(document, where)
        check_stream(spec)
    if os.environ.get(_QUIET) != "1":
        for finding in inline_secrets(document):
            warnings.warn(
                f"{where}: {finding} is written in the document; write a reference such as ${{NAME}} instead "
                f"({_QUIET}=1 silences this)",
                FutureWarning,
                stacklevel=2,
            )
    return spec


def _parsed(text: str, where: str) -> dict[str, object]:
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return cast("dict[str, object]", toml.loads(text))
    except toml.TOMLDecodeError as exc:
        line = re.search(r"at line (\d+)", str(exc))
        place = f"{where}:{line.group(1)}" if line else where
        raise InvalidConfig(f"The document is not valid TOML: {exc}.", where=place) from exc


@contextmanager
def _as_value_errors(where: str) -> Iterator[None]:
    """In a document only values can be wrong: what is a TypeError or an ImportError in Python is a ValueError here."""
    try:
        yield
    except (WrongDeclarationType, WrongConnectionType, ModuleNotLoaded) as exc:
        raise InvalidConfig(exc.message, where=exc.where or where, fix=exc.fix) from exc
    except FlowError as exc:
        exc.at(where)
        raise


def _spec(document: Table, where: str) -> StreamSpec:
    refuse_unknown(document, TOP_KEYS, where)
    if not isinstance(document.get("pipeline_name"), str) or not str(document["pipeline_name"]).strip():
        raise InvalidConfig("pipeline_name is missing or no text.", where=where, fix='pipeline_name = "orders_to_lake"')
    given: dict[str, Any] = {PLAIN_KEYS[key]: value for key, value in only(document, PLAIN_KEYS).items()}
    transform, lateness = _transform(document, where)
    given |= transform
    watermark = _record(Watermark, table_in(document, "watermark", where), WATERMARK_KEYS, f"{where} [watermark]")
    if lateness is not None:
        if watermark is not None and watermark != lateness:
            raise InvalidConfig(
                "[watermark] and the same keys in [transform.window] differ.", where=where, fix="keep [watermark]"
            )
        watermark = lateness
    given["watermark"] = watermark
    given["state_store"] = _record(
        StateStore, table_in(document, "state_store", where), STATE_STORE_KEYS, f"{where} [state_store]"
    )
    return StreamSpec(
        where=SourceLocation(file=where, line=1),
        sources=_sources(document, where),
        targets=_targets(document, where),
        **given,
    )


# ── the two ends ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _sources(document: Table, where: str) -> tuple[Source, ...]:
    one, several = table_in(document, "source", where), tables_in(document, "sources", where)
    if (one is None) == (several is None):
        raise InvalidConfig("The document needs exactly one of [source] and [[sources]].", where=where)
    query = document.get("source_query")
    if one is not None:
        own = one.get("query")
        if own is not None and query is not None:
            raise InvalidConfig("source_query and query in [source] are the same.", where=where, fix="keep one of them")
        return (_source(one, own if query is None else query, "source", f"{where} [source]"),)
    if query not in (None, ""):
        raise InvalidConfig(
            "source_query belongs to [source].", where=where, fix="give every entry of [[sources]] its own query"
        )
    entries = enumerate(several or (), start=1)
    return tuple(
        _source(entry, entry.get("query"), f"source_{number}", f"{where} [[sources]] {number}")
        for number, entry in entries
    )


def _source(table: Table, query: object, default_name: str, place: str) -> Source:
    if not isinstance(query, str) or not query.strip():
        key = "query" if "[[" in place else "source_query"
        raise InvalidConfig(f"{key} is missing or no text.", where=place, fix=f'{key} = "events"')
    return Source(connection=source_connection(table, default_name, place), query=query)


def _targets(document: Table, where: str) -> tuple[Target, ...]:
    one, several = table_in(document, "target", where), tables_in(document, "targets", where)
    if (one is None) == (several is None):
        raise InvalidConfig("The document needs exactly one of [target] and [[targets]].", where=where)
    if one is not None:
        return (_target(one, "target", f"{where} [target]"),)
    entries = enumerate(several or (), start=1)
    return tuple(_target(entry, f"target_{number}", f"{where} [[targets]] {number}") for number, entry in entries)


def _target(table: Table, default_name: str, place: str) -> Target:
    connection, options = split_target(table, default_name, place)
    named, key = target_table_of(table_in(table, "table", place), place)
    if key is not None and options.get("primary_key") is not None:
        raise InvalidConfig("primary_key stands twice.", where=place, fix="keep the one in [target.table]")
    if key is not None:
        options["primary_key"] = key
    return Target(connection=connection, table=named, **options)


# ── what is done with the rows ───────────────────────────────────────────────────────────────────────────────────────


def _transform(document: Table, where: str) -> tuple[dict[str, Any], Watermark | None]:
    """The fields that `[transform]` gives, and the watermark when its window says one."""
    table = table_in(document, "transform", where)
    place = f"{where} [transform]"
    if table is None:
        return {}, None
    refuse_unknown(table, TRANSFORM_KEYS, place)
    given: dict[str, Any] = {
        TRANSFORM_PLAIN_KEYS[key]: value for key, value in only(table, TRANSFORM_PLAIN_KEYS).items()
    }
    tls = table_in(table, "tls", place)
    if tls is not None:
        refuse_unknown(tls, TLS_KEYS, f"{where} [transform.tls]")
        given["tls"] = tls
    given["lookups"] = _lookups(table, where)
    given["join"] = _record(Join, table_in(table, "join", place), JOIN_KEYS, f"{where} [transform.join]")
    cdc = table_in(table, "cdc", place)
    if cdc is not None and "envelope" not in cdc:
        raise InvalidConfig("envelope is missing.", where=f"{where} [transform.cdc]", fix='envelope = "debezium"')
    given["cdc"] = _record(CDC, cdc, CDC_KEYS, f"{where} [transform.cdc]")
    given["window"], lateness = _window(table_in(table, "window", place), f"{where} [transform.window]")
    return given, lateness


def _lookups(transform: Table, where: str) -> dict[str, Lookup]:
    found: dict[str, Lookup] = {}
    for name, entry in (table_in(transform, "lookups", f"{where} [transform]") or {}).items():
        place = f"{where} [transform.lookups.{name}]"
        if not isinstance(entry, dict):
            raise InvalidConfig(f"'{name}' must be a table.", where=place, fix=f"write [transform.lookups.{name}]")
        reach = {key: value for key, value in entry.items() if key not in LOOKUP_KEYS}
        connection = connection_of(reach, lookup_connection_name(name), place, beside=LOOKUP_KEYS)
        with _at(place):
            found[name] = Lookup(connection=connection, **only(entry, LOOKUP_KEYS))  # type: ignore[arg-type]
    return found


def lookup_connection_name(name: str) -> str:
    """What the connection of a lookup is called when the document gives it no name."""
    return f"lookup_{name}" if name.isprintable() else f"lookup_{name.encode('unicode_escape').decode()}"


def _window(table: Table | None, place: str) -> tuple[Window | None, Watermark | None]:
    if table is None:
        return None, None
    refuse_unknown(table, WINDOW_KEYS, place)
    for key in ("kind", "max_groups_per_window"):
        if key not in table:
            raise InvalidConfig(
                f"{key} is missing.", where=place, fix="max_groups_per_window bounds what is remembered"
            )
    aggregations = tables_in(table, "aggregations", place)
    if aggregations is None:
        raise InvalidConfig("There are no aggregations.", where=place, fix="[[transform.window.aggregations]]")
    given: dict[str, Any] = {key: value for key, value in table.items() if key not in (*WATERMARK_KEYS, "aggregations")}
    given["aggregations"] = [
        _aggregation(entry, f"{inside(place, 'aggregations')} {number}")
        for number, entry in enumerate(aggregations, start=1)
    ]
    with _at(place):
        lateness = Watermark(**only(table, WATERMARK_KEYS)) if any(key in table for key in WATERMARK_KEYS) else None  # type: ignore[arg-type]
        return Window(**given), lateness


def _aggregation(table: Table, place: str) -> Aggregation:
    refuse_unknown(table, AGGREGATION_KEYS, place)
    for key in ("agg", "as"):
        if key not in table:
            raise InvalidConfig(f"{key} is missing.", where=place)
    given: dict[str, Any] = {("as_" if key == "as" else key): value for key, value in table.items()}
    return Aggregation(**given)


def _record(cls: type[Any], table: Table | None, keys: tuple[str, ...], place: str) -> Any:
    """A value whose keys are its fields; None when there is no table."""
    if table is None:
        return None
    refuse_unknown(table, keys, place)
    needed = [f.name for f in fields(cls) if f.default is MISSING and f.name not in table]
    if needed:
        raise InvalidConfig(f"{needed[0]} is missing.", where=place)
    with _at(place):
        return cls(**table)


@contextmanager
def _at(place: str) -> Iterator[None]:
    try:
        yield
    except FlowError as exc:
        exc.at(place)
        raise
