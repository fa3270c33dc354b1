"""Redshift: Parquet files to S3, COPY with a role, one settling transaction. Rows are read through a cursor."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.books import Db
from ematix_flow.backends.locks import digest
from ematix_flow.backends.redshift_dialect import RedshiftDialect
from ematix_flow.backends.sql import failed_statement, not_a_table, refused_value
from ematix_flow.backends.transport import arrow_type
from ematix_flow.backends.warehouse import WarehouseBackend, beside_another
from ematix_flow.backends.warehouse_parts import Part, Sender
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.columns import Text
from ematix_flow.declare.connection import RedshiftConnection
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import (
    ConnectionFailed,
    FlowError,
    InvalidConnection,
    MissingDriver,
    StatementFailed,
    UnfitValue,
)

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_PER_FETCH = 50_000
_MANIFEST = "manifest.json"
_LOGIN = "check s3_staging_dir, and the AWS login of this machine (`aws sts get-caller-identity`)"


class RedshiftBackend(WarehouseBackend):
    """One Redshift database."""

    connection_type = RedshiftConnection
    dialect = RedshiftDialect()
    stand_in = "PostgreSQL and an S3 server (its wire protocol, and COPY as text)"

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def connect(self) -> Any:
        assert isinstance(self.connection, RedshiftConnection)
        db = session(self.connection)
        self.warn_once()
        return db

    def explained(self, exc: Exception) -> FlowError | None:
        import psycopg

        if not isinstance(exc, psycopg.Error):
            return None
        refused = refused_value(str(exc))
        if refused is not None:
            return refused
        state, said = exc.sqlstate or "", scrub(str(exc).strip().splitlines()[0])
        if state in ("40001", "40P01", "55P03") or "erializable isolation violation" in said:
            return beside_another(self.dialect.system)
        if state == "23502" or state.startswith("22"):
            # The server quotes the value it did not like.
            return UnfitValue("A value does not fit its column.", fix="look at the declared types and lengths")
        if exc.sqlstate is None:
            return ConnectionFailed(f"Redshift connection '{self.connection.name}' broke: {said}")
        return failed_statement(said)

    # ── describing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def described(self, db: Any, sql: str) -> tuple[ColumnShape, ...]:
        found = db.execute(f"SELECT * FROM ({sql}\n) AS q LIMIT 0").description
        shapes = []
        for column in found:
            # Types of Redshift's own are numbers to the driver.
            native = {"6551": "varbyte", "4000": "super"}.get(column.type_display, column.type_display)
            shapes.append(ColumnShape(column.name, self.dialect.from_native(native), native))
        return tuple(shapes)

    def shape(self, db: Db, table: TableRef) -> TableShape | None:
        kind = self.kind_of(db, table)
        if kind is None:
            return None
        if kind == "VIEW":
            raise not_a_table(table)
        rows = db.execute(
            "SELECT column_name, data_type, character_maximum_length, numeric_precision, numeric_scale, is_nullable, "
            "column_default FROM information_schema.columns "
            f"WHERE table_schema = {self._kept(table.schema or 'public')} AND table_name = {self._kept(table.name)} "
            "ORDER BY ordinal_position"
        ).fetchall()
        columns = []
        for name, word, length, precision, scale, nullable, default in rows:
            native = str(word)
            if native in ("character varying", "varchar") and length is not None:
                native = f"character varying({length})"
            elif native in ("numeric", "decimal"):
                native = f"numeric({precision},{scale})"
            columns.append(
                ColumnShape(
                    str(name),
                    self.dialect.from_native(native),
                    native,
                    nullable=str(nullable).upper() == "YES",
                    has_default=default is not None,
                )
            )
        name = self.dialect.table(table)
        has_rows = int(db.execute(f"SELECT count(*) FROM (SELECT 1 AS n FROM {name} LIMIT 1) AS q").fetchone()[0])
        return TableShape(ref=table, columns=tuple(columns), has_rows=bool(has_rows))

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def batches(self, db: Any, sql: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        shapes = self.described(db, sql)
        schema = pa.schema([(shape.name, arrow_type(shape.type)) for shape in shapes])
        with db.transaction(), db.cursor(name="ematix_flow") as cursor:  # cursors live in a transaction
            cursor.execute(sql)
            while rows := cursor.fetchmany(_ROWS_PER_FETCH):
                columns = zip(*rows, strict=True)
                arrays = [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def sender(self, run_id: str, columns: Sequence[ColumnSpec]) -> Sender:
        return S3Sender(*self._place(run_id), s3_login())

    def prepare(self, db: Any, run_id: str, columns: Sequence[ColumnSpec]) -> None:
        self._place(run_id)  # refuses before anything is made
        db.execute(f"CREATE TABLE {self.dialect.table(self.dialect.parts_ref(run_id))} ({self.parts_columns(columns)})")

    def take_in(self, db: Any, run_id: str, columns: Sequence[ColumnSpec], parts: Sequence[Part]) -> str:
        relation = self.dialect.table(self.dialect.parts_ref(run_id))
        if parts:
            bucket, prefix = self._place(run_id)
            body = manifest(f"s3://{bucket}/{prefix}", parts)
            with explained_store():
                s3_client().put_object(Bucket=bucket, Key=f"{prefix}/{_MANIFEST}", Body=body.encode())
            assert isinstance(self.connection, RedshiftConnection) and self.connection.iam_role
            db.execute(
                copy_from(relation, f"s3://{bucket}/{prefix}/{_MANIFEST}", self.connection.iam_role, self.dialect)
            )
        return relation

    def clear(self, db: Any, run_id: str) -> None:
        if self.kind_of(db, self.dialect.parts_ref(run_id)) is None:
            return  # then nothing was sent, either
        db.execute(f"DROP TABLE IF EXISTS {self.dialect.table(self.dialect.parts_ref(run_id))}")
        bucket, prefix = self._place(run_id)
        client = s3_client()
        with suppress(StatementFailed), explained_store():  # files left in S3 harm nobody; other runs use other names
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
                keys = [{"Key": item["Key"]} for item in page.get("Contents", [])]
                if keys:
                    client.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})

    def _place(self, run_id: str) -> tuple[str, str]:
        """Bucket and prefix of a run's files.

        Raises:
            InvalidConnection: (a ValueError) the connection does not say where files may be put, or by which role.
        """
        connection = self.connection
        assert isinstance(connection, RedshiftConnection)
        for needed in ("s3_staging_dir", "iam_role"):
            if not getattr(connection, needed):
                raise InvalidConnection(
                    f"RedshiftConnection('{connection.name}'): {needed} is required to write.",
                    fix="s3_staging_dir='s3://bucket/folder' and iam_role='arn:aws:iam::…' of a role that may read it",
                )
        found = re.fullmatch(r"s3://([^/]+)/?(.*?)/?", connection.s3_staging_dir or "")
        if found is None:
            raise InvalidConnection(
                f"RedshiftConnection('{connection.name}'): s3_staging_dir must look like 's3://bucket/folder'."
            )
        return found[1], "/".join(part for part in (found[2], f"ematix_flow_{digest(run_id)}") if part)


@dataclass(frozen=True)
class S3Login:
    """What the driver's machine logs in with; tasks elsewhere may have no login of their own."""

    key_id: str | None
    secret: str | None = field(repr=False)
    token: str | None = field(repr=False)
    region: str | None
    endpoint: str | None


