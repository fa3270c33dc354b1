"""The chain from a name to a connection, and what it says when it ends in nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ematix_flow.config.project import project_settings, user_connections
from ematix_flow.config.resolve import (
    connection_kind,
    env_names,
    list_connections,
    listed_connections,
    resolve,
    resolve_dsn,
)
from ematix_flow.declare.connection import (
    KafkaConnection,
    PostgresConnection,
    RedshiftConnection,
    SchemaRegistryConnection,
    SQLiteConnection,
    declare_connection,
    register_connection,
)
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import (
    InvalidConfig,
    InvalidConnection,
    MissingSecret,
    UnknownConnection,
    WrongConnectionType,
)


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def url(database: str) -> str:
    return f"postgres://ann:pw123@db/{database}"


def database(name: str) -> str | None:
    connection = resolve(name).connection
    assert isinstance(connection, PostgresConnection)
    return connection.address().database


def test_each_step_of_the_chain_beats_the_next(project: Path, user_toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_connection(PostgresConnection(name="warehouse", url=url("code")))
    assert (database("warehouse"), resolve("warehouse").origin) == ("code", "code")

    write(user_toml, f'[connections.warehouse]\nurl = "{url("user")}"\n')
    assert (database("warehouse"), resolve("warehouse").origin) == ("user", "user")

    write(project / ".ematix-flow.toml", f'[connections.warehouse]\ndsn = "{url("project")}"\n')
    assert (database("warehouse"), resolve("warehouse").origin) == ("project", "project")

    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", url("env"))
    assert (database("warehouse"), resolve("warehouse").origin) == ("env", "env")
    assert resolve("warehouse").trace == ("EMATIX_FLOW_DSN_WAREHOUSE",)


def test_a_kind_is_found_by_the_same_chain_and_asks_for_no_secret(
    project: Path, user_toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = SQLiteConnection(name="events", path="events.db")
    register_connection(declared)
    assert (connection_kind("events"), connection_kind(declared)) == ("sqlite", "sqlite")
    write(user_toml, '[connections.events]\nkind = "kinesis"\nstream_name = "${NOT_SET}"\n')
    assert (connection_kind("events"), connection_kind(declared)) == ("kinesis", "kinesis")
    assert connection_kind(SQLiteConnection(name="events", path="other.db")) == "sqlite"
    write(project / ".ematix-flow.toml", '[connections.events]\nkind = "${EVENTS_KIND}"\n')
    with pytest.raises(MissingSecret):
        connection_kind("events")
    monkeypatch.setenv("EVENTS_KIND", "pubsub")
    assert connection_kind("events") == "pubsub"
    monkeypatch.setenv("EMATIX_FLOW_DSN_EVENTS", url("events"))
    assert connection_kind("events") is None
    assert connection_kind("nobody") is None


def test_the_environment_also_beats_a_registered_instance_passed_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = register_connection(PostgresConnection(name="warehouse", url=url("code")))
    stranger = PostgresConnection(name="warehouse", url=url("stranger"))
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", url("env"))
    assert resolve(registered).connection.dsn() == url("env")
    assert resolve(stranger).connection is stranger
    assert resolve(stranger).origin == "given"


def test_the_bare_variable_is_for_default_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN", url("bare"))
    assert database("default") == "bare"
    with pytest.raises(UnknownConnection):
        resolve("warehouse")
    monkeypatch.setenv("EMATIX_FLOW_DSN_DEFAULT", url("named"))
    assert database("default") == "named"
    assert resolve_dsn() == url("named")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    register_connection(PostgresConnection(name="w", url=url("code")))
    monkeypatch.setenv("EMATIX_FLOW_DSN_W", "")
    assert database("w") == "code"


def test_a_name_no_shell_can_spell_is_found_with_underscores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env_names("my-db") == ("EMATIX_FLOW_DSN_MY-DB", "EMATIX_FLOW_DSN_MY_DB")
    monkeypatch.setenv("EMATIX_FLOW_DSN_MY_DB", url("env"))
    assert database("my-db") == "env"


def test_an_unknown_name_says_who_was_asked_and_what_is_near() -> None:
    register_connection(SQLiteConnection(name="warehouse", path="a.db"))
    with pytest.raises(LookupError) as caught:
        resolve("warehous", where="pipelines/customers.py:14 (sync_customers)")
    assert str(caught.value) == (
        "Connection 'warehous' is not defined. [FLOW201]\n"
        "  at     pipelines/customers.py:14 (sync_customers)\n"
        "  tried  EMATIX_FLOW_DSN_WAREHOUS · ./.ematix-flow.toml · ~/.ematix-flow/connections.toml · declared in code\n"
        "  fix    did you mean 'warehouse'?"
    )


def test_without_a_near_name_the_ways_to_define_it_are_given() -> None:
    with pytest.raises(UnknownConnection) as caught:
        resolve("lake")
    assert caught.value.fix == "add [connections.lake] to .ematix-flow.toml, or set EMATIX_FLOW_DSN_LAKE"


@pytest.mark.parametrize("name", ["", "a b", "a'; drop table x; --", "ü\n\x1b[31m", "=", "a\0b", "\ud800", "x" * 5000])
def test_hostile_names_are_unknown_not_a_crash(name: str) -> None:
    with pytest.raises(UnknownConnection) as caught:
        resolve(name)
    assert "\x1b" not in str(caught.value) and "\0" not in str(caught.value)


@pytest.mark.parametrize("wanted", [None, 5, b"x", ["a"]])
def test_only_names_and_instances_are_looked_up(wanted: object) -> None:
    with pytest.raises(WrongConnectionType):
        resolve(wanted)  # type: ignore[arg-type]


# ── references ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_references_are_filled_in_at_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    @declare_connection
    class warehouse:
        kind = "postgres"
        url = "${WAREHOUSE_URL}"

    with pytest.raises(MissingSecret, match="WAREHOUSE_URL"):
        resolve("warehouse")
    monkeypatch.setenv("WAREHOUSE_URL", url("one"))
    assert database("warehouse") == "one"
    monkeypatch.setenv("WAREHOUSE_URL", url("two"))
    assert database("warehouse") == "two"
    assert warehouse.url == "${WAREHOUSE_URL}"


def test_a_password_with_url_characters_stays_one_password(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "p@s/s?w#o r:d&+")
    write(project / ".ematix-flow.toml", '[connections.w]\nurl = "postgres://ann:${PW}@db/x?password=${PW}"\n')
    connection = resolve("w").connection
    assert isinstance(connection, PostgresConnection)
    address = connection.address()
    assert (address.user, address.password, address.host, address.database) == ("ann", "p@s/s?w#o r:d&+", "db", "x")


def test_a_password_that_is_already_encoded_is_not_encoded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "p%40ss")
    found = resolve(PostgresConnection(name="w", url="postgres://ann:${PW}@db/x")).connection
    assert found.dsn() == "postgres://ann:p%40ss@db/x"


def test_a_reference_may_stand_for_most_of_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REST", "ann:pw123@db/x")
    assert (
        resolve(PostgresConnection(name="w", url="postgres://${REST}")).connection.dsn() == "postgres://ann:pw123@db/x"
    )
    monkeypatch.setenv("CREDS", "ann:pw123")
    found = resolve(PostgresConnection(name="w", url="postgres://${CREDS}@db/x")).connection
    assert found.dsn() == "postgres://ann:pw123@db/x"


def test_every_text_field_is_filled_in_numbers_and_nested_connections_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "5555")
    monkeypatch.setenv("PW", "pw123")
    redshift = resolve(
        RedshiftConnection(name="r", host="h", database="d", user="u", password="${PW}", port="${PORT}")  # type: ignore[arg-type]
    ).connection
    assert isinstance(redshift, RedshiftConnection) and (redshift.port, redshift.password) == (5555, "pw123")
    inner = SchemaRegistryConnection(name="sr", url="http://sr", basic_auth_password="${PW}")
    kafka = resolve(KafkaConnection(name="k", bootstrap_servers="b", schema_registry=inner)).connection
    assert isinstance(kafka, KafkaConnection) and isinstance(kafka.schema_registry, SchemaRegistryConnection)
    assert kafka.schema_registry.basic_auth_password == "pw123"


def test_a_schema_registry_is_found_by_its_name_where_messages_have_schemas(project: Path) -> None:
    write(project / ".ematix-flow.toml", '[connections.sr]\nkind = "schema_registry"\nurl = "http://sr"\n')

    def registry_of(payload_format: str) -> object:
        told = KafkaConnection(name="k", bootstrap_servers="b", payload_format=payload_format, schema_registry="sr")
        found = resolve(told).connection
        assert isinstance(found, KafkaConnection)
        return found.schema_registry

    assert registry_of("avro") == SchemaRegistryConnection(name="sr", url="http://sr")
    assert registry_of("json") == "sr"


def test_an_unset_variable_in_one_entry_leaves_the_others_alone(project: Path) -> None:
    write(
        project / ".ematix-flow.toml",
        '[connections.broken]\nurl = "postgres://a:${NOT_SET_ANYWHERE}@h/d"\n[connections.fine]\nurl = "sqlite:///f.db"\n'
        '[connections.odd]\nkind = "kafkaa"\n[connections.empty]\n[connections]\ntext = "x"\n',
    )
    assert resolve("fine").connection == SQLiteConnection(name="fine", path="f.db")
    with pytest.raises(KeyError) as caught:
        resolve("broken")
    assert "NOT_SET_ANYWHERE" in str(caught.value) and "[connections.broken]" in str(caught.value)
    shown = {item.name: item for item in listed_connections()}
    assert list(shown) == ["broken", "empty", "fine", "odd", "text"]
    assert shown["fine"].problem is None
    assert shown["broken"].problem is not None and "NOT_SET_ANYWHERE" in shown["broken"].problem
    assert shown["odd"].problem is not None and "kafka" in shown["odd"].problem
    assert "neither url nor kind" in str(shown["empty"].problem)
    assert "not a table" in str(shown["text"].problem)


def test_one_name_in_memory_is_one_database(project: Path) -> None:
    write(project / ".ematix-flow.toml", '[connections.m]\nurl = ":memory:"\n')
    register_connection(SQLiteConnection(name="c", path=":memory:"))
    assert resolve("m").connection is resolve("m").connection
    assert resolve("c").connection.identity() == resolve("c").connection.identity()
    assert resolve("m").connection.identity() != resolve("c").connection.identity()


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_documented_user_file_is_read(user_toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        user_toml,
        """
        [connections.warehouse]
        url = "postgres://user:${WAREHOUSE_PASSWORD}@host/wh"

        [connections.kafka_prod]
        kind = "kafka"
        bootstrap_servers = "${KAFKA_BOOTSTRAP}"
        group_id = "ematix-flow"
        """,
    )
    monkeypatch.setenv("WAREHOUSE_PASSWORD", "pw123")
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "k:9092")
    assert resolve_dsn("warehouse") == "postgres://user:pw123@host/wh"
    assert resolve("kafka_prod").connection == KafkaConnection(
        name="kafka_prod", bootstrap_servers="k:9092", group_id="ematix-flow"
    )
    with pytest.raises(InvalidConnection, match="no DSN"):
        resolve_dsn("kafka_prod")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[conections.a]\nurl='x'\n", "did you mean 'connections'?"),
        ("[spark]\nmastr = 'local'\n", "did you mean 'master'?"),
        ("[spark]\nmaster = 3\n", "'master' must be text"),
        ("engine = 'sparc'\n", "did you mean 'spark'?"),
        ("pushdown = 'no'\n", "true or false"),
        ("connections = 'x'\n", "must be a table"),
        ("[connections.a\n", "not valid TOML"),
        ("run_log = 3\n", "must be text"),
    ],
)
def test_a_wrong_project_file_is_one_clear_error(project: Path, text: str, said: str) -> None:
    write(project / ".ematix-flow.toml", text)
    with pytest.raises(InvalidConfig) as caught:
        project_settings()
    assert said in str(caught.value) and "./.ematix-flow.toml" in str(caught.value)


def test_files_that_are_not_text_or_not_files_are_one_clear_error(project: Path, user_toml: Path) -> None:
    (project / ".ematix-flow.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidConfig, match="UTF-8"):
        project_settings()
    user_toml.mkdir()
    with pytest.raises(InvalidConfig, match="directory"):
        user_connections()


def test_project_settings_do_not_belong_in_the_user_file(user_toml: Path) -> None:
    write(user_toml, "engine = 'spark'\n")
    with pytest.raises(InvalidConfig, match=r"move it to \.ematix-flow\.toml"):
        user_connections()


def test_settings_have_defaults_and_spark_options_come_as_text(project: Path) -> None:
    assert project_settings().engine == "auto" and project_settings().pushdown and project_settings().run_log is None
    write(
        project / ".ematix-flow.toml",
        'engine = "native"\npushdown = false\nrun_log = "sqlite://runs.db"\n[spark]\nmaster = "local[2]"\n'
        'driver_memory = "2g"\n[spark.conf]\n"spark.ui.enabled" = true\nspark.sql.shuffle.partitions = 4\n',
    )
    settings = project_settings()
    assert (settings.engine, settings.pushdown, settings.run_log) == ("native", False, "sqlite://runs.db")
    assert (settings.spark.master, settings.spark.driver_memory) == ("local[2]", "2g")
    assert dict(settings.spark.conf) == {"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "4"}


@pytest.mark.parametrize("said", ["lots", "4", "4 g", "0g", "4gb"])
def test_an_amount_of_memory_that_java_does_not_take_is_told_before_it_starts(project: Path, said: str) -> None:
    write(project / ".ematix-flow.toml", f'[spark]\ndriver_memory = "{said}"\n')
    with pytest.raises(InvalidConfig, match="no amount of memory") as caught:
        project_settings()
    assert caught.value.where == "./.ematix-flow.toml [spark]"


def test_an_unknown_field_of_an_entry_names_file_and_entry(project: Path) -> None:
    write(project / ".ematix-flow.toml", '[connections.a]\nurl = "sqlite:///a.db"\ntimout = 3\n')
    with pytest.raises(InvalidConnection) as caught:
        resolve("a")
    assert "'timout'" in str(caught.value) and caught.value.where == "./.ematix-flow.toml [connections.a]"


# ── nothing shows ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_secret_shows_in_any_listing(project: Path, user_toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_A", "postgres://ann:pw123@db/x?password=pw123")
    monkeypatch.setenv("EMATIX_FLOW_DSN_PASTED", "pw123")
    monkeypatch.setenv("EMATIX_FLOW_DSN_UNKNOWN", "oracle://ann:pw123@db/x")
    write(
        project / ".ematix-flow.toml",
        '[connections.k]\nkind = "kafka"\nbootstrap_servers = "b"\nsasl_plain_password = "pw123"\n'
        'schema_registry_url = "http://ann:pw123@sr"\n'
        '[connections.bad]\nkind = "kafka"\nsasl_scram_password = "pw123"\nurl = "x://ann:pw123@h"\n',
    )
    write(user_toml, '[connections.mq]\nkind = "rabbitmq"\namqp_url = "amqp://ann:pw123@mq/v"\n')
    register_connection(PostgresConnection(name="c", url=url("code")))
    shown = list_connections()
    assert list(shown) == ["a", "bad", "c", "k", "mq", "pasted", "unknown"]
    assert "pw123" not in json.dumps(shown)
    assert shown["a"] == "postgres://ann:***@db/x?password=***"
    assert shown["c"] == "postgres://ann:***@db/code"


def test_no_secret_shows_in_an_error_about_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    for dsn in ("oracle://ann:pw123@db/x", "postgres://ann:pw123@db", "postgres://ann:pw123@db:port/x", "pw123"):
        monkeypatch.setenv("EMATIX_FLOW_DSN_W", dsn)
        with pytest.raises(ValueError) as caught:
            resolve("w")
        assert "pw123" not in str(caught.value) + repr(caught.value)
        assert caught.value.where == "EMATIX_FLOW_DSN_W"  # type: ignore[attr-defined]


def test_a_resolved_password_is_scrubbed_from_what_drivers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "p@ss/word")
    resolve(PostgresConnection(name="w", url="postgres://ann:${PW}@db/x"))
    assert scrub("FATAL: p@ss/word, also p%40ss%2Fword") == "FATAL: <redacted>, also <redacted>"


def test_a_variable_is_listed_under_the_name_that_code_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    register_connection(PostgresConnection(name="Warehouse", url=url("code")))
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", url("env"))
    assert [(item.name, item.origin) for item in listed_connections()] == [("Warehouse", "env")]
