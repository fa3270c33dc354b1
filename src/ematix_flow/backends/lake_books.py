"""The books of lake tables: what a load will have changed is written down just before its commit, which carries a mark.

After a crash the next run asks the table whether that commit is there, and takes the note as true or throws it away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from ematix_flow.backends.files_store import Store
from ematix_flow.backends.json_books import NOTHING, JsonBooks, PipelineState
from ematix_flow.contracts.plans import OpenedRun
from ematix_flow.contracts.runtime import instant_text
from ematix_flow.contracts.shapes import TableRef


class LakeBooks(JsonBooks):
    """The books of one lake; `is_committed` asks a table whether it holds a run's commit."""

    def __init__(self, store: Store, is_committed: Callable[[TableRef, str], bool]) -> None:
        super().__init__(store)
        self._is_committed = is_committed

    def state(self, pipeline: str, folders: Sequence[str]) -> PipelineState:
        """What is known, a commit whose run did not live to write it down included."""
        ledger = self.ledger(pipeline)
        pending = ledger.get("pending")
        known = ledger.get("state")
        if pending is not None and self._is_committed(TableRef(*pending["table"]), pending["run_id"]):
            known = pending["state"]
        return PipelineState.from_dict(known) if known else PipelineState()

    def found_again(self, pipeline: str, loads: Mapping[str, str], now: datetime) -> PipelineState:
        """Note the logical runs that a table knows of and the books do not; how many rows they had is not known."""
        told = {"applied_at": instant_text(now), "metrics": {"version": 1, **NOTHING, "deleted": 0}}
        state = PipelineState(applied={logical: {"run_id": run_id, **told} for logical, run_id in loads.items()})
        if loads:
            self.write_ledger(pipeline, state=state.to_dict())
        return state

    def take_up(self, pipeline: str) -> None:
        """Settle what the last run left undecided. Called with the lease held, before a run opens."""
        ledger = self.ledger(pipeline)
        if ledger.get("pending") is not None:
            state = self.state(pipeline, ())
            self.write_ledger(pipeline, state=state.to_dict(), pending=None)
        if "application" not in ledger:
            self.write_ledger(pipeline, application=f"ematix-flow-{uuid4()}")

    def application(self, pipeline: str) -> str:
        """The name under which a table remembers the commits of a pipeline; new books begin a new one."""
        return str(self.ledger(pipeline)["application"])

    def about_to_commit(self, run: OpenedRun, table: TableRef, state: PipelineState) -> None:
        """Note what will be true once the commit is there."""
        pending: dict[str, Any] = {
            "run_id": run.run_id,
            "table": [table.schema, table.name],
            "state": state.to_dict(),
        }
        self.write_ledger(run.pipeline, pending=pending)

    def after_commit(self, run: OpenedRun, state: PipelineState, now: datetime) -> None:
        self.write_ledger(run.pipeline, generation=state.generation, state=state.to_dict(), pending=None)
        super().after_commit(run, state, now)
