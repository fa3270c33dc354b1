"""How to reach another system: one frozen class per kind, with `${…}` references kept as written.

A connection is only data. It is declared with `@ematix.connection`, built by name and fields, or made from a DSN;
`config/resolve.py` finds it by name and fills in the references when a plan is made, and a backend opens it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from ematix_flow.declare import registry
from ematix_flow.declare.bucket_connection import (
    ObjectStoreAzureConnection as ObjectStoreAzureConnection,
    ObjectStoreGcsConnection as ObjectStoreGcsConnection,
)
from ematix_flow.declare.connection_base import (
    MEMORY,
    Connection as Connection,
    DatabaseFileConnection,
    FolderConnection,
    HoldsFiles,
    ServerUrlConnection,
    field_hint,
)
from ematix_flow.declare.lake_connection import (
    DeltaLocalConnection as DeltaLocalConnection,
    DeltaS3Connection as DeltaS3Connection,
    IcebergConnection as IcebergConnection,
)
from ematix_flow.declare.redaction import REDACTED, display_url, is_secret_field, redact_url, scrub
from ematix_flow.declare.server_address import server_address, url_scheme
from ematix_flow.errors import (
    InvalidConnection,
    UnregisteredConnection,
    WrongConnectionType,
    WrongDeclarationType,
    closest,
    listed,
)

DSN_FORMS = (
    "postgres://",
    "postgresql://",
    "mysql://",
    "mysql+pymysql://",
    "sqlite:///relative.db",
    "sqlite:////absolute.db",
    "duckdb:///relative.db",
    "duckdb:////absolute.db",
    ":memory:",
)


# ── databases ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, repr=False)
class PostgresConnection(ServerUrlConnection):
    """A PostgreSQL database: ``postgres://user:password@host:5432/database``.

    The other fields are for streams that capture its changes: the replication slot and the publication they go through,
    how many bytes of its log the server may keep for the slot, and what to do then (``fail`` or ``drop``).
    """

    kind: ClassVar[str] = "postgres"
    required: ClassVar[tuple[str, ...]] = ("url",)
    schemes: ClassVar[tuple[str, ...]] = ("postgres", "postgresql")
    default_port: ClassVar[int] = 5432
    url: str = ""
    slot: str | None = None
    publication: str | None = None
    max_slot_bytes: int | None = None
    on_full_slot: str | None = None


@dataclass(frozen=True, repr=False)
class MySQLConnection(ServerUrlConnection):
    """A MySQL or MariaDB database: ``mysql://user:password@host:3306/database``."""

    kind: ClassVar[str] = "mysql"
    required: ClassVar[tuple[str, ...]] = ("url",)
    schemes: ClassVar[tuple[str, ...]] = ("mysql", "mysql+pymysql")
    default_port: ClassVar[int] = 3306
    url: str = ""


@dataclass(frozen=True, repr=False)
class SQLiteConnection(DatabaseFileConnection):
    """A SQLite file, or ``:memory:``, which lives as long as this object's process."""

    kind: ClassVar[str] = "sqlite"
    required: ClassVar[tuple[str, ...]] = ("path",)
    path: str = ""


@dataclass(frozen=True, repr=False)
class DuckDBConnection(DatabaseFileConnection):
    """A DuckDB file, or ``:memory:``."""

    kind: ClassVar[str] = "duckdb"
    required: ClassVar[tuple[str, ...]] = ("path",)
    path: str = ""


# ── folders and buckets ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, repr=False)
class ObjectStoreLocalConnection(HoldsFiles, FolderConnection):
    """Files of one format below a folder of this machine; the options say how files of others are to be read."""

    kind: ClassVar[str] = "object_store_local"
    required: ClassVar[tuple[str, ...]] = ("path", "format")
    path: str = ""
    format: str = ""
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None
    on_corrupt_file: str | None = None


@dataclass(frozen=True, repr=False)
class ObjectStoreS3Connection(HoldsFiles, Connection):
    """Files of one format in a bucket of S3 or of a store that speaks its protocol; options as for local files."""

    kind: ClassVar[str] = "object_store_s3"
    required: ClassVar[tuple[str, ...]] = (
        "endpoint",
        "bucket",
        "region",
        "access_key_id",
        "secret_access_key",
        "format",
    )
    endpoint: str = ""
    bucket: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    format: str = ""
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None
    on_corrupt_file: str | None = None


