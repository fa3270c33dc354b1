"""Runs as OpenLineage events: valid by the public schemas, in a file or at a server, and never in a run's way."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from openlineage.client import event_v2 as client_event, facet_v2

from ematix_flow import BigInt, Text, ematix, pk
from ematix_flow.contracts.plans import SourceQuery
from ematix_flow.declare import registry
from ematix_flow.declare.connection import PostgresConnection, SQLiteConnection
from ematix_flow.declare.redaction import forget_secrets, remember_secret
from ematix_flow.errors import InvalidConfig
from ematix_flow.watch import openlineage
from ematix_flow.watch.openlineage import (
    RunLineage,
    current_emitter,
    reading_for_run,
    transport_from_url,
    use_lineage,
)

FACETS = {
    name: kind
    for module in vars(facet_v2).values()
    if isinstance(module, ModuleType)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and name.endswith("Facet")
}
SOURCE = PostgresConnection(name="crm", url="postgres://ann:pw@db/sales")
SINK = SQLiteConnection(name="mart", path="mart.db")
SQL = "SELECT id, lower(name) AS name FROM people"
RUN = str(uuid.uuid4())


@pytest.fixture(autouse=True)
def alone(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_API_KEY", "OPENLINEAGE_NAMESPACE", "OPENLINEAGE_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(openlineage, "_from_environment", {})
    with registry.isolated():
        yield
    forget_secrets()


@ematix.table(schema="main")
class People:
    id: Annotated[BigInt, pk()]
    name: Text


def told(run: RunLineage, *, mode: str = "merge", sql: str = SQL) -> None:
    """A run reads its source."""

    @ematix.pipeline(target=People, target_connection=SINK, mode=mode)
    def load_people(conn):
        return sql

    run.reading(load_people.spec, load_people.spec.target, SourceQuery(sql=sql), SOURCE, SINK)


def events(file: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in file.read_text().splitlines()]
    for event in found:
        check(event)
    return found


def check(event: dict[str, Any]) -> None:
    """The event and each of its facets are what OpenLineage's own client makes of them, by the schemas it knows."""
    parts = [*event["run"]["facets"].items(), *event["job"]["facets"].items()]
    for dataset in (*event["inputs"], *event["outputs"]):
        parts += [*dataset.get("facets", {}).items(), *dataset.get("outputFacets", {}).items()]
    for name, facet in parts:
        kind = FACETS[facet["_schemaURL"].rpartition("/")[2]]
        theirs = structured(kind, {key: value for key, value in facet.items() if not key.startswith("_")})
        version = re.search(r"/(\d+-\d+-\d+)/", facet["_schemaURL"])
        assert version is not None and kind.__name__ in theirs._get_schema(), name
        assert facet["_producer"].startswith("urn:ematix-flow:")
    bare = {key: value for key, value in event.items() if key not in ("schemaURL", "inputs", "outputs")}
    client_event.RunEvent(
        **{
            **bare,
            "eventType": client_event.RunState[event["eventType"]],
            "run": client_event.Run(event["run"]["runId"]),
            "job": client_event.Job(event["job"]["namespace"], event["job"]["name"]),
        },
        inputs=[client_event.InputDataset(one["namespace"], one["name"]) for one in event["inputs"]],
        outputs=[client_event.OutputDataset(one["namespace"], one["name"]) for one in event["outputs"]],
    )


