"""Streams as TOML text: reading what was written gives an equal spec, and no reference is ever filled in."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ematix_flow import streaming
from ematix_flow.config.stream_render import render
from ematix_flow.config.stream_toml import read_stream_toml
from ematix_flow.config.toml_text import toml_text
from ematix_flow.declare.columns import BigInt, Text
from ematix_flow.declare.connection import (
    BigQueryConnection,
    DeltaLocalConnection,
    DeltaS3Connection,
    DuckDBConnection,
    GlueSchemaRegistryConnection,
    IcebergConnection,
    KafkaConnection,
    KinesisConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    PubSubConnection,
    RabbitMQConnection,
    RedshiftConnection,
    SchemaRegistryConnection,
    SnowflakeConnection,
    SQLiteConnection,
)
from ematix_flow.declare.keys import pk
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.stream import CDC, Aggregation, Join, Lookup, Source, StateStore, Watermark, Window
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.table import ManagedTable
from ematix_flow.declare.target import Target
from ematix_flow.declare.udf import udf
from ematix_flow.errors import InvalidConfig, MissingSecret

toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

EXAMPLES = 500 if os.environ.get("EMATIX_PROVE") else 40
HERE = SourceLocation(file="pipelines.py", line=3)
KAFKA = KafkaConnection(name="kafka_prod", bootstrap_servers="broker:9092", group_id="g")
WAREHOUSE = PostgresConnection(name="warehouse", url="postgres://localhost/wh")


class Mirror(ManagedTable):
    __schema__ = "mirror"
    __tablename__ = "customers"
    id: Annotated[BigInt, pk()]
    email: Text


@udf(args=("Int64",), returns="Int64", name="twice")
def doubled(column):
    return column


def stream(**changes: Any) -> StreamSpec:
    given = {
        "name": "events",
        "where": HERE,
        "sources": [Source(KAFKA, "events")],
        "targets": [Target(connection=WAREHOUSE, table=("public", "events"))],
    }
    return StreamSpec(**{**given, **changes})


# ── any spec ─────────────────────────────────────────────────────────────────────────────────────────────────────────

anything = st.text(max_size=12).filter(lambda text: bool(text.strip()) and "${" not in text and "\0" not in text)
words = st.text("abcXYZ09_äß漢-. '\"\\", min_size=1, max_size=8).filter(lambda text: bool(text.strip()))
passwords = st.text("abc123%$#", min_size=1, max_size=8)
names = st.lists(words, min_size=1, max_size=3, unique=True).map(tuple)
folders = st.text("abc0-_", min_size=1, max_size=5).map(lambda name: f"raw/f{name}")
milliseconds = st.integers(1, 10**12)
characters = st.sampled_from(";|\t:~")


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def made(cls: Callable[..., Any], **options: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(options).map(lambda chosen: cls(**chosen))


csv_reading = st.fixed_dictionaries(
    {},
    optional={
        "has_header": st.booleans(),
        "delimiter": characters,
        "quote": st.just("'"),
        "null_regex": st.sampled_from([r"^(NA|NULL|\\N)$", '"']),
        "schema_infer_max_records": st.integers(1, 5_000),
    },
)
json_reading = st.fixed_dictionaries({}, optional={"batch_size": st.integers(1, 99)})
registries = made(
    SchemaRegistryConnection, name=words, url=anything, basic_auth_user=st.just("u"), basic_auth_password=passwords
) | made(GlueSchemaRegistryConnection, name=words, registry_name=anything, region=anything, aws_profile=maybe(anything))


@st.composite
def kafkas(draw: st.DrawFn) -> KafkaConnection:
    login = draw(
        st.sampled_from(
            [
                {},
                {"sasl_plain_username": "ann", "sasl_plain_password": draw(passwords)},
                {"sasl_scram_username": "ann", "sasl_scram_password": 'p"w\\', "sasl_scram_mechanism": "sha-256"},
                {"tls_ca_path": "/ca.pem", "tls_cert_path": "/cert.pem", "tls_key_path": "/key.pem"},
                {"security_protocol": "SASL_PLAINTEXT", "sasl_plain_username": "a", "sasl_plain_password": "b"},
            ]
        )
    )
    payload = draw(
        st.sampled_from([{}, {"payload_format": "raw_bytes"}, {"payload_format": "json"}])
        | st.builds(lambda registry: {"payload_format": "avro", "schema_registry": registry}, registries | words)
        | st.builds(lambda url: {"payload_format": "protobuf", "schema_registry_url": url}, anything)
    )
    return KafkaConnection(
        name=draw(words),
        bootstrap_servers=draw(anything),
        group_id=draw(anything),
        auto_offset_reset=draw(maybe(st.sampled_from(["earliest", "latest"]))),
        **login,
        **payload,
    )


def files(cls: Callable[..., Any], **options: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        made(cls, name=words, format=st.just("parquet"), on_corrupt_file=maybe(st.just("quarantine")), **options),
        made(cls, name=words, format=st.just("csv"), csv_read_options=maybe(csv_reading), **options),
        made(cls, name=words, format=st.just("json_lines"), json_read_options=maybe(json_reading), **options),
        made(cls, name=words, format=st.just("orc"), **options),
    )


in_s3 = dict.fromkeys(("endpoint", "bucket", "region", "access_key_id", "secret_access_key"), anything)
local_files = files(ObjectStoreLocalConnection, path=anything)
s3_files = files(ObjectStoreS3Connection, **in_s3)
lakes = st.one_of(
    made(DeltaLocalConnection, name=words, path=anything),
    made(DeltaS3Connection, name=words, prefix=st.text("ab/", max_size=4), **in_s3),
    made(IcebergConnection, name=words, warehouse=st.just("/lake"), catalog=st.just("rest"), uri=anything),
)
rabbits = made(
    RabbitMQConnection, name=words, amqp_url=passwords.map("amqp://u:{}@h".format), consumer_tag=maybe(words)
)
pubsubs = made(
    PubSubConnection, name=words, project_id=anything, endpoint=maybe(anything), anonymous_auth=st.booleans()
)
kineses = made(
    KinesisConnection, name=words, stream_name=anything, access_key_id=st.just("AK"), secret_access_key=passwords
)
servers = made(PostgresConnection, name=words, url=passwords.map("postgres://ann:{}@db/wh".format)) | made(
    MySQLConnection, name=words, url=passwords.map("mysql://ann:{}@db/wh".format)
)
database_files = made(DuckDBConnection, name=words, path=anything) | made(
    SQLiteConnection, name=words, path=st.just(":memory:") | anything
)
warehouses = st.one_of(
    made(SnowflakeConnection, name=words, account=anything, user=anything, password=passwords, schema=maybe(words)),
    made(BigQueryConnection, name=words, project=anything, dataset=anything),
    made(
        RedshiftConnection, name=words, host=anything, database=words, user=words, password=passwords, port=milliseconds
    ),
)
sources_from = words | kafkas() | rabbits | pubsubs | kineses | local_files | s3_files | lakes
captures = st.builds(
    Source,
    made(
        PostgresConnection,
        name=words,
        url=passwords.map("postgres://ann:{}@db/shop".format),
        slot=maybe(st.just("my_slot")),
        publication=maybe(words),
        max_slot_bytes=milliseconds,
        on_full_slot=maybe(st.sampled_from(["fail", "drop"])),
    ),
    st.sampled_from(["public.orders", 'a, b."C d"']),
)
sources = st.lists(
    st.builds(Source, sources_from, anything) | captures, min_size=1, max_size=3, unique_by=lambda s: s.query
)

loading: dict[str, st.SearchStrategy[Any]] = {
    "mode": maybe(st.sampled_from(["append", "merge", "scd2"])),
    "keys": maybe(names),
    "primary_key": maybe(names),
    "update_columns": maybe(names),
    "compare_columns": maybe(names),
    "event_timestamp_column": maybe(words),
    "column_map": maybe(st.dictionaries(words, anything, max_size=2)),
}
tables = st.tuples(words, words) | st.just(Mirror)


def as_its_mode_takes_it(target: Target, *, is_cdc: bool = False) -> Target:
    """A target of any options without those that its mode does not look at."""
    mode = target.mode
    has_no_history = isinstance(target.connection, (SnowflakeConnection, BigQueryConnection, RedshiftConnection))
    if (is_cdc and mode == "append") or (has_no_history and mode == "scd2"):
        mode = None
    if mode in ("merge", "scd2") and not (is_cdc or target.keys or target.primary_key):
        mode = None
    is_keyed = is_cdc or mode in ("merge", "scd2")
    return replace(
        target,
        mode=mode,
        keys=target.keys if is_keyed else None,
        compare_columns=target.compare_columns if is_keyed else None,
        update_columns=target.update_columns if mode == "merge" and not is_cdc else None,
        event_timestamp_column=target.event_timestamp_column if mode == "scd2" and not is_cdc else None,
        column_map=None if is_cdc else target.column_map,
    )


@st.composite
def file_targets(draw: st.DrawFn) -> Target:
    connection = draw(local_files | s3_files)
    options: dict[str, Any] = {}
    if connection.format == "parquet":
        options["parquet_compression"] = draw(maybe(st.sampled_from(["zstd", "snappy"])))
    if connection.format == "csv":
        options["csv_delimiter"] = draw(maybe(characters))
        options["csv_header"] = draw(maybe(st.booleans()))
        options["csv_quote"] = draw(maybe(st.sampled_from(["'", '"'])))
        options["csv_escape"] = draw(maybe(st.just("\\")))
        options["csv_null_value"] = draw(maybe(st.just("\\N")))
        options["csv_read_options"] = draw(maybe(csv_reading))
    if connection.format == "json_lines":
        options["json_read_options"] = draw(maybe(json_reading))
    return Target(
        connection=connection,
        prefix=draw(folders),
        partition_by=draw(maybe(st.lists(words, min_size=1, max_size=2, unique=True))),
        **options,
    )


databases = made(Target, connection=words | servers | warehouses, table=tables, **loading)
changeable = made(Target, connection=words | servers, table=tables, **loading)
targets = st.lists(
    st.one_of(
        databases,
        made(Target, connection=database_files, table=st.tuples(st.just("main"), words), **loading),
        made(Target, connection=lakes, table=tables, partition_by=maybe(names), **loading),
        file_targets(),
        made(Target, connection=kafkas(), topic=anything, message_key_column=maybe(words)),
        made(Target, connection=pubsubs, topic=anything),
        made(Target, connection=rabbits, queue=anything),
        made(Target, connection=kineses, partition_key_prefix=anything),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda target: repr((target.connection, target.table, target.topic, target.queue, target.prefix)),
)

aggregations = st.lists(
    st.builds(lambda name: Aggregation("count", name), words.map("a{}".format))
    | st.builds(lambda name, column: Aggregation("sum", name, column), words.map("b{}".format), anything)
    | st.builds(
        lambda name, column: Aggregation("count_distinct", name, column, "exact", 9), words.map("c{}".format), anything
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda aggregation: aggregation.as_.casefold(),
)
late: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}, {"late_data": "dlq"}, {"late_data": "reopen", "allowed_lateness_ms": 0}]
)
groups = st.lists(words.map("g{}".format), min_size=1, max_size=2, unique_by=str.casefold)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    length = draw(milliseconds)
    shape: dict[str, Any] = draw(
        st.sampled_from(
            [
                {"kind": "tumbling", "duration_ms": length},
                {"kind": "tumbling", "duration_ms": length, "hop_ms": length},
                {"kind": "hopping", "duration_ms": length, "hop_ms": 1},
                {"kind": "session", "gap_ms": length, "max_session_duration_ms": length + 1},
            ]
        )
    )
    return Window(
        aggregations=draw(aggregations),
        group_by=draw(groups),
        max_groups_per_window=draw(st.sampled_from([1, 1_000_000])),
        event_time_column=draw(anything),
        window_start_column=draw(st.sampled_from(["window_start", "von"])),
        time_mode=draw(st.sampled_from(["event", "processing"])),
        on_state_cap=draw(st.sampled_from(["fail", "drop_new_groups"])),
        **shape,
        **draw(late),
    )


@st.composite
def joins(draw: st.DrawFn, left: str, right: str) -> Join:
    keys = draw(names)
    span: dict[str, Any] = draw(st.sampled_from([{"time_window_ms": 5}, {"min_delta_ms": -9, "max_delta_ms": 0}]))
    return Join(
        left_source=left,
        right_source=right,
        left_keys=keys,
        right_keys=keys,
        kind=draw(st.sampled_from(["inner", "stream_stream_join", "full_outer"])),
        right_column_prefix=draw(st.sampled_from(["right_", ""])),
        **span,
        **draw(late),
    )


ops = st.sampled_from(["create", "update", "delete", "read"])
changes_of = made(
    CDC,
    envelope=st.sampled_from(["debezium", "maxwell"]),
    ts_field=maybe(st.just("") | anything),
    op_map=maybe(st.dictionaries(st.text(max_size=3), ops, max_size=2)),
    schema_evolution=st.sampled_from(["skip", "fail", "add"]),
    out_of_order_tolerance_ms=st.sampled_from([0, 5_000]),
) | st.just(CDC("custom", "o", None, "a", "k", op_map={"I": "create"}, delete_mode="soft", soft_delete_column="gone"))
stores = st.sampled_from(
    [
        StateStore("in_memory"),
        StateStore("rocksdb", path="/fast disk"),
        StateStore("postgres", url="postgres://a:pw@h/s", schema="state", checkpoint_interval_ms=1),
    ]
)
watermarks = made(Watermark, lateness_ms=maybe(st.integers(0, 9)), source_idleness_ms=maybe(st.integers(0, 9)))
lookups = st.dictionaries(
    anything.filter(lambda name: name.lower() != "source"),
    made(Lookup, connection=words | servers | database_files, table=anything, schema=words)
    | made(Lookup, connection=words, query=anything, refresh_interval_ms=maybe(st.integers(0, 9))),
    max_size=2,
)


@st.composite
def streams(draw: st.DrawFn) -> StreamSpec:
    given: dict[str, Any] = {"sources": draw(sources), "targets": [as_its_mode_takes_it(t) for t in draw(targets)]}
    shape = draw(st.sampled_from(["rows", "sql", "window", "join", "cdc"]))
    if shape in ("sql", "window"):
        given["transform_sql"] = draw(st.text())
        given["lookups"] = draw(lookups) if given["transform_sql"].strip() else {}
    if shape == "window":
        given["window"] = draw(windows())
    if shape == "join":
        left, right = draw(st.lists(anything, min_size=2, max_size=2, unique=True))
        given["sources"] = [Source(draw(sources_from), query) for query in (left, right)]
        given["join"] = draw(joins(left, right))
    if shape == "cdc":
        given["targets"] = [as_its_mode_takes_it(draw(changeable), is_cdc=True)]
        given["cdc"] = draw(changes_of)
    queries = [source.query for source in given["sources"]]
    return StreamSpec(
        name=draw(anything),
        where=HERE,
        **given,
        state_store=draw(stores) if shape in ("window", "join") else draw(maybe(stores)),
        watermark=draw(maybe(watermarks)),
        dialect=draw(st.sampled_from(["datafusion", "spark", "duckdb", "postgres"])),
        transform_on_error=draw(st.sampled_from(["fail", "drop", "dlq"])),
        idle_pause_ms=draw(st.integers(0, 10**9)),
        delivery=draw(st.sampled_from(["auto", "at_least_once", "exactly_once"])),
        continue_on_target_failure=draw(st.booleans()),
        dead_letter_topic=draw(maybe(anything.filter(lambda topic: topic not in queries))),
        dlq_store=draw(st.sampled_from(["auto", "table"])),
        dlq_max_attempts=draw(st.integers(1, 9)),
        metrics_port=draw(maybe(st.integers(0, 65_535))),
        checkpoint=draw(maybe(anything)),
        max_batch_rows=draw(maybe(milliseconds)),
        on_gap=draw(st.sampled_from(["fail", "continue"])),
    )


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(spec=streams())
def test_what_is_written_is_read_as_the_same_stream(monkeypatch: pytest.MonkeyPatch, spec: StreamSpec) -> None:
    monkeypatch.setenv("EMATIX_FLOW_NO_DEPRECATION", "1")
    assert read_stream_toml(render(spec)) == spec


plain = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(document=st.dictionaries(st.text(), plain, max_size=4))
def test_any_plain_data_survives_as_text(document: dict[str, Any]) -> None:
    assert toml.loads(toml_text(document)) == document


# ── what people see ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_document_says_what_was_declared_and_no_default() -> None:
    spec = stream(
        transform_sql='SELECT "id"\nFROM source\n',
        lookups={"users": Lookup(WAREHOUSE, "users", "main")},
        window=Window("tumbling", [Aggregation("count", "n")], duration_ms=60_000),
        watermark=Watermark(lateness_ms=5_000),
    )
    assert render(spec) == (
        'pipeline_name = "events"\n'
        'source_query = "events"\n'
        "\n"
        "[source]\n"
        'kind = "kafka"\n'
        'name = "kafka_prod"\n'
        'bootstrap_servers = "broker:9092"\n'
        'group_id = "g"\n'
        "\n"
        "[target]\n"
        'kind = "postgres"\n'
        'name = "warehouse"\n'
        'url = "postgres://localhost/wh"\n'
        "\n"
        "[target.table]\n"
        'schema = "public"\n'
        'name = "events"\n'
        "\n"
        "[transform]\n"
        'sql = """\n'
        'SELECT \\"id\\"\n'
        "FROM source\n"
        '"""\n'
        "\n"
        "[transform.window]\n"
        'kind = "tumbling"\n'
        "duration_ms = 60000\n"
        "max_groups_per_window = 1000000\n"
        "\n"
        "[[transform.window.aggregations]]\n"
        'agg = "count"\n'
        'as = "n"\n'
        "\n"
        "[transform.lookups.users]\n"
        'kind = "postgres"\n'
        'name = "warehouse"\n'
        'url = "postgres://localhost/wh"\n'
        'table = "users"\n'
        'schema = "main"\n'
        "\n"
        "[watermark]\n"
        "lateness_ms = 5000\n"
    )


