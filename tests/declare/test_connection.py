"""Typed connections: fields, checks, redaction, identity, declaration."""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ematix_flow.declare import registry
from ematix_flow.declare.connection import (
    KINDS,
    Connection,
    DuckDBConnection,
    GlueSchemaRegistryConnection,
    KafkaConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    RabbitMQConnection,
    RedshiftConnection,
    SchemaRegistryConnection,
    SnowflakeConnection,
    SQLiteConnection,
    clear_registry,
    connection_from_dsn,
    connection_from_fields,
    declare_connection,
    get_connection,
    redact,
    register_connection,
    registered_connections,
)
from ematix_flow.declare.fileformats import FILE_FORMATS, format_from_path
from ematix_flow.declare.redaction import forget_secrets, scrub
from ematix_flow.declare.server_address import server_address
from ematix_flow.errors import InvalidConnection, UnregisteredConnection, WrongConnectionType, WrongDeclarationType

S3 = {
    "endpoint": "https://s3",
    "bucket": "b",
    "region": "r",
    "access_key_id": "AKIDENTIFIER",
    "secret_access_key": "s3cr3tvalue",
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "postgres": {"url": "postgres://ann:pw123@db/x"},
    "mysql": {"url": "mysql://ann:pw123@db/x"},
    "sqlite": {"path": "a.db"},
    "duckdb": {"path": "a.duckdb"},
    "delta_local": {"path": "lake"},
    "delta_s3": S3,
    "iceberg": {"warehouse": "lake", "catalog": "jdbc", "uri": "postgres://db/x", "user": "ann", "password": "pw123"},
    "object_store_local": {"path": "files", "format": "csv"},
    "object_store_s3": {**S3, "format": "parquet"},
    "object_store_gcs": {"bucket": "b", "format": "parquet"},
    "object_store_azure": {"account": "a", "container": "c", "format": "csv", "account_key": "s3cr3tvalue"},
    "kafka": {"bootstrap_servers": "k:9092", "sasl_plain_username": "ann", "sasl_plain_password": "pw123"},
    "rabbitmq": {"amqp_url": "amqp://ann:pw123@mq/v"},
    "pubsub": {"project_id": "p"},
    "kinesis": {"stream_name": "s", "access_key_id": "AKIDENTIFIER", "secret_access_key": "s3cr3tvalue"},
    "schema_registry": {"url": "http://ann:pw123@sr", "basic_auth_user": "ann", "basic_auth_password": "pw123"},
    "glue_schema_registry": {"registry_name": "g", "region": "r"},
    "snowflake": {"account": "a", "user": "ann", "password": "pw123"},
    "bigquery": {"project": "p", "dataset": "d"},
    "redshift": {"host": "h", "database": "d", "user": "ann", "password": "pw123"},
}
SECRETS = ("pw123", "AKIDENTIFIER", "s3cr3tvalue")


@pytest.fixture(autouse=True)
def _nothing_leaks_between_tests() -> Iterator[None]:
    with registry.isolated():
        forget_secrets()
        yield
    forget_secrets()


def test_every_kind_has_an_example_here() -> None:
    assert set(EXAMPLES) == set(KINDS)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_kind_can_be_made_and_hides_its_secrets(kind: str) -> None:
    made = connection_from_fields(kind, "c", EXAMPLES[kind])
    assert made.kind == kind and made.name == "c"
    assert repr(made).startswith(f"{type(made).__name__}(name='c', kind='{kind}'")
    for text in (repr(made), str(made), f"{made}", made.display(), made.identity(), redact(made)):
        assert not any(secret in text for secret in SECRETS), text
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_missing_field_is_named(kind: str) -> None:
    for field in KINDS[kind].required:
        fields = {name: value for name, value in EXAMPLES[kind].items() if name != field}
        cls = KINDS[kind]
        with pytest.raises(ValueError) as caught:
            cls(name="c", **fields)
        assert f"{cls.__name__}('c'): {field} is required" in str(caught.value)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_secrets_are_remembered_for_messages_of_others(kind: str) -> None:
    connection_from_fields(kind, "c", EXAMPLES[kind])
    for secret in SECRETS:
        if secret in str(EXAMPLES[kind]):
            assert secret not in scrub(f"the driver said {secret}")


