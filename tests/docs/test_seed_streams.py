"""Every documented streaming example, in TOML and in Python, becomes a stream that is right, and the same one twice.

Nothing runs here: a call of `run_streaming_pipeline` in an example is taken for the declaration it is. Names that a
document uses and never declares (`s3`, `kafka_quotes`, `customer_mirror`) are declared by the test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.config.stream_ready import check_stream
from ematix_flow.config.stream_render import render
from ematix_flow.config.stream_toml import read_stream_toml
from ematix_flow.declare import registry
from ematix_flow.declare.connection import KafkaConnection, ObjectStoreLocalConnection, PostgresConnection
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.stream import CDC, Source
from ematix_flow.declare.stream_ends import target_primary_key, target_table
from ematix_flow.declare.stream_pipeline import StreamingPipeline, stream_spec
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.target import Target
from tests.docs.seed_examples import example

UNDECLARED = """
from typing import Annotated
from ematix_flow import BigInt, Lookup, ObjectStoreLocalConnection, KafkaConnection, Text, ematix, pk
s3 = ObjectStoreLocalConnection(name="s3", path="files", format="csv")
kafka_quotes = KafkaConnection(name="kafka_quotes", bootstrap_servers="${KAFKA_BOOTSTRAP}", group_id="quotes")

@ematix.table(schema="public")
class customer_mirror:
    id: Annotated[BigInt, pk()]
    email: Text
"""
VARIABLES = {
    "KAFKA_BOOTSTRAP": "broker:9092",
    "WAREHOUSE_DSN": "postgres://u:tulip-77@h/wh",
    "AWS_ACCESS_KEY_ID": "tulip-78",
    "AWS_SECRET_ACCESS_KEY": "tulip-79",
}
LEFT_OUT = {"name": "events", "source": "kafka_prod", "source_query": "events", "target": "warehouse"}
"""What `run_streaming_pipeline(..., watermark=…)` leaves out."""


@pytest.fixture(autouse=True)
def environment(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with registry.isolated():
        yield


class Declaring(ast.NodeTransformer):
    """The program with every call that would run a stream as a declaration, and none of the names it is given."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "run_streaming_pipeline":
            return ast.Call(ast.Name("declared", ast.Load()), node.args, node.keywords)
        return node


def streams_of(*names: str) -> dict[str, StreamSpec]:
    """The streams that examples declare, one after the other in one module."""
    found: dict[str, StreamSpec] = {}

    def declared(*left_out: Any, **options: Any) -> None:
        where = SourceLocation(file="example", line=1)
        spec = stream_spec({**(LEFT_OUT if left_out else {}), **options}, where)
        found[spec.name] = spec

    scope: dict[str, Any] = {"declared": declared, "__name__": "documented"}
    exec(UNDECLARED, scope)
    for name in names:
        tree = ast.fix_missing_locations(Declaring().visit(ast.parse(example(name))))
        exec(compile(tree, name, "exec"), scope)
    for entry in registry.current().streaming_pipelines():
        assert isinstance(entry.thing, StreamingPipeline)
        found[entry.name] = entry.thing.spec
    for spec in found.values():
        check_stream(spec)
    return found


def is_carried_by_toml(spec: StreamSpec) -> bool:
    """Whether the stream is the same one after it has been written as TOML and read again."""
    text = render(spec)
    assert "tulip" not in text
    return read_stream_toml(text) == spec


DECLARED = "readme-0.3/stream-declared.python"


@pytest.mark.parametrize("document", ["readme-0.1", "readme-0.3"])
def test_the_document_in_toml_is_the_stream_it_describes(document: str) -> None:
    spec = read_stream_toml(example(f"{document}/stream.toml"))
    source = KafkaConnection(name="source", bootstrap_servers="localhost:9092", group_id="ematix-flow")
    target = PostgresConnection(name="target", url="postgres://localhost/mydb")
    assert (spec.name, spec.idle_pause_ms) == ("events-to-pg", 500)
    assert spec.sources == (Source(source, "events"),)
    assert spec.targets == (Target(connection=target, table=("public", "events")),)
    assert is_carried_by_toml(spec)


