"""Reading streams from TOML: every documented key, the same spec as Python makes, and one clear error for a mistake."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import streaming
from ematix_flow.config.stream_ready import stream_advice
from ematix_flow.config.stream_render import render
from ematix_flow.config.stream_toml import read_stream_file, read_stream_toml
from ematix_flow.config.toml_text import toml_text
from ematix_flow.declare.connection import (
    Connection,
    DeltaS3Connection,
    DuckDBConnection,
    GlueSchemaRegistryConnection,
    KafkaConnection,
    KinesisConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    PubSubConnection,
    RabbitMQConnection,
    SchemaRegistryConnection,
    SQLiteConnection,
)
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.stream import CDC, Aggregation, Join, Lookup, Source, StateStore, Watermark, Window
from ematix_flow.declare.stream_pipeline import stream_spec
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.target import Target
from ematix_flow.errors import FlowError, InvalidConfig, UnknownConnection

KAFKA = '[source]\nkind = "kafka"\nbootstrap_servers = "broker:9092"\ngroup_id = "g"\n'
TARGET = (
    '[target]\nkind = "postgres"\nurl = "postgres://localhost/wh"\n[target.table]\nschema = "public"\nname = "events"\n'
)
TOP = 'pipeline_name = "events"\nsource_query = "events"\n'
PLAIN = TOP + KAFKA + TARGET
FROM_KAFKA = KafkaConnection(name="source", bootstrap_servers="broker:9092", group_id="g")
TO_POSTGRES = Target(
    connection=PostgresConnection(name="target", url="postgres://localhost/wh"), table=("public", "events")
)


def stream(**options: Any) -> StreamSpec:
    """What Python would have made."""
    given = {"name": "events", "sources": [Source(FROM_KAFKA, "events")], "targets": [TO_POSTGRES]}
    return stream_spec({**given, **options}, SourceLocation(file="pipelines.py", line=1))


def read_source(lines: str, top: str = TOP) -> Source:
    return read_stream_toml(f"{top}[source]\n{lines}\n{TARGET}").sources[0]


def read_target(lines: str) -> Target:
    return read_stream_toml(f"{TOP}{KAFKA}[target]\n{lines}\n").targets[0]


# ── what is read ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_smallest_document_is_the_stream_that_python_makes() -> None:
    spec = read_stream_toml(PLAIN, "pipeline.toml")
    assert spec == stream()
    assert str(spec.where) == "pipeline.toml:1"


def test_every_key_at_the_top_is_read() -> None:
    text = (
        'idle_pause_ms = 250\ndelivery = "exactly_once"\ndead_letter_topic = "failed"\ndlq_store = "topic"\n'
        'dlq_max_attempts = 5\nmetrics_port = 9100\ncheckpoint = "/data/ck"\nmax_batch_rows = 1000\n'
        'on_gap = "continue"\ncontinue_on_target_failure = true\n'
    )
    assert read_stream_toml(text + PLAIN) == stream(
        idle_pause_ms=250,
        delivery="exactly_once",
        dead_letter_topic="failed",
        dlq_store="topic",
        dlq_max_attempts=5,
        metrics_port=9100,
        checkpoint="/data/ck",
        max_batch_rows=1000,
        on_gap="continue",
        continue_on_target_failure=True,
    )


@pytest.mark.parametrize(
    ("lines", "connection"),
    [
        (
            'kind = "rabbitmq"\namqp_url = "amqp://localhost"',
            RabbitMQConnection(name="source", amqp_url="amqp://localhost"),
        ),
        ('kind = "pubsub"\nproject_id = "shop"', PubSubConnection(name="source", project_id="shop")),
    ],
)
def test_dead_letters_are_left_to_a_broker_that_has_a_place_for_them(lines: str, connection: Connection) -> None:
    spec = read_stream_toml(f'dlq_store = "broker"\n{TOP}[source]\n{lines}\n{TARGET}')
    assert spec == stream(sources=[Source(connection, "events")], dlq_store="broker")
    assert read_stream_toml(render(spec)) == spec


def test_sql_with_lookups_is_read() -> None:
    text = """