def structured(kind: Any, value: Any) -> Any:
    """Plain data as the client's classes; a field that they lack, or miss, is an error."""
    import attr

    origin = get_origin(kind)
    if origin in (Union, UnionType):
        if value is None:
            return None
        return structured(next(part for part in get_args(kind) if part is not type(None)), value)
    if origin is list:
        return [structured(get_args(kind)[0], one) for one in value]
    if origin is dict:
        return {key: structured(get_args(kind)[1], one) for key, one in value.items()}
    if isinstance(kind, type) and attr.has(kind):
        hints = get_type_hints(kind)
        return kind(**{key: structured(hints[key], one) for key, one in value.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    assert not isinstance(kind, type) or kind is Any or isinstance(value, kind), (kind, value)
    return value


def test_a_run_is_a_start_and_a_complete_with_columns_and_rows(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "lineage.jsonl"
    with use_lineage(f"file://{file}"):
        run = RunLineage("load_people", RUN, nominal_at=datetime(2026, 3, 1, 6, tzinfo=timezone.utc))
        told(run)
        run.finished("succeeded", result={"rows_inserted": 2, "rows_updated": 3, "rows_unchanged": 9})
    start, complete = events(file)
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == complete["run"]["runId"] == RUN
    assert start["job"] | {"facets": None} == {"namespace": "default", "name": "load_people", "facets": None}
    assert start["run"]["facets"]["nominalTime"]["nominalStartTime"] == "2026-03-01T06:00:00.000Z"
    assert complete["job"]["facets"]["sql"]["query"] == SQL
    assert complete["inputs"] == [{"namespace": "postgres://db:5432", "name": "sales.public.people"}]
    (output,) = complete["outputs"]
    assert output["name"] == "main.people"
    fields = {field["name"]: field for field in output["facets"]["schema"]["fields"]}
    assert fields["id"]["type"] == "BigInt" and fields["_batch_id"]["description"] == "made by ematix-flow"
    lineage = output["facets"]["columnLineage"]
    assert lineage["fields"]["name"]["inputFields"] == [
        {
            "namespace": "postgres://db:5432",
            "name": "sales.public.people",
            "field": "name",
            "transformations": [{"type": "DIRECT", "subtype": "TRANSFORMATION", "masking": False}],
        }
    ]
    assert [field["transformations"][0]["subtype"] for field in lineage["dataset"]] == ["JOIN"]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 5
    assert start["outputs"][0]["facets"] == output["facets"]


def test_a_failed_run_says_why_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "lineage.jsonl"
    remember_secret("tr0ub4dor")
    with use_lineage(str(file)):
        run = RunLineage("load_people", "2026-03-01")
        told(run, mode="truncate", sql=f"{SQL} WHERE key = 'tr0ub4dor'")
        run.finished("failed", error=RuntimeError("login tr0ub4dor refused"))
    _, failed = events(file)
    assert failed["eventType"] == "FAIL"
    assert failed["run"]["facets"]["errorMessage"]["message"] == "login <redacted> refused"
    assert failed["outputs"][0]["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "OVERWRITE"
    assert uuid.UUID(failed["run"]["runId"]), "an id of the user's own becomes a UUID, the same each time"
    assert "tr0ub4dor" not in file.read_text()


def test_a_run_that_never_came_to_its_source_still_has_both_events(tmp_path: Path) -> None:
    file = tmp_path / "lineage.jsonl"
    with use_lineage(str(file)):
        RunLineage("load_people", RUN).finished("cancelled", error="interrupted")
    assert [event["eventType"] for event in events(file)] == ["START", "ABORT"]


def test_several_targets_are_outputs_of_one_run(tmp_path: Path) -> None:
    file = tmp_path / "lineage.jsonl"

    @ematix.table(schema="main")
    class Names:
        name: Text

    @ematix.pipeline(
        targets=[ematix.target(People, mode="append"), ematix.target(Names, mode="append")], target_connection=SINK
    )
    def both(conn):
        return SQL

    with use_lineage(str(file)):
        run = RunLineage("both", RUN)
        for target in both.spec.targets:
            run.reading(both.spec, target, SourceQuery(sql=SQL), SOURCE, SINK)
        run.finished("succeeded", result={"main.people": {"rows_inserted": 1}, "main.names": {"rows_inserted": 7}})
    _, complete = events(file)
    rows = {o["name"]: o["outputFacets"]["outputStatistics"]["rowCount"] for o in complete["outputs"]}
    assert rows == {"main.people": 1, "main.names": 7}
    assert len(complete["inputs"]) == 1


class Listening(BaseHTTPRequestHandler):
    """A stand-in for a lineage server such as Marquez: takes what is posted."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.heard.append((self.path, self.headers.get("Authorization"), json.loads(body)))  # type: ignore[attr-defined]
        self.send_response(self.server.answer)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Listening) as standing_in:
        standing_in.heard, standing_in.answer = [], 201  # type: ignore[attr-defined]
        Thread(target=standing_in.serve_forever, daemon=True).start()
        yield standing_in
        standing_in.shutdown()


def test_events_are_posted_with_the_key_of_the_environment(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "k3y-of-marquez")
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop")
    run = RunLineage("load_people", RUN)
    told(run)
    run.finished("succeeded")
    assert [(path, key, event["eventType"]) for path, key, event in server.heard] == [
        ("/api/v1/lineage", "Bearer k3y-of-marquez", "START"),
        ("/api/v1/lineage", "Bearer k3y-of-marquez", "COMPLETE"),
    ]
    assert server.heard[0][2]["job"]["namespace"] == "shop"


def test_a_server_that_refuses_or_is_away_is_one_warning(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    server.answer = 500
    away = server.server_port
    with caplog.at_level(logging.WARNING), use_lineage(f"http://127.0.0.1:{away}/elsewhere"):
        run = RunLineage("load_people", RUN)
        told(run)
        run.finished("succeeded")
    assert server.heard[0][0] == "/elsewhere"
    assert [r.getMessage() for r in caplog.records] == [
        f"lineage is not delivered to http://127.0.0.1:{away}/elsewhere: HTTP Error 500: Internal Server Error"
    ]


def test_a_server_that_hangs_delays_the_end_of_a_run_by_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(openlineage, "_LAST_WORDS_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with use_lineage(f"http://127.0.0.1:{silent.getsockname()[1]}"):
            RunLineage("load_people", RUN).finished("succeeded")
        assert time.monotonic() - began < 2


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING), use_lineage(str(tmp_path / "file" / "below")):
        RunLineage("load_people", RUN).finished("succeeded")
    assert "lineage of a run is not told" in caplog.text


def test_nobody_listens_unless_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert current_emitter() is None
    monkeypatch.setenv("EMATIX_FLOW_LINEAGE", str(tmp_path / "a.jsonl"))
    assert current_emitter() is not None
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    assert current_emitter() is None


@pytest.mark.parametrize("url", ["ftp://x/y", "file://", "http://", "https://ann:pw@host/x"])
def test_a_url_that_is_none_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        transport_from_url(url)
    assert "pw" not in str(refused.value)


@pytest.mark.parametrize(
    ("error", "end"), [(None, "COMPLETE"), (ValueError("no"), "FAIL"), (KeyboardInterrupt(), "ABORT")], ids=str
)
def test_around_a_run_the_end_is_told_however_it_ends(tmp_path: Path, error: BaseException | None, end: str) -> None:
    file = tmp_path / "lineage.jsonl"

    @ematix.pipeline(target=People, target_connection=SINK, mode="append")
    def load_people(conn):
        return SQL

    def run() -> dict[str, int]:
        with RunLineage("load_people", RUN) as lineage:
            reading_for_run(load_people.spec, load_people.spec.target, SourceQuery(sql=SQL), SOURCE, SINK)
            if error is not None:
                raise error
            return lineage.told({"rows_inserted": 4})

    with use_lineage(str(file)):
        if error is None:
            assert run() == {"rows_inserted": 4}
        else:
            with pytest.raises(type(error)):
                run()
    reading_for_run(load_people.spec, load_people.spec.target, SourceQuery(sql=SQL), SOURCE, SINK)  # nobody's run
    start, ended = events(file)
    assert ended["eventType"] == end and start["inputs"] == ended["inputs"] != []


def test_a_run_inside_another_names_it_as_its_parent(tmp_path: Path) -> None:
    file = tmp_path / "lineage.jsonl"
    with use_lineage(str(file)), RunLineage("morning", RUN, job_type="WORKFLOW") as whole:
        whole.started()
        with RunLineage("load_people", "req-1") as part:
            told(part)
    outer, inner, _, _ = events(file)
    assert inner["run"]["facets"]["parent"]["run"]["runId"] == outer["run"]["runId"] == RUN
    assert inner["run"]["facets"]["parent"]["job"]["name"] == "morning"
