"""Streams as declarations: the values they are made of, what is refused when, and that none runs in this version."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from ematix_flow import streaming
from ematix_flow.declare.connection import (
    KafkaConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    RabbitMQConnection,
)
from ematix_flow.declare.namespace import ematix
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.registry import Registry, isolated
from ematix_flow.declare.stream import CDC, Aggregation, Join, Lookup, Source, StateStore, Watermark, Window
from ematix_flow.declare.stream_pipeline import STREAM_OPTIONS, StreamingPipeline
from ematix_flow.declare.target import Target
from ematix_flow.declare.udf import udf
from ematix_flow.errors import (
    DeclarationError,
    DuplicateName,
    InvalidDeclaration,
    UnsupportedBackend,
    WrongConnectionType,
    WrongDeclarationType,
)

KAFKA = KafkaConnection(name="kafka_prod", bootstrap_servers="${KAFKA}", group_id="g")
WAREHOUSE = PostgresConnection(name="warehouse", url="postgres://localhost/wh")
LAKE = ObjectStoreLocalConnection(name="lake", path="data", format="parquet")
COUNT = Aggregation(agg="count", as_="n")


@pytest.fixture
def fresh() -> Iterator[Registry]:
    with isolated() as mine:
        yield mine


def tumbling(**changes: Any) -> Window:
    return Window(**{"kind": "tumbling", "duration_ms": 60_000, "aggregations": [COUNT], **changes})


def aggregation(*given: Any, **options: Any) -> Aggregation:
    """Without the type checker looking."""
    return Aggregation(*given, **options)


def session(**changes: Any) -> Window:
    given = {"kind": "session", "gap_ms": 300, "max_session_duration_ms": 900, "group_by": ["user_id"]}
    return Window(**{**given, "aggregations": [COUNT], **changes})


def join(**changes: Any) -> Join:
    given = {"left_source": "orders", "right_source": "payments", "left_keys": ["id"], "right_keys": ["id"]}
    return Join(**{**given, "time_window_ms": 300_000, **changes})


# ── the values ───────────────────────────────────────────────────────────────────────────────────────────────────────


def defaults(cls: type) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(cls)}


def test_fields_and_defaults_are_the_documented_ones() -> None:
    none = dataclasses.MISSING
    assert defaults(Source) == {"connection": none, "query": none}
    assert list(defaults(Aggregation)) == ["agg", "as_", "column", "mode", "max_distinct_values_per_group"]
    assert defaults(Window) == {
        "kind": none,
        "aggregations": none,
        "duration_ms": 0,
        "hop_ms": None,
        "gap_ms": None,
        "max_session_duration_ms": None,
        "event_time_column": "_event_ts",
        "group_by": (),
        "late_data": "drop",
        "allowed_lateness_ms": None,
        "max_groups_per_window": 1_000_000,
        "window_start_column": "window_start",
        "window_end_column": "window_end",
        "session_id_column": "session_id",
    }
    assert list(defaults(Join).items())[4:] == [
        ("time_window_ms", 0),
        ("kind", "inner"),
        ("min_delta_ms", None),
        ("max_delta_ms", None),
        ("event_time_column", "_event_ts"),
        ("late_data", "drop"),
        ("allowed_lateness_ms", None),
        ("left_column_prefix", "left_"),
        ("right_column_prefix", "right_"),
    ]
    assert list(defaults(StateStore)) == ["kind", "url", "schema", "checkpoint_interval_ms", "path"]
    assert (StateStore("in_memory").schema, StateStore("in_memory").checkpoint_interval_ms) == ("public", 60_000)
    assert defaults(Watermark) == {"lateness_ms": None, "source_idleness_ms": None}
    assert list(defaults(Lookup)) == ["connection", "table", "schema", "refresh_interval_ms", "query"]
    assert dataclasses.asdict(CDC()) == {
        "envelope": "debezium",
        "op_field": None,
        "before_field": None,
        "after_field": None,
        "key_field": None,
        "ts_field": None,
        "op_map": None,
        "delete_mode": "hard",
        "soft_delete_column": None,
        "schema_evolution": "skip",
        "out_of_order_tolerance_ms": 5_000,
    }


@pytest.mark.parametrize(
    "value",
    [Source("k", "q"), COUNT, tumbling(), join(), StateStore("in_memory"), Watermark(), Lookup("w", "t"), CDC()],
    ids=lambda value: type(value).__name__,
)
def test_every_value_is_frozen_and_checks_itself(value: Any) -> None:
    value.check()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(value)[0].name, "other")


@pytest.mark.parametrize(
    "window",
    [
        tumbling(),
        tumbling(hop_ms=60_000),
        tumbling(kind="hopping", hop_ms=10_000),
        tumbling(late_data="reopen", allowed_lateness_ms=0),
        tumbling(late_data="dlq", group_by=("user_id",)),
        tumbling(aggregations=[Aggregation("count_distinct", "u", "user_id", "exact", 10), COUNT]),
        session(),
    ],
)
def test_a_right_window_passes_its_check(window: Window) -> None:
    window.check()


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (tumbling(kind="tumbeling"), "'tumbeling'"),
        (tumbling(duration_ms=0), "duration_ms must be at least 1"),
        (tumbling(duration_ms=1.5), "duration_ms must be a whole number"),
        (tumbling(duration_ms=True), "duration_ms must be a whole number"),
        (tumbling(hop_ms=1_000), "hop_ms cannot differ from duration_ms"),
        (tumbling(gap_ms=5), "gap_ms needs kind='session'"),
        (tumbling(kind="hopping"), "kind='hopping' needs hop_ms"),
        (tumbling(kind="hopping", hop_ms=60_001), "longer than duration_ms"),
        (tumbling(kind="hopping", hop_ms=0), "hop_ms must be at least 1"),
        (tumbling(aggregations=[]), "aggregations is empty"),
        (tumbling(aggregations=[COUNT, COUNT]), "'n' would be the name of two output columns"),
        (tumbling(group_by=["window_end"]), "'window_end' would be the name of two"),
        (tumbling(late_data="keep"), "late_data must be one of"),
        (tumbling(late_data="reopen"), "needs allowed_lateness_ms"),
        (tumbling(allowed_lateness_ms=5), "needs late_data='reopen'"),
        (tumbling(late_data="reopen", allowed_lateness_ms=-1), "at least 0"),
        (tumbling(max_groups_per_window=0), "max_groups_per_window must be at least 1"),
        (session(gap_ms=None), "kind='session' needs gap_ms"),
        (session(max_session_duration_ms=None), "needs max_session_duration_ms"),
        (session(max_session_duration_ms=300), "longer than gap_ms"),
        (session(group_by=()), "kind='session' needs group_by"),
        (session(duration_ms=5), "duration_ms cannot go with kind='session'"),
        (session(hop_ms=5), "hop_ms cannot go with kind='session'"),
        (session(session_id_column="n"), "'n' would be the name of two"),
        (tumbling(aggregations=[aggregation("median", "m", "x")]), "agg must be one of"),
        (tumbling(aggregations=[Aggregation("sum", "total")]), "Aggregation 'total': column is missing"),
        (tumbling(aggregations=[Aggregation("count", "n", "x")]), "count_col"),
        (tumbling(aggregations=[Aggregation("sum", "", "x")]), "as_ is missing"),
        (tumbling(aggregations=[Aggregation("sum", "s", "x", mode="exact")]), "mode needs agg='count_distinct'"),
        (tumbling(aggregations=[aggregation("count_distinct", "s", "x", mode="rough")]), "mode must be one of"),
        (tumbling(aggregations=[Aggregation("count_distinct", "s", "x", None, 5)]), "needs mode='exact'"),
    ],
)
def test_a_wrong_window_can_be_written_and_fails_its_check(window: Window, said: str) -> None:
    with pytest.raises(InvalidDeclaration, match=said) as caught:
        window.check()
    assert isinstance(caught.value, ValueError)


def test_lists_become_tuples_and_a_single_text_is_a_type_error() -> None:
    window = tumbling(group_by=["a", "b"])
    assert window.group_by == ("a", "b") and window.aggregations == (COUNT,)
    assert join().left_keys == ("id",)
    with pytest.raises(WrongDeclarationType, match="group_by takes a tuple or list"):
        tumbling(group_by="user_id")
    with pytest.raises(TypeError, match="left_keys"):
        join(left_keys="id")
    with pytest.raises(WrongDeclarationType, match="not str"):
        tumbling(aggregations=["count"]).check()


def test_output_columns_come_in_the_documented_order() -> None:
    assert session().output_columns() == ("window_start", "window_end", "session_id", "user_id", "n")
    assert tumbling(group_by=["k"]).output_columns() == ("window_start", "window_end", "k", "n")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"right_source": "orders"}, "both sides are 'orders'"),
        ({"left_source": ""}, "left_source is missing"),
        ({"left_keys": [], "right_keys": []}, "0 left_keys"),
        ({"left_keys": ["a", "b"]}, "2 left_keys and 1 right_keys"),
        ({"kind": "outer"}, "kind must be one of"),
        ({"time_window_ms": 0}, "not bounded"),
        ({"time_window_ms": -5}, "at least 0"),
        ({"min_delta_ms": -5}, "go together"),
        ({"max_delta_ms": 5}, "go together"),
        ({"min_delta_ms": 5, "max_delta_ms": 5}, "less than max_delta_ms"),
        ({"right_column_prefix": "left_"}, "must differ"),
        ({"late_data": "reopen"}, "needs allowed_lateness_ms"),
    ],
)
def test_a_wrong_join_is_refused_where_it_is_written(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDeclaration, match=said):
        join(**changes)


def test_the_span_of_a_join_is_symmetric_unless_both_deltas_are_given() -> None:
    assert join(time_window_ms=5).span_ms == (-5, 5)
    assert join(min_delta_ms=-60_000, max_delta_ms=300_000).span_ms == (-60_000, 300_000)
    assert join(time_window_ms=0, min_delta_ms=0, max_delta_ms=9).span_ms == (0, 9)


def test_a_join_names_sources_that_are_read() -> None:
    orders, payments = Source(KAFKA, "orders"), Source(KAFKA, "payments")
    join().check([orders, payments])
    with pytest.raises(InvalidDeclaration, match="'payment' is not the query") as caught:
        join(right_source="payment").check([orders, payments])
    assert caught.value.fix == "did you mean 'payments'?"


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (StateStore("redis"), "kind must be one of"),  # type: ignore[arg-type]
        (StateStore("postgres"), "url is missing"),
        (StateStore("postgres", url="postgres://h/db", schema=""), "schema is missing"),
        (StateStore("in_memory", url="postgres://h/db"), "url needs kind='postgres'"),
        (StateStore("in_memory", path="x"), "path needs kind='rocksdb'"),
        (StateStore("in_memory", checkpoint_interval_ms=0), "checkpoint_interval_ms must be at least 1"),
    ],
)
def test_a_wrong_state_store_fails_its_check(store: StateStore, said: str) -> None:
    with pytest.raises(InvalidDeclaration, match=said):
        store.check()


def test_the_password_of_a_state_store_does_not_show() -> None:
    store = StateStore("postgres", url="postgres://ann:openSesame8@db/state")
    store.check()
    assert "openSesame8" not in repr(store) and "ann" in repr(store)
    assert "openSesame8" not in scrub("refused: openSesame8")
    assert "${DSN}" in repr(StateStore("postgres", url="${DSN}"))


@pytest.mark.parametrize("wrong", [-1, 1.5, "5", True])
@pytest.mark.parametrize("option", ["lateness_ms", "source_idleness_ms"])
def test_a_watermark_is_refused_where_it_is_written(option: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=option):
        Watermark(**{option: wrong})


def test_a_lookup_is_a_table_or_a_query_of_a_database() -> None:
    assert Lookup(connection=WAREHOUSE, query="SELECT 1 AS id", refresh_interval_ms=60_000).table is None
    assert Lookup("warehouse", "dim_users", "public").schema == "public"
    with pytest.raises(InvalidDeclaration, match="exactly one of table and query"):
        Lookup("warehouse")
    with pytest.raises(InvalidDeclaration, match="exactly one of table and query"):
        Lookup("warehouse", "t", query="SELECT 1")
    with pytest.raises(InvalidDeclaration, match="'kafka_prod' is a kafka connection"):
        Lookup(KAFKA, "t")
    with pytest.raises(WrongConnectionType, match="not int"):
        Lookup(5, "t")  # type: ignore[arg-type]
    with pytest.raises(InvalidDeclaration, match="refresh_interval_ms"):
        Lookup("warehouse", "t", refresh_interval_ms=-1)
    with pytest.raises(InvalidDeclaration, match="schema needs table"):
        Lookup("warehouse", query="SELECT 1", schema="public")


CUSTOM = {"envelope": "custom", "op_field": "o", "after_field": "a", "key_field": "k", "op_map": {"I": "create"}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"envelope": "debesium"}, "did you mean 'debezium'"),
        ({"delete_mode": "none"}, "delete_mode must be one of"),
        ({"schema_evolution": "ignore"}, "schema_evolution must be one of"),
        ({"delete_mode": "soft"}, "needs soft_delete_column"),
        ({"soft_delete_column": "deleted_at"}, "needs delete_mode='soft'"),
        ({"out_of_order_tolerance_ms": -1}, "out_of_order_tolerance_ms"),
        ({"op_map": {"c": "insert"}}, r"op_map\['c'\] must be one of"),
        ({"op_map": ["c"]}, "op_map takes a dict"),
        ({"envelope": "custom"}, "'op_field', 'after_field', 'key_field', 'op_map'"),
        ({**CUSTOM, "key_field": None}, "needs 'key_field'"),
        ({**CUSTOM, "op_map": {}}, "needs 'op_map'"),
    ],
)
def test_wrong_change_events_are_refused_where_they_are_written(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        CDC(**given)


def test_right_change_events() -> None:
    mapping = {"I": "create"}
    cdc = CDC(**{**CUSTOM, "op_map": mapping})  # type: ignore[arg-type]
    mapping["I"] = "delete"
    assert cdc.op_map == {"I": "create"}
    assert CDC(delete_mode="soft", soft_delete_column="deleted_at", schema_evolution="add").envelope == "debezium"


# ── declaring a stream ───────────────────────────────────────────────────────────────────────────────────────────────

GIVEN: dict[str, Any] = {
    "name": "events_to_pg",
    "source": KAFKA,
    "source_query": "events",
    "target": WAREHOUSE,
    "target_table": ("public", "events"),
}


def test_a_decorated_stream_is_registered_with_its_arguments_as_given(fresh: Registry) -> None:
    window = tumbling(kind="wrong until it is run")

    @ematix.streaming_pipeline(**GIVEN, window=window)
    def events_to_pg():
        """Events."""

    assert isinstance(events_to_pg, StreamingPipeline)
    assert (events_to_pg.name, events_to_pg.__name__, events_to_pg.__doc__) == (
        "events_to_pg",
        "events_to_pg",
        "Events.",
    )
    assert events_to_pg.spec.options == {**GIVEN, "window": window}
    assert events_to_pg.spec.options["window"] is window
    found = fresh.streaming_pipeline("events_to_pg")
    assert found is not None and found.thing is events_to_pg and "test_stream_values.py" in str(found.where)
    assert streaming.get_streaming_pipeline("events_to_pg") is events_to_pg
    assert streaming.list_streaming_pipelines() == ["events_to_pg"]


def test_every_documented_keyword_is_taken(fresh: Registry) -> None:
    @ematix.streaming_pipeline(**{option: None for option in STREAM_OPTIONS if option != "name"}, name="all")
    def everything(): ...

    assert set(everything.spec.options) == set(STREAM_OPTIONS)


def test_a_mistyped_keyword_is_a_type_error_with_the_nearest_one(fresh: Registry) -> None:
    for declare in (ematix.streaming_pipeline, streaming.run_streaming_pipeline):
        with pytest.raises(WrongDeclarationType, match="no argument 'dead_leter_topic'") as caught:
            declare(**GIVEN, dead_leter_topic="x")
        assert isinstance(caught.value, TypeError) and caught.value.fix == "did you mean 'dead_letter_topic'?"
        with pytest.raises(TypeError, match="needs name="):
            declare(source=KAFKA)


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
    assert found is not None and found.spec.options["source_query"] == "events"
    assert streaming.get_streaming_pipeline("c") is None


# ── running one is refused ───────────────────────────────────────────────────────────────────────────────────────────


def test_running_a_right_stream_says_that_streams_are_not_here(fresh: Registry) -> None:
    @ematix.streaming_pipeline(**GIVEN, window=session(), state_store=StateStore("in_memory"), watermark=Watermark(5))
    def events_to_pg(): ...

    for run in (events_to_pg, events_to_pg.run, lambda: streaming.run_streaming_pipeline(**GIVEN)):
        with pytest.raises(UnsupportedBackend, match="streams are not part of this version") as caught:
            run()
        assert "events_to_pg" in str(caught.value) and "test_stream_values.py" in str(caught.value)
    with pytest.raises(UnsupportedBackend, match="streams are not part of this version"):
        streaming.render_streaming_pipeline_toml("events_to_pg")


def test_a_stream_nobody_declared_has_no_toml(fresh: Registry) -> None:
    streaming.register_streaming_pipeline("events", GIVEN)
    with pytest.raises(KeyError) as caught:
        streaming.render_streaming_pipeline_toml("evnts")
    assert "did you mean 'events'?" in str(caught.value)


@pytest.mark.parametrize("given", [{}, {"config": "a.toml", "config_str": "x = 1"}])
def test_run_pipeline_takes_either_a_file_or_a_text(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one of config= and config_str="):
        streaming.run_pipeline(**given)


@pytest.mark.parametrize("given", [{"config": "pipeline.toml", "metrics_port": 9100}, {"config_str": "x = 1"}])
def test_run_pipeline_says_that_streams_are_not_here(given: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedBackend, match="streams are not part of this version"):
        streaming.run_pipeline(**given)


def test_streams_of_every_documented_shape_are_right() -> None:
    sources = [Source(connection=KAFKA, query="orders"), Source(connection="kafka_prod", query="payments")]
    lookups = {"users": Lookup(connection=WAREHOUSE, query="SELECT user_id, tier FROM dim_users")}
    fan_out = [
        Target(connection=WAREHOUSE, table=("public", "events")),
        Target(connection=LAKE, prefix="events/raw", parquet_compression="zstd"),
    ]
    mirror = type("customer_mirror", (), {})
    state = StateStore("postgres", url="postgres://localhost/state")
    from_kafka = {"name": "s", "source": KAFKA, "source_query": "events"}
    for given in (
        {**GIVEN, "transform_sql": "SELECT * FROM source", "lookups": lookups, "transform_on_error": "dlq"},
        {**from_kafka, "targets": fan_out},
        {**from_kafka, "target": mirror, "target_connection": WAREHOUSE, "cdc": CDC(envelope="debezium")},
        {**from_kafka, "target": "warehouse", "delivery": "exactly_once"},
        {
            "name": "s",
            "sources": sources,
            "target": WAREHOUSE,
            "target_table": ("public", "op"),
            "join": join(),
            "state_store": state,
            "transform_sql": "  \n ",
        },
    ):
        with pytest.raises(UnsupportedBackend):
            streaming.run_streaming_pipeline(**given)


@udf(args=("Int64",), returns="Int64", name="twice")
def doubled(column):
    return column


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"source_query": None}, ValueError, "source= and source_query= are needed together"),
        ({"source": None}, ValueError, "needed together"),
        ({"source_query": " "}, ValueError, "query is missing"),
        ({"source": 5}, TypeError, "takes a connection or its name, not int"),
        ({"sources": [Source(KAFKA, "a")]}, ValueError, "sources= cannot go with source="),
        ({"source": None, "source_query": None, "sources": []}, ValueError, "sources= is empty"),
        ({"source": None, "source_query": None, "sources": ["a"]}, TypeError, "takes Source"),
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
        ({"target": None, "targets": [LAKE]}, TypeError, "takes Target"),
        ({"target": None, "target_table": None, "targets": [Target(connection=LAKE)]}, ValueError, "needs prefix="),
        ({"target_table": None}, ValueError, "needs target_table="),
        ({"target": KAFKA, "target_table": None}, ValueError, "needs target_topic="),
        ({"target": RabbitMQConnection(name="r", amqp_url="amqp://h")}, ValueError, "needs target_queue="),
        ({"dlq_store": "file"}, ValueError, "dlq_store must be one of"),
        ({"dlq_max_attempts": 0}, ValueError, "dlq_max_attempts"),
        ({"idle_pause_ms": -1}, ValueError, "idle_pause_ms"),
        ({"transform_on_error": "skip"}, ValueError, "transform_on_error"),
        ({"delivery": "once"}, ValueError, "delivery"),
        ({"window": {"kind": "tumbling"}}, TypeError, "window= takes Window"),
        ({"window": tumbling(duration_ms=0)}, ValueError, "duration_ms"),
        ({"window": session()}, ValueError, "needs state_store="),
        ({"join": join(), "state_store": StateStore("in_memory")}, ValueError, "'orders' is not the query"),
        ({"window": tumbling(), "cdc": CDC()}, ValueError, "window= and cdc= cannot go together"),
        ({"cdc": CDC(), "transform_sql": "SELECT 1"}, ValueError, "cdc= cannot go with transform_sql="),
        ({"lookups": {"u": Lookup("w", "t")}}, ValueError, "lookups= needs transform_sql="),
        ({"lookups": {"u": "t"}, "transform_sql": "SELECT 1"}, TypeError, "takes Lookup"),
        ({"lookups": {"source": Lookup("w", "t")}, "transform_sql": "SELECT 1"}, ValueError, "called 'source'"),
        ({"udfs": [len]}, TypeError, "takes what @udf made"),
        ({"aggregate_udfs": [doubled]}, TypeError, "takes what @udaf made"),
        ({"udfs": [doubled, doubled]}, ValueError, "Two UDFs are named 'twice'"),
    ],
)
def test_a_wrong_stream_is_refused_for_what_is_wrong_with_it(changes: dict[str, Any], error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        streaming.run_streaming_pipeline(**{**GIVEN, **changes})
