"""One run in the run log, from its first moment to its last."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone

import pytest

from ematix_flow.contracts.plans import RunResult
from ematix_flow.contracts.runtime import RunObserver, RunRecord, RunStatus, StepStatus
from ematix_flow.errors import ConnectionFailed, StatementFailed
from ematix_flow.run.process import this_process
from ematix_flow.run.recorder import RunRecorder
from ematix_flow.run.runlogs.memory import InMemoryRunLog

MORNING = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)


class Ticking:
    """A clock that moves one second at every look."""

    def __init__(self) -> None:
        self.now = MORNING

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


class FullDisk(InMemoryRunLog):
    """A store that takes one record and then no more."""

    def record_run_record(self, record: RunRecord) -> None:
        if self.list_runs()[1]:
            raise OSError("no space left; password=hunter2")
        super().record_run_record(record)


def test_a_run_is_there_as_running_before_its_body_starts() -> None:
    log = InMemoryRunLog()
    RunRecorder(log, "p", "r1").start()
    record = log.get_run("r1")
    assert record.status == "running"
    assert record.finished_at is None
    assert record.extras["process"] == this_process().to_dict()


def test_a_good_run_keeps_its_counts_steps_and_result() -> None:
    log = InMemoryRunLog()
    recorder = RunRecorder(log, "p", "r1", attempt=2, clock=Ticking(), extras={"logical_run": "2026-03-01"})
    recorder.start()
    recorder.planned("append → w.main.t", "pushdown · same database")
    recorder.step("source", "succeeded", "a query", 1.5)
    recorder.step("load:main.t", "running", depends_on=("source",))
    recorder.finish("succeeded", RunResult(run_id="r1", status="success", rows_inserted=3, rows_updated=1))
    record = log.get_run("r1")
    assert (record.status, record.attempt, record.failed_step, record.error_summary) == ("succeeded", 2, None, None)
    assert record.duration_ms > 0
    assert record.extras["rows_inserted"] == 3
    assert record.extras["rows_updated"] == 1
    assert record.extras["result"]["status"] == "success"
    assert record.extras["logical_run"] == "2026-03-01"
    assert record.extras["plans"] == [{"headline": "append → w.main.t", "route": "pushdown · same database"}]
    assert record.extras["steps"] == [
        {"name": "source", "depends_on": [], "duration_ms": 1.5, "status": "succeeded", "detail": "a query"},
        {"name": "load:main.t", "depends_on": ["source"], "duration_ms": None, "status": "succeeded"},
    ]


def test_a_failed_run_names_its_step_and_its_reason_without_secrets() -> None:
    log = InMemoryRunLog()
    recorder = RunRecorder(log, "p", "r1")
    recorder.start()
    recorder.step("source", "succeeded")
    recorder.step("load:main.t", "running")
    recorder.resumes_at("2026-02-28")
    recorder.step("post[0]", "pending")
    error = StatementFailed("The database said no to postgres://ann:s3cret@db/x.", fix="ask it")
    recorder.finish("failed", error=error)
    record = log.get_run("r1")
    assert record.status == "failed"
    assert record.failed_step == "load:main.t"
    assert record.failed_watermark == "2026-02-28"
    assert "[FLOW406]" in record.error_summary
    assert "fix    ask it" in record.error_summary
    assert "s3cret" not in record.error_summary
    assert [step["status"] for step in record.extras["steps"]] == ["succeeded", "failed", "skipped"]


def test_of_several_targets_the_mark_of_the_first_that_failed_is_kept() -> None:
    log = InMemoryRunLog()
    recorder = RunRecorder(log, "p", "r1")
    loads: list[tuple[str, StepStatus]] = [("1", "succeeded"), ("2", "failed"), ("3", "failed"), ("4", "succeeded")]
    for mark, ends in loads:
        recorder.resumes_at(mark)
        if ends == "succeeded":
            recorder.resumes_at(None)
        recorder.step(f"load:main.t{mark}", ends)
    recorder.finish("failed")
    assert log.get_run("r1").failed_watermark == "2"


@pytest.mark.parametrize("status", ["succeeded", "failed"])
def test_a_load_that_is_done_leaves_no_mark_behind(status: RunStatus) -> None:
    log = InMemoryRunLog()
    recorder = RunRecorder(log, "p", "r1")
    recorder.resumes_at("2026-02-28")
    recorder.resumes_at(None)
    recorder.step("post[0]", "failed" if status == "failed" else "succeeded")
    recorder.finish(status)
    assert log.get_run("r1").failed_watermark is None


def test_an_exception_of_the_user_is_named_with_its_type() -> None:
    log = InMemoryRunLog()
    recorder = RunRecorder(log, "p", "r1")
    recorder.finish("failed", error=KeyError("colour"))
    assert log.get_run("r1").error_summary == "KeyError: 'colour'"


@pytest.mark.parametrize("shape", ["plain", "with errors"])
def test_counts_of_several_targets_are_summed(shape: str) -> None:
    log = InMemoryRunLog()
    targets = {"main.a": RunResult(rows_inserted=2, rows_closed=1), "main.b": RunResult(rows_inserted=5)}
    result = targets if shape == "plain" else {"results": targets, "errors": {"main.c": "no"}}
    RunRecorder(log, "p", "r1").finish("succeeded", result)
    extras = log.get_run("r1").extras
    assert (extras["rows_inserted"], extras["rows_closed"]) == (7, 1)
    assert "rows_updated" not in extras


def test_a_store_that_fails_warns_once_and_never_stops_the_run(caplog: pytest.LogCaptureFixture) -> None:
    log = FullDisk()
    recorder: RunObserver = RunRecorder(log, "p", "r1")
    assert isinstance(recorder, RunRecorder)
    with caplog.at_level(logging.WARNING, logger="ematix_flow"):
        recorder.start()
        recorder.step("source", "succeeded")
        recorder.progress("source", 10)
        recorder.step("load:main.t", "succeeded")
        recorder.finish("succeeded")
    (line,) = caplog.messages
    assert "goes on without history" in line
    assert "hunter2" not in line
    assert log.get_run("r1").status == "running"


class AwayForAMoment(InMemoryRunLog):
    """A store that does not answer for some calls, once its first record is there."""

    away_for = 2

    def record_run_record(self, record: RunRecord) -> None:
        if self.list_runs()[1] and self.away_for:
            self.away_for -= 1
            raise ConnectionFailed("away")
        super().record_run_record(record)


def test_the_end_of_a_run_waits_for_a_store_that_comes_back_as_long_as_it_is_told_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    patient, hasty = AwayForAMoment(), AwayForAMoment()
    for log, patience_s in ((patient, 30.0), (hasty, 0.0)):
        recorder = RunRecorder(log, "p", "r1", patience_s=patience_s)
        recorder.start()
        recorder.finish("succeeded")
    assert [log.get_run("r1").status for log in (patient, hasty)] == ["succeeded", "running"]
    (line,) = caplog.messages
    assert "goes on without history" in line


def test_without_a_store_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    recorder = RunRecorder(None, "p", "r1")
    recorder.start()
    recorder.step("source", "succeeded")
    recorder.finish("succeeded")
    assert caplog.messages == []


@pytest.mark.parametrize(("result", "rows"), [({"rows": 3}, 3), ({"rows": "many"}, None), ({"rows_inserted": 1}, None)])
def test_rows_that_a_function_reports_are_counted(result: dict[str, object], rows: int | None) -> None:
    log = InMemoryRunLog()
    recorder = RunRecorder(log, "p", "r1")
    recorder.start()
    recorder.finish("succeeded", result)
    assert log.get_run("r1").extras.get("rows") == rows