[transform]
sql = '''
SELECT s.id, u.tier FROM source s LEFT JOIN users u ON u.id = s.id
'''
dialect = "DuckDB"
on_error = "dlq"
engine = "datafusion"
[transform.lookups.users]
kind = "postgres"
url = "postgres://localhost/wh"
schema = "public"
table = "dim_users"
refresh_interval_ms = 60000
[transform.lookups.areas]
kind = "duckdb"
path = "areas.duckdb"
table = "areas"
[transform.lookups.rates]
connection = "warehouse"
query = "SELECT * FROM rates"
"""
    assert read_stream_toml(PLAIN + text) == stream(
        transform_sql="SELECT s.id, u.tier FROM source s LEFT JOIN users u ON u.id = s.id\n",
        dialect="duckdb",
        transform_on_error="dlq",
        lookups={
            "users": Lookup(
                PostgresConnection(name="lookup_users", url="postgres://localhost/wh"),
                "dim_users",
                "public",
                60_000,
            ),
            "areas": Lookup(DuckDBConnection(name="lookup_areas", path="areas.duckdb"), "areas"),
            "rates": Lookup("warehouse", query="SELECT * FROM rates"),
        },
    )


def test_a_window_is_read_with_its_aggregations_and_its_watermark() -> None:
    window = """
[transform.window]
kind = "hopping"
duration_ms = 60000
hop_ms = 10000
group_by = ["user_id"]
late_data = "reopen"
allowed_lateness_ms = 5
max_groups_per_window = 10
event_time_column = "ts"
time_mode = "processing"
on_state_cap = "drop_new_groups"
{more}
[[transform.window.aggregations]]
agg = "count"
as = "n"
[[transform.window.aggregations]]
agg = "count_distinct"
column = "page"
as = "pages"
mode = "exact"
max_distinct_values_per_group = 100
"""
    made = Window(
        "hopping",
        [Aggregation("count", "n"), Aggregation("count_distinct", "pages", "page", "exact", 100)],
        duration_ms=60_000,
        hop_ms=10_000,
        group_by=["user_id"],
        late_data="reopen",
        allowed_lateness_ms=5,
        max_groups_per_window=10,
        event_time_column="ts",
        time_mode="processing",
        on_state_cap="drop_new_groups",
    )
    watermark = "[watermark]\nlateness_ms = 5000\nsource_idleness_ms = 9\n"
    inside = "lateness_ms = 5000\nsource_idleness_ms = 9"
    expected = stream(window=made, watermark=Watermark(5_000, 9))
    assert read_stream_toml(PLAIN + window.format(more="")) == stream(window=made)
    assert read_stream_toml(PLAIN + window.format(more="") + watermark) == expected
    assert read_stream_toml(PLAIN + window.format(more=inside)) == expected
    assert read_stream_toml(PLAIN + window.format(more=inside) + watermark) == expected
    with pytest.raises(InvalidConfig, match="differ"):
        read_stream_toml(PLAIN + window.format(more="lateness_ms = 1") + watermark)


def test_a_join_of_two_sources_is_read() -> None:
    text = """pipeline_name = "events"
[[sources]]
kind = "kafka"
bootstrap_servers = "broker:9092"
group_id = "g"
query = "orders"
[[sources]]
connection = "kafka_prod"
query = "payments"
[transform]
sql = "  "
[transform.join]
left_source = "orders"
right_source = "payments"
left_keys = ["id"]
right_keys = ["order_id"]
min_delta_ms = -5
max_delta_ms = 5
kind = "left_outer"
[state_store]
kind = "postgres"
url = "${STATE_DSN}"
schema = "state"
checkpoint_interval_ms = 1000
"""
    join = Join("orders", "payments", ["id"], ["order_id"], kind="left_outer", min_delta_ms=-5, max_delta_ms=5)
    first = KafkaConnection(name="source_1", bootstrap_servers="broker:9092", group_id="g")
    assert read_stream_toml(text + TARGET) == stream(
        sources=[Source(first, "orders"), Source("kafka_prod", "payments")],
        join=join,
        state_store=StateStore("postgres", "${STATE_DSN}", "state", 1000),
    )


def test_changes_are_read_with_the_key_of_their_table() -> None:
    text = """primary_key = ["id"]
[transform.cdc]
envelope = "custom"
op_field = "o"
after_field = "a"
key_field = "k"
delete_mode = "soft"
soft_delete_column = "gone"
schema_evolution = "add"
[transform.cdc.op_map]
I = "create"
"D" = "delete"
"""
    cdc = CDC(
        envelope="custom",
        op_field="o",
        after_field="a",
        key_field="k",
        delete_mode="soft",
        soft_delete_column="gone",
        schema_evolution="add",
        op_map={"I": "create", "D": "delete"},
    )
    target = Target(connection=TO_POSTGRES.connection, table=("public", "events"), primary_key=("id",))
    assert read_stream_toml(PLAIN + text) == stream(targets=[target], cdc=cdc)


def test_the_query_of_a_single_source_may_stand_beside_its_connection() -> None:
    assert read_source('connection = "kafka_prod"\nquery = "x"', 'pipeline_name = "p"\n') == Source("kafka_prod", "x")


def test_several_targets_are_read() -> None:
    text = """