def test_the_kind_cannot_be_changed() -> None:
    made = PostgresConnection(name="w", url="postgres://localhost/wh")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.kind = "mysql"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.url = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("cls", "fields", "said"),
    [
        (PostgresConnection, {"name": "", "url": "postgres://a@b/c"}, "name is required"),
        (PostgresConnection, {"name": None, "url": "postgres://a@b/c"}, "name must be text"),
        (PostgresConnection, {"name": "a\x1b[31m", "url": "postgres://a@b/c"}, "control character"),
        (PostgresConnection, {"name": "w", "url": 5}, "url must be text, not int"),
        (PostgresConnection, {"name": "w", "url": "mysql://a@b/c"}, "not a postgres URL"),
        (SQLiteConnection, {"name": "w", "path": "a\0b"}, "NUL"),
        (ObjectStoreLocalConnection, {"name": "w", "path": "p", "format": "parket"}, "did you mean 'parquet'?"),
        (ObjectStoreS3Connection, {"name": "w", **S3, "format": "xml"}, "'json_lines'"),
        (
            KafkaConnection,
            {"name": "k", "bootstrap_servers": "b", "schema_registry": "a", "schema_registry_url": "b"},
            "",
        ),
        (
            GlueSchemaRegistryConnection,
            {"name": "g", "registry_name": "r", "region": "e", "aws_access_key_id": "k"},
            "both",
        ),
        (SnowflakeConnection, {"name": "s", "account": "a", "user": "u"}, "password or private_key is required"),
        (RedshiftConnection, {"name": "r", **EXAMPLES["redshift"], "port": "many"}, "port must be a whole number"),
    ],
)
def test_bad_values_are_refused_at_construction(cls: type[Connection], fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConnection) as caught:
        cls(**fields)
    assert isinstance(caught.value, ValueError) and said in str(caught.value)


@pytest.mark.parametrize("name", ["my-db", "ünï", "a.b", "drop table x; --", "'quoted'", "x" * 300, "default"])
def test_unusual_names_are_fine(name: str) -> None:
    made = SQLiteConnection(name=name, path="a.db")
    register_connection(made)
    assert get_connection(name) is made
    assert eval(repr(made).split(", kind=")[0].removeprefix("SQLiteConnection(name=")) == name


def test_paths_may_be_path_objects() -> None:
    assert SQLiteConnection(name="a", path=Path("x.db")).path == "x.db"  # type: ignore[arg-type]


def test_references_stay_as_written_until_use() -> None:
    made = PostgresConnection(name="w", url="${WAREHOUSE_URL}")
    assert made.url == "${WAREHOUSE_URL}" and "${WAREHOUSE_URL}" in repr(made)
    assert "${PW}" not in repr(PostgresConnection(name="w", url="postgres://a:${PW}@b/c"))


def test_a_nested_registry_is_redacted_too() -> None:
    inner = SchemaRegistryConnection(name="sr", url="http://a:pw123@sr", basic_auth_password="pw123")
    assert "pw123" not in repr(KafkaConnection(name="k", bootstrap_servers="b", schema_registry=inner))
    with pytest.raises(ValueError, match="not a schema registry"):
        KafkaConnection(name="k", bootstrap_servers="b", schema_registry=SQLiteConnection(name="s", path="p"))
    by_url = KafkaConnection(name="k", bootstrap_servers="b", schema_registry_url="http://a:pw123@sr")
    assert "pw123" not in repr(by_url) + by_url.display()


