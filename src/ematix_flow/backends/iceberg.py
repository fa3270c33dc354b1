"""Apache Iceberg tables, listed by their folder, by a REST catalog or by a database."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlsplit

from ematix_flow.backends.files_store import LocalStore, Store
from ematix_flow.backends.files_store_s3 import S3Store
from ematix_flow.backends.lake_commits import Commit, LoadCommit, told
from ematix_flow.backends.lake_dialect import LakeDialect
from ematix_flow.backends.lake_stream import IcebergStreams
from ematix_flow.backends.locks import digest
from ematix_flow.backends.transport import quoted
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.columns import ColumnType, Numeric, SmallInt
from ematix_flow.declare.connection import Connection, IcebergConnection
from ematix_flow.declare.redaction import REDACTED, display_url, scrub, url_secrets
from ematix_flow.declare.server_address import server_address, url_scheme
from ematix_flow.errors import ConnectionFailed, InvalidConnection, InvalidPlan, InvalidSource, WriteConflict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.backends.lake_maintenance import LakeMaintenance

_CATALOG_TYPES = {"path": "hadoop", "rest": "rest", "jdbc": "jdbc"}
_DRIVERS = {"postgres": "postgresql", "postgresql": "postgresql", "mysql": "mysql", "mariadb": "mariadb"}
"""Schemes of URLs that can list tables, and the family of jars with their driver."""

_ANSWER_S = 5.0

_SECRETS = (".jdbc.password", ".token", ".credential")

_CATALOG_NAME = "ematix_flow"
"""What a database calls the list of tables when nobody says it."""

_RUN = "ematix-flow.run"
"""The property of a snapshot that says which run made it."""

_PIPELINE, _LOGICAL_RUN = "ematix-flow.pipeline", "ematix-flow.logical-run"
"""The properties that say which load of which pipeline that was."""

_CONFLICTS = ("ValidationException", "CommitFailedException", "CommitStateUnknownException", "Found conflicting files")


@dataclass(frozen=True)
class _Catalog:
    """What lists the tables: its name in Spark, and where it is."""

    name: str
    uri: str | None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    driver: str | None = None
    server: tuple[str, int] | None = None


class IcebergDialect(LakeDialect):
    """Spark SQL over Iceberg tables, which have no whole number of 16 bits."""

    catalog: str = ""

    def type_sql(self, column_type: ColumnType) -> str:
        return "INT" if isinstance(column_type, SmallInt) else super().type_sql(column_type)

    def same_type(self, declared: ColumnType, native: str) -> bool:
        return native == "int" if isinstance(declared, SmallInt) else super().same_type(declared, native)

    def can_become(self, live: ColumnType, declared: ColumnType) -> bool:
        # The places of a decimal are for good.
        return not isinstance(live, Numeric) or not isinstance(declared, Numeric) or live.scale == declared.scale

    def create_schema(self, schema: str) -> str | None:
        return f"CREATE NAMESPACE IF NOT EXISTS {self.catalog}.{self.quote(schema)}"

    def storage(self, columns: Sequence[str], partition_by: Sequence[str], *, changes_rows: bool) -> str:
        partitions = f" PARTITIONED BY ({self.columns(partition_by)})" if partition_by else ""
        properties = ["'format-version' = '2'"]
        if changes_rows:
            # Small changes are kept beside the files they belong to, instead of writing these anew.
            properties += [f"'write.{what}.mode' = 'merge-on-read'" for what in ("merge", "update", "delete")]
        return f" USING iceberg{partitions} TBLPROPERTIES ({', '.join(properties)})"


class IcebergBackend(IcebergStreams):
    """The Iceberg tables of one catalog."""

    connection_type: ClassVar[type[Connection]] = IcebergConnection
    system = "Iceberg"
    dialect_type = IcebergDialect
    gathers_partitions = True  # write.distribution-mode is hash for partitioned tables
    connection: IcebergConnection

    def __init__(self, connection: Connection) -> None:
        assert isinstance(connection, IcebergConnection)
        super().__init__(connection)
        self.catalog = _listed_by(connection)
        self.dialect.catalog = quoted(self.catalog.name)
        families = {"iceberg", self.catalog.driver, "hadoop-aws" if connection.bucket else None}
        self.needs = SessionNeeds(jars=frozenset(family for family in families if family))

    @property
    def dialect(self) -> IcebergDialect:
        assert isinstance(self._dialect, IcebergDialect)
        return self._dialect

    def open_store(self, connection: Connection) -> Store:
        assert isinstance(connection, IcebergConnection)
        return S3Store(connection) if connection.bucket else LocalStore(connection.warehouse)

    def prepare(self, spark: SparkSession) -> None:
        """Name the catalog; a session loads it when it is first used."""
        super().prepare(spark)
        known = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": _CATALOG_TYPES[self.connection.catalog],
            ".warehouse": self.connection.warehouse_name or self.store.spark_uri("").rstrip("/"),
            # What other programs commit must be seen at once, not when a cache runs out.
            ".cache-enabled": "false",
            # One way to files for every catalog, the session's own; it knows the login of the bucket.
            ".io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
            ".uri": self.catalog.uri,
            ".jdbc.user": self.catalog.user,
            ".jdbc.password": self.catalog.password,
            ".jdbc.schema-version": "V1" if self.connection.catalog == "jdbc" else None,
            ".token": self.connection.token,
            ".credential": self.connection.credential,
            ".scope": self.connection.scope,
            ".oauth2-server-uri": self.connection.oauth2_server_uri,
        }
        prefix = f"spark.sql.catalog.{self.catalog.name}"
        if spark.conf.get(f"{prefix}.uri", self.catalog.uri or "") != (self.catalog.uri or ""):
            raise InvalidPlan(
                f"This session knows the catalog '{self.catalog.name}' at another address.",
                fix="give one of the connections another catalog_name",
            )
        for key, value in known.items():
            if value is not None:
                if key in _SECRETS:
                    hide_in_event_log(spark, prefix + key)
                spark.conf.set(prefix + key, value)

    def name_of(self, table: TableRef) -> str:
        return f"{quoted(self.catalog.name)}.{quoted(table.schema or '')}.{quoted(table.name)}"

    def exists(self, table: TableRef) -> bool:
        if self.connection.catalog == "path":
            return self.store.exists(f"{self.folder_of(table)}/metadata")
        spark = self.spark()
        self.prepare(spark)
        if ".connect." not in type(spark).__module__:
            self._require_answer()
        try:
            return spark.catalog.tableExists(self.name_of(table))
        except Exception as exc:
            given = self.connection
            place = f"The {given.catalog} catalog of '{given.name}' at {display_url(given.uri or '')}"
            raise ConnectionFailed(
                f"{place} cannot be used: {_cause(exc)}.",
                fix="check that it runs, and the uri, user, password, token or credential of the connection",
            ) from exc

    def _require_answer(self) -> None:
        """Whether anybody listens where the catalog is said to be; Iceberg itself would try for a minute and more."""
        if self.catalog.server is None:
            return
        try:
            socket.create_connection(self.catalog.server, timeout=_ANSWER_S).close()
        except OSError as exc:
            given = self.connection
            raise ConnectionFailed(
                f"The {given.catalog} catalog of '{given.name}' does not answer at {display_url(given.uri or '')}: "
                f"{exc.strerror or type(exc).__name__}.",
                fix="start it, or mend the uri of the connection",
            ) from exc

    def remove(self, spark: SparkSession, table: TableRef) -> None:
        spark.sql(f"DROP TABLE {self.name_of(table)} PURGE")

    def version(self, spark: SparkSession, table: TableRef) -> int | None:
        found = spark.sql(f"SELECT snapshot_id FROM {self.name_of(table)}.refs WHERE name = 'main'").collect()
        return int(found[0][0]) if found else None

    def frame(self, spark: SparkSession, table: TableRef, moment: int | str | None = None) -> DataFrame:
        if moment is None:
            return spark.read.table(self.name_of(table))
        then = f"TIMESTAMP AS OF {self.dialect.text(moment)}" if isinstance(moment, str) else f"VERSION AS OF {moment}"
        try:
            return spark.sql(f"SELECT * FROM {self.name_of(table)} {then}")
        except Exception as exc:
            if "Cannot find" not in str(exc):
                raise
            raise self._without(spark, table, moment) from exc

    def _without(self, spark: SparkSession, table: TableRef, moment: int | str) -> InvalidSource:
        """The table has nothing of that version or time; Iceberg does not say what it has."""
        listed = f"SELECT snapshot_id, committed_at FROM {self.name_of(table)}.snapshots ORDER BY committed_at"
        kept = [f"{row[0]} ({row[1]})" for row in spark.sql(listed).collect()]
        what = f"snapshot as old as {moment}" if isinstance(moment, str) else f"snapshot {moment}"
        has = f"the oldest is {kept[0]}, the newest {kept[-1]}" if kept else "it has none"
        return InvalidSource(
            f"The Iceberg table '{table}' has no {what}, or no longer: {has}.",
            where=self.store.shown_path(self.folder_of(table)),
            fix="ask for one of its snapshots, or for a later time",
        )

    def current(self, spark: SparkSession, table: TableRef) -> DataFrame:
        # A frame loads its table once. Asked for by number, the newest rows would lack columns added since they came.
        return self.frame(spark, table)

    def has_rows(self, spark: SparkSession, table: TableRef) -> bool:
        version = self.version(spark, table)
        if version is None:
            return False
        newest = f"SELECT summary FROM {self.name_of(table)}.snapshots WHERE snapshot_id = {version}"
        found = spark.sql(newest).collect()
        return bool(found) and int(found[0][0].get("total-records", "1")) > 0

    def rows_and_partitions(self, spark: SparkSession, table: TableRef) -> tuple[bool, tuple[str, ...]]:
        described = spark.sql(f"DESCRIBE TABLE {self.name_of(table)}").collect()
        return self.has_rows(spark, table), partition_columns([(row[0], row[1]) for row in described])

    def commit(self, spark: SparkSession, table: TableRef, statement: str, commit: Commit) -> None:
        with self._marked(spark, table, commit):
            spark.sql(statement)

    @contextmanager
    def _marked(self, spark: SparkSession, table: TableRef, commit: Commit) -> Iterator[None]:
        """What is committed carries the mark, and a conflict is called one."""
        marks = {_RUN: commit.run_id, _PIPELINE: commit.pipeline, _LOGICAL_RUN: commit.logical_run}
        conf = {f"spark.sql.iceberg.snapshot-property.{name}": text for name, text in marks.items()}
        # A session may be told to store values as older Sparks did, which these tables refuse.
        conf["spark.sql.storeAssignmentPolicy"] = "ANSI"
        try:
            with told(spark, conf):
                yield
        except Exception as exc:
            if self.is_conflict(exc):
                raise WriteConflict(f"Another program changed {table} at the same time.") from exc
            raise

    def carry_out(self, spark: SparkSession, load: LoadCommit) -> None:
        write, table = load.statement.write, load.plan.table
        if write is None or write.kind == "merge":
            return super().carry_out(spark, load)
        from pyspark.sql import functions as F

        writer = self._for_every_column(spark, table, spark.sql(write.rows)).writeTo(self.name_of(table))
        if write.kind == "append" and load.plan.changes is not None:
            # An INSERT goes through whatever others add meanwhile. Taking the place of no row at all does the same, and
            # Iceberg looks whether there are rows that the given version does not have.
            known = {"isolation-level": "serializable", "validate-from-snapshot-id": load.version}
            for option, value in known.items():
                if value is not None:
                    writer = writer.option(option, str(value))
        with self._marked(spark, table, load.mark):
            if write.kind == "append" and load.plan.changes is None:
                writer.append()
            else:
                # Said like this, since INSERT OVERWRITE leaves partitions alone in a session that is told to.
                writer.overwrite(F.lit(write.kind == "replace"))

    def _for_every_column(self, spark: SparkSession, table: TableRef, rows: DataFrame) -> DataFrame:
        """The rows, with NULL in columns that only the table has: into these tables Spark adds no row without."""
        from pyspark.sql import functions as F

        there = self.frame(spark, table).schema.fields
        given = {name.lower() for name in rows.columns}
        missing = {field.name: F.lit(None).cast(field.dataType) for field in there if field.name.lower() not in given}
        return rows.withColumns(missing) if missing else rows

    def is_conflict(self, exc: Exception) -> bool:
        return any(word in str(exc) for word in _CONFLICTS)

    def maintenance(self) -> LakeMaintenance:
        from ematix_flow.backends.iceberg_maintenance import IcebergMaintenance

        return IcebergMaintenance(self)

    def is_committed(self, spark: SparkSession, table: TableRef, run_id: str, *, after: int | None = None) -> bool:
        return bool(self._snapshots(spark, table, _RUN, run_id))

    def loads_of(self, spark: SparkSession, table: TableRef, pipeline: str) -> Mapping[str, str]:
        marks = self._snapshots(spark, table, _PIPELINE, pipeline)
        return {mark[_LOGICAL_RUN]: mark[_RUN] for mark in marks}

    def rows_written(self, spark: SparkSession, table: TableRef, run_id: str) -> int:
        return int(self._snapshots(spark, table, _RUN, run_id)[0].get("added-records", "0"))

    def _snapshots(self, spark: SparkSession, table: TableRef, mark: str, text: str) -> list[Mapping[str, Any]]:
        """What the snapshots with that mark say of themselves."""
        self.prepare(spark)
        if not self.exists(table):
            return []
        wanted = f"summary['{mark}'] = {self.dialect.text(text)}"
        return [
            row[0] for row in spark.sql(f"SELECT summary FROM {self.name_of(table)}.snapshots WHERE {wanted}").collect()
        ]


def hide_in_event_log(spark: Any, key: str) -> None:
    """Let Spark hide the value of a session's setting in its event log.

    The log has a session's settings with every job, and of these only such are hidden as the application has, too.
    """
    if ".connect." not in type(spark).__module__:
        spark.sparkContext._jsc.sc().conf().set(key, REDACTED)


def _cause(exc: Exception) -> str:
    """The line of Spark's error that says what is wrong, without the way there."""
    lines = [line.removeprefix(": ") for line in str(exc).splitlines() if line.startswith(": ")] or [str(exc)]
    return scrub(lines[0].splitlines()[0]).rpartition("Exception: ")[2]


