"""Lineage for others: every run as OpenLineage events, in a file or sent to a server. No run ever fails for it.

Events are plain JSON of the public specification (openlineage.io, version 2-0-2): START, then COMPLETE, FAIL or ABORT,
with what was read and written, the columns of both, and which come from which. Streams: `stream_lineage.py`.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from ematix_flow._version import __version__
from ematix_flow.contracts.plans import SourceQuery
from ematix_flow.contracts.runtime import RunStatus, instant_text
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.redaction import display_url, remember_secret, scrub
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import InvalidConfig, RunCancelled
from ematix_flow.watch.lineage import Dataset, FieldOrigin, KnownColumns, Lineage, Output, lineage_of

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
EventType = Literal["START", "RUNNING", "COMPLETE", "FAIL", "ABORT"]
JobType = Literal["PIPELINE", "TRANSFORM", "WORKFLOW"]

VARIABLE = "EMATIX_FLOW_LINEAGE"
PRODUCER = f"urn:ematix-flow:{__version__}"
_SPEC = "https://openlineage.io/spec"
_EVENT_SCHEMA = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_ENDPOINT = "/api/v1/lineage"
_MADE_HERE = "made by ematix-flow"
_POST_TIMEOUT_S = 3.0
_LAST_WORDS_S = 3.0
_MOST_WAITING = 1000
ENDS: dict[str, EventType] = {"succeeded": "COMPLETE", "failed": "FAIL", "cancelled": "ABORT"}


# ── where events go ──────────────────────────────────────────────────────────────────────────────────────────────────


class Transport(Protocol):
    """Where events go."""

    def send(self, event: Mapping[str, Any]) -> None:
        """Take an event; may raise, which is one warning."""

    def drain(self, timeout_s: float) -> None:
        """Wait, but not longer, until what was taken is delivered."""


class FileTransport:
    """Appends one line of JSON per event; several processes may write to the same file."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))

    def send(self, event: Mapping[str, Any]) -> None:
        """One write of one line, so that lines of other writers stay whole."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        line = json.dumps(event, ensure_ascii=False) + "\n"
        with open(self.path, "ab", buffering=0) as file:
            file.write(line.encode())

    def drain(self, timeout_s: float) -> None:
        """Nothing waits."""


class HttpTransport:
    """Posts events from a thread of its own. A server that is away is one warning, and its events are lost."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url
        self._api_key = api_key
        self._waiting: queue.Queue[bytes] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._has_warned = False

    def send(self, event: Mapping[str, Any]) -> None:
        """Put the event into the queue; raises `queue.Full` when a thousand are waiting already."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._deliver, name="openlineage", daemon=True)
                self._thread.start()
        self._waiting.put_nowait(json.dumps(event, ensure_ascii=False).encode())

    def drain(self, timeout_s: float) -> None:
        """Wait for the queue to be empty."""
        until = time.monotonic() + timeout_s
        with self._waiting.all_tasks_done:
            while self._waiting.unfinished_tasks and (left := until - time.monotonic()) > 0:
                self._waiting.all_tasks_done.wait(left)

    def _deliver(self) -> None:
        while True:
            body = self._waiting.get()
            try:
                self._post(body)
                self._has_warned = False
            except Exception as exc:  # a thread that dies would lose all later events
                if not self._has_warned:
                    self._has_warned = True
                    log.warning("lineage is not delivered to %s: %s", display_url(self.url), scrub(str(exc)))
            finally:
                self._waiting.task_done()

    def _post(self, body: bytes) -> None:
        from urllib.request import Request, urlopen

        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        with urlopen(Request(self.url, data=body, headers=headers, method="POST"), timeout=_POST_TIMEOUT_S) as answer:
            answer.read()


def transport_from_url(url: str) -> Transport:
    """The transport behind `file:///path`, a path, `http://host[/path]` or `https://…`.

    A key for the server is in `OPENLINEAGE_API_KEY`, a path other than the usual one in the URL or in
    `OPENLINEAGE_ENDPOINT`.

    Raises:
        InvalidConfig: It is none of them.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() == "file":
        path = rest if separator else url
        if not path.strip():
            raise InvalidConfig(
                "The file for lineage has no name.", fix="for example file:///var/log/flow/lineage.jsonl"
            )
        return FileTransport(path)
    address = urlsplit(url)
    if scheme.lower() not in ("http", "https") or not address.hostname:
        raise InvalidConfig(
            f"Lineage cannot be sent to '{display_url(url)}'.", fix="file:///path, http://host:port or https://host"
        )
    if "@" in address.netloc:
        raise InvalidConfig(
            "The URL for lineage holds a login.", fix="put the server's key into the variable OPENLINEAGE_API_KEY"
        )
    if address.path in ("", "/"):
        url = f"{scheme}://{address.netloc}/" + os.environ.get("OPENLINEAGE_ENDPOINT", _ENDPOINT).lstrip("/")
    key = os.environ.get("OPENLINEAGE_API_KEY")
    remember_secret(key)
    return HttpTransport(url, key)