# ── logs, queues and their registries ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, repr=False)
class KafkaConnection(Connection):
    """A Kafka cluster; `schema_registry` is a connection or the name of one, `schema_registry_url` its short form."""

    kind: ClassVar[str] = "kafka"
    required: ClassVar[tuple[str, ...]] = ("bootstrap_servers",)
    bootstrap_servers: str = ""
    group_id: str | None = None
    payload_format: str | None = None
    auto_offset_reset: str | None = None
    schema_registry_url: str | None = None
    schema_registry: str | Connection | None = None
    auto_register_schemas: bool = False
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = None
    sasl_scram_username: str | None = None
    sasl_scram_password: str | None = None
    sasl_scram_mechanism: str | None = None
    msk_iam_region: str | None = None
    security_protocol: str | None = None
    tls_ca_path: str | None = None
    tls_cert_path: str | None = None
    tls_key_path: str | None = None

    def _check_together(self) -> None:
        if self.schema_registry and self.schema_registry_url:
            self.refuse("schema_registry and schema_registry_url exclude each other", fix="keep one of them")
        if isinstance(self.schema_registry, Connection) and not isinstance(
            self.schema_registry, (SchemaRegistryConnection, GlueSchemaRegistryConnection)
        ):
            self.refuse(f"schema_registry is a {self.schema_registry.kind} connection, not a schema registry")

    def identity(self) -> str:
        servers = ",".join(sorted(server.strip().lower() for server in self.bootstrap_servers.split(",")))
        user = self.sasl_plain_username or self.sasl_scram_username or ""
        return f"{self.kind}://{quote(user, safe='')}@{servers}"


@dataclass(frozen=True, repr=False)
class RabbitMQConnection(Connection):
    """A RabbitMQ virtual host: ``amqp://user:password@host:5672/vhost``."""

    kind: ClassVar[str] = "rabbitmq"
    required: ClassVar[tuple[str, ...]] = ("amqp_url",)
    amqp_url: str = ""
    consumer_tag: str | None = None

    def identity(self) -> str:
        scheme = url_scheme(self.amqp_url)
        if scheme not in ("amqp", "amqps"):
            return f"{self.kind}:{redact_url(self.amqp_url)}"
        try:
            address = server_address(self.amqp_url, default_port=5671 if scheme == "amqps" else 5672)
        except ValueError as exc:
            self.refuse(f"amqp_url cannot be read: {exc}")
        user, vhost = quote(address.user or "guest", safe=""), quote(address.database or "/", safe="")
        return f"{self.kind}://{user}@{address.host}:{address.port}/{vhost}"


@dataclass(frozen=True, repr=False)
class PubSubConnection(Connection):
    """A Google Pub/Sub project, or an emulator at `endpoint`."""

    kind: ClassVar[str] = "pubsub"
    required: ClassVar[tuple[str, ...]] = ("project_id",)
    project_id: str = ""
    endpoint: str | None = None
    anonymous_auth: bool = False


@dataclass(frozen=True, repr=False)
class KinesisConnection(Connection):
    """A Kinesis stream; without keys the usual AWS credential chain is asked."""

    kind: ClassVar[str] = "kinesis"
    required: ClassVar[tuple[str, ...]] = ("stream_name",)
    stream_name: str = ""
    region: str | None = None
    endpoint: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None


@dataclass(frozen=True, repr=False)
class SchemaRegistryConnection(Connection):
    """A Confluent-compatible schema registry."""

    kind: ClassVar[str] = "schema_registry"
    required: ClassVar[tuple[str, ...]] = ("url",)
    url: str = ""
    basic_auth_user: str | None = None
    basic_auth_password: str | None = None


@dataclass(frozen=True, repr=False)
class GlueSchemaRegistryConnection(Connection):
    """An AWS Glue schema registry, by profile or by a pair of keys."""

    kind: ClassVar[str] = "glue_schema_registry"
    required: ClassVar[tuple[str, ...]] = ("registry_name", "region")
    registry_name: str = ""
    region: str = ""
    aws_profile: str | None = None
    aws_access_key_id: str | None = None
    aws_secret_access_key: str | None = None

    def _check_together(self) -> None:
        if bool(self.aws_access_key_id) != bool(self.aws_secret_access_key):
            self.refuse("aws_access_key_id and aws_secret_access_key go together", fix="give both or none")
        if self.aws_profile and self.aws_access_key_id:
            self.refuse("aws_profile and a pair of keys exclude each other", fix="keep one of them")


# ── warehouses ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, repr=False)
class SnowflakeConnection(Connection):
    """A Snowflake account, by password or by private key."""

    kind: ClassVar[str] = "snowflake"
    required: ClassVar[tuple[str, ...]] = ("account", "user")
    account: str = ""
    user: str = ""
    password: str | None = None
    private_key: str | None = None
    warehouse: str | None = None
    database: str | None = None
    schema: str | None = None
    role: str | None = None

    def _check_together(self) -> None:
        if not self.password and not self.private_key:
            self.refuse("password or private_key is required")


