"""Lake tables looked after: after a load or a batch when it is due, and all of a project's when somebody asks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.catalog import open_backend
from ematix_flow.config.resolve import ResolvedConnection, resolve
from ematix_flow.contracts.backend import Backend
from ematix_flow.contracts.maintenance import FileCount, MaintenanceReport, TableMaintenance
from ematix_flow.contracts.plans import RunResult
from ematix_flow.contracts.runtime import RunObserver
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.maintenance import Maintenance, age_text
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.table import TableSpec, table_spec
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import FlowError, UnknownName, closest, counted, listed
from ematix_flow.run.loads import now
from ematix_flow.run.places import lend_spark, maintenance_of, needing_spark

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""How often a stream asks whether its table is due."""


@dataclass(frozen=True)
class LakeTable:
    """A table of a project that can be maintained, and how."""

    table: TableSpec
    connection: ResolvedConnection
    where: str

    @property
    def wanted(self) -> Maintenance:
        """What the table declares, or the defaults."""
        return self.table.maintenance or Maintenance()

    @contextmanager
    def opened(self) -> Iterator[tuple[TableMaintenance, TableRef]]:
        """Who looks after it, and its name there; closes the connection again.

        Raises:
            InvalidPlan: it is no lake table.
            FlowError: Spark's own errors, in our words.
        """
        backend = open_backend(self.connection.connection)
        try:
            maintenance = maintenance_of(backend, self.table)
            lend_spark(backend, engine="spark")  # the native engine cannot do this work
            with needing_spark("Maintaining lake tables goes through Spark"):
                from ematix_flow.spark.batch import explained

            with explained():
                yield maintenance, backend.table_ref(self.table.schema, self.table.name)
        except FlowError as exc:
            raise exc.at(self.where) from exc.__cause__
        finally:
            backend.close()


# ── after a load ─────────────────────────────────────────────────────────────────────────────────────────────────────


def maintain_loaded(spec: PipelineSpec, result: Any, observer: RunObserver) -> None:
    """Maintain what a run has loaded and is due. The load stands whatever comes of it: a failure is a warning."""
    for target in spec.targets:
        if target.table.maintenance is not None and _is_loaded(spec, target, result):
            _maintain_loaded(spec, target, observer)


def _maintain_loaded(spec: PipelineSpec, target: TargetSpec, observer: RunObserver) -> None:
    step = f"maintain:{target.table}" if spec.is_fan_out else "maintain"
    wanted = target.table.maintenance
    assert wanted is not None
    began: list[float] = []

    def begin() -> None:
        began.append(time.perf_counter())
        observer.step(step, "running")

    try:
        place = LakeTable(target.table, resolve(target.connection, where=str(spec.where)), str(spec.where))
        with place.opened() as (maintenance, table):
            report = maintenance.run_if_due(table, wanted, now=now(), begin=begin)
    except Exception as exc:
        reason = scrub(_words(exc))
        log.warning("%s is loaded, but its maintenance failed: %s", target.table, reason)
        if began:
            observer.step(step, "failed", reason, (time.perf_counter() - began[0]) * 1000)
        return
    if report is not None:
        observer.step(step, "succeeded", report_words(report), report.duration_s * 1000)


def _words(exc: Exception) -> str:
    return exc.message if isinstance(exc, FlowError) else f"{type(exc).__name__}: {exc}"


def _is_loaded(spec: PipelineSpec, target: TargetSpec, result: Any) -> bool:
    """Whether the run's result says that this target was loaded; a function's own result says nothing of the kind."""
    if not isinstance(result, RunResult):
        return False
    if not spec.is_fan_out:
        return True
    results = result["results"] if spec.continue_on_target_failure else result
    return isinstance(results, Mapping) and str(target.table) in results


# ── between two batches of a stream ──────────────────────────────────────────────────────────────────────────────────