@dataclass(frozen=True)
class S3Sender:
    """Puts files into a folder of a bucket."""

    bucket: str
    prefix: str
    login: S3Login

    def send(self, path: str, name: str) -> None:
        with explained_store():
            s3_client(self.login).upload_file(path, self.bucket, f"{self.prefix}/{name}")


def session(connection: RedshiftConnection) -> Any:
    """A new driver connection in autocommit, in UTC.

    Raises:
        MissingDriver: (an ImportError) the extra is not installed.
        ConnectionFailed: the server cannot be reached, or refuses the login.
    """
    try:
        import psycopg
    except ImportError as exc:
        raise MissingDriver("The redshift backend needs 'psycopg'.", fix='pip install "ematix-flow[redshift]"') from exc
    try:
        db = psycopg.connect(
            connection.to_postgres_url(),
            autocommit=True,
            connect_timeout=10,
            client_encoding="utf8",  # by itself it says UNICODE, which the driver does not know
            prepare_threshold=None,
        )
        for setting in ("SET enable_case_sensitive_identifier TO true", "SET timezone TO 'UTC'"):
            db.execute(setting)
    except psycopg.Error as exc:
        raise ConnectionFailed(
            f"Redshift connection '{connection.name}' failed: {scrub(str(exc).strip().splitlines()[0])}",
            fix=f"check host, user and password; then `flow connections check {connection.name}`",
        ) from exc
    return db


def s3_login() -> S3Login:
    """The login that the environment, a profile or the machine's role gives here and now.

    Raises:
        StatementFailed: there is none.
    """
    own = _boto().session.Session()
    with explained_store():
        found = own.get_credentials()
        frozen = None if found is None else found.get_frozen_credentials()
    if frozen is None:
        raise StatementFailed("There is no AWS login on this machine, and Redshift takes its rows from S3.", fix=_LOGIN)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return S3Login(frozen.access_key, frozen.secret_key, frozen.token, own.region_name, endpoint)


def s3_client(login: S3Login | None = None) -> Any:
    """A client, with this machine's login unless told otherwise."""
    used = login or s3_login()
    return (
        _boto()
        .session.Session()
        .client(
            "s3",
            aws_access_key_id=used.key_id,
            aws_secret_access_key=used.secret,
            aws_session_token=used.token,
            region_name=used.region,
            endpoint_url=used.endpoint,
        )
    )


def _boto() -> Any:
    try:
        import boto3
    except ImportError as exc:
        raise MissingDriver("The redshift backend needs 'boto3'.", fix='pip install "ematix-flow[redshift]"') from exc
    return boto3


@contextmanager
def explained_store() -> Iterator[None]:
    """S3's errors as ours."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (Boto3Error, BotoCoreError, ClientError) as exc:
        raise StatementFailed(
            f"S3 refused the files of this load: {scrub(str(exc).splitlines()[0])}",
            fix=_LOGIN,
        ) from exc


def manifest(folder: str, parts: Sequence[Part]) -> str:
    """The list of the files that count, as COPY reads it; for Parquet it must know their sizes."""
    entries = [
        {"url": f"{folder}/{part.name}", "mandatory": True, "meta": {"content_length": part.size}} for part in parts
    ]
    return json.dumps({"entries": entries})


def copy_from(table: str, url: str, iam_role: str, dialect: RedshiftDialect) -> str:
    """The statement that loads the files of a manifest into a table, columns in their order; all of them, or none."""
    place, role = dialect.literal(url, Text()), dialect.literal(iam_role, Text())
    return f"COPY {table} FROM {place} IAM_ROLE {role} FORMAT AS PARQUET MANIFEST"
