"""A connection's name becomes a connection: the documented chain, written once.

Highest first: ``EMATIX_FLOW_DSN_<NAME>``; ``EMATIX_FLOW_DSN`` for the name ``default``; ``./.ematix-flow.toml``;
``~/.ematix-flow/connections.toml``; declared in code. The environment therefore overrides code. Nothing is read before
a name is asked for, and only the entry that was asked for is expanded and checked.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from ematix_flow.config.project import PROJECT_FILE, USER_FILE, ConnectionEntry, project_settings, user_connections
from ematix_flow.config.secrets import expand_field
from ematix_flow.declare import registry
from ematix_flow.declare.connection import Connection, KafkaConnection, connection_from_dsn, connection_from_fields
from ematix_flow.declare.redaction import STARS, display_url, is_secret_field
from ematix_flow.errors import FlowError, InvalidConnection, UnknownConnection, WrongConnectionType, closest

Origin = Literal["env", "project", "user", "code", "given"]
"""Who said it. `given` is an instance that nobody registered, or a URL handed to `connect`."""

DEFAULT_NAME = "default"
_ENV = "EMATIX_FLOW_DSN"


@dataclass(frozen=True, slots=True)
class ResolvedConnection:
    """A connection ready to be opened, and how it was found.

    Attributes:
        connection: Every reference filled in.
        place: The variable, file entry or line of code that defined it.
        trace: The places that were asked, in order; the last one answered.
    """

    connection: Connection
    origin: Origin
    place: str
    trace: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedConnection:
    """One line of `flow connections list`.

    Attributes:
        kind: None while it cannot be told.
        shown: The connection without its secrets; references that cannot be filled in stay as written.
        problem: Why it could not be used, or None.
    """

    name: str
    kind: str | None
    shown: str
    origin: Origin
    place: str
    problem: str | None = None


def resolve(wanted: str | Connection, *, where: str | None = None) -> ResolvedConnection:
    """Find a connection and fill in its references; a schema registry that it names is found in the same way.

    Called when a plan is made or a handle is opened, so a changed variable takes effect at the next use. An instance
    that is registered under its name goes through the same chain as the name; any other instance is used as it is.

    Args:
        wanted: A name or an instance.
        where: The declaration that asks, for the error.

    Raises:
        UnknownConnection: (a LookupError) Nobody knows the name; says who was asked.
        MissingSecret: (a KeyError) A reference of this connection cannot be filled in.
        InvalidConnection: (a ValueError) It is defined, but not usable.
        InvalidConfig: (a ValueError) One of the files cannot be read.
    """
    found = _resolved(wanted, where)
    kafka = found.connection
    if not isinstance(kafka, KafkaConnection) or not isinstance(kafka.schema_registry, str):
        return found
    if kafka.payload_format not in ("avro", "protobuf"):
        return found
    return dataclasses.replace(found, connection=with_registry(kafka, where=where))


def with_registry(kafka: KafkaConnection, *, where: str | None = None) -> KafkaConnection:
    """The connection with its schema registry, where it only has the name of one.

    Raises:
        UnknownConnection, MissingSecret, InvalidConnection, InvalidConfig: as for `resolve`.
    """
    if not isinstance(kafka.schema_registry, str) or not kafka.schema_registry:
        return kafka
    return dataclasses.replace(kafka, schema_registry=_resolved(kafka.schema_registry, where).connection)


def _resolved(wanted: str | Connection, where: str | None) -> ResolvedConnection:
    if isinstance(wanted, Connection):
        if registry.current().connection(wanted.name) is not wanted:
            return ResolvedConnection(_filled(wanted, "given"), "given", "given in code")
        wanted = wanted.name
    if not isinstance(wanted, str):
        raise WrongConnectionType(
            f"A connection is given by name or as an instance, not as {type(wanted).__name__}.", where=where
        )
    found = _search(wanted)
    if found.definition is None:
        known = sorted(_known_names())
        raise UnknownConnection(
            f"Connection '{_printable(wanted)}' is not defined.",
            where=where,
            tried=found.trace,
            fix=closest(wanted, known)
            or f"add [connections.{_printable(wanted)}] to {PROJECT_FILE}, or set {_printable(env_names(wanted)[-1])}",
        )
    origin, place, said = found.definition
    return ResolvedConnection(_built(wanted, said, place), origin, place, found.trace)


def connection_kind(wanted: str | Connection) -> str | None:
    """The kind of a connection, found as `resolve` finds it, without filling in anything else: no secret is asked for.

    None when nobody knows the name, and for a URL, which is always that of a database.

    Raises:
        MissingSecret: (a KeyError) The kind itself is a reference that cannot be filled in.
        InvalidConfig: (a ValueError) One of the files cannot be read.
    """
    if isinstance(wanted, Connection):
        if registry.current().connection(wanted.name) is not wanted:
            return wanted.kind
        wanted = wanted.name
    found = _search(wanted).definition
    kind = _said_kind(found[2]) if found is not None else None
    return expand_field(kind) if kind is not None else None


def resolve_dsn(name: str = DEFAULT_NAME) -> str:
    """The URL behind a name, with its password: for drivers, never for people.

    Raises:
        InvalidConnection: The connection is of a kind without a URL; otherwise as `resolve`.
    """
    return resolve(name).connection.dsn()


def list_connections() -> dict[str, str]:
    """Every known name with its connection as it may be shown, sorted. A broken entry says what is wrong with it."""
    return {
        listed.name: listed.shown + (f"  ({listed.problem})" if listed.problem else "")
        for listed in listed_connections()
    }


def listed_connections() -> list[ListedConnection]:
    """Every connection that can be named now, sorted by name, with its origin."""
    return [_listed(name) for name in sorted(_known_names())]


def env_names(name: str) -> tuple[str, ...]:
    """The variables that may define a connection, in the order they are asked.

    A name that no shell could put into a variable (``my-db``) is also found with ``_`` in place of the odd characters.
    """
    upper = name.upper()
    names = dict.fromkeys([f"{_ENV}_{upper}", f"{_ENV}_{re.sub(r'[^A-Z0-9_]', '_', upper)}"])
    return (*names, _ENV) if name == DEFAULT_NAME else tuple(names)


# ── the chain ────────────────────────────────────────────────────────────────────────────────────────────────────────

_Said = str | ConnectionEntry | Connection  # a DSN, a table of a file, or an object


@dataclass(frozen=True, slots=True)
class _Found:
    definition: tuple[Origin, str, _Said] | None
    trace: tuple[str, ...]


def _search(name: str) -> _Found:
    trace: list[str] = []
    for variable in env_names(name):
        trace.append(variable)
        if value := _environment().get(variable):
            return _Found(("env", variable, value), tuple(trace))
    trace.append(f"./{PROJECT_FILE}")
    if entry := project_settings().connections.get(name):
        return _Found(("project", entry.place, entry), tuple(trace))
    trace.append(USER_FILE)
    if entry := user_connections().get(name):
        return _Found(("user", entry.place, entry), tuple(trace))
    trace.append("declared in code")
    if connection := registry.current().connection(name):
        return _Found(("code", str(registry.current().connection_where(name)), connection), tuple(trace))
    return _Found(None, tuple(_printable(place) for place in trace))


def _known_names() -> set[str]:
    written = {*project_settings().connections, *user_connections(), *registry.current().connections()}
    claimed = {variable for name in written for variable in env_names(name)}
    names = set(written)
    for variable, value in _environment().items():
        if not value or variable in claimed:
            continue
        if variable == _ENV:
            names.add(DEFAULT_NAME)
        elif variable.startswith(f"{_ENV}_") and len(variable) > len(_ENV) + 1:
            names.add(variable.removeprefix(f"{_ENV}_").lower())
    return names


def _environment() -> Mapping[str, str]:
    # A plain dict: asking `os.environ` itself for a name with odd characters may raise.
    return dict(os.environ)


# ── from what was said to a connection ───────────────────────────────────────────────────────────────────────────────


def _built(name: str, said: _Said, place: str) -> Connection:
    try:
        if isinstance(said, Connection):
            return _filled(said, place)
        if isinstance(said, str):
            connection = connection_from_dsn(name, expand_field(said))
        else:
            connection = _from_entry(said)
        connection.check_ready()
    except FlowError as exc:
        exc.at(place)
        raise
    return _same_memory(connection, place)


def _from_entry(entry: ConnectionEntry) -> Connection:
    if entry.fields is None:
        raise InvalidConnection(
            f"Connection '{entry.name}' is not a table.", fix="give it a url, or a kind and its fields"
        )
    fields = {key: expand_field(value) if isinstance(value, str) else value for key, value in entry.fields.items()}
    kind = fields.pop("kind", None)
    if kind is not None:
        return connection_from_fields(cast(str, kind), entry.name, fields)
    url = fields.get("url", fields.get("dsn"))
    if not isinstance(url, str) or not url:
        raise InvalidConnection(f"Connection '{entry.name}' has neither url nor kind.", fix="add a line url = '…'")
    connection = connection_from_dsn(entry.name, url)
    if len(fields) > 1:
        return connection_from_fields(connection.kind, entry.name, fields)
    return connection


def _filled(connection: Connection, place: str) -> Connection:
    """The connection with its references filled in; the object itself when it has none."""
    changes: dict[str, object] = {}
    for field in dataclasses.fields(connection):
        value = getattr(connection, field.name)
        if isinstance(value, str) and field.name != "name":
            changes[field.name] = expand_field(value)
        elif isinstance(value, Connection):
            changes[field.name] = _filled(value, place)
    filled = connection.with_fields(**changes)
    filled.check_ready()
    return filled if filled is connection else _same_memory(filled, place)


_memory_lock = threading.Lock()
_memory: dict[tuple[str, str, str], Connection] = {}


def _same_memory(connection: Connection, place: str) -> Connection:
    """One object per name and place for databases in memory: source and target of a load must mean the same one."""
    if not getattr(connection, "is_memory", False):
        return connection
    with _memory_lock:
        return _memory.setdefault((connection.kind, connection.name, place), connection)


# ── listing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _listed(name: str) -> ListedConnection:
    found = _search(name).definition
    assert found is not None, "only known names are listed"
    origin, place, said = found
    try:
        connection = _built(name, said, place)
    except FlowError as exc:
        return ListedConnection(name, _said_kind(said), _said_text(said), origin, place, exc.message)
    return ListedConnection(name, connection.kind, connection.display(), origin, place)


def _said_kind(said: _Said) -> str | None:
    if isinstance(said, Connection):
        return said.kind
    kind = said.fields.get("kind") if isinstance(said, ConnectionEntry) and said.fields else None
    return kind if isinstance(kind, str) else None


def _said_text(said: _Said) -> str:
    if isinstance(said, Connection):
        return said.display()
    if isinstance(said, str):
        return _shown_dsn(said)
    parts = []
    for key, value in (said.fields or {}).items():
        if key in ("url", "dsn"):
            parts.append(_shown_dsn(str(value)))
        else:
            parts.append(f"{key}={STARS if is_secret_field(key) else display_url(str(value))}")
    return " ".join(parts)


def _shown_dsn(dsn: str) -> str:
    """A DSN that could not be used: shown only if it looks like one, since anything may have been pasted there."""
    return display_url(dsn) if "://" in dsn or dsn.startswith("${") else STARS


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]