def test_a_plugged_in_kind_cannot_leak_by_forgetting_its_repr() -> None:
    @dataclass(frozen=True)
    class Own(Connection):
        kind: ClassVar[str] = "own"
        api_token: str = ""

    assert "abc123" not in repr(Own(name="o", api_token="abc123"))


def test_redshift_encodes_its_user_info() -> None:
    made = RedshiftConnection(name="r", host="h", database="d", user="a@b", password="p/w:1")
    assert made.to_postgres_url() == "postgresql://a%40b:p%2Fw%3A1@h:5439/d"


# ── identity ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def pg(url: str) -> str:
    return PostgresConnection(name="any", url=url).identity()


@pytest.mark.parametrize(
    "other",
    [
        "postgresql://ann:other@localhost/wh",
        "postgres://ann@LOCALHOST:5432/wh",
        "postgres://%61nn:pw@localhost:5432/w%68?sslmode=disable",
        "postgres://localhost/wh?user=ann",
        "postgres:///wh?host=localhost&user=ann&port=5432",
        "postgres://ann:p@ss/w@localhost/wh",
    ],
)
def test_the_same_database_and_user_have_one_identity(other: str) -> None:
    assert pg("postgres://ann:pw@localhost:5432/wh") == pg(other)


@pytest.mark.parametrize(
    "other",
    [
        "postgres://bob:pw@localhost:5432/wh",
        "postgres://ann:pw@localhost:5433/wh",
        "postgres://ann:pw@localhost:5432/WH",
        "postgres://ann:pw@otherhost:5432/wh",
        "postgres://ann:pw@localhost:5432/wh?options=-csearch_path%3Dx",
    ],
)
def test_another_server_database_user_or_setting_has_another_identity(other: str) -> None:
    assert pg("postgres://ann:pw@localhost:5432/wh") != pg(other)


def test_mysql_spellings_are_one() -> None:
    plain, driver = (MySQLConnection(name="m", url=f"{s}://a@h/d") for s in ("mysql", "mysql+pymysql"))
    assert plain.identity() == driver.identity() != MySQLConnection(name="m", url="mysql://a@h:3307/d").identity()


def test_file_databases_are_told_by_their_real_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real.db").touch()
    os.symlink(tmp_path / "real.db", tmp_path / "link.db")
    monkeypatch.chdir(tmp_path)
    identities = {
        SQLiteConnection(name=name, path=path).identity()
        for name, path in [("a", "real.db"), ("b", "./real.db"), ("c", str(tmp_path / "link.db"))]
    }
    assert len(identities) == 1
    assert DuckDBConnection(name="a", path="real.db").identity() not in identities


def test_a_database_in_memory_belongs_to_its_object() -> None:
    one, two = SQLiteConnection(name="m", path=":memory:"), SQLiteConnection(name="m", path=":memory:")
    assert one.identity() == one.identity() != two.identity()
    assert one.with_fields(path=":memory:") is one


def test_rabbitmq_and_kafka_identities_are_normalised() -> None:
    assert (
        RabbitMQConnection(name="a", amqp_url="amqp://u:p@MQ/v").identity()
        == RabbitMQConnection(name="b", amqp_url="amqp://u:q@mq:5672/v").identity()
    )
    assert (
        KafkaConnection(name="a", bootstrap_servers="b:1, A:2").identity()
        == KafkaConnection(name="b", bootstrap_servers="a:2,b:1").identity()
    )


def test_addresses_with_several_hosts_and_sockets_are_read() -> None:
    several = server_address("postgres://u@h1:1,h2:2/d", default_port=5432)
    assert several.hosts == (("h1", 1), ("h2", 2))
    assert server_address("postgres://u@[::1]:6/d", default_port=5432).hosts == (("::1", 6),)
    assert server_address("postgres://u@%2Fvar%2FRun/d", default_port=5432).host == "/var/Run"
    assert "pw1" not in repr(server_address("postgres://u:pw1@h/d", default_port=1))
    with pytest.raises(ValueError, match="port"):
        server_address("postgres://u@h:99999/d", default_port=5432)


