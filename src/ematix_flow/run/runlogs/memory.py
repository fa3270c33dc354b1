"""The run log of one process: kept in memory, gone with it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ematix_flow.contracts.runtime import RunRecord


class InMemoryRunLog:
    """Run records in a dict. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, RunRecord] = {}

    def record_run_record(self, record: RunRecord) -> None:
        """Insert the record, or replace the one with the same run id."""
        with self._lock:
            self._records[record.run_id] = record

    def list_runs(
        self, *, pipeline: str | None = None, status: str | None = None, limit: int = 50, offset: int = 0
    ) -> tuple[Sequence[RunRecord], int]:
        """Newest first, with the number of all that match."""
        with self._lock:
            records = list(self._records.values())
        found = [r for r in records if pipeline in (None, r.pipeline) and status in (None, r.status)]
        found.reverse()  # of two that began in the same moment, the one recorded later comes first
        found.sort(key=lambda record: record.started_at, reverse=True)
        return found[offset : offset + limit], len(found)

    def get_run(self, run_id: str) -> RunRecord | None:
        """The record with that id, or with an id that begins so when only one does."""
        with self._lock:
            exact = self._records.get(run_id)
            near = [record for known, record in self._records.items() if run_id and known.startswith(run_id)]
        return exact or (near[0] if len(near) == 1 else None)

    def close(self) -> None:
        """Nothing to let go of."""
