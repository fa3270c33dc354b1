"""Real runs, told as OpenLineage events: merge, history, several targets, failures, bare functions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, Text, ematix, pipeline, pk
from ematix_flow.declare import registry
from ematix_flow.declare.connection import SQLiteConnection
from ematix_flow.errors import FlowError
from ematix_flow.normalize import trim

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
