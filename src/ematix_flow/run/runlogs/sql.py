"""The run log in a database: every promise of `RunLog`, written once; a store only says how to connect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from secrets import token_hex

from ematix_flow.contracts.orchestration import AttemptState, LastRun, Pause
from ematix_flow.run.runlogs import rows
from ematix_flow.run.runlogs.sql_claims import KeepsClaims
from ematix_flow.run.runlogs.sql_history import LAST_CHARACTER, KeepsHistory
from ematix_flow.run.runlogs.store import Db

_LAST_RUN_COLUMNS = ("pipeline_name", "last_run_at", "success", "last_success_at", "last_success_slot")
_ATTEMPT_COLUMNS = ("pipeline_name", "attempt_count", "last_attempt_at", "gave_up")
_LAST_ERRORS = (
    "SELECT pipeline_name, (SELECT error_summary FROM @run_records"
    # Not `status = 'failed'`: a database would go by its index over all failed runs, while the one that is looked for
    # is among the latest of the pipeline.
    " WHERE pipeline = pipeline_name AND coalesce(status, '') = 'failed'"
    " ORDER BY started_at DESC, place DESC LIMIT 1) FROM @run_log WHERE success = 0"
)


class SqlRunLog(KeepsHistory, KeepsClaims):
    """A run log in a database. Safe to use from several threads; a forked process gets a connection of its own."""

    def open(self) -> None:
        """Connect, see to the tables, and end runs whose process is dead. Called by the store's constructor."""
        self._prepare()
        self._end_lost_runs()

    # ── what was last ──

    def record_run(self, name: str, ts: datetime, success: bool, *, slot: datetime | None = None) -> None:
        """How the last run ended; `slot` is remembered when it went well and is later than the one known."""
        went_well = LastRun(ts, True, ts, slot) if success else LastRun(ts, False)
        self._ask(lambda db: _put_last_run(db, name, went_well))

    def last_runs(self) -> Mapping[str, LastRun]:
        """By pipeline."""
        asked = f"SELECT {', '.join(_LAST_RUN_COLUMNS)} FROM @run_log"
        return {row[0]: rows.to_last_run(row[1:]) for row in self._ask(lambda db: db.rows(asked))}

    def last_errors(self) -> Mapping[str, str]:
        """What the last failed run said, by pipeline, of those whose last run failed and said something."""
        found = self._ask(lambda db: db.rows(_LAST_ERRORS))
        return {name: error for name, error in found if error is not None}

    def record_attempt(self, name: str, state: AttemptState) -> None:
        """Replace the pipeline's attempt state."""
        self._ask(lambda db: _put_attempt(db, name, state))

    def clear_attempt_state(self, name: str) -> None:
        """Forget it; nothing happens when there is none."""
        self._ask(lambda db: db.change("DELETE FROM @attempt_state WHERE pipeline_name = ?", name))

    def attempts(self) -> Mapping[str, AttemptState]:
        """By pipeline."""
        asked = f"SELECT {', '.join(_ATTEMPT_COLUMNS)} FROM @attempt_state"
        return {row[0]: rows.to_attempt_state(row[1:]) for row in self._ask(lambda db: db.rows(asked))}

    def restore_into_process(self) -> None:
        """Bring last runs and attempt states into this process, where the functions of `pipeline` look."""
        from ematix_flow.run.runlogs.in_process import process_log

        if process_log() is not self:
            process_log().take_over(self.last_runs().items(), self.attempts().items())

    def take_over(self, last_runs: Iterable[tuple[str, LastRun]], attempts: Iterable[tuple[str, AttemptState]]) -> None:
        """Write down what another log knows."""
        lasts, states = tuple(last_runs), tuple(attempts)

        def work(db: Db) -> None:
            for name, last in lasts:
                _put_last_run(db, name, last)
            for name, state in states:
                _put_attempt(db, name, state)

        self._together(work)

    # ── people's wishes ──

    def set_paused(self, pipeline: str, paused: bool, *, by: str = "", reason: str = "") -> None:
        """Pause or resume a pipeline; both may be said twice."""
        if not paused:
            self._ask(lambda db: db.change("DELETE FROM @pauses WHERE pipeline_name = ?", pipeline))
            return
        columns = ("pipeline_name", "since", "paused_by", "reason")

        def work(db: Db) -> int:
            pause = db.words.insert(
                "pauses", columns, key="pipeline_name", replacing=columns[2:], values={"since": "{moment}"}
            )
            return db.change(pause, pipeline, rows.storable(by), rows.storable(reason))

        self._ask(work)

    def paused(self) -> Mapping[str, Pause]:
        """By pipeline."""
        found = self._ask(lambda db: db.rows("SELECT pipeline_name, since, paused_by, reason FROM @pauses"))
        return {name: Pause(name, rows.moment(since), by, reason) for name, since, by, reason in found}

    # ── what others are told, once ──

    def first_alert(self, key: str, at: datetime, *, realert_after_s: float | None = None) -> bool:
        """Whether the caller is the one to send the alert of this key: True once, and again after `realert_after_s`."""
        me, now = token_hex(16), rows.instant(at)

        def work(db: Db) -> bool:
            if realert_after_s is not None:
                before = rows.instant(at - timedelta(seconds=realert_after_s))
                again = "UPDATE @alerts_sent SET sent_at = ?, sent_by = ? WHERE alert_key = ? AND sent_at <= ?"
                db.change(again, now, me, key, before)
            first = db.words.insert("alerts_sent", ("alert_key", "sent_at", "sent_by"), key="alert_key")
            db.change(first, key, now, me)
            return bool(db.rows("SELECT 1 FROM @alerts_sent WHERE alert_key = ? AND sent_by = ?", key, me))

        return self._ask(work)

    def forget_alerts(self, prefix: str) -> None:
        """The keys that begin so may be sent again: the thing they told of is over."""
        forget = "DELETE FROM @alerts_sent WHERE alert_key >= ? AND alert_key < ?"
        self._ask(lambda db: db.change(forget, prefix, prefix + LAST_CHARACTER))


def _put_last_run(db: Db, name: str, last: LastRun) -> None:
    upsert = db.words.insert(
        "run_log",
        _LAST_RUN_COLUMNS,
        key="pipeline_name",
        replacing=_LAST_RUN_COLUMNS[1:],
        rules={
            "last_success_at": "coalesce({new}, {old})",
            "last_success_slot": "CASE WHEN {old} IS NULL OR {new} > {old} THEN {new} ELSE {old} END",
        },
    )
    times = (rows.maybe_instant(last.last_success_at), rows.maybe_instant(last.last_success_slot))
    db.change(upsert, name, rows.instant(last.at), int(last.success), *times)


def _put_attempt(db: Db, name: str, state: AttemptState) -> None:
    upsert = db.words.insert("attempt_state", _ATTEMPT_COLUMNS, key="pipeline_name", replacing=_ATTEMPT_COLUMNS[1:])
    db.change(upsert, name, state.attempt_count, rows.maybe_instant(state.last_attempt_at), int(state.gave_up))