@pytest.mark.parametrize("document", ["readme-0.1", "readme-0.3"])
def test_a_declared_stream_has_its_connections_and_place(document: str) -> None:
    (spec,) = streams_of(f"{document}/stream-declared.python").values()
    kafka = KafkaConnection(name="kafka_prod", bootstrap_servers="${KAFKA_BOOTSTRAP}", group_id="ematix-flow")
    warehouse = PostgresConnection(name="warehouse", url="${WAREHOUSE_DSN}")
    assert spec.name == "events_to_pg" and spec.sources == (Source(kafka, "events"),)
    assert spec.targets == (Target(connection=warehouse, table=("public", "events")),)
    assert is_carried_by_toml(spec)


def test_the_fan_out_has_two_targets() -> None:
    spec = streams_of(DECLARED, "readme-0.3/stream-fan-out.python")["events_fanout"]
    assert [target.connection.name for target in spec.targets] == ["warehouse", "lake"]
    assert (spec.targets[1].prefix, spec.targets[1].parquet_compression) == ("events/raw", "zstd")
    assert is_carried_by_toml(spec)


def test_sql_with_a_lookup_and_sql_that_nests() -> None:
    found = streams_of(DECLARED, "readme-0.3/stream-lookup.python", "readme-0.3/stream-json.python")
    users = found["events-clean"].lookups["users"]
    assert (users.query, users.refresh_interval_ms) == ("SELECT user_id, tier FROM dim_users", 60_000)
    snapshots = found["option-chain-snapshots"]
    assert "array_agg(named_struct(" in (snapshots.transform_sql or "")
    assert isinstance(snapshots.sources[0].connection, ObjectStoreLocalConnection)
    assert is_carried_by_toml(found["events-clean"]) and is_carried_by_toml(snapshots)


def test_functions_of_the_user_are_kept_with_their_stream() -> None:
    found = streams_of(DECLARED, "readme-0.3/stream-udf.python", "readme-0.3/stream-udaf.python")
    assert [handle.name for handle in found["option-chain-with-greeks"].udfs] == ["bs_call_delta"]
    assert [handle.name for handle in found["vwap-per-minute"].aggregate_udfs] == ["vwap"]


@pytest.mark.parametrize(
    "names",
    [
        ["readme-0.1/stream-window.python", "readme-0.1/stream-session.python", "readme-0.1/stream-join.python"],
        [
            DECLARED,
            *(f"readme-0.3/stream-{name}.python" for name in ("lookup", "window", "session", "join")),
        ],
    ],
    ids=["readme-0.1", "readme-0.3"],
)
def test_windows_sessions_and_joins(names: list[str]) -> None:
    found = streams_of(*names)
    minutes, sessions, join = found["events-per-min"], found["user-sessions"], found["orders-payments"]
    assert minutes.window is not None and minutes.window.output_columns() == (
        "window_start",
        "window_end",
        "user_id",
        "n",
    )
    assert sessions.window is not None and sessions.window.gap_ms == 300_000 and sessions.needs_state_store
    assert join.join is not None and join.join.span_ms == (-300_000, 300_000)
    assert [source.query for source in join.sources] == ["orders", "payments"]
    assert all(is_carried_by_toml(spec) for spec in (minutes, sessions, join))


def test_changes_are_applied_to_a_declared_table() -> None:
    spec = streams_of(DECLARED, "readme-0.3/stream-cdc.python")["mirror_customers"]
    (target,) = spec.targets
    assert spec.cdc == CDC(envelope="debezium")
    assert (target.connection.name, target_table(target)) == ("warehouse", ("public", "customer_mirror"))
    assert target_primary_key(target) == ("id",)


def test_options_shown_on_their_own_are_taken() -> None:
    for name in ("readme-0.3/stream-watermark.python", "readme-0.3/stream-on-error.python"):
        (spec,) = [spec for stream, spec in streams_of(name).items() if stream == "events"]
        assert spec.watermark is not None or (spec.transform_on_error, spec.dead_letter_topic) == (
            "dlq",
            "events-failed",
        )
    found = streams_of(
        "readme-0.1/stream-declared.python", "readme-0.1/stream-watermark.python", "readme-0.1/stream-files.python"
    )
    clean, archive = found["events-clean"], found["events_archive"]
    assert clean.watermark is not None and (clean.watermark.lateness_ms, clean.transform_on_error) == (5_000, "dlq")
    assert archive.targets[0].parquet_compression == "zstd"
    assert is_carried_by_toml(clean) and is_carried_by_toml(archive)
