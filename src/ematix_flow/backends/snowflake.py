"""Snowflake: Parquet files by PUT into the stage of a passing table, COPY INTO it, one settling transaction.

Rows are read as Arrow, as the driver streams them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ematix_flow.backends.books import Db
from ematix_flow.backends.snowflake_dialect import SnowflakeDialect
from ematix_flow.backends.sql import failed_statement, not_a_table, refused_value
from ematix_flow.backends.warehouse import WarehouseBackend, beside_another
from ematix_flow.backends.warehouse_parts import Part, Sender
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.connection import Connection, SnowflakeConnection
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import ConnectionFailed, FlowError, MissingDriver, UnfitValue

if TYPE_CHECKING:
    import pyarrow as pa

ADDRESS = "EMATIX_FLOW_SNOWFLAKE_URL"
"""Another address than the account's own: a private link, or a stand-in (`http://127.0.0.1:8084`)."""

_UNFIT = range(100_000, 101_000)  # errors about values
_CONFLICTS = (625, 637, 2000)


class SnowflakeBackend(WarehouseBackend):
    """One Snowflake database."""

    connection_type = SnowflakeConnection
    dialect = SnowflakeDialect()
    stand_in = "fakesnow (an imitation on DuckDB)"

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def connect(self) -> Any:
        assert isinstance(self.connection, SnowflakeConnection)
        db = session(self.connection)
        self.warn_once()
        return db

    def explained(self, exc: Exception) -> FlowError | None:
        from snowflake.connector import errors

        if not isinstance(exc, errors.Error):
            return None
        refused = refused_value(str(exc))
        if refused is not None:
            return refused
        number = exc.errno if isinstance(exc.errno, int) else 0
        said = _said(exc)
        if number in _UNFIT or (exc.sqlstate or "").startswith("22"):
            # Snowflake quotes the value it did not like.
            return UnfitValue("A value does not fit its column.", fix="look at the declared types and lengths")
        if number in _CONFLICTS or "lock" in said.lower() and "abort" in said.lower():
            return beside_another(self.dialect.system)
        if isinstance(exc, errors.OperationalError | errors.InterfaceError) and number // 1000 in (250, 251, 252):
            return ConnectionFailed(f"Snowflake connection '{self.connection.name}' broke: {said}")
        return failed_statement(said)

    # ── describing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def described(self, db: Any, sql: str) -> tuple[ColumnShape, ...]:
        shapes = []
        for column in db.cursor().describe(f"SELECT * FROM ({sql}\n) AS q"):
            native = _native(column)
            shapes.append(
                ColumnShape(self.dialect.declared_name(column.name), self.dialect.from_native(native), native)
            )
        return tuple(shapes)

    def shape(self, db: Db, table: TableRef) -> TableShape | None:
        kind = self.kind_of(db, table)
        if kind is None:
            return None
        if kind == "VIEW":
            raise not_a_table(table)
        name = self.dialect.table(table)
        columns = []
        for row in db.execute(f"DESCRIBE TABLE {name}").fetchall():
            native = str(row[1])
            columns.append(
                ColumnShape(
                    self.dialect.declared_name(str(row[0])),
                    self.dialect.made_for(native),
                    native,
                    nullable=str(row[3]).upper().startswith("Y"),
                    has_default=row[4] is not None,
                )
            )
        has_rows = int(db.execute(f"SELECT count(*) FROM (SELECT 1 AS n FROM {name} LIMIT 1) AS q").fetchone()[0])
        return TableShape(ref=table, columns=tuple(columns), has_rows=bool(has_rows))

    def explain(self, sql: str) -> str:
        with self.session() as db:
            return "\n".join(" ".join(map(str, row)) for row in db.execute(f"EXPLAIN {sql}").fetchall())

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def batches(self, db: Any, sql: str) -> Iterator[pa.RecordBatch]:
        cursor = db.execute(sql)
        for table in cursor.fetch_arrow_batches():
            yield from table.to_batches()

    def sender(self, run_id: str, columns: Sequence[ColumnSpec]) -> Sender:
        assert isinstance(self.connection, SnowflakeConnection)
        return SnowflakeSender(self.connection, self._stage(run_id), os.environ.get(ADDRESS))

    def prepare(self, db: Any, run_id: str, columns: Sequence[ColumnSpec]) -> None:
        table = self.dialect.table(self.dialect.parts_ref(run_id))
        db.execute(f"CREATE TRANSIENT TABLE {table} ({self.parts_columns(columns)})")

    def take_in(self, db: Any, run_id: str, columns: Sequence[ColumnSpec], parts: Sequence[Part]) -> str:
        relation, stage = self.dialect.table(self.dialect.parts_ref(run_id)), self._stage(run_id)
        if not parts:
            return relation
        wanted = {part.name for part in parts}
        there = {str(row[0]).rpartition("/")[2] for row in db.execute(f"LIST @{stage}").fetchall()}
        # What a task sent that was killed is there, too, and may not be taken.
        for place in [stage] if there == wanted else [f"{stage}/{name}/" for name in sorted(wanted)]:
            db.execute(copy_into(relation, place))
        return relation

    def clear(self, db: Any, run_id: str) -> None:
        # The files are in the stage that belongs to the table, and go with it.
        db.execute(f"DROP TABLE IF EXISTS {self.dialect.table(self.dialect.parts_ref(run_id))}")

    def _stage(self, run_id: str) -> str:
        """The stage of the run's own table, as PUT and COPY name it."""
        ref = self.dialect.parts_ref(run_id)
        return f"{self.dialect.kept_name(ref.schema or '')}.%{self.dialect.kept_name(ref.name)}"


