"""Real runs, told as OpenLineage events: merge, history, several targets, failures, bare functions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, Text, ematix, pipeline, pk, tracing
from ematix_flow.declare import registry
from ematix_flow.declare.connection import SQLiteConnection
from ematix_flow.errors import FlowError
from ematix_flow.normalize import trim
from ematix_flow.orchestrate.run_due import run_due
from ematix_flow.run.registered import orchestrated
from ematix_flow.run.runlogs.memory import InMemoryRunLog
from ematix_flow.run.runner import run_transform
from ematix_flow.watch.telling import Telling

SHOP = SQLiteConnection(name="shop", path="shop.db")
SQL = "SELECT id, name AS label FROM raw"


@ematix.table(schema="main")
class Things:
    id: Annotated[BigInt, pk()]
    label: Annotated[Text, trim()]


@ematix.table(schema="main")
class Labels:
    label: Text


@pytest.fixture(autouse=True)
def told(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("EMATIX_FLOW_LINEAGE", str(tmp_project / "lineage.jsonl"))
    monkeypatch.setenv("EMATIX_FLOW_RUN_LOG_URL", "memory://")
    db = sqlite3.connect("shop.db")
    db.executescript("CREATE TABLE raw (id BIGINT, name TEXT); INSERT INTO raw VALUES (1, ' a '), (2, 'b');")
    db.close()
    with registry.isolated():
        yield tmp_project / "lineage.jsonl"


def events(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def origins(output: dict[str, Any], column: str) -> list[tuple[str, str]]:
    fields = output["facets"]["columnLineage"]["fields"]
    return [(field["name"], field["field"]) for field in fields.get(column, {"inputFields": []})["inputFields"]]


@pytest.mark.parametrize("mode", ["append", "truncate", "merge", "scd2"])
def test_a_run_tells_tables_columns_and_rows(mode: str, told: Path) -> None:
    @ematix.pipeline(target=Things, target_connection=SHOP, mode=mode)
    def load(conn):
        return SQL

    result = load.sync()
    start, complete = events(told)
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == result["run_id"]
    assert [dataset["name"] for dataset in complete["inputs"]] == ["main.raw"]
    (output,) = complete["outputs"]
    assert output["name"] == "main.things" and output["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert origins(output, "label") == [("main.raw", "name")]
    # What the events call the table's columns is what the table has.
    db = sqlite3.connect("shop.db")
    live = {row[1] for row in db.execute("PRAGMA table_info(things)")}
    db.close()
    assert {field["name"] for field in output["facets"]["schema"]["fields"]} == live


def test_several_targets_are_one_run(told: Path) -> None:
    @ematix.pipeline(
        targets=[ematix.target(Things, mode="merge"), ematix.target(Labels, mode="append")], target_connection=SHOP
    )
    def load(conn):
        return SQL

    load.sync()
    *_, complete = events(told)
    assert len(events(told)) == 2
    assert [output["name"] for output in complete["outputs"]] == ["main.things", "main.labels"]


def test_a_failed_run_says_so(told: Path) -> None:
    @ematix.pipeline(target=Things, target_connection=SHOP, mode="append")
    def load(conn):
        return "SELECT id, name AS label FROM nowhere"

    with pytest.raises(FlowError):
        load.sync()
    assert [event["eventType"] for event in events(told)] == ["START", "FAIL"]
    assert "nowhere" in events(told)[1]["run"]["facets"]["errorMessage"]["message"]


def test_a_broken_listener_breaks_no_run(told: Path) -> None:
    told.mkdir()

    @ematix.pipeline(target=Things, target_connection=SHOP, mode="append")
    def load(conn):
        return SQL

    assert load.sync()["rows_inserted"] == 2


def test_a_bare_function_is_a_run_without_datasets(told: Path) -> None:
    from ematix_flow.run.runner import run_function

    @pipeline.register(name="tidy", schedule=None)
    def tidy():
        return {"rows": 1}

    run_function("tidy", tidy)
    assert [(e["eventType"], e["inputs"], e["outputs"]) for e in events(told)] == [
        ("START", [], []),
        ("COMPLETE", [], []),
    ]


@pytest.fixture
def spans() -> Iterator[Any]:
    """What is traced in this process."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.set_global_tracer(provider.get_tracer("test"))
    yield exporter
    tracing.set_global_tracer(None)


def test_a_workflow_its_jobs_and_its_failures_are_told_and_traced(told: Path, spans: Any) -> None:
    pipeline.register(name="fetch", schedule=None)(lambda: {"rows": 1})

    @pipeline.register(name="publish", schedule=None, depends_on=["fetch"])
    def publish() -> None:
        raise RuntimeError("no paper")

    ematix.workflow(name="morning", jobs=["fetch", "publish"], schedule="0 6 * * *")
    store = InMemoryRunLog()
    just_due = datetime(2026, 3, 1, 6, 0, 1, tzinfo=timezone.utc)
    assert run_due(orchestrated(), store, Telling(), now=just_due).failed
    found = events(told)
    assert [(event["job"]["name"], event["eventType"]) for event in found] == [
        *(("morning", "START"), ("fetch", "START"), ("fetch", "COMPLETE")),
        *(("publish", "START"), ("publish", "FAIL"), ("morning", "FAIL")),
    ]
    whole, job = found[0], found[1]
    (record,), _ = store.list_runs(pipeline="morning")
    assert whole["run"]["runId"] == record.run_id
    assert whole["job"]["facets"]["jobType"]["jobType"] == "WORKFLOW"
    assert whole["run"]["facets"]["nominalTime"]["nominalStartTime"] == "2026-03-01T06:00:00.000Z"
    assert job["run"]["facets"]["parent"]["run"] == {"runId": record.run_id}
    assert job["run"]["facets"]["parent"]["job"] == {"namespace": "default", "name": "morning"}
    assert "parent" not in whole["run"]["facets"]
    by_name = {span.attributes["flow.pipeline.name"]: span for span in spans.get_finished_spans()}
    assert set(by_name) == {"morning", "fetch", "publish"}
    assert by_name["fetch"].parent.span_id == by_name["morning"].context.span_id
    assert [by_name[name].status.is_ok for name in ("fetch", "publish", "morning")] == [True, False, False]


def test_a_transform_is_told_and_traced(told: Path, spans: Any) -> None:
    @ematix.transform(target_connection=SHOP)
    def tidy(conn: Any) -> dict[str, int]:
        conn.execute("DELETE FROM raw WHERE id = 2")
        return {"removed": 1}

    result = run_transform("tidy")
    start, complete = events(told)
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == result["run_id"]
    assert start["job"]["facets"]["jobType"]["jobType"] == "TRANSFORM"
    (span,) = spans.get_finished_spans()
    assert (span.name, span.attributes["flow.pipeline.name"]) == ("flow.pipeline.run", "tidy")