@dataclass(frozen=True, repr=False)
class BigQueryConnection(Connection):
    """A BigQuery dataset; without `credentials_path` the usual Google credential chain is asked."""

    kind: ClassVar[str] = "bigquery"
    required: ClassVar[tuple[str, ...]] = ("project", "dataset")
    project: str = ""
    dataset: str = ""
    credentials_path: str | None = None
    location: str | None = None


@dataclass(frozen=True, repr=False)
class RedshiftConnection(Connection):
    """A Redshift database; `s3_staging_dir` and `iam_role` let it load in bulk."""

    kind: ClassVar[str] = "redshift"
    required: ClassVar[tuple[str, ...]] = ("host", "database", "user", "password")
    host: str = ""
    database: str = ""
    user: str = ""
    password: str = ""
    port: int = 5439
    s3_staging_dir: str | None = None
    iam_role: str | None = None

    def identity(self) -> str:
        user, database = quote(self.user, safe=""), quote(self.database, safe="")
        return f"{self.kind}://{user}@{self.host.lower()}:{self.port}/{database}"

    def display(self) -> str:
        return display_url(self.to_postgres_url())

    def dsn(self) -> str:
        return self.to_postgres_url()

    def to_postgres_url(self) -> str:
        """The same database as PostgreSQL drivers want it, user and password percent-encoded."""
        user, password = quote(self.user, safe=""), quote(self.password, safe="")
        return f"postgresql://{user}:{password}@{self.host}:{self.port}/{quote(self.database, safe='')}"


KINDS: dict[str, type[Connection]] = {
    cls.kind: cls
    for cls in (
        PostgresConnection,
        MySQLConnection,
        SQLiteConnection,
        DuckDBConnection,
        DeltaLocalConnection,
        DeltaS3Connection,
        IcebergConnection,
        ObjectStoreLocalConnection,
        ObjectStoreS3Connection,
        ObjectStoreGcsConnection,
        ObjectStoreAzureConnection,
        KafkaConnection,
        RabbitMQConnection,
        PubSubConnection,
        KinesisConnection,
        SchemaRegistryConnection,
        GlueSchemaRegistryConnection,
        SnowflakeConnection,
        BigQueryConnection,
        RedshiftConnection,
    )
}


# ── making connections ───────────────────────────────────────────────────────────────────────────────────────────────


def connection_from_fields(kind: str, name: str, fields: Mapping[str, object], where: str | None = None) -> Connection:
    """A connection of a named kind, from a TOML entry, a class body or command-line words.

    `dsn` is read as `url`, and a file database may be given by `url` as well.

    Raises:
        InvalidConnection: The kind or a field is unknown (the nearest is suggested), or a value is missing or unfit.
    """
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InvalidConnection(
            f"Connection '{name}' has the unknown kind '{kind}'; known are {listed(KINDS)}.",
            where=where,
            fix=closest(str(kind), KINDS),
        )
    known = [field.name for field in dataclasses.fields(cls) if field.name != "name"]
    given = dict(fields)
    if "dsn" in given and "dsn" not in known:
        if "url" in given:
            raise InvalidConnection(f"Connection '{name}' has both url and dsn.", where=where, fix="keep one of them")
        given["url"] = given.pop("dsn")
    if issubclass(cls, DatabaseFileConnection) and "path" not in given and isinstance(url := given.get("url"), str):
        if url != MEMORY and url_scheme(url) not in (kind, None):
            raise InvalidConnection(
                f"Connection '{name}' is of kind '{kind}' but its url begins with '{url_scheme(url)}://'.", where=where
            )
        del given["url"]
        given["path"] = _path_of(url)
    for field in given:
        if field not in known:
            raise InvalidConnection(
                f"Connection '{name}' ({kind}) has the unknown field '{field}'; valid are {listed(known)}.",
                where=where,
                fix=field_hint(field, known),
            )
    try:
        return cls(name=name, **given)
    except InvalidConnection as exc:
        if where:
            exc.at(where)
        raise


def connection_from_dsn(name: str, dsn: str) -> Connection:
    """A connection from one URL, by its scheme.

    Raises:
        InvalidConnection: The scheme is unknown, or a PostgreSQL or MySQL URL names no user or no database.
    """
    text = dsn.strip()
    scheme = url_scheme(text)
    if text == MEMORY:
        return SQLiteConnection(name=name, path=MEMORY)
    if scheme in PostgresConnection.schemes:
        return _with_user_and_database(PostgresConnection(name=name, url=text))
    if scheme in MySQLConnection.schemes:
        return _with_user_and_database(MySQLConnection(name=name, url=text))
    if scheme == "sqlite":
        return SQLiteConnection(name=name, path=_path_of(text))
    if scheme == "duckdb":
        return DuckDBConnection(name=name, path=_path_of(text))
    # The text may be a whole password pasted in the wrong place, so only a scheme is ever repeated.
    said = f"begins with '{scheme}://'" if scheme else "has no scheme"
    raise InvalidConnection(
        f"The DSN of connection '{name}' {said}; supported are {', '.join(DSN_FORMS)}.",
        fix=(closest(scheme, [*PostgresConnection.schemes, *MySQLConnection.schemes, "sqlite", "duckdb"]) or None)
        if scheme
        else "write scheme://user:password@host/database",
    )


