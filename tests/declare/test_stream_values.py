"""The values a stream is declared with, and what each of them refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ematix_flow.declare.connection import KafkaConnection, PostgresConnection
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.stream import CDC, Aggregation, Join, Lookup, Source, StateStore, Watermark, Window
from ematix_flow.errors import (
    DeclarationError,
    InvalidDeclaration,
    WrongConnectionType,
    WrongDeclarationType,
)

KAFKA = KafkaConnection(name="kafka_prod", bootstrap_servers="${KAFKA}", group_id="g")
WAREHOUSE = PostgresConnection(name="warehouse", url="postgres://localhost/wh")
COUNT = Aggregation(agg="count", as_="n")


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
    assert list(defaults(Aggregation)) == ["agg", "as_", "column", "mode", "max_distinct_values_per_group", "columns"]
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
        "time_mode": "event",
        "on_state_cap": "fail",
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
        (tumbling(group_by=["N"]), "'n' would be the name of two output columns, beside 'N', which differs in case"),
        (tumbling(aggregations=[Aggregation("count", "Window_Start")]), "beside 'window_start'"),
        (tumbling(late_data="keep"), "late_data must be one of"),
        (tumbling(late_data="reopen"), "needs allowed_lateness_ms"),
        (tumbling(allowed_lateness_ms=5), "needs late_data='reopen'"),
        (tumbling(late_data="reopen", allowed_lateness_ms=-1), "at least 0"),
        (tumbling(max_groups_per_window=0), "max_groups_per_window must be at least 1"),
        (tumbling(time_mode="ingest"), "time_mode must be one of"),
        (tumbling(on_state_cap="drop"), "on_state_cap must be one of"),
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
    with pytest.raises(WrongDeclarationType, match="group_by takes a tuple or list"):
        tumbling(group_by={"user_id": 1})
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
        ({"left_keys": [" "]}, "a column of left_keys is missing or empty"),
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
        (StateStore("postgres", url="mysql://h/db"), "not the address of a PostgreSQL database"),
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
        ({"key_field": 5}, "key_field must be text"),
        ({"op_field": ""}, "op_field is missing or empty"),
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
