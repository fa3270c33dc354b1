"""The run log in a bucket: history, last runs and attempts as small JSON objects; nothing that decides who is first.

    <prefix>/run_log/<pipeline>.json
    <prefix>/attempt_state/<pipeline>.json
    <prefix>/run_records/<started at>~<pipeline>~<run id>.json
    <prefix>/run_events/<run id>/<at>~<mark>.json

Names are written as in a URL. A listing is in time order, so the newest records are found without opening the others;
asking by status opens all of a pipeline.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote, unquote

from ematix_flow.backends.files_store import VersionChanged
from ematix_flow.backends.object_client import ObjectClient, OnlyIf, StoreRefused, at_once
from ematix_flow.contracts.orchestration import AttemptState, LastRun, RunEvent
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import ConnectionFailed
from ematix_flow.run.runlogs import rows
from ematix_flow.run.runlogs.history_only import HistoryOnly
from ematix_flow.run.runlogs.rows import RECORD_COLUMNS

_LONGEST = 200
_PRUNING_S = 60.0
_EVENT_COLUMNS = ("run_id", "at", "step", "status", "detail", "duration_ms")


class ObjectRunLog(HistoryOnly):
    """A run log in a bucket or container: a record of what happened, for programs that run one at a time.

    Args:
        client: The bucket.
        where: It in messages.
        prefix: What the keys begin with.
    """

    def __init__(
        self,
        client: ObjectClient,
        *,
        where: str,
        prefix: str = "",
        max_age_days: float | None = None,
        max_records: int | None = None,
    ) -> None:
        self.where = where
        self._client = client
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._max_age_days, self._max_records = max_age_days, max_records
        self._pruned_at: float | None = None
        self._closed = False

    def open(self) -> None:
        """See that the bucket is there and may be read. Called by the store's constructor."""
        with self._asking():
            self._client.list(f"{self._prefix}run_log/", at_most=1)

    def close(self) -> None:
        """Let go of the store; may be called twice. A closed log refuses further work."""
        self._closed = True

    # ── records ──

    def record_run_record(self, record: RunRecord) -> None:
        """Write the record, or replace the one with the same run id and the same beginning."""
        facts = dict(zip(RECORD_COLUMNS, rows.record_row(record), strict=True))
        self._put(self._record_key(record), {**facts, "extras": dict(record.extras)})
        if record.finished_at is None or (self._max_age_days is None and self._max_records is None):
            return
        # Looking through the bucket costs a request per thousand records: not with every run.
        if self._pruned_at is None or time.monotonic() - self._pruned_at > _PRUNING_S:
            self._pruned_at = time.monotonic()
            self._prune(record.finished_at, self._max_age_days, self._max_records)

    def list_runs(
        self, *, pipeline: str | None = None, status: str | None = None, limit: int = 50, offset: int = 0
    ) -> tuple[Sequence[RunRecord], int]:
        """Newest first, with the number of all that match."""
        keys = self._record_keys()
        if pipeline is not None:
            keys = [key for key in keys if _parts(key)[1] == _word(pipeline)]
        if status is None:
            return self._records(keys[offset : offset + limit]), len(keys)
        found = [record for record in self._records(keys) if record.status == status]
        return found[offset : offset + limit], len(found)

    def get_run(self, run_id: str) -> RunRecord | None:
        """The record with that id, or with an id that begins so when only one does."""
        if not run_id:
            return None
        keys = {unquote(_parts(key)[2]): key for key in self._record_keys()}
        exact = keys.get(run_id) or keys.get(unquote(_word(run_id)))
        near = [exact] if exact else [key for known, key in keys.items() if known.startswith(run_id)]
        found = self._records(near) if len(near) == 1 else []
        return found[0] if found else None

    # ── what was last ──

    def record_run(self, name: str, ts: datetime, success: bool, *, slot: datetime | None = None) -> None:
        """How the last run ended; `slot` is remembered when it went well and is later than the one known."""

        def change(was: Mapping[str, Any]) -> dict[str, Any]:
            known = was.get("last_success_slot")
            if success and slot is not None:
                known = max(known or "", rows.instant(slot))
            return {
                "pipeline": name,
                "last_run_at": rows.instant(ts),
                "success": success,
                "last_success_at": rows.instant(ts) if success else was.get("last_success_at"),
                "last_success_slot": known,
            }

        key = self._key("run_log", name)
        with self._asking():
            while True:
                found = self._client.get(key)
                was, version = (json.loads(found[0]), found[1]) if found else ({}, None)
                try:
                    self._client.put(key, json.dumps(change(was)).encode(), OnlyIf(version))
                    return
                except VersionChanged:
                    continue  # somebody wrote in between; what they wrote is part of the answer

    def last_runs(self) -> Mapping[str, LastRun]:
        """By pipeline."""
        names = ("last_run_at", "success", "last_success_at", "last_success_slot")
        return {name: rows.to_last_run([facts.get(fact) for fact in names]) for name, facts in self._all("run_log")}

    def last_errors(self) -> Mapping[str, str]:
        """What the last failed run said, by pipeline, of those whose last run failed and said something."""
        failing = {_word(name): name for name, last in self.last_runs().items() if not last.success}
        theirs: dict[str, list[str]] = {word: [] for word in failing}
        for key in self._record_keys() if failing else ():
            theirs.get(_parts(key)[1], []).append(key)
        found: dict[str, str] = {}
        while any(theirs.values()):  # mostly once: the newest record of each is the one that failed
            newest = [keys.pop(0) for keys in theirs.values() if keys]
            for record in self._records(newest):
                if record.status == "failed":
                    theirs[_word(record.pipeline)] = []
                    if record.error_summary is not None:
                        found[record.pipeline] = record.error_summary
        return found

    def record_attempt(self, name: str, state: AttemptState) -> None:
        """Replace the pipeline's attempt state."""
        facts = {
            "pipeline": name,
            "attempt_count": state.attempt_count,
            "last_attempt_at": rows.maybe_instant(state.last_attempt_at),
            "gave_up": state.gave_up,
        }
        self._put(self._key("attempt_state", name), facts)

    def clear_attempt_state(self, name: str) -> None:
        """Forget it; nothing happens when there is none."""
        with self._asking():
            self._client.delete([self._key("attempt_state", name)])

    def attempts(self) -> Mapping[str, AttemptState]:
        """By pipeline."""
        names = ("attempt_count", "last_attempt_at", "gave_up")
        found = self._all("attempt_state")
        return {name: rows.to_attempt_state([facts.get(fact) for fact in names]) for name, facts in found}

    def restore_into_process(self) -> None:
        """Bring last runs and attempt states into this process, where the functions of `pipeline` look."""
        from ematix_flow.run.runlogs.in_process import process_log

        process_log().take_over(self.last_runs().items(), self.attempts().items())

    # ── what happened in a run ──

    def add_event(self, event: RunEvent) -> None:
        """Append an event."""
        at = rows.instant(event.at)
        values = (event.run_id, at, event.step, event.status, rows.storable(event.detail), event.duration_ms)
        self._put(
            f"{self._events(event.run_id)}{at}~{rows.place()}.json", dict(zip(_EVENT_COLUMNS, values, strict=True))
        )

    def events(self, run_id: str) -> Sequence[RunEvent]:
        """Events of a run, oldest first."""
        found = self._read(sorted(self._keys(self._events(run_id)))).values()
        return [rows.to_event([facts[name] for name in _EVENT_COLUMNS]) for facts in found]

    def prune(self, *, max_age_days: float | None = None, max_records: int | None = None) -> int:
        """Remove finished records beyond that, with their events; how many records went."""
        return self._prune(datetime.now(timezone.utc), max_age_days, max_records)

    def _prune(self, now: datetime, max_age_days: float | None, max_records: int | None) -> int:
        keys = self._record_keys()
        beyond = keys[max_records:] if max_records is not None else []
        oldest = None if max_age_days is None else now - timedelta(days=max_age_days)
        # A record that ended before then has begun before then.
        aged = [] if oldest is None else [key for key in keys if _parts(key)[0] < rows.instant(oldest)]
        gone = [
            record
            for record in self._records(sorted({*beyond, *aged}))
            if record.finished_at is not None
            and (self._record_key(record) in beyond or (oldest is not None and record.finished_at < oldest))
        ]
        events = [key for record in gone for key in self._keys(self._events(record.run_id))]
        with self._asking():
            if gone:
                self._client.delete([*events, *map(self._record_key, gone)])
        return len(gone)

    # ── the pieces ──

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}{kind}/{_word(name)}.json"

    def _record_key(self, record: RunRecord) -> str:
        words = (rows.instant(record.started_at), _word(record.pipeline), _word(record.run_id))
        return f"{self._prefix}run_records/{'~'.join(words)}.json"

    def _record_keys(self) -> list[str]:
        """Newest first."""
        return sorted(self._keys(f"{self._prefix}run_records/"), reverse=True)

    def _events(self, run_id: str) -> str:
        return f"{self._prefix}run_events/{_word(run_id)}/"

    def _keys(self, prefix: str) -> list[str]:
        with self._asking():
            return [found.key for found in self._client.list(prefix).objects if found.key.endswith(".json")]

    def _records(self, keys: Sequence[str]) -> list[RunRecord]:
        return [
            rows.to_record([*(facts[name] for name in RECORD_COLUMNS[:10]), json.dumps(facts["extras"]), None, None])
            for facts in self._read(keys).values()
        ]

    def _all(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        """The objects of a kind, by the name they are of; older programs wrote it into the key only."""
        found = self._read(self._keys(f"{self._prefix}{kind}/")).items()
        return [
            (facts.get("pipeline") or unquote(key.rpartition("/")[2][: -len(".json")]), facts) for key, facts in found
        ]

    def _read(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Objects by key, in the order of the keys, without those that were removed since they were listed."""
        found: dict[str, bytes] = {}

        def read(key: str) -> None:
            body = self._client.get(key)
            if body is not None:
                found[key] = body[0]

        with self._asking():
            at_once(read, keys)
        return {key: json.loads(found[key]) for key in keys if key in found}

    def _put(self, key: str, facts: Mapping[str, Any]) -> None:
        with self._asking():
            self._client.put(key, rows.to_json(facts).encode())

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """The store's refusals as ours."""
        if self._closed:
            raise ConnectionFailed(f"The run log '{self.where}' is closed.")
        try:
            yield
        except StoreRefused as exc:
            reason = scrub(exc.message).rstrip(".")
            raise ConnectionFailed(
                f"The run log '{self.where}' does not answer: {reason}.", where=scrub(exc.where), fix=scrub(exc.fix)
            ) from exc


def _word(name: str) -> str:
    """A name as part of a key: as in a URL, and never too long for one.

    >>> _word("orders/daily"), _word("plain_name-1")
    ('orders%2Fdaily', 'plain_name-1')
    """
    quoted = quote(name, safe="").replace("~", "%7E")
    if len(quoted) <= _LONGEST:
        return quoted
    whole = quoted[:_LONGEST].rpartition("%")[0] or quoted[:_LONGEST]  # no half of an escaped character
    return f"{whole}%7E{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def _parts(key: str) -> tuple[str, str, str]:
    """When it began, the pipeline and the run id of a record's key, both as words."""
    began, pipeline, run_id = key.rpartition("/")[2][: -len(".json")].split("~")
    return began, pipeline, run_id