# ── making ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("postgres://a:b@h/d", PostgresConnection(name="n", url="postgres://a:b@h/d")),
        ("postgresql://a@h/d", PostgresConnection(name="n", url="postgresql://a@h/d")),
        ("mysql://a@h/d", MySQLConnection(name="n", url="mysql://a@h/d")),
        ("mysql+pymysql://a@h/d", MySQLConnection(name="n", url="mysql+pymysql://a@h/d")),
        ("sqlite:///relative.db", SQLiteConnection(name="n", path="relative.db")),
        ("sqlite:////absolute/x.db", SQLiteConnection(name="n", path="/absolute/x.db")),
        ("sqlite:///:memory:", SQLiteConnection(name="n", path=":memory:")),
        ("sqlite://", SQLiteConnection(name="n", path=":memory:")),
        ("duckdb:///x.duckdb", DuckDBConnection(name="n", path="x.duckdb")),
        ("duckdb:////x.duckdb", DuckDBConnection(name="n", path="/x.duckdb")),
        (":memory:", SQLiteConnection(name="n", path=":memory:")),
        (" SQLite:///a.db ", SQLiteConnection(name="n", path="a.db")),
    ],
)
def test_a_dsn_becomes_a_connection_by_its_scheme(dsn: str, expected: Connection) -> None:
    assert connection_from_dsn("n", dsn) == expected


@pytest.mark.parametrize("dsn", ["oracle://a:topsecret@h/d", "topsecret", "", "host=h password=topsecret"])
def test_an_unknown_scheme_lists_the_known_ones_and_repeats_nothing(dsn: str) -> None:
    with pytest.raises(ValueError) as caught:
        connection_from_dsn("n", dsn)
    for scheme in ("postgres://", "mysql+pymysql://", "sqlite:///", "duckdb:///", ":memory:"):
        assert scheme in str(caught.value)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("postgres://h/d", "no user"),
        ("postgres://a@h", "no database"),
        ("mysql://h/", "no user and no database"),
        ("postgres://a@h:x/d", "cannot be told apart"),
    ],
)
def test_a_server_url_needs_user_and_database(dsn: str, said: str) -> None:
    with pytest.raises(InvalidConnection, match=said):
        connection_from_dsn("n", dsn)


def test_an_unknown_field_is_refused_with_the_nearest_and_the_valid_ones() -> None:
    with pytest.raises(InvalidConnection) as caught:
        connection_from_fields("kafka", "k", {"bootstrap_server": "b"}, "file.toml")
    assert "did you mean 'bootstrap_servers'?" in str(caught.value) and "'group_id'" in str(caught.value)
    assert caught.value.where == "file.toml"


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidConnection, match="did you mean 'postgres'"):
        connection_from_fields("postgress", "p", {})


def test_dsn_and_url_are_one_field_and_file_databases_take_a_url() -> None:
    assert connection_from_fields("postgres", "p", {"dsn": "postgres://a@h/d"}).dsn() == "postgres://a@h/d"
    assert connection_from_fields("sqlite", "s", {"url": "sqlite:////a.db"}) == SQLiteConnection(name="s", path="/a.db")
    with pytest.raises(InvalidConnection, match="both"):
        connection_from_fields("postgres", "p", {"dsn": "a", "url": "b"})
    with pytest.raises(InvalidConnection, match="begins with"):
        connection_from_fields("sqlite", "s", {"url": "duckdb:///a.db"})


def test_text_becomes_numbers_and_truths_where_they_belong() -> None:
    redshift = connection_from_fields("redshift", "r", {**EXAMPLES["redshift"], "port": "5440"})
    pubsub = connection_from_fields("pubsub", "p", {"project_id": "p", "anonymous_auth": "true"})
    assert getattr(redshift, "port") == 5440 and getattr(pubsub, "anonymous_auth") is True  # noqa: B009