def test_references_are_tried_and_written_as_references(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = KafkaConnection(
        name="k",
        bootstrap_servers="h:9092",
        group_id="g",
        sasl_plain_username="ann",
        sasl_plain_password="${KAFKA_PASS}",
        payload_format="avro",
        schema_registry=SchemaRegistryConnection(name="r", url="${REGISTRY}"),
    )
    state = StateStore("postgres", url="postgres://ann:${STATE_PASS}@h/state")
    spec = stream(sources=[Source(secret, "events")], state_store=state)
    values = {"KAFKA_PASS": "tulip-1", "REGISTRY": "http://tulip-2", "STATE_PASS": "tulip-3"}
    for missing in values:
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv(missing)
        with pytest.raises(MissingSecret, match=missing) as caught:
            render(spec)
        assert isinstance(caught.value, KeyError) and "pipelines.py:3" in str(caught.value)
        monkeypatch.setenv(missing, "")
        if missing != "STATE_PASS":
            with pytest.raises(InvalidConfig, match="filled in with nothing") as empty:
                render(spec)
            assert isinstance(empty.value, ValueError)
        monkeypatch.setenv(missing, values[missing])
    text = render(spec)
    assert "tulip" not in text and all(f"${{{name}}}" in text for name in values)
    assert read_stream_toml(text) == spec


def test_a_table_class_travels_by_its_name_and_a_hidden_one_as_far_as_it_can() -> None:
    spec = stream(targets=[Target(connection=WAREHOUSE, table=Mirror)], cdc=CDC())
    text = render(spec)
    assert f'class = "{__name__}:Mirror"' in text
    assert read_stream_toml(text) == spec

    class Hidden(ManagedTable):
        __schema__ = "mirror"
        __tablename__ = "orders"
        id: Annotated[BigInt, pk()]

    text = render(stream(targets=[Target(connection=WAREHOUSE, table=Hidden)], cdc=CDC()))
    assert text.startswith("# Not in this document: the columns that the class of ('mirror', 'orders') declares.\n")
    assert read_stream_toml(text).targets == (
        Target(connection=WAREHOUSE, table=("mirror", "orders"), primary_key=("id",)),
    )


def test_functions_are_left_out_with_a_word_about_it() -> None:
    text = render(stream(transform_sql="SELECT twice(a) AS a FROM source", udfs=[doubled]))
    assert text.startswith("# Not in this document: the Python functions 'twice' that the SQL may call.\n")
    assert read_stream_toml(text) == stream(transform_sql="SELECT twice(a) AS a FROM source")


def test_a_stream_for_a_cluster_says_so(project: Path) -> None:
    (project / ".ematix-flow.toml").write_text('[spark]\nremote = "sc://host:15002"\n')
    spec = stream(engine="distributed")
    assert 'engine = "distributed"' in render(spec) and read_stream_toml(render(spec)) == spec


def test_half_a_character_has_no_form() -> None:
    with pytest.raises(InvalidConfig, match="surrogate"):
        render(stream(transform_sql="SELECT '\ud800' FROM source"))


def test_a_declared_stream_is_rendered_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = KafkaConnection(name="kafka_prod", bootstrap_servers="${KAFKA_BOOTSTRAP}", group_id="g")
    streaming.register_streaming_pipeline(
        "events",
        {"source": bound, "source_query": "events", "target": "warehouse", "target_table": ("public", "events")},
    )
    with pytest.raises(KeyError, match="KAFKA_BOOTSTRAP"):
        streaming.render_streaming_pipeline_toml("events")
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "broker:9092")
    text = streaming.render_streaming_pipeline_toml("events")
    found = streaming.get_streaming_pipeline("events")
    assert found is not None and read_stream_toml(text) == found.spec
    assert 'connection = "warehouse"' in text and "broker" not in text