[[targets]]
connection = "warehouse"
mode = "merge"
keys = ["id"]
[targets.table]
schema = "public"
name = "events"
[targets.column_map]
id = "event_id"
[[targets]]
kind = "object_store_local"
name = "lake"
path = "data"
format = "jsonl"
prefix = "events/raw"
"""
    spec = read_stream_toml(TOP + KAFKA + text)
    assert spec == stream(
        targets=[
            Target(
                connection="warehouse",
                table=("public", "events"),
                mode="merge",
                keys=["id"],
                column_map={"id": "event_id"},
            ),
            Target(
                connection=ObjectStoreLocalConnection(name="lake", path="data", format="json_lines"),
                prefix="events/raw",
            ),
        ]
    )


@pytest.mark.parametrize(
    ("lines", "connection"),
    [
        (
            'kind = "kafka"\nbootstrap_servers = "h"\ngroup_id = "g"\nauto_offset_reset = "latest"\n'
            'sasl_scram_username = "${U}"\nsasl_scram_password = "${P}"\nsasl_scram_mechanism = "sha-256"\n'
            'security_protocol = "SASL_PLAINTEXT"\ntls_ca_path = "ca.pem"',
            KafkaConnection(
                name="source",
                bootstrap_servers="h",
                group_id="g",
                auto_offset_reset="latest",
                sasl_scram_username="${U}",
                sasl_scram_password="${P}",
                sasl_scram_mechanism="sha-256",
                security_protocol="SASL_PLAINTEXT",
                tls_ca_path="ca.pem",
            ),
        ),
        (
            'kind = "kafka"\nname = "k"\nbootstrap_servers = "h"\ngroup_id = "g"\npayload_format = "avro"\n'
            'schema_registry_url = "http://r"',
            KafkaConnection(
                name="k", bootstrap_servers="h", group_id="g", payload_format="avro", schema_registry_url="http://r"
            ),
        ),
        (
            'kind = "kafka"\nname = "k"\nbootstrap_servers = "h"\ngroup_id = "g"\npayload_format = "avro"\n'
            'schema_registry_url = "http://r"\nschema_registry_basic_auth_user = "u"\n'
            'schema_registry_basic_auth_password = "${P}"',
            KafkaConnection(
                name="k",
                bootstrap_servers="h",
                group_id="g",
                payload_format="avro",
                schema_registry=SchemaRegistryConnection(
                    name="k_schema_registry", url="http://r", basic_auth_user="u", basic_auth_password="${P}"
                ),
            ),
        ),
        (
            'kind = "kafka"\nname = "k"\nbootstrap_servers = "h"\ngroup_id = "g"\npayload_format = "avro"\n'
            'schema_registry_kind = "glue"\nschema_registry_name = "orders"\nschema_registry_region = "eu-west-1"\n'
            'schema_registry_aws_profile = "data"',
            KafkaConnection(
                name="k",
                bootstrap_servers="h",
                group_id="g",
                payload_format="avro",
                schema_registry=GlueSchemaRegistryConnection(
                    name="k_schema_registry", registry_name="orders", region="eu-west-1", aws_profile="data"
                ),
            ),
        ),
        (
            'kind = "kafka"\nname = "k"\nbootstrap_servers = "h"\ngroup_id = "g"\npayload_format = "avro"\n'
            '[source.schema_registry]\nkind = "glue_schema_registry"\nname = "r"\n'
            'registry_name = "orders"\nregion = "x"',
            KafkaConnection(
                name="k",
                bootstrap_servers="h",
                group_id="g",
                payload_format="avro",
                schema_registry=GlueSchemaRegistryConnection(name="r", registry_name="orders", region="x"),
            ),
        ),
        (
            'kind = "kafka"\nbootstrap_servers = "h"\ngroup_id = "g"\npayload_format = "avro"\n'
            'schema_registry = "sr_prod"',
            KafkaConnection(
                name="source", bootstrap_servers="h", group_id="g", payload_format="avro", schema_registry="sr_prod"
            ),
        ),
        (
            'kind = "rabbitmq"\namqp_url = "${AMQP}"\nconsumer_tag = "c"',
            RabbitMQConnection(name="source", amqp_url="${AMQP}", consumer_tag="c"),
        ),
        (
            'kind = "pubsub"\nproject_id = "p"\nendpoint = "h:8085"\nanonymous_auth = true',
            PubSubConnection(name="source", project_id="p", endpoint="h:8085", anonymous_auth=True),
        ),
        (
            'kind = "kinesis"\nstream_name = "s"\nregion = "r"\naccess_key_id = "${K}"\nsecret_access_key = "${S}"',
            KinesisConnection(
                name="source", stream_name="s", region="r", access_key_id="${K}", secret_access_key="${S}"
            ),
        ),
        (
            'kind = "object_store_s3"\nendpoint = "e"\nbucket = "b"\nregion = "r"\naccess_key_id = "${K}"\n'
            'secret_access_key = "${S}"\nformat = "csv"\ncsv_delimiter = ";"\ncsv_header = false\n'
            'csv_null_value = "\\\\N"\n[source.csv_read_options]\nquote = 39\nschema_infer_max_records = 5',
            ObjectStoreS3Connection(
                name="source",
                endpoint="e",
                bucket="b",
                region="r",
                access_key_id="${K}",
                secret_access_key="${S}",
                format="csv",
                csv_read_options={
                    "quote": "'",
                    "schema_infer_max_records": 5,
                    "delimiter": ";",
                    "has_header": False,
                    "null_regex": r"^\\N$",
                },
            ),
        ),
    ],
    ids=lambda value: value.split('"')[1] if isinstance(value, str) else "",
)
def test_every_field_of_a_source_is_read(lines: str, connection: Any) -> None:
    assert read_source(lines) == Source(connection, "events")


@pytest.mark.parametrize(
    ("lines", "target"),
    [
        (
            'connection = "kafka_prod"\ntopic = "out"\nmessage_key_column = "id"',
            Target(connection="kafka_prod", topic="out", message_key_column="id"),
        ),
        (
            'kind = "rabbitmq"\namqp_url = "${A}"\nqueue = "q"',
            Target(connection=RabbitMQConnection(name="target", amqp_url="${A}"), queue="q"),
        ),
        (
            'kind = "kinesis"\nstream_name = "s"\npartition_key_prefix = "p"',
            Target(connection=KinesisConnection(name="target", stream_name="s"), partition_key_prefix="p"),
        ),
        (
            'kind = "sqlite"\nurl = "sqlite:///x.db"\n[target.table]\nschema = "main"\nname = "t"',
            Target(connection=SQLiteConnection(name="target", path="x.db"), table=("main", "t")),
        ),
        (
            'kind = "delta_s3"\nendpoint = "e"\nbucket = "b"\nregion = "r"\naccess_key_id = "${K}"\n'
            'secret_access_key = "${S}"\nprefix = "tables"\npartition_by = ["day"]\n'
            '[target.table]\nschema = "public"\nname = "t"',
            Target(
                connection=DeltaS3Connection(
                    name="target",
                    endpoint="e",
                    bucket="b",
                    region="r",
                    access_key_id="${K}",
                    secret_access_key="${S}",
                    prefix="tables",
                ),
                table=("public", "t"),
                partition_by=("day",),
            ),
        ),
        (
            'kind = "object_store_local"\npath = "d"\nformat = "parquet"\nprefix = "p"\nparquet_compression = "zstd"',
            Target(
                connection=ObjectStoreLocalConnection(name="target", path="d", format="parquet"),
                prefix="p",
                parquet_compression="zstd",
            ),
        ),
        (
            'prefix = "p"\ncsv_quote = "\'"\n[target.connection]\nkind = "object_store_local"\npath = "d"\n'
            'format = "csv"\ncsv_read_options = {delimiter = 59}\n[target.csv_read_options]\ndelimiter = 124',
            Target(
                connection=ObjectStoreLocalConnection(
                    name="target", path="d", format="csv", csv_read_options={"delimiter": ";"}
                ),
                prefix="p",
                csv_quote="'",
                csv_read_options={"delimiter": "|"},
            ),
        ),
    ],
    ids=lambda value: value.split('"')[1] if isinstance(value, str) else "",
)
def test_every_placement_and_option_of_a_target_is_read(lines: str, target: Target) -> None:
    assert read_target(lines) == stream(targets=[target]).targets[0]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "said", "place", "fix"),
    [
        ("dead_leter_topic = 'x'\n" + PLAIN, "'dead_leter_topic'", "p.toml", "did you mean 'dead_letter_topic'?"),
        ("name = 'x'\n" + PLAIN, "'name'", "p.toml", "did you mean 'pipeline_name'?"),
        (
            PLAIN.replace("group_id", "dead_letter_topic"),
            "'dead_letter_topic'",
            "p.toml [source]",
            "it belongs at the top of the document, in front of the first [table]",
        ),
        (PLAIN + "dead_leter_topic = 'x'", "'dead_leter_topic'", "p.toml [target.table]", "at the top of the document"),
        (PLAIN.replace("group_id", "groupid"), "'groupid'", "p.toml [source]", "did you mean 'group_id'?"),
        (PLAIN.replace("group_id", "topic"), "'topic'", "p.toml [source]", "source_query"),
        (PLAIN.replace("url =", "urll ="), "'urll'", "p.toml [target]", "did you mean 'url'?"),
        (PLAIN.replace("schema =", "shema ="), "'shema'", "p.toml [target.table]", "did you mean 'schema'?"),
        (PLAIN.replace("url =", "schema ="), "'schema'", "p.toml [target]", "it belongs in [target.table]"),
        (PLAIN + "[transform]\nsqll = ''", "'sqll'", "p.toml [transform]", "did you mean 'sql'?"),
        (PLAIN + "[transform]\ntransform_sql = ''", "'transform_sql'", "p.toml [transform]", "did you mean 'sql'?"),
        (PLAIN + "[transform.join]\nleft = ''", "'left'", "p.toml [transform.join]", ""),
        (
            PLAIN + "[transform.cdc]\nenvelop = 'x'\nenvelope = 'debezium'",
            "'envelop'",
            "p.toml [transform.cdc]",
            "enve",
        ),
        (PLAIN + "[transform.window]\ncrash_recovery = 'x'", "'crash_recovery'", "[transform.window]", "checkpoint"),
        (PLAIN + "[transform.lookups.u]\ntabel = 'x'\nkind = 'sqlite'", "'tabel'", "[transform.lookups.u]", "'table'"),
        (PLAIN + "[state_store]\nkind = 'in_memory'\nurll = ''", "'urll'", "p.toml [state_store]", "'url'"),
        (PLAIN + "[watermark]\nlatenes_ms = 5", "'latenes_ms'", "p.toml [watermark]", "'lateness_ms'"),
        (
            PLAIN + "[transform.window]\nkind = 'tumbling'\nmax_groups_per_window = 1\n"
            "[[transform.window.aggregations]]\nagg = 'count'\nas_ = 'n'",
            "'as_'",
            "[transform.window.aggregations] 1",
            "did you mean 'as'?",
        ),
        (
            TOP.replace("source_query", "idle_pause_ms = 1 #") + "[[sources]]\nkind = 'kafka'\nquerry = 'x'\n"
            "query = 'y'\nbootstrap_servers = 'x'\n" + TARGET,
            "'querry'",
            "p.toml [[sources]] 1",
            "did you mean 'query'?",
        ),
    ],
)
def test_an_unknown_key_is_named_with_its_place_and_the_nearest_one(text: str, said: str, place: str, fix: str) -> None:
    with pytest.raises(InvalidConfig, match=f"Unknown key {said}") as caught:
        read_stream_toml(text, "p.toml")
    assert isinstance(caught.value, ValueError)
    assert (caught.value.where or "").endswith(place) and fix in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "pipeline_name is missing"),
        ("pipeline_name = 5\n" + KAFKA + TARGET, "pipeline_name is missing or no text"),
        ('pipeline_name = "p"\n' + KAFKA + TARGET, "source_query is missing"),
        (TOP + TARGET, "exactly one of .source. and ..sources.."),
        (PLAIN + "[[sources]]\nkind = 'kafka'", "exactly one of .source. and"),
        (TOP + KAFKA, "exactly one of .target. and ..targets.."),
        (TOP + "sources = []\n" + TARGET, "'sources' must be a list of tables"),
        (TOP + "source = 'kafka'\n" + TARGET, "'source' must be a table"),
        (TOP + "[[sources]]\nkind = 'kafka'\nquery = 'q'\n" + TARGET, "source_query belongs to .source."),
        (PLAIN.replace("[source]", "[source]\nquery = 'x'"), "source_query and query in .source. are the same"),
        (PLAIN.replace('kind = "kafka"', ""), "neither kind nor connection"),
        (PLAIN.replace('kind = "kafka"', 'kind = "kafak"'), "Unknown kind 'kafak'"),
        (PLAIN.replace('kind = "kafka"', 'connection = "k"\nkind = "kafka"'), "'kind' cannot go with connection"),
        (PLAIN.replace('kind = "kafka"', "connection = 5"), "must be the name of a connection"),
        (PLAIN.replace('kind = "kafka"', 'connection = "k"'), "Unknown key 'bootstrap_servers'"),
        (PLAIN.replace("bootstrap_servers", "#"), "bootstrap_servers is required"),
        (PLAIN.replace('group_id = "g"', ""), "group_id is required"),
        (PLAIN.replace('group_id = "g"', 'group_id = "g"\nsasl_plain_username = "u"'), "go together"),
        (
            PLAIN.replace(
                'group_id = "g"',
                'group_id = "g"\nsasl_plain_username = "u"\nsasl_plain_password = "p"\n'
                'sasl_scram_username = "u"\nsasl_scram_password = "p"',
            ),
            "more than one way to log in",
        ),
        (
            PLAIN.replace('group_id = "g"', 'group_id = "g"\nschema_registry_kind = "avro"'),
            "Unknown kind of schema registry 'avro'",
        ),
        (
            PLAIN.replace('group_id = "g"', 'group_id = "g"\nschema_registry = "a"\nschema_registry_kind = "glue"'),
            "cannot go with schema_registry",
        ),
        (PLAIN.replace("[target.table]", "topic = 'x'\n[target.table]"), "topic= does not go with a postgres"),
        (PLAIN.replace('schema = "public"', ""), "schema is missing"),
        (PLAIN + "primary_key = 'id'", "takes a tuple or list of column names"),
        (PLAIN.replace("[target.table]", "primary_key = ['a']\n[target.table]\nprimary_key = ['b']"), "stands twice"),
        (PLAIN + "class = 'nowhere'", "class is written 'module:Name'"),
        (PLAIN + "class = 'json:loads'", "'json:loads' is not a declared table"),
        (PLAIN + "class = 'no_such_module:Mirror'", "There is no module 'no_such_module'"),
        ("idle_pause_ms = '500'\n" + PLAIN, "idle_pause_ms must be a whole number"),
        ("dlq_store = 'topic'\n" + PLAIN, "needs dead_letter_topic"),
        ("dlq_store = 'broker'\n" + PLAIN, "'events' is kafka, which has no dead letters of its own"),
        (PLAIN + "[transform]\nsql = 5", "transform_sql must be text"),
        (PLAIN + "[transform]\ndialect = 'oracle'", "dialect must be one of"),
        (PLAIN + "[transform]\nengine = 'ray'", "engine must be one of"),
        (PLAIN + "[transform]\nengine = 'distributed'", "needs a cluster, and none is named"),
        (PLAIN + "[transform]\npeers = ['http://one:50051']", "'peers' is not used"),
        (PLAIN + "[transform.tls]\nca_cert_pem_path = 'ca.pem'", "'tls' is not used"),
        (PLAIN + "[transform.cdc]\nop_field = 'op'", "envelope is missing"),
        (PLAIN + "[transform.join]\nleft_source = 'a'", "right_source is missing"),
        (PLAIN + "[transform.window]\nkind = 'tumbling'", "max_groups_per_window is missing"),
        (PLAIN + "[transform.window]\nkind = 'tumbling'\nmax_groups_per_window = 5", "no aggregations"),
        (
            PLAIN + "[transform.window]\nkind = 'tumbling'\nmax_groups_per_window = 5\ngroup_by = 'u'\n"
            "[[transform.window.aggregations]]\nagg = 'count'\nas = 'n'",
            "group_by takes a tuple or list",
        ),
        (
            PLAIN + "[transform.window]\nkind = 'tumbling'\nmax_groups_per_window = 5\n"
            "[[transform.window.aggregations]]\nagg = 'count'",
            "as is missing",
        ),
        (PLAIN + "[transform.lookups]\nusers = 'x'", "'users' must be a table"),
        (
            PLAIN + "[transform.lookups.u]\nkind = 'kafka'\nbootstrap_servers = 'x'\ntable = 't'",
            "is a kafka connection",
        ),
        (PLAIN + "[state_store]\nurl = 'x'", "kind is missing"),
        (PLAIN + "[watermark]\nlateness_ms = -1", "lateness_ms must be at least 0"),
    ],
)
def test_a_wrong_document_is_one_value_error_with_a_place(text: str, said: str) -> None:
    with pytest.raises(FlowError, match=said) as caught:
        read_stream_toml(text, "p.toml")
    assert isinstance(caught.value, ValueError)
    assert (caught.value.where or "").startswith("p.toml")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('format = "parquet"\nprefix = "p"\ncsv_quote = "x"', "csv_quote= is for csv files"),
        ('format = "parquet"\nprefix = "p"\nparquet_compression = "lzo"', "parquet_compression must be one of"),
        ('format = "csv"\nprefix = "p"\ncsv_delimiter = ";;"', "must be one ASCII character"),
        ('format = "csv"\nprefix = "../p"', "cannot be a folder"),
        ('format = "csv"\nprefix = "p"\n[target.csv_read_options]\nsep = ";"', "unknown key 'sep'"),
        ('format = "avro"\nprefix = "p"', "format 'avro' is unknown"),
    ],
)
def test_options_of_files_are_refused_before_anything_is_written(lines: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_target(f'kind = "object_store_local"\npath = "d"\n{lines}')


def test_options_of_files_declared_in_python_are_refused_before_it_runs() -> None:
    lake = ObjectStoreLocalConnection(name="lake", path="d", format="csv")
    with pytest.raises(ValueError, match="Stream 'events': parquet_compression= is for parquet files"):
        streaming.run_streaming_pipeline(
            name="events",
            source=FROM_KAFKA,
            source_query="events",
            targets=[Target(connection=lake, prefix="p", parquet_compression="zstd")],
        )


def test_distributed_is_taken_when_a_cluster_is_named(project: Path) -> None:
    text = PLAIN + "[transform]\nengine = 'distributed'"
    with pytest.raises(InvalidConfig) as caught:
        read_stream_toml(text)
    assert "[spark] master" in (caught.value.fix or "")
    (project / ".ematix-flow.toml").write_text('[spark]\nmaster = "spark://host:7077"\n')
    assert read_stream_toml(text).engine == "distributed"


def test_a_right_document_is_handed_to_the_runner() -> None:
    # A name that nobody defines is found out by the runner, before it starts anything.
    text = TOP + '[source]\nconnection = "nowhere"\n[target]\nconnection = "warehouse"\n'
    with pytest.raises(UnknownConnection, match="'nowhere' is not defined"):
        streaming.run_pipeline(config_str=text, once=True)
    with pytest.raises(UnknownConnection, match="'nowhere' is not defined"):
        streaming.run_streaming_pipeline(
            name="events", source="nowhere", source_query="events", target="warehouse", max_batches=1
        )


def test_a_mistake_of_toml_itself_is_shown_with_its_line() -> None:
    with pytest.raises(InvalidConfig, match="not valid TOML") as caught:
        read_stream_toml("pipeline_name = 'a'\nidle_pause_ms = \n", "p.toml")
    assert caught.value.where == "p.toml:2"


def test_a_file_is_read_and_one_that_cannot_be_is_named(project: Path) -> None:
    (project / "pipeline.toml").write_text(PLAIN)
    assert read_stream_file("pipeline.toml") == read_stream_file(project / "pipeline.toml") == stream()
    with pytest.raises(ValueError, match="'nowhere.toml' cannot be read: No such file"):
        streaming.run_pipeline("nowhere.toml")
    (project / "latin.toml").write_bytes(b"pipeline_name = '\xe9'")
    with pytest.raises(InvalidConfig, match="cannot be read: no file can have this name"):
        read_stream_file("a\0b.toml")
    with pytest.raises(ValueError, match="'latin.toml' cannot be read: it is not UTF-8"):
        read_stream_file("latin.toml")


def test_advice_follows_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window("hopping", [Aggregation("count", "n")], duration_ms=3_600_000, hop_ms=60_000)
    assert len(stream_advice(stream(window=window))) == 1
    monkeypatch.setenv("EMATIX_FLOW_STATE_SIZE_WARN_BYTES", "0")
    assert stream_advice(stream(window=window)) == ()
    monkeypatch.setenv("EMATIX_FLOW_STATE_SIZE_WARN_BYTES", "1")
    small = Window("tumbling", [Aggregation("count", "n")], duration_ms=1, max_groups_per_window=1)
    assert len(stream_advice(stream(window=small))) == 1
    monkeypatch.setenv("EMATIX_FLOW_STATE_SIZE_WARN_BYTES", "1 GiB")
    with pytest.raises(InvalidConfig, match="number of bytes"):
        stream_advice(stream())


FULL = {
    **{"idle_pause_ms": 5, "dead_letter_topic": "f", "dlq_store": "table", "metrics_port": 1, "checkpoint": "c"},
    **{"delivery": "auto", "on_gap": "fail", "max_batch_rows": 5, "dlq_max_attempts": 2, "pipeline_name": "p"},
    "continue_on_target_failure": True,
    "sources": [
        {
            **{"kind": "kafka", "name": "k", "query": "a", "bootstrap_servers": "h", "group_id": "g"},
            **{"payload_format": "avro", "auto_offset_reset": "latest", "msk_iam_region": "eu-west-1"},
            "schema_registry": {"kind": "schema_registry", "name": "r", "url": "http://r"},
        },
        {"kind": "object_store_local", "path": "d", "format": "csv", "query": "b", "csv_read_options": {"quote": 39}},
    ],
    "targets": [
        {
            "connection": "w",
            "table": {"schema": "s", "name": "t", "primary_key": ["id"]},
            **{"mode": "merge", "keys": ["id"], "column_map": {"a": "b"}},
        },
        {"kind": "object_store_local", "path": "d", "format": "csv", "prefix": "x", "csv_header": True},
        {"kind": "kafka", "bootstrap_servers": "h", "topic": "t", "message_key_column": "id"},
    ],
    "transform": {
        **{"sql": "SELECT 1", "dialect": "spark", "engine": "auto", "on_error": "dlq"},
        "lookups": {"u": {"kind": "sqlite", "path": "x.db", "table": "t", "refresh_interval_ms": 0}},
        "window": {
            **{"kind": "session", "gap_ms": 5, "max_session_duration_ms": 9, "group_by": ["u"]},
            **{"max_groups_per_window": 5, "late_data": "reopen", "allowed_lateness_ms": 5, "lateness_ms": 5},
            "aggregations": [{"agg": "count_distinct", "column": "c", "as": "n", "mode": "approximate"}],
        },
    },
    "state_store": {"kind": "postgres", "url": "postgres://h/s", "schema": "x", "checkpoint_interval_ms": 5},
    "watermark": {"lateness_ms": 5},
}
JOINED = {
    **{key: value for key, value in FULL.items() if key not in ("transform", "watermark")},
    "transform": {
        "join": {
            **{"left_source": "a", "right_source": "b", "left_keys": ["id"], "right_keys": ["id"]},
            **{"min_delta_ms": -5, "max_delta_ms": 5, "kind": "inner", "left_column_prefix": "l_"},
        }
    },
}
CHANGED = {
    **{key: value for key, value in FULL.items() if key not in ("transform", "targets")},
    "targets": [{key: value for key, value in FULL["targets"][0].items() if key != "column_map"}],  # type: ignore[index]
    "transform": {"cdc": {"envelope": "debezium", "op_map": {"c": "create"}, "key_field": "after.id"}},
}


def paths(table: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document, tables included."""
    inner = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from paths(value, (*path, key))


