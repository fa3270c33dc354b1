"""The documented doors to the run history: what a store of it must offer, and how a run hears that it should pause."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Protocol

from ematix_flow.contracts.runtime import RunHistory, RunRecord, instant_text
from ematix_flow.errors import UnknownName
from ematix_flow.run.runlogs.memory import InMemoryRunLog

log = logging.getLogger(__name__)


class RunHistoryStore(RunHistory, Protocol):
    """Run records, and what people ask of runs. Every run log in a database is one."""

    def enqueue_restart(self, prior_run_id: str, from_step: str) -> str:
        """Ask for a run that reuses everything before a step; its id. KeyError for an unknown run."""

    def enqueue_rerun(self, prior_run_id: str) -> str:
        """Ask for the whole run again; its id. KeyError for an unknown run."""

    def set_pause(self, run_id: str, paused: bool) -> None:
        """Ask one run to pause at its next step, or to go on. KeyError for an unknown run."""

    def pending_actions(self) -> Sequence[Any]:
        """Records that wait for somebody to act; oldest first."""

    def consume_requested_run(self, run_id: str) -> bool:
        """Turn a requested record into a running one; False when somebody else was faster."""


class InMemoryRunHistory(InMemoryRunLog):
    """The run history of one process, for tests and notebooks."""


class PauseChecker:
    """Asked by a run between two steps or batches whether somebody wants it to stop there.

    A history that does not answer is one warning, and nobody wants anything.
    """

    def __init__(self, history: RunHistory, run_id: str) -> None:
        self._history, self._run_id = history, run_id
        self._has_warned = False

    def should_pause(self) -> bool:
        """Whether a pause was asked for and not taken back."""
        return self._is_wanted("pause_requested")

    def should_cancel(self) -> bool:
        """Whether the run was asked to stop for good."""
        return self._is_wanted("cancel_requested")

    def acknowledge_pause(self) -> None:
        """Say that the run stands still from now on: status `paused`, and since when in `extras["paused_at"]`.

        Raises:
            UnknownName: The history does not know the run.
        """
        record = self._record()
        if record is None:
            raise UnknownName(f"No run has the id '{self._run_id}'.")
        extras = {**record.extras, "paused_at": instant_text(datetime.now(timezone.utc))}
        self._history.record_run_record(replace(record, status="paused", finished_at=None, extras=extras))

    def _is_wanted(self, wish: str) -> bool:
        try:
            record = self._record()
        except Exception as exc:  # whatever a store raises, a run must not die of it
            if not self._has_warned:
                log.warning("run '%s' cannot hear whether it should pause: %s", self._run_id, exc)
            self._has_warned = True
            return False
        return record is not None and bool(record.extras.get(wish))

    def _record(self) -> RunRecord | None:
        found = self._history.get_run(self._run_id)
        return found if found is not None and found.run_id == self._run_id else None