@dataclass(frozen=True)
class SnowflakeSender:
    """PUTs files into a stage, each into a folder of its own."""

    connection: SnowflakeConnection
    stage: str
    address: str | None

    def send(self, path: str, name: str) -> None:
        db = session(self.connection, self.address)
        try:
            db.execute(put(path, f"{self.stage}/{name}"))
        finally:
            db.close()


class SnowflakeSession:
    """A driver connection in the form the books use: statements in autocommit, one cursor each."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def cursor(self) -> Any:
        """A new cursor of the driver's."""
        return self.driver.cursor()

    def execute(self, sql: str, /) -> Any:
        """Run one statement; the cursor holds its rows."""
        return self.driver.cursor().execute(sql)

    def close(self) -> None:
        """End the session."""
        self.driver.close()


def session(connection: Connection, address: str | None = None) -> SnowflakeSession:
    """A new session, in UTC; at the address that the environment names, unless one is given.

    Raises:
        MissingDriver: (an ImportError) the extra is not installed.
        ConnectionFailed: the account cannot be reached, or refuses the login.
    """
    try:
        import snowflake.connector
        from snowflake.connector import errors
    except ImportError as exc:
        raise MissingDriver(
            "The snowflake backend needs 'snowflake-connector-python'.", fix='pip install "ematix-flow[snowflake]"'
        ) from exc
    assert isinstance(connection, SnowflakeConnection)
    try:
        return SnowflakeSession(snowflake.connector.connect(**connect_arguments(connection, address)))
    except (errors.Error, ValueError) as exc:
        raise ConnectionFailed(
            f"Snowflake connection '{connection.name}' failed: {_said(exc)}",
            fix=f"check account, user and password or key; then `flow connections check {connection.name}`",
        ) from exc


def connect_arguments(connection: SnowflakeConnection, address: str | None = None) -> dict[str, Any]:
    """What the driver is given."""
    given: dict[str, Any] = {
        "account": connection.account,
        "user": connection.user,
        "autocommit": True,
        "login_timeout": 30,
        "session_parameters": {"TIMEZONE": "UTC", "CLIENT_TIMESTAMP_TYPE_MAPPING": "TIMESTAMP_NTZ"},
        "application": "ematix_flow",
    }
    for name in ("password", "warehouse", "database", "schema", "role"):
        if getattr(connection, name):
            given[name] = getattr(connection, name)
    if connection.private_key:
        given["private_key"] = _key_bytes(connection.private_key)
    address = address or os.environ.get(ADDRESS)
    if address:
        parts = urlsplit(address)
        given |= {"host": parts.hostname, "port": parts.port or 443, "protocol": parts.scheme}
        if parts.scheme == "http":  # a stand-in on this machine: what fails once fails again
            given["network_timeout"] = 1
            given["session_parameters"]["CLIENT_OUT_OF_BAND_TELEMETRY_ENABLED"] = False
    return given


def _key_bytes(private_key: str) -> Any:
    """A key in PEM as the driver takes it; anything else is the driver's own form (base64)."""
    if not private_key.lstrip().startswith("-----BEGIN"):
        return private_key
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(private_key.encode(), password=None)
    return key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def put(path: str, folder: str) -> str:
    """The statement that brings a file of this machine into a stage."""
    file = path.replace("\\", "/").replace("'", "\\'")
    return f"PUT 'file://{file}' @{folder} AUTO_COMPRESS = FALSE OVERWRITE = TRUE"


def copy_into(table: str, stage: str) -> str:
    """The statement that loads the files of a stage into a table, columns matched by name; all of them, or none."""
    return (
        f"COPY INTO {table} FROM @{stage} "
        "FILE_FORMAT = (TYPE = PARQUET USE_LOGICAL_TYPE = TRUE BINARY_AS_TEXT = FALSE) "
        "MATCH_BY_COLUMN_NAME = CASE_SENSITIVE ON_ERROR = ABORT_STATEMENT"
    )


def _native(column: Any) -> str:
    """A column of a query's description in the words of CREATE TABLE."""
    from snowflake.connector.constants import FIELD_ID_TO_NAME

    word = FIELD_ID_TO_NAME[column.type_code]
    if word == "FIXED":
        return f"NUMBER({column.precision},{column.scale})"
    if word == "TEXT":
        return f"VARCHAR({column.internal_size})" if column.internal_size else "VARCHAR"
    return {"REAL": "FLOAT", "TIMESTAMP": "TIMESTAMP_NTZ"}.get(str(word), str(word))


def _said(exc: Exception) -> str:
    """The first line of an error, without numbers and secrets."""
    lines = str(getattr(exc, "msg", None) or exc).strip().splitlines() or [""]
    words = re.sub(r"^\d{6}(?: \([0-9A-Z]{5}\))?: (?:[0-9a-f-]+: )?", "", lines[0])
    if words.startswith("SQL compilation error") and len(lines) > 1:
        words = f"{words} {lines[1]}"
    return scrub(words).rstrip(".")