@pytest.mark.parametrize("document", [FULL, JOINED, CHANGED], ids=["window", "join", "cdc"])
def test_any_value_in_any_place_is_taken_or_refused_with_one_value_error(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_NO_DEPRECATION", "1")
    read_stream_toml(toml_text(document))
    refused = 0
    for path in paths(document):
        for wrong in (None, True, -1, 0, 2.5, "", " ", "x", "${X}", [], [5], ["a"], {}, {"a": 1}, [{"a": 1}]):
            changed = copy.deepcopy(document)
            at = changed
            for key in path[:-1]:
                at = at[key]
            if wrong is None:
                del at[path[-1]]
            else:
                at[path[-1]] = wrong
            try:
                read_stream_toml(toml_text(changed), "p.toml")
            except FlowError as exc:
                assert isinstance(exc, ValueError), (path, wrong, exc)
                assert (exc.where or "").startswith("p.toml") and exc.message, (path, wrong, exc)
                refused += 1
    assert refused > 300


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SECRETS = """
[transform]
sql = "SELECT * FROM source"
[transform.lookups.users]
kind = "postgres"
url = "postgres://ann:tulip-2@h/wh?sslpassword=tulip-3"
table = "users"
[state_store]
kind = "postgres"
url = "postgres://ann:tulip-4@h/wh"
"""
WITH_SECRETS = PLAIN.replace(
    'group_id = "g"', 'group_id = "g"\nsasl_plain_username = "u"\nsasl_plain_password = "tulip-1"'
)


def test_every_secret_in_the_document_is_one_warning_without_its_value() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        read_stream_toml(WITH_SECRETS + SECRETS, "p.toml")
    said = [str(warning.message) for warning in heard]
    assert [text.partition(" is written")[0] for text in said] == [
        "p.toml: [source] sasl_plain_password",
        "p.toml: [transform.lookups.users] url",
        "p.toml: [state_store] url",
    ]
    assert not any("tulip" in text for text in said)
    assert {warning.category for warning in heard} == {FutureWarning}


def test_references_and_names_are_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_stream_toml(
            PLAIN.replace('group_id = "g"', 'group_id = "g"\nsasl_plain_username = "u"\nsasl_plain_password = "${P}"')
        )
        read_stream_toml(PLAIN + 'primary_key = ["id"]\n[target.column_map]\npassword = "pw"')
        monkeypatch.setenv("EMATIX_FLOW_NO_DEPRECATION", "1")
        read_stream_toml(WITH_SECRETS + SECRETS)


def test_a_secret_does_not_show_in_the_error_of_its_document() -> None:
    for text in (WITH_SECRETS.replace("group_id", "groupid"), WITH_SECRETS + "[watermark]\nlateness_ms = -1"):
        with pytest.raises(ValueError) as caught:
            read_stream_toml(text)
        assert "tulip" not in str(caught.value)
