"""Where a batch pipeline reads from, said as a value: what a pipeline function may return instead of SQL text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ematix_flow.declare.connection import Connection
from ematix_flow.declare.instants import time_of
from ematix_flow.declare.redaction import redact_url, remember_secret, url_secrets
from ematix_flow.errors import InvalidDeclaration, WrongConnectionType, WrongDeclarationType


@dataclass(frozen=True, repr=False)
class BatchSource:
    """Rows to load: a query, or a table, on a connection. Users know it as `ematix_flow.source.Source`.

    Nothing is asked of the connection here: it may be a name, a connection, or a handle that opens on first use.

    >>> BatchSource.postgres_table("crm", "public", "customers", columns=["id", "email"])
    Source(connection='crm', schema='public', table='customers', columns=('id', 'email'))
    """

    connection: Any
    query: str | None = None
    schema: str | None = None
    table: str | None = None
    columns: tuple[str, ...] | None = None
    version: int | None = None
    timestamp: datetime | str | None = None

    def __post_init__(self) -> None:
        if self.connection is None or self.connection == "":
            raise InvalidDeclaration("A Source needs a connection.", fix="pass a connection, its name, or the handle")
        if isinstance(self.connection, str):
            for secret in url_secrets(self.connection):
                remember_secret(secret)
        if (self.query is None) == (self.table is None):
            raise InvalidDeclaration("A Source needs a query or a table, and not both.")
        for part in ("query", "schema", "table"):
            value = getattr(self, part)
            if value is None and (part != "schema" or self.table is None):
                continue
            if not isinstance(value, str):
                raise WrongDeclarationType(f"Source: {part} must be text, not {type(value).__name__}.")
            if not value.strip():
                raise InvalidDeclaration(f"Source: {part} is empty.")
        if self.version is not None or self.timestamp is not None:
            object.__setattr__(self, "timestamp", self._moment())
        object.__setattr__(self, "columns", _column_names(self.columns, has_table=self.table is not None))

    def _moment(self) -> str | None:
        """The time asked for, as text; refuses what no version of a table can be found by."""
        if self.table is None:
            raise InvalidDeclaration(
                "Source: version= and timestamp= need a table.", fix="write VERSION AS OF in the query"
            )
        if self.version is not None and self.timestamp is not None:
            raise InvalidDeclaration("Source: version= and timestamp= are two ways to say the same; give one.")
        if self.version is not None and (
            not isinstance(self.version, int) or isinstance(self.version, bool) or self.version < 0
        ):
            raise InvalidDeclaration("Source: version= takes a whole number, zero or more.")
        if self.timestamp is None:
            return None
        try:
            when = self.timestamp if isinstance(self.timestamp, datetime) else time_of(self.timestamp)
        except (TypeError, ValueError):
            raise InvalidDeclaration(
                "Source: timestamp= takes a datetime, or a text like '2026-03-01 12:00:00'."
            ) from None
        return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).astimezone(timezone.utc).isoformat(" ")

    def __repr__(self) -> str:
        connection = redact_url(self.connection) if isinstance(self.connection, str) else self.connection
        parts = [
            (name, getattr(self, name)) for name in ("query", "schema", "table", "columns", "version", "timestamp")
        ]
        shown = [f"connection={connection!r}", *(f"{name}={value!r}" for name, value in parts if value is not None)]
        return f"Source({', '.join(shown)})"

    @classmethod
    def postgres_query(cls, connection: Any, query: str) -> BatchSource:
        """The rows of a query on PostgreSQL, in its own SQL."""
        return cls(_of_kind(connection, "postgres"), query=query)

    @classmethod
    def postgres_table(
        cls, connection: Any, schema: str, table: str, columns: Sequence[str] | None = None
    ) -> BatchSource:
        """The rows of a PostgreSQL table; all its columns unless told otherwise."""
        # The check of `columns` happens at construction, so that a single text is not taken apart here.
        return cls(_of_kind(connection, "postgres"), schema=schema, table=table, columns=columns)  # type: ignore[arg-type]

    @classmethod
    def snowflake_query(cls, connection: Any, query: str) -> BatchSource:
        """The rows of a query on Snowflake, in its own SQL."""
        return cls(_of_kind(connection, "snowflake"), query=query)

    @classmethod
    def bigquery_query(cls, connection: Any, query: str) -> BatchSource:
        """The rows of a query on BigQuery, in its own SQL."""
        return cls(_of_kind(connection, "bigquery"), query=query)

    @classmethod
    def redshift_query(cls, connection: Any, query: str) -> BatchSource:
        """The rows of a query on Redshift, in its own SQL."""
        return cls(_of_kind(connection, "redshift"), query=query)


def _of_kind(connection: Any, kind: str) -> Any:
    """The connection, unless it is known to be of another kind. Names and handles are known only when used."""
    if isinstance(connection, Connection) and connection.kind != kind:
        raise WrongConnectionType(
            f"This Source needs a {kind} connection, and '{connection.name}' is a {connection.kind} connection."
        )
    return connection


def _column_names(written: Any, *, has_table: bool) -> tuple[str, ...] | None:
    if written is None:
        return None
    if not has_table:
        raise InvalidDeclaration("Source: columns= needs a table.", fix="name the columns in the query")
    if isinstance(written, str) or not all(isinstance(name, str) for name in written):
        raise WrongDeclarationType("Source: columns= takes a tuple or list of column names.")
    names = tuple(written)
    if not names or not all(name.strip() for name in names):
        raise InvalidDeclaration("Source: columns= is empty or holds an empty name.", fix="leave it out to read all")
    return names
