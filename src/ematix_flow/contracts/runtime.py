"""What happens around a run: who watches it, and the record that is kept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, Protocol

from ematix_flow.errors import InvalidConfig

RunStatus = Literal["requested", "running", "paused", "succeeded", "failed", "cancelled"]
RunKind = Literal["batch", "streaming", "replay"]
StepStatus = Literal["pending", "running", "succeeded", "failed", "skipped"]
_UNFINISHED = ("requested", "running", "paused")


class RunObserver(Protocol):
    """Told what a run does while it does it. Observers never change a run, and a broken one never breaks it."""

    def planned(self, headline: str, route: str) -> None:
        """Once per target: `scd2 → warehouse.analytics.customer_dim`, `pushdown · same database`."""

    def step(self, name: str, status: StepStatus, detail: str = "", duration_ms: float | None = None) -> None:
        """A step (`load:<table>`, `post[i]`) or a stage inside it begins or ends."""

    def progress(self, stage: str, rows: int, total: int | None = None) -> None:
        """Rows moved so far in a stage; called often, must be cheap."""

    def resumes_at(self, watermark: str | None) -> None:
        """An incremental load begins behind this mark, and the next one will, should it fail; None when it is done."""


class SilentObserver:
    """Watches nothing: the default for `.sync()` in code."""

    def planned(self, headline: str, route: str) -> None:
        """Ignore it."""

    def step(self, name: str, status: StepStatus, detail: str = "", duration_ms: float | None = None) -> None:
        """Ignore it."""

    def progress(self, stage: str, rows: int, total: int | None = None) -> None:
        """Ignore it."""

    def resumes_at(self, watermark: str | None) -> None:
        """Ignore it."""


@dataclass(frozen=True)
class RunRecord:
    """One run of one pipeline, as the run log keeps it."""

    run_id: str
    pipeline: str
    status: RunStatus
    started_at: datetime
    finished_at: datetime | None = None
    attempt: int = 1
    failed_step: str | None = None
    failed_watermark: str | None = None
    error_summary: str | None = None
    kind: RunKind = "batch"
    extras: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in ("requested", "running", "paused", "succeeded", "failed", "cancelled"):
            raise InvalidConfig(f"Unknown run status {self.status!r}.")
        if self.kind not in ("batch", "streaming", "replay"):
            raise InvalidConfig(f"Unknown run kind {self.kind!r}.")
        if self.attempt < 1:
            raise InvalidConfig("A run's attempt counts from 1.")
        if self.status in _UNFINISHED and self.finished_at is not None:
            raise InvalidConfig(f"A {self.status} run cannot have finished.")

    @property
    def duration_ms(self) -> float | None:
        """How long it took; None while it is not finished."""
        if self.finished_at is None:
            return None
        return round((self.finished_at - self.started_at).total_seconds() * 1000, 3)

    def to_summary_dict(self) -> dict[str, Any]:
        """The record in a list."""
        return {
            "run_id": self.run_id,
            "pipeline": self.pipeline,
            "status": self.status,
            "started_at": instant_text(self.started_at),
            "finished_at": instant_text(self.finished_at),
            "duration_ms": self.duration_ms,
            "attempt": self.attempt,
            "failed_step": self.failed_step,
            "kind": self.kind,
        }

    def to_detail_dict(self) -> dict[str, Any]:
        """The record with everything known."""
        return {
            **self.to_summary_dict(),
            "failed_watermark": self.failed_watermark,
            "error_summary": self.error_summary,
            "extras": dict(self.extras),
        }


class RunHistory(Protocol):
    """Where run records are kept; chosen by URL, and never able to stop a run."""

    def record_run_record(self, record: RunRecord) -> None:
        """Insert the record, or replace the one with the same run id."""

    def list_runs(
        self, *, pipeline: str | None = None, status: str | None = None, limit: int = 50, offset: int = 0
    ) -> tuple[Sequence[RunRecord], int]:
        """Newest first, with the number of all that match."""

    def get_run(self, run_id: str) -> RunRecord | None:
        """The record with that id, or with an id that begins so when only one does."""

    def close(self) -> None:
        """Let go of the store; may be called twice."""


def instant_text(moment: datetime | None) -> str | None:
    """An instant for machines: UTC, milliseconds, `Z`."""
    if moment is None:
        return None
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