# ── who is told, in this process ─────────────────────────────────────────────────────────────────────────────────────


class LineageEmitter:
    """Turns runs into events. No method ever raises: what cannot be told is one warning.

    Args:
        transport: where events go.
        namespace: of the jobs; `OPENLINEAGE_NAMESPACE`, or `default`.
    """

    def __init__(self, transport: Transport, namespace: str | None = None) -> None:
        self._transport = transport
        self.namespace = namespace or os.environ.get("OPENLINEAGE_NAMESPACE") or "default"

    def started(self, run: TrackedRun) -> None:
        """A run begins."""
        self._send(lambda: run_event("START", run, self.namespace, run.started_at))

    def goes_on(self, run: TrackedRun) -> None:
        """A run that takes long is alive."""
        self._send(lambda: run_event("RUNNING", run, self.namespace, datetime.now(timezone.utc)))

    def finished(self, run: TrackedRun, end: EventType) -> None:
        """It ended. Waits a moment for the delivery: the process may end with the run."""
        self._send(lambda: run_event(end, run, self.namespace, datetime.now(timezone.utc)))
        self._transport.drain(_LAST_WORDS_S)

    def _send(self, made: Callable[[], Mapping[str, Any]]) -> None:
        try:
            self._transport.send(made())
        except Exception as exc:  # the promise of this class
            log.warning("lineage of a run is not told: %s", scrub(f"{type(exc).__name__}: {exc}"))


_lock = threading.Lock()
_chosen: list[LineageEmitter | None] = []
_from_environment: dict[str, LineageEmitter | None] = {}


@contextmanager
def use_lineage(url: str | None) -> Iterator[None]:
    """Tell runs inside the block to this URL; without one the environment decides.

    Raises:
        InvalidConfig: The URL is none.
    """
    if url is None:
        yield
        return
    emitter = LineageEmitter(transport_from_url(url))
    with _lock:
        _chosen.append(emitter)
    try:
        yield
    finally:
        with _lock:
            _chosen.remove(emitter)