def _with_user_and_database(connection: PostgresConnection | MySQLConnection) -> Connection:
    address = connection.address()
    missing = [word for word, value in (("a user", address.user), ("a database", address.database)) if not value]
    if missing:
        connection.refuse(
            f"the URL names no {' and no '.join(word.split()[1] for word in missing)}",
            fix=f"write {connection.schemes[0]}://user:password@host/database",
        )
    return connection


def _path_of(url: str) -> str:
    """``sqlite:///relative`` and ``sqlite:////absolute``; ``sqlite://`` alone, as elsewhere, is one in memory."""
    if url == MEMORY or url_scheme(url) is None:
        return url
    rest = url.split("://", 1)[1]
    return rest.removeprefix("/") or MEMORY


# ── the registry, seen from connections ──────────────────────────────────────────────────────────────────────────────


def declare_connection(cls: object) -> Connection:
    """`@ematix.connection`: turn a class body into a registered connection, which takes the place of the class.

    Raises:
        WrongDeclarationType: (a TypeError) Not a class, or `kind` is missing or unknown.
        InvalidConnection: (a ValueError) A field is unknown, missing or unfit.

    >>> @declare_connection
    ... class archive:
    ...     kind = "sqlite"
    ...     path = "archive.db"
    >>> archive
    SQLiteConnection(name='archive', kind='sqlite', path='archive.db')
    """
    if not isinstance(cls, type):
        raise WrongDeclarationType(
            f"@ematix.connection decorates a class, not {type(cls).__name__}.",
            fix="write `class warehouse:` with `kind` and the fields in its body",
        )
    where = registry.user_location(cls.__qualname__)
    fields = _class_body(cls)
    name = fields.pop("name", cls.__name__)
    kind = fields.pop("kind", None)
    if kind is None:
        raise WrongDeclarationType(
            f"Connection '{name}' has no kind; known are {listed(KINDS)}.",
            where=str(where),
            fix="add a line such as kind = 'postgres'",
        )
    if not isinstance(kind, str) or kind not in KINDS:
        raise WrongDeclarationType(
            f"Connection '{name}' has the unknown kind {kind!r}; known are {listed(KINDS)}.",
            where=str(where),
            fix=closest(str(kind), KINDS),
        )
    connection = connection_from_fields(kind, name, fields, str(where))  # type: ignore[arg-type]
    registry.current().add_connection(connection, where)
    return connection


def _class_body(cls: type) -> dict[str, object]:
    """What the class and its plain bases say, the nearest first."""
    body: dict[str, object] = {}
    for base in reversed(cls.__mro__[:-1]):
        body.update({name: value for name, value in vars(base).items() if not name.startswith("__")})
    return body


_AnyConnection = TypeVar("_AnyConnection", bound=Connection)


def register_connection(connection: _AnyConnection) -> _AnyConnection:
    """Make a connection known by its name, silently replacing an earlier one, and give it back.

    Raises:
        WrongConnectionType: (a TypeError) The argument is not a connection.
    """
    if not isinstance(connection, Connection):
        raise WrongConnectionType(
            f"register_connection takes a connection, not {type(connection).__name__}.",
            fix="pass for example PostgresConnection(name='…', url='…')",
        )
    registry.current().add_connection(connection, registry.user_location(connection.name))
    return connection


def get_connection(name: str) -> Connection:
    """The connection that code registered under this name; files and environment are not asked.

    Raises:
        UnregisteredConnection: (a KeyError) No code registered it.
    """
    found = registry.current().connection(name)
    if found is None:
        known = sorted(registry.current().connections())
        raise UnregisteredConnection(
            f"No connection '{name}' is registered; registered are: {listed(known)}.", fix=closest(str(name), known)
        )
    return found


def registered_connections() -> dict[str, Connection]:
    """A copy of what code registered: name → connection."""
    return registry.current().connections()


def clear_registry() -> None:
    """Forget every registered connection."""
    registry.current().clear_connections()


def redact(what: object, value: object = None) -> str:
    """Anything in a form that may be shown: a connection, a URL or other text, or a field's name with its value.

    >>> redact("postgres://ann:pw@db/x"), redact("sasl_plain_password", "pw")
    ('postgres://ann:<redacted>@db/x', '<redacted>')
    """
    if isinstance(what, Connection):
        return repr(what)
    if value is not None:
        return REDACTED if is_secret_field(str(what)) else scrub(redact_url(str(value)))
    return scrub(redact_url(str(what)))