def _listed_by(connection: IcebergConnection) -> _Catalog:
    """The catalog of a connection, in the words of Iceberg's own settings."""
    uri = connection.uri or ""
    if url_secrets(connection.oauth2_server_uri or ""):
        raise InvalidConnection(
            f"IcebergConnection('{connection.name}'): a secret in oauth2_server_uri would be shown by Spark.",
            fix='credential = "id:secret"',
        )
    if (connection.catalog == "rest" or uri.startswith("jdbc:")) and url_secrets(uri.removeprefix("jdbc:")):
        # An address becomes a setting that Spark shows in its UI and writes into its event log.
        raise InvalidConnection(
            f"IcebergConnection('{connection.name}'): a secret in this uri would be shown by Spark.",
            fix="token= for a rest catalog, user= and password= for a jdbc one",
        )
    if connection.catalog != "jdbc":
        return _Catalog(f"{_CATALOG_NAME}_{digest(connection.identity())}", connection.uri, server=_server_of(uri))
    name = connection.catalog_name or _CATALOG_NAME
    scheme = url_scheme(uri.removeprefix("jdbc:")) or ""
    driver = _DRIVERS.get(scheme)
    if uri.startswith("jdbc:"):
        return _Catalog(name, uri, connection.user, connection.password, driver)
    if driver is None:
        raise InvalidConnection(
            f"IcebergConnection('{connection.name}'): a jdbc catalog is not known for '{scheme}'.",
            fix="write postgresql://user:password@host/database, or jdbc:… with its driver in [spark.conf] spark.jars",
        )
    address = server_address(uri, default_port={"postgresql": 5432}.get(driver, 3306))
    return _Catalog(
        name,
        f"jdbc:{driver}://{address.host}:{address.port}/{quote(address.database or '')}",
        connection.user or address.user,
        connection.password or address.password,
        driver,
        (address.host, address.port),
    )


def _server_of(uri: str) -> tuple[str, int] | None:
    """Host and port of a web address; None where it has none, or no port that can be."""
    parts = urlsplit(uri)
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname and port else None


def partition_columns(described: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The columns that are partitions as they are, out of Spark's description of a table (name and type a line).

    Partitions that are made of a column (`days(at)`) are not among them: nobody writes their values.

    >>> partition_columns([("at", "timestamp"), ("a b", "string"), ("# Partition Information", ""),
    ...                    ("# col_name", "data_type"), ("`a b`", "string")])
    ('a b',)
    >>> partition_columns([("at", "timestamp"), ("city", "string"), ("", ""), ("# Partitioning", ""),
    ...                    ("Part 0", "city"), ("Part 1", "days(at)")])
    ('city',)
    """
    names = [name for name, _ in described]
    if "# Partition Information" in names:
        given = names[names.index("# Partition Information") + 2 :]
    elif "# Partitioning" in names:
        given = [what for _, what in described[names.index("# Partitioning") + 1 :]]
    else:
        return ()
    plain = {name if name.isidentifier() else quoted(name): name for name in names}
    return tuple(plain[name] for name in given if name in plain)