def current_emitter() -> LineageEmitter | None:
    """Who is told of runs: as chosen, else `EMATIX_FLOW_LINEAGE`, else `OPENLINEAGE_URL`; None when nobody is."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").lower() in ("1", "true"):
        return None
    url = os.environ.get(VARIABLE) or os.environ.get("OPENLINEAGE_URL")
    with _lock:
        if _chosen:
            return _chosen[-1]
        if not url:
            return None
        if url not in _from_environment:
            try:
                _from_environment[url] = LineageEmitter(transport_from_url(url))
            except InvalidConfig as exc:
                log.warning("no lineage: %s", exc.message)
                _from_environment[url] = None
        return _from_environment[url]


@dataclass(frozen=True)
class TrackedRun:
    """One run as its events tell it."""

    run_id: str
    pipeline: str
    started_at: datetime
    nominal_at: datetime | None = None
    lineage: Lineage | None = None
    rows: Mapping[str, int] | None = None
    error: str | None = None
    is_stream: bool = False
    job_type: JobType = "PIPELINE"
    parent: TrackedRun | None = None


class RunLineage:
    """What one run tells of its lineage. No method ever raises.

    The runner makes one per run and uses it as a context manager around everything that can fail; `load_target`
    calls `reading_for_run` for each target; the result goes through `told`. A run inside another one names that as its
    parent.

    Args:
        pipeline: its name.
        run_id: the run's own id.
        nominal_at: the time the run is for, when it was scheduled.
        job_type: what it is a run of.
        emitter: who is told; by default whoever is in this process.
    """

    def __init__(
        self,
        pipeline: str,
        run_id: str,
        *,
        nominal_at: datetime | None = None,
        job_type: JobType = "PIPELINE",
        emitter: LineageEmitter | None = None,
    ) -> None:
        self._emitter = emitter or current_emitter()
        self._run = TrackedRun(run_id, pipeline, datetime.now(timezone.utc), nominal_at, job_type=job_type)
        self._tables: dict[str, Dataset] = {}
        self._has_started = False
        self._result: Any = None
        self._before: Token[RunLineage | None] | None = None

    def __enter__(self) -> RunLineage:
        if (around := _under_way.get()) is not None:
            self._run = replace(self._run, parent=around._run)
        self._before = _under_way.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._before is not None:
            _under_way.reset(self._before)
        if exc is None:
            has_errors = isinstance(self._result, Mapping) and bool(self._result.get("errors"))
            self.finished("failed" if has_errors else "succeeded", result=self._result)
        else:
            is_stopped = isinstance(exc, KeyboardInterrupt | RunCancelled)
            self.finished("cancelled" if is_stopped else "failed", error=exc)

    def told(self, result: _Result) -> _Result:
        """Remember what the run gave, and give it back."""
        self._result = result
        return result

    def reading(
        self,
        spec: PipelineSpec,
        target: TargetSpec,
        query: SourceQuery,
        source: Connection,
        sink: Connection,
        *,
        known: KnownColumns = lambda dataset: None,
    ) -> None:
        """A target is about to be loaded from a query; call it once per target."""
        if self._emitter is None:
            return
        try:
            found = lineage_of(spec, target, query, source, sink, known=known)
        except Exception as exc:  # lineage is a note beside the run
            log.warning("the lineage of '%s' cannot be told: %s", spec.name, scrub(f"{type(exc).__name__}: {exc}"))
            found = Lineage(spec.name)
        for output in found.outputs:
            self._tables[str(target.table)] = output.dataset
        self._run = replace(self._run, lineage=found if self._run.lineage is None else self._run.lineage | found)
        self.started()

    def finished(self, status: RunStatus, *, result: Any = None, error: BaseException | str | None = None) -> None:
        """The run is over."""
        if self._emitter is None:
            return
        self.started()
        words = None if error is None else scrub(str(error) or type(error).__name__)
        rows = _row_counts(result, self._tables)
        self._emitter.finished(replace(self._run, error=words, rows=rows), ENDS.get(status, "FAIL"))

    def started(self) -> None:
        """Tell that it begins. Only runs that read nothing need to say so; the others wait until it is known what."""
        if self._emitter is not None and not self._has_started:
            self._has_started = True
            self._emitter.started(self._run)


_under_way: ContextVar[RunLineage | None] = ContextVar("ematix_flow_lineage", default=None)


def reading_for_run(
    spec: PipelineSpec, target: TargetSpec, query: SourceQuery, source: Connection, sink: Connection
) -> None:
    """A target of the run that is under way is about to be loaded from a query."""
    if (run := _under_way.get()) is not None:
        run.reading(spec, target, query, source, sink)


def _row_counts(result: Any, tables: Mapping[str, Dataset]) -> dict[str, int]:
    """Rows that were written, by dataset; a pipeline with several targets has a result for each."""
    if not isinstance(result, Mapping):
        return {}
    parts = result.get("results", result)
    counts: dict[str, int] = {}
    for table, dataset in tables.items():
        one = parts.get(table, result) if isinstance(parts, Mapping) else result
        written = [one.get(name) for name in ("rows_inserted", "rows_updated")] if isinstance(one, Mapping) else []
        if any(isinstance(count, int) for count in written):
            counts[str(dataset)] = sum(count for count in written if isinstance(count, int))
    return counts


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def run_event(kind: EventType, run: TrackedRun, namespace: str, at: datetime) -> dict[str, Any]:
    """One event, ready to be written as JSON."""
    lineage = run.lineage or Lineage(run.pipeline)
    return {
        "eventType": kind,
        "eventTime": instant_text(at),
        "producer": PRODUCER,
        "schemaURL": _EVENT_SCHEMA,
        "run": {"runId": _uuid(run), "facets": _run_facets(run, namespace)},
        "job": {"namespace": namespace, "name": run.pipeline, "facets": _job_facets(lineage, run)},
        "inputs": [_named(dataset) for dataset in lineage.inputs],
        "outputs": [_output(output, run) for output in lineage.outputs],
    }


def _uuid(run: TrackedRun) -> str:
    """OpenLineage wants a UUID; another id gives the same one each time."""
    try:
        return str(uuid.UUID(run.run_id))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{PRODUCER.rpartition(':')[0]}:{run.pipeline}:{run.run_id}"))


def _run_facets(run: TrackedRun, namespace: str) -> dict[str, Any]:
    facets = {
        "processing_engine": _facet(
            "1-1-1/ProcessingEngineRunFacet",
            version=__version__,
            name="ematix-flow",
            openlineageAdapterVersion=__version__,
        )
    }
    if run.nominal_at is not None:
        facets["nominalTime"] = _facet("1-0-1/NominalTimeRunFacet", nominalStartTime=instant_text(run.nominal_at))
    if run.parent is not None:
        job = {"namespace": namespace, "name": run.parent.pipeline}
        facets["parent"] = _facet("1-1-0/ParentRunFacet", run={"runId": _uuid(run.parent)}, job=job)
    if run.error is not None:
        facets["errorMessage"] = _facet(
            "1-0-1/ErrorMessageRunFacet", message=scrub(run.error), programmingLanguage="PYTHON"
        )
    return facets


def _job_facets(lineage: Lineage, run: TrackedRun) -> dict[str, Any]:
    way = "STREAMING" if run.is_stream else "BATCH"
    facets = {
        "jobType": _facet("2-0-4/JobTypeJobFacet", processingType=way, integration="EMATIX_FLOW", jobType=run.job_type)
    }
    if lineage.sql is not None:
        facets["sql"] = _facet("1-1-0/SQLJobFacet", query=scrub(lineage.sql), dialect=lineage.dialect)
    return facets


def _output(output: Output, run: TrackedRun) -> dict[str, Any]:
    fields = [
        {"name": column.name, "type": column.type, "ordinal_position": place}
        | ({"description": _MADE_HERE} if column.made_here else {})
        for place, column in enumerate(output.columns, start=1)
    ]
    origins = {
        column.name: {"inputFields": [_input_field(origin) for origin in column.origins]}
        for column in output.columns
        if column.origins
    }
    facets = {
        "schema": _facet("1-2-0/SchemaDatasetFacet", fields=fields),
        "dataSource": _facet("1-0-1/DatasourceDatasetFacet", name=output.dataset.namespace),
        "columnLineage": _facet(
            "1-2-0/ColumnLineageDatasetFacet",
            fields=origins,
            dataset=[_input_field(origin) for origin in output.influences],
        ),
    }
    if output.mode == "truncate":
        facets["lifecycleStateChange"] = _facet(
            "1-0-1/LifecycleStateChangeDatasetFacet", lifecycleStateChange="OVERWRITE"
        )
    event = {**_named(output.dataset), "facets": facets}
    if (rows := (run.rows or {}).get(str(output.dataset))) is not None:
        statistics = _facet("1-0-2/OutputStatisticsOutputDatasetFacet", rowCount=rows)
        event["outputFacets"] = {"outputStatistics": statistics}
    return event


def _input_field(origin: FieldOrigin) -> dict[str, Any]:
    way = {"type": "DIRECT" if origin.is_direct else "INDIRECT", "subtype": origin.how, "masking": origin.masked}
    return {**_named(origin.dataset), "field": origin.column, "transformations": [way]}


def _named(dataset: Dataset) -> dict[str, Any]:
    return {"namespace": dataset.namespace, "name": dataset.name}


def _facet(schema: str, **values: Any) -> dict[str, Any]:
    name = schema.partition("/")[2]
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/facets/{schema}.json#/$defs/{name}", **values}