def test_a_changed_copy_is_checked_like_a_new_one() -> None:
    made = PostgresConnection(name="w", url="postgres://a@h/d")
    assert made.with_fields(url="postgres://b@h/d").url == "postgres://b@h/d"
    assert made.with_fields(url=made.url) is made
    with pytest.raises(InvalidConnection, match="did you mean 'url'"):
        made.with_fields(ur1="x")


# ── declaring and registering ────────────────────────────────────────────────────────────────────────────────────────


def test_the_decorator_gives_the_instance_and_registers_it() -> None:
    @declare_connection
    class warehouse:
        kind = "postgres"
        url = "${WAREHOUSE_URL}"

    made: object = warehouse  # type checkers still see the class
    assert made == PostgresConnection(name="warehouse", url="${WAREHOUSE_URL}")
    assert get_connection("warehouse") is made
    where = registry.current().connection_where("warehouse")
    assert where is not None and where.file == __file__ and "warehouse" in where.name


def test_the_body_may_name_the_connection_and_inherit() -> None:
    class shared:
        kind = "snowflake"
        account = "acc"

    @declare_connection
    class wh(shared):
        name = "other name"
        user = "ann"
        password = "${PW}"

    made: object = wh
    assert made == SnowflakeConnection(name="other name", account="acc", user="ann", password="${PW}")


def test_the_decorator_refuses_what_is_not_a_connection() -> None:
    with pytest.raises(TypeError, match="decorates a class"):
        declare_connection(lambda: None)

    class nothing:
        url = "x"

    class strange:
        kind = "postgrs"

    class extra:
        kind = "sqlite"
        path = "a"
        pathh = "b"

    with pytest.raises(WrongDeclarationType, match="has no kind; known are 'postgres', 'mysql'"):
        declare_connection(nothing)
    with pytest.raises(TypeError, match="did you mean 'postgres'"):
        declare_connection(strange)
    with pytest.raises(InvalidConnection, match="unknown field 'pathh'; valid are 'path'"):
        declare_connection(extra)
    assert registered_connections() == {}


def test_registering_replaces_and_gives_a_copy() -> None:
    first = register_connection(SQLiteConnection(name="a", path="1"))
    second = register_connection(SQLiteConnection(name="a", path="2"))
    assert first is not second and get_connection("a") is second
    registered_connections().clear()
    assert registered_connections() == {"a": second}
    clear_registry()
    assert registered_connections() == {}


def test_wrong_things_are_not_registered() -> None:
    with pytest.raises(WrongConnectionType) as caught:
        register_connection("postgres://a:topsecret@h/d")  # type: ignore[type-var]
    assert isinstance(caught.value, TypeError) and "topsecret" not in str(caught.value)


def test_an_unregistered_name_tells_the_known_ones() -> None:
    register_connection(SQLiteConnection(name="warehouse", path="1"))
    with pytest.raises(KeyError) as caught:
        get_connection("warehous")
    assert isinstance(caught.value, UnregisteredConnection)
    assert "'warehouse'" in str(caught.value) and "did you mean" in str(caught.value)


# ── file formats ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.parquet", "parquet"),
        ("A.PQ", "parquet"),
        ("a.csv.gz", "csv"),
        ("a.tsv.zst", "csv"),
        ("a.json", "json_lines"),
        ("a.jsonl.bz2", "json_lines"),
        ("a.ndjson", "json_lines"),
        ("a.orc.snappy", "orc"),
        ("a.csv.gz.gz", None),
        ("a.csv?x=1", None),
        ("a.txt", None),
        ("csv", None),
        ("", None),
    ],
)
def test_a_path_tells_its_format(path: str, expected: str | None) -> None:
    assert format_from_path(path) == expected
    assert expected is None or expected in FILE_FORMATS