class StreamMaintenance:
    """Looks after the lake table that a stream writes to. The stream goes on whatever comes of it."""

    def __init__(self, backend: Backend, table: TableSpec | None) -> None:
        self._wanted = table.maintenance if table is not None else None
        self._maintains = maintenance_of(backend, table) if table is not None and self._wanted is not None else None
        self._looks_at = 0.0

    def look(self, table: TableRef) -> None:
        """Maintain the table when that is due; whether it is, is asked once in a while."""
        if self._maintains is None or self._wanted is None or time.monotonic() < self._looks_at:
            return
        self._looks_at = time.monotonic() + LOOK_S
        try:
            report = self._maintains.run_if_due(table, self._wanted, now=now(), begin=lambda: None)
        except Exception as exc:
            log.warning("%s could not be maintained: %s", table, scrub(_words(exc)))
            return
        if report is not None:
            log.info("%s is maintained: %s", table, report_words(report))


# ── when somebody asks ───────────────────────────────────────────────────────────────────────────────────────────────


def lake_tables(owners: Sequence[PipelineSpec | StreamSpec], names: Sequence[str] = ()) -> list[LakeTable]:
    """The targets of pipelines and streams that declare maintenance, or those of the given names; each table once.

    Raises:
        UnknownName: nothing has a target of that name.
    """
    every = [(table, connection, str(owner.where)) for owner in owners for table, connection in _tables_of(owner)]
    known = sorted({str(table) for table, _, _ in every})
    for name in names:
        if not any(_is_called(table, name) for table, _, _ in every):
            raise UnknownName(
                f"No pipeline loads a table named '{name}'.", fix=closest(name, known) or f"they load: {listed(known)}"
            )
    found: dict[tuple[str, str], LakeTable] = {}
    for table, connection, where in every:
        wanted = any(_is_called(table, name) for name in names) if names else table.maintenance
        if not wanted:
            continue
        place = LakeTable(table, resolve(connection, where=where), where)
        key = (place.connection.connection.identity(), str(table))
        if key not in found or found[key].table.maintenance is None:  # what a table declares wins over saying nothing
            found[key] = place
    return list(found.values())


def _tables_of(owner: PipelineSpec | StreamSpec) -> list[tuple[TableSpec, str | Connection]]:
    """The declared tables that it writes to, and where they are."""
    if isinstance(owner, PipelineSpec):
        return [(target.table, target.connection) for target in owner.targets]
    declared = [(target.table, target.connection) for target in owner.targets if isinstance(target.table, type)]
    return [(table_spec(table), connection) for table, connection in declared]


def _is_called(table: TableSpec, name: str) -> bool:
    return name in (str(table), table.name)


def maintain_now(place: LakeTable) -> MaintenanceReport | None:
    """Maintain a table, whenever the last time was; None when it has not been loaded yet."""
    with place.opened() as (maintenance, table):
        if maintenance.look(table) is None:
            return None
        return maintenance.run(table, place.wanted, now=now())


def intentions(wanted: Maintenance) -> list[str]:
    """What a maintenance would do, in words."""
    size = files_text(FileCount(1, wanted.target_file_size)).partition(", ")[2]
    return [
        *([f"put small files together into files of {size}"] if wanted.compact else []),
        f"remove what the newest version does not need and is older than {age_text(wanted.retention)}",
    ]


def report_words(report: MaintenanceReport) -> str:
    """A report in one line."""
    change = f"{files_text(report.before.live)} → {files_text(report.after.live)}"
    return "; ".join([change, *report.done, *report.left_out])


def files_text(count: FileCount) -> str:
    """Files and bytes for people.

    >>> files_text(FileCount(1, 900)), files_text(FileCount(1204, 3_200_000))
    ('1 file, 900 bytes', '1,204 files, 3.1 MB')
    """
    size: float = count.bytes
    unit, digits = "bytes", 0
    for larger in ("KB", "MB", "GB", "TB"):
        if size < 1024:
            break
        size, unit, digits = size / 1024, larger, 1
    return f"{counted(count.files, 'file')}, {size:,.{digits}f} {unit}"
