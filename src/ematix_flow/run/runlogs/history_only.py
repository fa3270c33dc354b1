"""What a run log refuses that lies in a bucket: everything for which one must be first.

A bucket has no transaction over several objects and no clock to measure a lease by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NoReturn

from ematix_flow.contracts.orchestration import Claim, ClaimResult, ExpiredClaim, Pause, Slot, SlotStatus
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.errors import UnsupportedBackend


class HistoryOnly:
    """Claims, slots, pauses, requests and alerts that are sent once: refused with a hint, as NotImplementedError.

    Where the question is only what there is (claims, pauses, requests), the answer is: nothing.
    """

    where: str

    def clock(self) -> datetime:
        """This machine's time; there is no lease to be measured by it."""
        return datetime.now(timezone.utc)

    def claim(self, pipeline: str, worker_id: str, lease_seconds: float) -> ClaimResult:
        """Refused."""
        self._refuse("keep claims")

    def heartbeat(self, token: str, lease_seconds: float) -> bool:
        """Refused."""
        self._refuse("keep claims")

    def adopt(self, token: str, worker_id: str) -> str | None:
        """Refused."""
        self._refuse("keep claims")

    def end_lost_run(self, seen: RunRecord) -> bool:
        """Refused."""
        self._refuse("keep claims")

    def release(self, token: str) -> None:
        """Refused."""
        self._refuse("keep claims")

    def break_claim(self, pipeline: str, token: str) -> bool:
        """Refused."""
        self._refuse("keep claims")

    def claims(self) -> Sequence[Claim]:
        """There are none."""
        return ()

    def holds(self, token: str) -> bool:
        """Refused."""
        self._refuse("keep claims")

    def sweep_expired_leases(self, now: datetime | None = None) -> Sequence[ExpiredClaim]:
        """Refused."""
        self._refuse("keep claims")

    def add_slots(self, slots: Iterable[Slot]) -> Sequence[Slot]:
        """Refused."""
        self._refuse("keep slots")

    def open_slots(self, pipeline: str | None = None) -> Sequence[Slot]:
        """Refused."""
        self._refuse("keep slots")

    def slots(
        self, pipeline: str, *, since: datetime | None = None, until: datetime | None = None, limit: int = 1000
    ) -> Sequence[Slot]:
        """Refused."""
        self._refuse("keep slots")

    def last_slots(self) -> Mapping[str, datetime]:
        """Refused."""
        self._refuse("keep slots")

    def first_seen(self, pipelines: Iterable[str], at: datetime) -> Mapping[str, datetime]:
        """Refused."""
        self._refuse("keep slots")

    def still_declared(self, pipelines: Iterable[str]) -> None:
        """Refused."""
        self._refuse("keep slots")

    def move_slot(
        self, slot: Slot, *, expected: SlotStatus, expected_attempt: int | None = None, token: str | None = None
    ) -> bool:
        """Refused."""
        self._refuse("keep slots")

    def set_paused(self, pipeline: str, paused: bool, *, by: str = "", reason: str = "") -> None:
        """Refused."""
        self._refuse("pause pipelines")

    def paused(self) -> Mapping[str, Pause]:
        """There are none."""
        return {}

    def enqueue_run(self, pipeline: str, *, extras: Mapping[str, Any] | None = None) -> str:
        """Refused."""
        self._refuse("take requests")

    def enqueue_restart(self, prior_run_id: str, from_step: str) -> str:
        """Refused."""
        self._refuse("take requests")

    def enqueue_rerun(self, prior_run_id: str) -> str:
        """Refused."""
        self._refuse("take requests")

    def set_pause(self, run_id: str, paused: bool) -> None:
        """Refused."""
        self._refuse("take requests")

    def request_cancel(self, run_id: str) -> None:
        """Refused."""
        self._refuse("take requests")

    def pending_actions(self) -> Sequence[Any]:
        """There are none."""
        return ()

    def consume_requested_run(self, run_id: str) -> bool:
        """Refused."""
        self._refuse("take requests")

    def return_requested_run(self, run_id: str) -> None:
        """Refused."""
        self._refuse("take requests")

    def first_alert(self, key: str, at: datetime, *, realert_after_s: float | None = None) -> bool:
        """Refused."""
        self._refuse("remember alerts")

    def forget_alerts(self, prefix: str) -> None:
        """Refused."""
        self._refuse("remember alerts")

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedBackend(
            f"The run log '{self.where}' lies in a bucket, which cannot {what}.",
            fix="keep the run log in a SQL store: sqlite, postgres or mysql",
        )
