"""How what a run log keeps is written down: instants as text in time order, records and slots as rows."""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ematix_flow.contracts.orchestration import AttemptState, Claim, LastRun, RunEvent, Slot
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.declare.instants import instant_of
from ematix_flow.declare.redaction import scrub

RECORD_COLUMNS = (
    *("run_id", "pipeline", "status", "started_at", "finished_at", "attempt"),
    *("failed_step", "failed_watermark", "error_summary", "kind", "extras"),
    *("pause_requested", "cancel_requested"),
)
SLOT_COLUMNS = (
    *("pipeline_name", "slot_at", "status", "attempt", "eligible_at"),
    *("first_failed_at", "run_id", "reason", "backfill"),
)
WISHES = ("pause_requested", "cancel_requested")
"""What somebody else asks of a run. Kept beside its extras, which the run itself writes anew with every step."""

_counter = itertools.count()


def instant(moment: datetime) -> str:
    """An instant as it is stored: UTC, microseconds, always as wide, so that text order is time order.

    One without a zone is taken for UTC.

    >>> instant(datetime(2026, 3, 1, 6, tzinfo=timezone.utc))
    '2026-03-01T06:00:00.000000Z'
    """
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def maybe_instant(moment: datetime | None) -> str | None:
    """The same for one that may be missing."""
    return None if moment is None else instant(moment)


def moment(text: str) -> datetime:
    """A stored instant. Older programs stored whole seconds."""
    return instant_of(text)


def maybe_moment(text: str | None) -> datetime | None:
    """The same for one that may be missing."""
    return None if text is None else moment(text)


def place() -> str:
    """A mark that is unique and greater than those given out before: the order of things of the same moment."""
    return f"{time.time_ns():020d}-{next(_counter):08d}-{secrets.token_hex(4)}"


def storable(text: str | None) -> str | None:
    """Free text as every store takes it: no character that is none, no secret."""
    if text is None:
        return None
    return scrub(text).replace("\0", "␀").encode("utf-8", "backslashreplace").decode()


def record_row(record: RunRecord) -> tuple[Any, ...]:
    """A record in the order of `RECORD_COLUMNS`."""
    extras = dict(record.extras)
    wishes = [extras.pop(name, None) for name in WISHES]
    return (
        record.run_id,
        record.pipeline,
        record.status,
        instant(record.started_at),
        maybe_instant(record.finished_at),
        record.attempt,
        record.failed_step,
        record.failed_watermark,
        storable(record.error_summary),
        record.kind,
        to_json(extras),
        *(None if wish is None else int(bool(wish)) for wish in wishes),
    )


def to_record(row: Sequence[Any]) -> RunRecord:
    """The record of a row."""
    wishes = {name: bool(wish) for name, wish in zip(WISHES, row[11:13], strict=True) if wish is not None}
    return RunRecord(
        run_id=row[0],
        pipeline=row[1],
        status=row[2],
        started_at=moment(row[3]),
        finished_at=maybe_moment(row[4]),
        attempt=int(row[5]),
        failed_step=row[6],
        failed_watermark=row[7],
        error_summary=row[8],
        kind=row[9],
        extras={**json.loads(row[10]), **wishes},
    )


def slot_row(slot: Slot) -> tuple[Any, ...]:
    """A slot in the order of `SLOT_COLUMNS`."""
    return (
        slot.pipeline,
        instant(slot.at),
        slot.status,
        slot.attempt,
        maybe_instant(slot.eligible_at),
        maybe_instant(slot.first_failed_at),
        slot.run_id,
        storable(slot.reason),
        slot.backfill,
    )


def to_slot(row: Sequence[Any]) -> Slot:
    """The slot of a row."""
    return Slot(
        pipeline=row[0],
        at=moment(row[1]),
        status=row[2],
        attempt=int(row[3]),
        eligible_at=maybe_moment(row[4]),
        first_failed_at=maybe_moment(row[5]),
        run_id=row[6],
        reason=row[7],
        backfill=row[8],
    )


def to_claim(row: Sequence[Any]) -> Claim:
    """The claim of a row: pipeline, worker, since, until, token, fence."""
    return Claim(row[0], row[1], moment(row[2]), moment(row[3]), row[4], int(row[5]))


def to_last_run(row: Sequence[Any]) -> LastRun:
    """The last run of a row: when, whether it went well, the last that did, and its slot."""
    return LastRun(moment(row[0]), bool(row[1]), maybe_moment(row[2]), maybe_moment(row[3]))


def to_attempt_state(row: Sequence[Any]) -> AttemptState:
    """The attempt state of a row: how many failures, when the last one was, whether it was given up."""
    return AttemptState(int(row[0]), maybe_moment(row[1]), bool(row[2]))


def to_event(row: Sequence[Any]) -> RunEvent:
    """The event of a row."""
    return RunEvent(row[0], moment(row[1]), row[2], row[3], row[4], row[5])


def to_json(value: Mapping[str, Any]) -> str:
    """Facts as JSON. What it has no word for is written as text."""
    return json.dumps(value, default=str)
