"""Streams as declarations: what they become, what is refused before anything connects, and how they are found."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from ematix_flow import streaming
from ematix_flow.declare.columns import BigInt, Text
from ematix_flow.declare.connection import (
    DeltaLocalConnection,
    GlueSchemaRegistryConnection,
    KafkaConnection,
    KinesisConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    RabbitMQConnection,
    SchemaRegistryConnection,
    SnowflakeConnection,
    SQLiteConnection,
)
from ematix_flow.declare.keys import pk
from ematix_flow.declare.namespace import ematix
from ematix_flow.declare.registry import Registry, SourceLocation, isolated
from ematix_flow.declare.stream import CDC, Aggregation, Join, Lookup, Source, StateStore, Watermark, Window
from ematix_flow.declare.stream_ends import check_source, target_primary_key, target_table, target_table_spec
from ematix_flow.declare.stream_pipeline import RUN_OPTIONS, STREAM_OPTIONS, StreamingPipeline, stream_spec
from ematix_flow.declare.stream_spec import StreamSpec, expected_state_bytes
from ematix_flow.declare.table import ManagedTable
from ematix_flow.declare.target import Target
from ematix_flow.declare.udf import udaf, udf
from ematix_flow.errors import (
    AlreadyRunning,
    ConfigError,
    DeclarationError,
    DuplicateName,
    EngineFailed,
    FlowError,
    InvalidDeclaration,
    InvalidSource,
    StatementFailed,
    StreamError,
    UnknownConnection,
    UnsupportedBackend,
    UnsupportedMode,
    WriteConflict,
    WrongDeclarationType,
)

KAFKA = KafkaConnection(name="kafka_prod", bootstrap_servers="${KAFKA}", group_id="g")
WAREHOUSE = PostgresConnection(name="warehouse", url="postgres://localhost/wh")
SNOWFLAKE = SnowflakeConnection(name="snow", account="a", user="u", password="p", database="d")
LAKE = ObjectStoreLocalConnection(name="lake", path="data", format="parquet")
DELTA = DeltaLocalConnection(name="delta", path="tables")
HERE = SourceLocation(file="pipelines.py", line=7, name="events")
COUNT = Aggregation(agg="count", as_="n")
MINUTES = Window("tumbling", [COUNT], duration_ms=60_000)
SESSIONS = Window("session", [COUNT], gap_ms=300, max_session_duration_ms=900, group_by=["user_id"])
ORDERS = Join("orders", "payments", ["id"], ["id"], time_window_ms=300_000)
IN_MEMORY = StateStore("in_memory")
GIVEN: dict[str, Any] = {
    "name": "events_to_pg",
    "source": KAFKA,
    "source_query": "events",
    "target": WAREHOUSE,
    "target_table": ("public", "events"),
}


class CustomerMirror(ManagedTable):
    __schema__ = "mirror"
    __tablename__ = "customers"
    id: Annotated[BigInt, pk()]
    email: Text


@udf(args=("Int64",), returns="Int64", name="twice")
def doubled(column):
    return column


@udaf(args=("Int64",), state=("Int64",), returns="Int64", name="most")
class Most:
    def update_batch(self, values: Any) -> None: ...
    def merge_batch(self, states: Any) -> None: ...
    def evaluate(self) -> Any: ...
    def state(self) -> Any: ...


@pytest.fixture
def fresh() -> Iterator[Registry]:
    with isolated() as mine:
        yield mine


def spec(**changes: Any) -> StreamSpec:
    return stream_spec({**GIVEN, **changes}, HERE)


def with_targets(*targets: Target, **changes: Any) -> StreamSpec:
    return spec(target=None, target_table=None, targets=list(targets), **changes)


# ── declaring ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_decorated_stream_is_registered_with_its_arguments_as_given(fresh: Registry) -> None:
    wrong: Any = "wrong until it is run"
    window = Window(wrong, [COUNT])

    @ematix.streaming_pipeline(**GIVEN, window=window)
    def events_to_pg():
        """Events."""

    assert isinstance(events_to_pg, StreamingPipeline)
    assert (events_to_pg.name, events_to_pg.__name__, events_to_pg.__doc__) == (
        "events_to_pg",
        "events_to_pg",
        "Events.",
    )
    assert events_to_pg.options == {**GIVEN, "window": window}
    found = fresh.streaming_pipeline("events_to_pg")
    assert found is not None and found.thing is events_to_pg and "test_stream_pipeline.py" in str(found.where)
    assert streaming.get_streaming_pipeline("events_to_pg") is events_to_pg
    assert streaming.list_streaming_pipelines() == ["events_to_pg"]
    for look in (events_to_pg, events_to_pg.run, lambda: events_to_pg.spec):
        with pytest.raises(ValueError, match="Stream 'events_to_pg': Window: kind must be one of") as caught:
            look()
        assert "test_stream_pipeline.py" in str(caught.value)


def test_every_keyword_is_taken_and_none_means_not_given(fresh: Registry) -> None:
    nothing = {option: None for option in STREAM_OPTIONS if option not in GIVEN}

    @ematix.streaming_pipeline(**GIVEN, **nothing)
    def everything(): ...

    assert everything.spec == spec()
    assert set(RUN_OPTIONS).isdisjoint(STREAM_OPTIONS)


def test_a_stream_with_nothing_but_its_ends_has_the_documented_defaults() -> None:
    plain = spec()
    assert plain.sources == (Source(KAFKA, "events"),)
    assert plain.targets == (Target(connection=WAREHOUSE, table=("public", "events")),)
    chosen = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    for given in ("name", "where", "sources", "targets"):
        del chosen[given]
    assert chosen == {
        "transform_sql": None,
        "dialect": "datafusion",
        "engine": "auto",
        "peers": (),
        "tls": None,
        "transform_on_error": "fail",
        "lookups": {},
        "window": None,
        "join": None,
        "cdc": None,
        "state_store": None,
        "watermark": None,
        "udfs": (),
        "aggregate_udfs": (),
        "idle_pause_ms": 500,
        "delivery": "auto",
        "continue_on_target_failure": False,
        "dead_letter_topic": None,
        "dlq_store": "auto",
        "dlq_max_attempts": 3,
        "metrics_port": None,
        "checkpoint": None,
        "max_batch_rows": None,
        "on_gap": "fail",
    }


def test_both_forms_of_source_and_target_become_the_same_spec() -> None:
    one = spec(target_primary_key=["id"], target_partition_by=None)
    other = stream_spec(
        {
            "name": "events_to_pg",
            "sources": [Source(KAFKA, "events")],
            "targets": [Target(connection=WAREHOUSE, table=["public", "events"], primary_key=("id",))],
        },
        SourceLocation(file="elsewhere.py", line=1),
    )
    assert one == other and str(one.where) != str(other.where)


def test_keywords_arrive_in_the_spec() -> None:
    given: dict[str, Any] = {
        "transform_sql": "SELECT twice(a) AS a FROM source",
        "lookups": {"users": Lookup(WAREHOUSE, "users"), "areas": Lookup("warehouse", query="SELECT 1 AS id")},
        "dialect": "spark",
        "transform_on_error": "dlq",
        "dead_letter_topic": "events-failed",
        "dlq_store": "topic",
        "dlq_max_attempts": 5,
        "watermark": Watermark(5_000, 120_000),
        "udfs": [doubled],
        "idle_pause_ms": 0,
        "delivery": "exactly_once",
        "metrics_port": 9100,
        "checkpoint": "/data/checkpoints/events",
        "max_batch_rows": 10_000,
        "on_gap": "continue",
        "continue_on_target_failure": True,
        "window": MINUTES,
        "state_store": IN_MEMORY,
    }
    made = spec(**given)
    for option, value in given.items():
        assert getattr(made, option) == (tuple(value) if isinstance(value, list) else value), option
    assert list(made.lookups) == ["areas", "users"]


def test_blank_sql_is_no_sql_and_names_of_dialect_and_engine_are_read_in_any_case() -> None:
    assert spec(transform_sql="  \n ").transform_sql is None
    assert spec(dialect="DuckDB").dialect == "duckdb"
    assert spec(dialect="PostgreSQL").dialect == "postgres"
    assert [spec(engine=word).engine for word in ("auto", "datafusion", "Spark", "distributed")] == [
        "auto",
        "auto",
        "auto",
        "distributed",
    ]
    sources = [Source(KAFKA, "orders"), Source("kafka_prod", "payments")]
    made = spec(source=None, source_query=None, sources=sources, join=ORDERS, state_store=IN_MEMORY, transform_sql="\n")
    assert made.join == ORDERS and made.needs_state_store


def test_a_table_class_gives_schema_name_key_and_columns() -> None:
    made = spec(target=CustomerMirror, target_connection=WAREHOUSE, target_table=None, cdc=CDC())
    (target,) = made.targets
    assert target == Target(connection=WAREHOUSE, table=CustomerMirror)
    assert target_table(target) == ("mirror", "customers")
    assert target_primary_key(target) == ("id",)
    declared = target_table_spec(target)
    assert declared is not None and declared.column_names == ("id", "email")
    other = fitted(Target(connection=WAREHOUSE, table=("a", "b"), primary_key=["x", "y"]))
    assert (target_table(other), target_primary_key(other), target_table_spec(other)) == (("a", "b"), ("x", "y"), None)
    assert target_table(Target(connection=KAFKA, topic="t")) is None


def fitted(target: Target) -> Target:
    return with_targets(target).targets[0]


def test_targets_are_put_into_one_form() -> None:
    made = fitted(
        Target(
            connection=WAREHOUSE,
            table=["public", "t"],
            keys=["id"],
            mode="merge",
            column_map={"a": "b"},
        )
    )
    assert (made.table, made.keys, made.column_map) == (("public", "t"), ("id",), {"a": "b"})
    csv = ObjectStoreLocalConnection(name="csv", path="data", format="csv")
    assert fitted(Target(connection=csv, prefix="p", csv_read_options={"delimiter": 59})).csv_read_options == {
        "delimiter": ";"
    }


def test_a_mistyped_keyword_is_a_type_error_with_the_nearest_one(fresh: Registry) -> None:
    for declare in (ematix.streaming_pipeline, streaming.run_streaming_pipeline):
        with pytest.raises(WrongDeclarationType, match="no argument 'dead_leter_topic'") as caught:
            declare(**GIVEN, dead_leter_topic="x")
        assert isinstance(caught.value, TypeError) and caught.value.fix == "did you mean 'dead_letter_topic'?"
        with pytest.raises(TypeError, match="needs name="):
            declare(source=KAFKA)
    with pytest.raises(TypeError, match="no argument 'once'"):
        ematix.streaming_pipeline(**GIVEN, once=True)


def test_a_function_with_arguments_is_a_type_error_and_registers_nothing(fresh: Registry) -> None:
    with pytest.raises(TypeError, match="takes 1 arguments"):

        @ematix.streaming_pipeline(**GIVEN)
        def events_to_pg(conn): ...

    assert fresh.streaming_pipelines() == ()


def test_two_places_cannot_declare_the_same_stream(fresh: Registry) -> None:
    @ematix.streaming_pipeline(**GIVEN)
    def first(): ...

    with pytest.raises(DuplicateName) as caught:

        @ematix.streaming_pipeline(**GIVEN)
        def second(): ...

    assert isinstance(caught.value, ValueError)
    with pytest.raises(ValueError, match="already registered"):
        streaming.register_streaming_pipeline("events_to_pg", GIVEN)


def test_a_stream_can_be_registered_without_the_decorator(fresh: Registry) -> None:
    streaming.register_streaming_pipeline("b", {key: value for key, value in GIVEN.items() if key != "name"})
    streaming.register_streaming_pipeline("a", GIVEN)
    assert streaming.list_streaming_pipelines() == ["a", "b"]
    found = streaming.get_streaming_pipeline("b")
    assert found is not None and found.spec.sources[0].query == "events" and found.spec.name == "b"
    assert found.spec.where == found.where
    assert streaming.get_streaming_pipeline("c") is None


def test_a_stream_nobody_declared_has_no_toml(fresh: Registry) -> None:
    streaming.register_streaming_pipeline("events", GIVEN)
    with pytest.raises(KeyError) as caught:
        streaming.render_streaming_pipeline_toml("evnts")
    assert "did you mean 'events'?" in str(caught.value)


@pytest.mark.parametrize("given", [{}, {"config": "a.toml", "config_str": "x = 1"}])
def test_run_pipeline_takes_either_a_file_or_a_text(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one of config= and config_str="):
        streaming.run_pipeline(**given)


@pytest.mark.parametrize("given", [{"config": 5}, {"config": b"a.toml"}, {"config_str": 5}, {"config_str": b"x = 1"}])
def test_run_pipeline_says_which_of_its_arguments_is_of_the_wrong_type(given: dict[str, Any]) -> None:
    with pytest.raises(WrongDeclarationType, match=f"{next(iter(given))}= takes"):
        streaming.run_pipeline(**given)


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────

RABBIT = RabbitMQConnection(name="r", amqp_url="amqp://h")
KINESIS = KinesisConnection(name="k", stream_name="clicks", region="eu-west-1")
SQLITE = SQLiteConnection(name="s", path="x.db")


def test_the_ceiling_of_a_slot_may_be_a_reference() -> None:
    source = Source(captured(max_slot_bytes="${MOST}", on_full_slot="${POLICY}"), "public.orders")
    check_source(source)
    assert captured(max_slot_bytes="2000").max_slot_bytes == 2000


def captured(**fields: Any) -> PostgresConnection:
    return PostgresConnection(name="shop", url="postgres://localhost/shop", **fields)


def kafka(**fields: Any) -> KafkaConnection:
    return KafkaConnection(name="k", bootstrap_servers="h:9092", group_id="g", **fields)


def changed_into(**options: Any) -> dict[str, Any]:
    into = Target(connection=WAREHOUSE, table=("a", "b"), **options)
    return {"cdc": CDC(), "target": None, "target_table": None, "targets": [into]}


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"name": " "}, TypeError, "needs name="),
        ({"source_query": None}, ValueError, "source= and source_query= are needed together"),
        ({"source": None}, ValueError, "needed together"),
        ({"source_query": " "}, ValueError, "query is missing"),
        ({"source": 5}, TypeError, "takes a connection or its name, not int"),
        ({"source": SQLITE}, ValueError, "cannot be read as a stream"),
        ({"source": WAREHOUSE, "source_query": "SELECT 1"}, ValueError, "does not name tables to capture"),
        ({"source": WAREHOUSE, "source_query": "a, public.a"}, ValueError, "'public.a' is captured twice"),
        ({"source": captured(slot="My Slot")}, ValueError, "slot 'My Slot' is no name for a replication slot"),
        ({"source": captured(max_slot_bytes=0)}, ValueError, "max_slot_bytes must be at least 1"),
        (
            {"source": captured(max_slot_bytes=9, on_full_slot="stop")},
            ValueError,
            "on_full_slot is one of 'fail', 'drop'",
        ),
        ({"source": captured(on_full_slot="drop")}, ValueError, "on_full_slot needs max_slot_bytes"),
        ({"source": KafkaConnection(name="k", bootstrap_servers="h")}, ValueError, "group_id is required"),
        ({"source": kafka(payload_format="xml")}, ValueError, "payload_format must be one of"),
        ({"source": kafka(payload_format="avro")}, ValueError, "needs schema_registry_url"),
        ({"source": kafka(auto_offset_reset="start")}, ValueError, "auto_offset_reset must be one of"),
        (
            {"source": kafka(schema_registry=GlueSchemaRegistryConnection(name="g", registry_name="r", region="x"))},
            ValueError,
            "Glue schema registry is for payload_format 'avro'",
        ),
        (
            {
                "source": kafka(
                    payload_format="avro",
                    schema_registry=SchemaRegistryConnection(name="g", url="http://r", basic_auth_user="ann"),
                )
            },
            ValueError,
            "go together",
        ),
        (
            {"source": KinesisConnection(name="k", stream_name="s", access_key_id="x")},
            ValueError,
            "access_key_id and secret_access_key go together",
        ),
        ({"sources": [Source(KAFKA, "a")]}, ValueError, "sources= cannot go with source="),
        ({"source": None, "source_query": None, "sources": []}, ValueError, "sources= is empty"),
        ({"source": None, "source_query": None, "sources": ["a"]}, TypeError, "takes Source"),
        ({"source": None, "source_query": None, "sources": Source(KAFKA, "a")}, TypeError, "takes a list of Source"),
        (
            {"source": None, "source_query": None, "sources": [Source(KAFKA, "a"), Source("k", "a")]},
            ValueError,
            "same query",
        ),
        ({"target": None}, ValueError, "exactly one of target= and targets="),
        ({"targets": [Target(connection=LAKE, prefix="x")]}, ValueError, "exactly one of target= and targets="),
        (
            {"target": None, "targets": [Target(connection=LAKE, prefix="x")]},
            ValueError,
            "target_table= cannot go with",
        ),
        ({"target": None, "targets": []}, ValueError, "targets= is empty"),
        ({"target": None, "target_table": None, "targets": [LAKE]}, TypeError, "takes Target"),
        ({"target": None, "target_table": None, "targets": [Target(connection=LAKE)]}, ValueError, "needs prefix="),
        ({"target_table": None}, ValueError, "needs target_table="),
        ({"target_table": "public.events"}, TypeError, "given as .schema, name. or as a table class"),
        ({"target_table": ("events",)}, TypeError, r"given as \(schema, name\)"),
        ({"target": KAFKA, "target_table": None}, ValueError, "needs target_topic="),
        ({"target": RABBIT}, ValueError, "needs target_queue="),
        ({"target": RABBIT, "target_queue": "q"}, ValueError, "target_table= does not go with a rabbitmq"),
        ({"target": SQLITE}, ValueError, "SQLite has no schema 'public'"),
        ({"target_message_key_column": "id"}, ValueError, "message_key_column= needs a kafka connection"),
        ({"target_partition_by": "day"}, TypeError, "partition_by= takes a tuple or list"),
        ({"target_partition_by": ["day"]}, ValueError, "partition_by= does not go with a postgres"),
        ({"target": SchemaRegistryConnection(name="r", url="http://r")}, ValueError, "cannot be a target"),
        ({"target": CustomerMirror}, ValueError, "target_connection= must say where it is"),
        ({"target": CustomerMirror, "target_connection": WAREHOUSE}, ValueError, "target_table= cannot name another"),
        ({"target_connection": WAREHOUSE}, ValueError, "both connections"),
        ({"target": dict, "target_connection": WAREHOUSE}, TypeError, "a connection or a table class"),
        ({"target": Target(connection=LAKE, prefix="x")}, TypeError, "takes a connection or a table class"),
        ({"dlq_store": "file"}, ValueError, "dlq_store must be one of"),
        ({"dlq_store": "topic"}, ValueError, "dlq_store='topic' needs dead_letter_topic="),
        (
            {"dlq_store": "topic", "dead_letter_topic": "x", "source": RABBIT},
            ValueError,
            "needs a kafka source, and the first one is rabbitmq",
        ),
        (
            {"dlq_store": "broker"},
            ValueError,
            "dlq_store='broker' needs sources of kind rabbitmq or pubsub, and 'events' is kafka, which has no dead",
        ),
        ({"dlq_store": "broker", "source": KINESIS}, ValueError, "'events' is kinesis, which has no dead letters"),
        ({"dlq_store": "broker", "source": LAKE}, ValueError, "has no dead letters of its own"),
        (
            {"dlq_store": "broker", "source": RABBIT, "dead_letter_topic": "x"},
            ValueError,
            "dlq_store='broker' cannot go with dead_letter_topic=",
        ),
        (
            {
                "dlq_store": "broker",
                "source": RABBIT,
                "window": dataclasses.replace(MINUTES, late_data="dlq"),
            },
            ValueError,
            "dlq_store='broker' cannot go with window= and late_data='dlq'",
        ),
        ({"dead_letter_topic": "events"}, ValueError, "would read its own failures"),
        ({"dead_letter_topic": " "}, ValueError, "dead_letter_topic is missing or empty"),
        ({"dlq_max_attempts": 0}, ValueError, "dlq_max_attempts must be at least 1"),
        ({"idle_pause_ms": -1}, ValueError, "idle_pause_ms must be at least 0"),
        ({"idle_pause_ms": 10**30}, ValueError, "idle_pause_ms must be at most"),
        ({"max_batch_rows": 2**63}, ValueError, "max_batch_rows must be at most"),
        ({"idle_pause_ms": 1.5}, ValueError, "idle_pause_ms must be a whole number"),
        ({"metrics_port": 70_000}, ValueError, "metrics_port must be at most 65535"),
        ({"max_batch_rows": 0}, ValueError, "max_batch_rows must be at least 1"),
        ({"checkpoint": ""}, ValueError, "checkpoint is missing or empty"),
        ({"on_gap": "skip"}, ValueError, "on_gap must be one of"),
        ({"dialect": "oracle"}, ValueError, "dialect must be one of 'datafusion', 'spark', 'duckdb', 'postgres'"),
        ({"engine": "pushdown"}, ValueError, "engine must be one of"),
        ({"transform_on_error": "skip"}, ValueError, "transform_on_error"),
        ({"transform_sql": 5}, TypeError, "transform_sql must be text"),
        ({"delivery": "once"}, ValueError, "delivery"),
        ({"continue_on_target_failure": "no"}, ValueError, "must be True or False"),
        ({"window": {"kind": "tumbling"}}, TypeError, "window= takes Window"),
        ({"window": Window("tumbling", [COUNT])}, ValueError, "duration_ms"),
        ({"window": SESSIONS}, ValueError, "needs state_store="),
        ({"join": ORDERS, "state_store": IN_MEMORY}, ValueError, "'orders' is not the query"),
        (
            {
                "source": None,
                "source_query": None,
                "sources": [Source(KAFKA, name) for name in ("orders", "payments", "refunds")],
                "join": ORDERS,
                "state_store": IN_MEMORY,
            },
            ValueError,
            "'refunds' would be read for nothing",
        ),
        ({"window": MINUTES, "cdc": CDC()}, ValueError, "window= and cdc= cannot go together"),
        ({"cdc": CDC(), "transform_sql": "SELECT 1"}, ValueError, "cdc= cannot go with transform_sql="),
        ({"cdc": CDC(), "target": KAFKA, "target_table": None, "target_topic": "t"}, ValueError, "never changed"),
        ({"cdc": CDC(), "target": LAKE, "target_table": None, "target_prefix": "t"}, ValueError, "never changed"),
        ({"cdc": CDC(), "target": DELTA}, ValueError, "needs its key"),
        ({"cdc": CDC(), "target": SNOWFLAKE}, ValueError, "cannot be applied to a snowflake target"),
        (changed_into(mode="append"), ValueError, "mode='append' is not possible with cdc="),
        (changed_into(mode="merge", update_columns=["n"]), ValueError, "update_columns= cannot go with cdc="),
        (changed_into(column_map={"a": "b"}), ValueError, "column_map= cannot go with cdc="),
        ({"lookups": {"u": Lookup("w", "t")}}, ValueError, "lookups= needs transform_sql="),
        ({"lookups": [Lookup("w", "t")]}, TypeError, "lookups= takes a dict"),
        ({"lookups": {"u": "t"}, "transform_sql": "SELECT 1"}, TypeError, "takes Lookup"),
        (
            {"lookups": {"u": Lookup(WAREHOUSE, "t", "", 5)}, "transform_sql": "SELECT 1", "window": MINUTES},
            ValueError,
            "lookup 'u' is read again every 5 ms and stands in front of window=",
        ),
        ({"lookups": {"source": Lookup("w", "t")}, "transform_sql": "SELECT 1"}, ValueError, "called 'source'"),
        ({"udfs": [len]}, TypeError, "takes what @udf made"),
        ({"aggregate_udfs": [doubled]}, TypeError, "takes what @udaf made"),
        ({"udfs": [doubled, doubled]}, ValueError, "Two UDFs are named 'twice'"),
        ({"udfs": [doubled]}, ValueError, "udfs= needs transform_sql="),
        ({"udfs": [doubled], "window": MINUTES}, ValueError, "udfs= needs transform_sql="),
        ({"udfs": [doubled], "transform_sql": " "}, ValueError, "udfs= needs transform_sql="),
        ({"aggregate_udfs": [Most]}, ValueError, "aggregate_udfs= needs transform_sql= or window="),
    ],
)
def test_a_wrong_stream_is_refused_for_what_is_wrong_with_it(changes: dict[str, Any], error: type, said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        streaming.run_streaming_pipeline(**{**GIVEN, **changes})
    assert isinstance(caught.value, (DeclarationError, ConfigError))
    if "name" not in changes:
        assert caught.value.message.startswith("Stream 'events_to_pg': ")
        assert "test_stream_pipeline.py" in str(caught.value)


NOWHERE = KafkaConnection(name="nowhere", bootstrap_servers="127.0.0.1:1", group_id="g")
NO_DATABASE = PostgresConnection(name="none", url="postgres://nobody@127.0.0.1:1/none")


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"transform_sql": "DROP TABLE source"}, "FLOW307", "one SELECT"),
        ({"transform_sql": "SELECT * FROM othr"}, "FLOW307", "'othr'"),
        ({"transform_sql": "SELECT FROM WHERE"}, "FLOW307", "cannot be parsed"),
        ({"source": "nope"}, "FLOW201", "'nope' is not defined"),
        ({"target": "nope"}, "FLOW201", "'nope' is not defined"),
        (
            {"source": None, "source_query": None, "sources": [Source(NOWHERE, "a"), Source(LAKE, "b")]},
            "FLOW306",
            "brokers together with files",
        ),
    ],
)
def test_a_mistake_that_shows_before_anything_connects_is_a_value_error(
    changes: dict[str, Any], code: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        streaming.run_streaming_pipeline(**{**GIVEN, "source": NOWHERE, "target": NO_DATABASE, **changes})
    assert isinstance(caught.value, FlowError) and caught.value.code == code


@pytest.mark.parametrize(
    "error",
    [AlreadyRunning, EngineFailed, InvalidSource, StatementFailed, UnknownConnection, UnsupportedBackend]
    + [UnsupportedMode, WriteConflict, *StreamError.__subclasses__()],
)
def test_what_ends_a_stream_is_a_value_error(error: type[FlowError]) -> None:
    assert issubclass(error, ValueError)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (Target(table=("a", "b")), "takes a connection or its name"),
        (Target(connection=WAREHOUSE, table=("a", "b"), csv_quote="'"), "csv_quote= is for files"),
        (Target(connection=KAFKA, topic="t", parquet_compression="zstd"), "parquet_compression= is for files"),
        (Target(connection=WAREHOUSE, table=("a", "b"), mode="upsert"), "mode must be one of"),
        (
            Target(connection=WAREHOUSE, table=("a", "b"), mode="truncate"),
            "mode='truncate' is not possible in a stream",
        ),
        (Target(connection="warehouse", table=("a", "b"), mode="truncate"), "mode='truncate' is not possible"),
        (Target(connection=KAFKA, topic="t", mode="truncate"), "mode='truncate' is not possible"),
        (Target(connection=KAFKA, topic="t", mode="merge", keys=["id"]), "not possible in a stream into kafka"),
        (Target(connection=LAKE, prefix="p", mode="scd2"), "not possible in a stream into object_store_local"),
        (
            Target(connection=SNOWFLAKE, table=("a", "b"), mode="scd2", keys=["id"]),
            "in a stream into snow",
        ),
        (Target(connection=KAFKA, topic="t", keys=["id"]), "keys= says nothing with mode='append'"),
        (Target(connection=WAREHOUSE, table=("a", "b"), handle_deletes="soft"), "handle_deletes= is not possible"),
        (Target(connection=WAREHOUSE, table=("a", "b"), ttl=60), "ttl= is not possible"),
        (Target(connection=WAREHOUSE, table=("a", "b"), mode="merge"), "mode='merge' needs keys"),
        (Target(connection=WAREHOUSE, table=("a", "b"), keys=["id"]), "keys= says nothing with mode='append'"),
        (
            Target(connection=WAREHOUSE, table=("a", "b"), mode="scd2", keys=["id"], update_columns=["n"]),
            "update_columns= says nothing with mode='scd2'",
        ),
        (
            Target(connection=WAREHOUSE, table=("a", "b"), mode="merge", keys=["id"], event_timestamp_column="at"),
            "event_timestamp_column= says nothing with mode='merge'",
        ),
        (Target(connection=WAREHOUSE, table=("a", "b"), keys=[]), "keys names no column"),
        (Target(connection=WAREHOUSE, table=("a", "b"), keys=["k", "k"]), "keys names 'k' twice"),
        (Target(connection=WAREHOUSE, table=("a", "b"), column_map={"k": ""}), "column_map.'k'. is missing"),
        (Target(connection=WAREHOUSE, table=(" ", "b")), "the schema of the target table is missing"),
        (Target(connection=LAKE, prefix="p", csv_read_options=[]), "csv_read_options takes a dict"),  # type: ignore[arg-type]
        (Target(connection=KAFKA, topic=""), "topic is missing or empty"),
    ],
)
def test_a_wrong_target_is_refused_for_what_is_wrong_with_it(target: Target, said: str) -> None:
    with pytest.raises((DeclarationError, ConfigError), match=said):
        with_targets(target)


ODD: tuple[Any, ...] = (
    *(True, -1, 0, 2.5, "", " ", "x", b"x", [], [5], ["a"], {}, {"a": 1}, {1: 2}, (1, 2), ("a", "b")),
    *(object(), int, len, KAFKA, WAREHOUSE, COUNT, GIVEN),
)


def spec_with(value: Any) -> StreamSpec:
    """A stream in which a value stands where it belongs."""
    if isinstance(value, Source):
        return spec(source=None, source_query=None, sources=[value])
    if isinstance(value, Target):
        return with_targets(value)
    if isinstance(value, Aggregation):
        return spec(window=Window("tumbling", [value], duration_ms=5))
    if isinstance(value, Lookup):
        return spec(transform_sql="SELECT 1", lookups={"users": value})
    if isinstance(value, Join):
        sources = [Source(KAFKA, "orders"), Source(KAFKA, "payments")]
        return spec(source=None, source_query=None, sources=sources, join=value, state_store=IN_MEMORY)
    option = {Window: "window", StateStore: "state_store", Watermark: "watermark", CDC: "cdc"}[type(value)]
    return spec(**{"state_store": IN_MEMORY, option: value})


@pytest.mark.parametrize("option", STREAM_OPTIONS)
def test_any_value_of_any_keyword_is_taken_or_refused_with_one_error(option: str) -> None:
    for odd in ODD:
        with contextlib.suppress(DeclarationError, ConfigError):
            spec(**{option: odd})


@pytest.mark.parametrize(
    "value",
    [
        *(Source(KAFKA, "events"), Target(connection=WAREHOUSE, table=("a", "b")), Aggregation("sum", "n", "x")),
        *(Lookup(WAREHOUSE, "t"), ORDERS, SESSIONS, StateStore("postgres", "postgres://h/d"), Watermark(), CDC()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_field_of_any_value_is_taken_or_refused_with_one_error(value: Any) -> None:
    spec_with(value)
    for field in dataclasses.fields(value):
        for odd in ODD:
            with contextlib.suppress(DeclarationError, ConfigError):
                spec_with(dataclasses.replace(value, **{field.name: odd}))


def test_one_place_cannot_be_two_targets() -> None:
    first = Target(connection=WAREHOUSE, table=("mirror", "customers"))
    with pytest.raises(InvalidDeclaration, match="two targets are the same place"):
        with_targets(first, Target(connection=WAREHOUSE, table=CustomerMirror, mode="append"))
    with_targets(first, Target(connection=WAREHOUSE, table=("mirror", "orders")), Target(connection=LAKE, prefix="a"))


def test_peers_and_their_tls_are_answered_with_a_cluster() -> None:
    plain = spec()
    for option in ({"peers": ("http://one:50051",)}, {"tls": {"ca_cert_pem_path": "ca.pem"}}):
        with pytest.raises(InvalidDeclaration, match="rows are moved by Spark") as caught:
            dataclasses.replace(plain, **option)
        assert "[spark] master" in str(caught.value)


def test_streams_of_every_documented_shape_are_right() -> None:
    sources = [Source(connection=KAFKA, query="orders"), Source(connection="kafka_prod", query="payments")]
    lookups = {"users": Lookup(connection=WAREHOUSE, query="SELECT user_id, tier FROM dim_users")}
    state = StateStore("postgres", url="postgres://localhost/state")
    spec(transform_sql="SELECT * FROM source", lookups=lookups, transform_on_error="dlq")
    spec(transform_sql="SELECT 1", lookups=lookups, window=MINUTES)
    refreshed = Lookup(DELTA, "users", refresh_interval_ms=5)
    spec(transform_sql="SELECT 1", lookups={"users": refreshed}, window=MINUTES)
    spec(target="warehouse", target_table=None, delivery="exactly_once")
    spec(source=None, source_query=None, sources=sources, join=ORDERS, state_store=state)
    spec(source=DELTA, source_query="public.events", window=SESSIONS, state_store=state)
    spec(target=DELTA, target_primary_key=["id"], cdc=CDC())
    with_targets(
        Target(connection=WAREHOUSE, table=("public", "events")),
        Target(connection=LAKE, prefix="events/raw", parquet_compression="zstd"),
    )


# ── when names have become connections ───────────────────────────────────────────────────────────────────────────────


def test_a_spec_with_its_names_resolved_is_checked_again() -> None:
    known = {"k": KAFKA, "w": WAREHOUSE, "t": KAFKA}
    named = spec(
        source="k",
        target="w",
        target_table=("a", "b"),
        transform_sql="SELECT 1",
        lookups={"users": Lookup("w", "users")},
    )
    filled = named.with_connections(lambda ref: known[ref] if isinstance(ref, str) else ref)
    assert (filled.sources[0].connection, filled.targets[0].connection) == (KAFKA, WAREHOUSE)
    assert filled.lookups["users"].connection == WAREHOUSE
    assert filled == spec(
        target_table=("a", "b"), transform_sql="SELECT 1", lookups={"users": Lookup(WAREHOUSE, "users")}
    )
    with pytest.raises(ValueError, match="needs topic="):
        spec(target="t").with_connections(lambda ref: known[ref] if isinstance(ref, str) else ref)


def test_advice_is_given_for_what_is_probably_not_meant() -> None:
    assert spec().advice() == ()
    assert "forget everything" in spec(window=SESSIONS, state_store=IN_MEMORY).advice()[0]
    assert "keeps its state in the checkpoint" in spec(window=MINUTES, state_store=StateStore("rocksdb")).advice()[0]
    hop = Window("hopping", [COUNT], duration_ms=3_600_000, hop_ms=60_000)
    assert expected_state_bytes(hop) == 60 * expected_state_bytes(MINUTES)
    (said,) = spec(window=hop).advice()
    assert "GiB at max_groups_per_window=1,000,000" in said
    assert spec(window=hop).advice(large_state_bytes=0) == ()


def test_an_aggregate_of_a_window_is_among_those_of_the_stream() -> None:
    def window(agg: str, *columns: str) -> Window:
        return Window("tumbling", [Aggregation(agg, "m", columns=columns)], duration_ms=60_000)

    assert spec(window=window("most", "v"), aggregate_udfs=[Most]).window == window("most", "v")
    with pytest.raises(InvalidDeclaration, match="there is no aggregate 'mots'"):
        spec(window=window("mots", "v"), aggregate_udfs=[Most])
    with pytest.raises(InvalidDeclaration, match="'most' takes 1 column, not 2"):
        spec(window=window("most", "v", "w"), aggregate_udfs=[Most])
