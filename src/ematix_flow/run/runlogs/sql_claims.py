"""Claims and slots in a database: who does it, and that it is done once. Leases go by the database's clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from secrets import token_hex
from typing import Any

from ematix_flow.contracts.orchestration import Claim, ClaimResult, ExpiredClaim, Slot, SlotStatus
from ematix_flow.run.runlogs import rows
from ematix_flow.run.runlogs.rows import SLOT_COLUMNS
from ematix_flow.run.runlogs.store import Db, SqlStore

_SLOTS_AT_ONCE = 80  # times eleven values: some databases take no more than a thousand in one statement
_SEEN_AT_ONCE = 400
_SLOT_SELECT = f"SELECT {', '.join(SLOT_COLUMNS)} FROM @slots"
_CLAIM_COLUMNS = ("pipeline_name", "claim_token", "worker_id", "claimed_at", "expires_at", "fence")


class KeepsClaims(SqlStore):
    """The part of a run log in a database that decides who does what, and once."""

    # ── claims ──

    def clock(self) -> datetime:
        """The database's own time, which leases are measured by."""
        return self._ask(_clock)

    def claim(self, pipeline: str, worker_id: str, lease_seconds: float) -> ClaimResult:
        """Take the name if it is free or expired; atomic. The holder does not get it twice.

        Whoever finds their own token in the row has it, so it may be asked again when the connection broke.
        """
        token = token_hex(16)
        lease = _microseconds(lease_seconds)

        def take(db: Db) -> ClaimResult:
            taken = db.change(
                "UPDATE @pipeline_claims SET claim_token = ?, worker_id = ?, claimed_at = {later},"
                " expires_at = {later}, fence = fence + 1"
                " WHERE pipeline_name = ? AND (claim_token = '' OR expires_at <= {later})",
                *(token, worker_id, 0, lease, pipeline, 0),
            )
            if not taken:
                first = db.words.insert(
                    "pipeline_claims",
                    _CLAIM_COLUMNS,
                    key="pipeline_name",
                    values={"claimed_at": "{later}", "expires_at": "{later}"},
                )
                db.change(first, pipeline, token, worker_id, 0, lease, 1)
            asked = "SELECT claim_token, worker_id, expires_at, fence FROM @pipeline_claims WHERE pipeline_name = ?"
            found = db.rows(asked, pipeline)
            if not found or not found[0][0]:  # given back, or even removed, in this very moment
                return ClaimResult(False, None, None, None)
            ((held_by, holder, expires_at, fence),) = found
            is_mine = held_by == token
            return ClaimResult(
                is_mine, token if is_mine else None, holder, rows.moment(expires_at), int(fence) if is_mine else 0
            )

        return self._ask(take)

    def heartbeat(self, token: str, lease_seconds: float) -> bool:
        """Move the expiry to now + lease; False, and nothing else, for a token that is no longer the claim's."""
        beat = f"UPDATE @pipeline_claims SET expires_at = {{later}} WHERE {_OF_TOKEN}"
        return self._ask(lambda db: db.change(beat, _microseconds(lease_seconds), token)) > 0

    def adopt(self, token: str, worker_id: str) -> str | None:
        """Exchange a token that was handed over for one of the worker's own; None when it is no longer the claim's."""
        mine = token_hex(16)
        exchange = f"UPDATE @pipeline_claims SET claim_token = ?, worker_id = ? WHERE {_STILL_OF_TOKEN}"

        def work(db: Db) -> bool:
            if db.change(exchange, mine, worker_id, token, 0):
                return True
            return db.is_repeat and bool(db.rows(_HOLDS, mine, 0))

        return mine if self._ask(work) else None

    def release(self, token: str) -> None:
        """Give that claim back; a stale token frees nothing."""
        self._ask(lambda db: db.change(_FREE, "", token))

    def break_claim(self, pipeline: str, token: str) -> bool:
        """Free the claim of a holder that is known to be dead, if it still has that token."""
        by = f"broken {token_hex(16)}"  # in place of the worker's name: the one who broke it finds it there

        def work(db: Db) -> bool:
            if db.change(f"{_FREE} AND pipeline_name = ?", by, token, pipeline):
                return True
            seen = "SELECT 1 FROM @pipeline_claims WHERE pipeline_name = ? AND claim_token = '' AND worker_id = ?"
            return db.is_repeat and bool(db.rows(seen, pipeline, by))

        return self._ask(work)

    def claims(self) -> Sequence[Claim]:
        """Every claim there is, expired ones too."""
        asked = (
            "SELECT pipeline_name, worker_id, claimed_at, expires_at, claim_token, fence FROM @pipeline_claims"
            " WHERE claim_token <> '' ORDER BY pipeline_name"
        )
        return [rows.to_claim(row) for row in self._ask(lambda db: db.rows(asked))]

    def holds(self, token: str) -> bool:
        """Whether the token is a claim's, and its lease has not run out."""
        return self._ask(lambda db: bool(db.rows(_HOLDS, token, 0)))

    def sweep_expired_leases(self, now: datetime | None = None) -> Sequence[ExpiredClaim]:
        """Report claims that expired before `now` (the database's clock without it); nothing is changed."""
        limit, value = ("{later}", 0) if now is None else ("?", rows.instant(now))
        asked = (
            "SELECT pipeline_name, worker_id, expires_at FROM @pipeline_claims"
            f" WHERE claim_token <> '' AND expires_at < {limit} ORDER BY pipeline_name"
        )
        found = self._ask(lambda db: db.rows(asked, value))
        return [ExpiredClaim(pipeline, worker, rows.moment(expires)) for pipeline, worker, expires in found]

    # ── slots ──

    def add_slots(self, slots: Iterable[Slot]) -> Sequence[Slot]:
        """Write down slots that are not known yet, all in one transaction; those that were new come back."""
        wanted = {(slot.pipeline, rows.instant(slot.at)): slot for slot in slots}
        # In one order for everybody: two that add the same ones wait for each other, and not in a circle.
        ordered = [wanted[key] for key in sorted(wanted)]
        if not ordered:
            return []
        me = token_hex(16)  # what carries it was added here, also when the connection broke just after

        def work(db: Db) -> list[tuple[Any, ...]]:
            ((now,),) = db.rows("SELECT {moment}")
            for start in range(0, len(ordered), _SLOTS_AT_ONCE):
                some = ordered[start : start + _SLOTS_AT_ONCE]
                insert = db.words.insert(
                    "slots",
                    (*SLOT_COLUMNS, "changed_at", "added_by"),
                    key="pipeline_name, slot_at",
                    rows=len(some),
                )
                db.change(insert, *(value for slot in some for value in (*rows.slot_row(slot), now, me)))
            return db.rows("SELECT pipeline_name, slot_at FROM @slots WHERE added_by = ?", me)

        new = {(pipeline, at) for pipeline, at in self._together(work)}
        return [slot for key, slot in wanted.items() if key in new]

    def open_slots(self, pipeline: str | None = None) -> Sequence[Slot]:
        """Pending and running ones, by pipeline and time."""
        asked = f"{_SLOT_SELECT} WHERE status IN ('pending', 'running')"
        given = () if pipeline is None else (pipeline,)
        if pipeline is not None:
            asked += " AND pipeline_name = ?"
        found = self._ask(lambda db: db.rows(f"{asked} ORDER BY pipeline_name, slot_at", *given))
        return [rows.to_slot(row) for row in found]

    def slots(
        self, pipeline: str, *, since: datetime | None = None, until: datetime | None = None, limit: int = 1000
    ) -> Sequence[Slot]:
        """Those of one pipeline with `since <= at <= until`, newest first."""
        asked, given = f"{_SLOT_SELECT} WHERE pipeline_name = ?", [pipeline]
        for sign, moment in ((">=", since), ("<=", until)):
            if moment is not None:
                asked += f" AND slot_at {sign} ?"
                given.append(rows.instant(moment))
        found = self._ask(lambda db: db.rows(f"{asked} ORDER BY slot_at DESC LIMIT ?", *given, limit))
        return [rows.to_slot(row) for row in found]

    def last_slots(self) -> Mapping[str, datetime]:
        """The latest slot of every pipeline, whatever became of it; backfilled ones do not count."""
        asked = "SELECT pipeline_name, max(slot_at) FROM @slots WHERE backfill IS NULL GROUP BY pipeline_name"
        return {pipeline: rows.moment(at) for pipeline, at in self._ask(lambda db: db.rows(asked))}

    def first_seen(self, pipelines: Iterable[str], at: datetime) -> Mapping[str, datetime]:
        """Since when each of them is looked at; those that nobody has looked at before are since `at`."""
        wanted = sorted(set(pipelines))

        def known(db: Db) -> dict[str, datetime]:
            found = dict(db.rows("SELECT pipeline_name, seen_at FROM @first_seen"))
            return {name: rows.moment(found[name]) for name in wanted if name in found}

        def write(db: Db, names: Sequence[str]) -> dict[str, datetime]:
            for start in range(0, len(names), _SEEN_AT_ONCE):
                some = names[start : start + _SEEN_AT_ONCE]
                insert = db.words.insert(
                    "first_seen", ("pipeline_name", "seen_at"), key="pipeline_name", rows=len(some)
                )
                db.change(insert, *(value for name in some for value in (name, rows.instant(at))))
            return known(db)

        seen = self._ask(known)
        new = [name for name in wanted if name not in seen]
        return self._together(lambda db: write(db, new)) if new else seen

    def still_declared(self, pipelines: Iterable[str]) -> None:
        """Note that these are declared today; said again on the same day it only looks."""
        wanted = sorted(set(pipelines))
        yesterday = rows.instant(datetime.now(timezone.utc) - timedelta(days=1))

        def write(db: Db, names: Sequence[str]) -> None:
            columns = ("pipeline_name", "declared_at")
            for start in range(0, len(names), _SEEN_AT_ONCE):
                some = names[start : start + _SEEN_AT_ONCE]
                insert = db.words.insert(
                    "declared",
                    columns,
                    key="pipeline_name",
                    replacing=columns[1:],
                    values={"declared_at": "{moment}"},
                    rows=len(some),
                )
                db.change(insert, *some)

        found = self._ask(lambda db: db.rows("SELECT pipeline_name FROM @declared WHERE declared_at > ?", yesterday))
        known = {name for (name,) in found}
        new = [name for name in wanted if name not in known]
        if new:
            self._together(lambda db: write(db, new))

    def move_slot(
        self, slot: Slot, *, expected: SlotStatus, expected_attempt: int | None = None, token: str | None = None
    ) -> bool:
        """Replace the stored slot of the same key if it has the expected status (and attempt), in one transaction.

        With a token also only if that claim is still held: a worker that lost its lease changes nothing. The claim's
        row stays locked until the slot is written, so nobody takes it over in between.
        """
        row = rows.slot_row(slot)
        changes = ", ".join(f"{column} = ?" for column in SLOT_COLUMNS[2:])
        key = "WHERE pipeline_name = ? AND slot_at = ?"
        move = f"UPDATE @slots SET {changes}, changed_at = {{moment}} {key} AND status = ?"
        values = [*row[2:], *row[:2], expected]
        if expected_attempt is not None:
            move += " AND attempt = ?"
            values.append(expected_attempt)

        def work(db: Db) -> bool:
            # It may have happened before the connection broke; then it is as it should be.
            if db.is_repeat and [tuple(found) for found in db.rows(f"{_SLOT_SELECT} {key}", *row[:2])] == [row]:
                return True
            if token is not None and not db.rows(_HOLDS + db.words.lock, token, 0):
                return False
            return db.change(move, *values) > 0

        return self._together(work)


# A claim that is given back leaves its row, with an empty token: the fence must go on growing.
_OF_TOKEN = "claim_token = ? AND claim_token <> ''"
_FREE = f"UPDATE @pipeline_claims SET claim_token = '', worker_id = ? WHERE {_OF_TOKEN}"
_STILL_OF_TOKEN = f"{_OF_TOKEN} AND expires_at > {{later}}"
_HOLDS = f"SELECT 1 FROM @pipeline_claims WHERE {_STILL_OF_TOKEN}"


def _clock(db: Db) -> datetime:
    ((now,),) = db.rows("SELECT {later}", 0)
    return rows.moment(now)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
