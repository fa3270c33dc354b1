"""What is due, and what of it may start: declarations and the run log, put side by side at a moment.

`flow run-due` and `flow scheduler` ask here and nowhere else. Nothing is run; what is written down are slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ematix_flow.contracts.orchestration import AttemptState, LastRun, RunLog, Slot
from ematix_flow.declare.trigger import trigger_met
from ematix_flow.plan.cron import Schedule
from ematix_flow.plan.due import due_slots
from ematix_flow.plan.graph import Graph, Upstream, gate
from ematix_flow.plan.retries import longest_window_s
from ematix_flow.run.registered import Orchestrated


@dataclass(frozen=True)
class Candidate:
    """A slot whose time has come. Whether its upstreams let it run is asked when its turn comes."""

    entry: Orchestrated
    slot: Slot

    @property
    def name(self) -> str:
        """The pipeline or workflow."""
        return self.entry.name


@dataclass(frozen=True)
class Held:
    """A slot that may not run now, and why."""

    name: str
    slot: Slot
    reason: str


@dataclass(frozen=True)
class Missed:
    """Fire times that nobody will run, because nobody looked when they passed and catching up is not declared."""

    name: str
    count: int
    first: datetime | None
    last: datetime | None

    def words(self) -> str:
        """What happened, for people."""
        times = "time" if self.count == 1 else "times"
        return f"{self.count} scheduled {times} up to {self.last:%Y-%m-%d %H:%M} UTC passed unseen"

    def __str__(self) -> str:
        return f"{self.name}: {self.words()}"


class Desk:
    """The declared pipelines and workflows over one run log.

    Args:
        told: Missed times that this process knows to be told already; kept by whoever makes a desk again and again.
    """

    def __init__(self, entries: Iterable[Orchestrated], log: RunLog, *, told: set[str] | None = None) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self.log = log
        self._told = told if told is not None else set()
        self.graph = Graph({entry.name: entry.upstreams for entry in self.entries.values()})

    def write_down_due(self, now: datetime, interval_s: float) -> list[Missed]:
        """Write down every slot that has become due, once, whoever asks and however often; what was missed comes back.

        A newer slot takes the place of one that still waits, unless every one of them is wanted (`catchup="all"`).
        """
        latest, last_runs = self.log.last_slots(), self.log.last_runs()
        self.log.still_declared(self.entries)
        # A pipeline without a slot has a past, too: it begins when somebody looked at it first.
        unslotted = [name for name, entry in self.entries.items() if entry.due is not None and name not in latest]
        seen = self.log.first_seen(unslotted, now) if unslotted else {}
        found: list[Slot] = []
        missed: list[Missed] = []
        for entry in self.entries.values():
            last = latest.get(entry.name)
            if entry.due is not None:
                due = due_slots(
                    entry.due, now=now, interval_s=interval_s, last_slot=last, first_seen=seen.get(entry.name)
                )
                found += [Slot(entry.name, at) for at in due.slots]
                if due.missed:
                    missed.append(Missed(entry.name, due.missed, due.missed_from, due.missed_until))
            elif entry.triggered_by is not None:
                at = self._triggered(entry, last, last_runs)
                if at is not None:
                    found.append(Slot(entry.name, at))
        self.add(found)
        return [one for one in missed if self._is_news(one, now)]

    def write_down_triggered(self) -> list[str]:
        """Write down the slots of workflows whose triggers have come about since; the names of those that were new."""
        latest, last_runs = self.log.last_slots(), self.log.last_runs()
        waiting = [one for one in self.entries.values() if one.due is None and one.triggered_by is not None]
        slots = [(one.name, self._triggered(one, latest.get(one.name), last_runs)) for one in waiting]
        return [slot.pipeline for slot in self.add([Slot(name, at) for name, at in slots if at is not None])]

    def _is_news(self, missed: Missed, now: datetime) -> bool:
        """Told once, by whoever looks first."""
        key = f"missed:{missed.name}:{missed.last}"
        if key in self._told:
            return False
        self._told.add(key)
        return self.log.first_alert(key, now)

    def add(self, slots: Sequence[Slot]) -> Sequence[Slot]:
        """Write slots down that are not known yet; those come back. Older ones that still wait give way."""
        new = self.log.add_slots(slots) if slots else ()
        if new:
            self._supersede(new)
        return new

    def _triggered(
        self, entry: Orchestrated, last: datetime | None, last_runs: Mapping[str, LastRun]
    ) -> datetime | None:
        """The slot of a workflow that runs when others have: the moment the last of them did, alike for everybody."""
        assert entry.triggered_by is not None
        new = _news(entry, last_runs)
        if not trigger_met(entry.triggered_by, new.__contains__):
            return None
        at = max(new.values())
        return at if last is None or at > last else None

    def _supersede(self, new: Sequence[Slot]) -> None:
        newest: dict[str, datetime] = {}
        for slot in new:
            newest[slot.pipeline] = max(slot.at, newest.get(slot.pipeline, slot.at))
        clock = self.log.clock()
        claimed = {claim.pipeline for claim in self.log.claims() if claim.expires_at > clock}
        for slot in self.log.open_slots():
            if slot.pipeline in claimed:
                continue  # it is on its way to a worker, who may need longer than from one time to the next
            entry = self.entries.get(slot.pipeline)
            later = newest.get(slot.pipeline)
            if entry is None or later is None or slot.status != "pending" or slot.backfill or slot.at >= later:
                continue
            if entry.due is not None and entry.due.catchup == "all":
                continue
            said = f"{slot.reason}; " if slot.reason else ""
            gone = replace(slot, status="superseded", reason=f"{said}a later one was due at {later:%Y-%m-%dT%H:%M:%SZ}")
            if self.log.move_slot(gone, expected="pending") and slot.eligible_at is not None:
                # The wait after a failure is the pipeline's, not the slot's.
                self.log.move_slot(
                    Slot(slot.pipeline, later, eligible_at=slot.eligible_at, reason=slot.reason),
                    expected="pending",
                    expected_attempt=0,
                )

    def candidates(self, now: datetime) -> tuple[list[Candidate], list[Held]]:
        """Waiting slots in the order in which they may run: upstreams first, then priority, then time."""
        paused, attempts = self.log.paused(), self.log.attempts()
        waiting: dict[str, list[Slot]] = {}
        for slot in self.log.open_slots():
            # Slots of a backfill are run by the command that asked for them, or by its next call.
            if slot.status == "pending" and slot.backfill is None and slot.pipeline in self.entries:
                waiting.setdefault(slot.pipeline, []).append(slot)
        by_weight = sorted(waiting, key=lambda name: (-self.entries[name].priority, waiting[name][0].at))
        found: list[Candidate] = []
        held: list[Held] = []
        for name in self.graph.order(by_weight):
            entry = self.entries[name]
            for slot in waiting[name]:
                reason = _reason_to_wait(entry, slot, attempts.get(name), now)
                if name in paused:
                    reason = f"paused{_by(paused[name].by)}"
                if reason is None:
                    found.append(Candidate(entry, slot))
                else:
                    held.append(Held(name, slot, reason))
        return found, held

    def waits_for(self, candidate: Candidate, now: datetime, last_runs: Mapping[str, LastRun]) -> str | None:
        """Why the upstreams do not let it run, going by these last runs; None when they do."""
        entry = candidate.entry
        upstreams = [Upstream(name, self._schedule_of(name), last_runs.get(name)) for name in entry.upstreams]
        names = gate(upstreams, slot=candidate.slot.at, now=now, freshness_s=entry.freshness_s)
        if not names and entry.due is not None and entry.triggered_by is not None:
            met = trigger_met(entry.triggered_by, _news(entry, last_runs).__contains__)
            names = () if met else tuple(entry.triggered_by.leaves())
        return f"upstream not fresh: {', '.join(names)}" if names else None

    def _schedule_of(self, name: str) -> Schedule | None:
        entry = self.entries.get(name)
        return entry.due.schedule if entry is not None and entry.due is not None else None


def _reason_to_wait(entry: Orchestrated, slot: Slot, state: AttemptState | None, now: datetime) -> str | None:
    if state is not None and state.gave_up:
        return f"gave up after {state.attempt_count} retry attempts; `flow retry {entry.name}` tries again"
    if slot.eligible_at is not None and slot.eligible_at > now:
        made = state.attempt_count if state is not None else slot.attempt
        longest = timedelta(seconds=longest_window_s(entry.retry, max(1, made)))
        if entry.retry.explicit and slot.eligible_at > now + longest:
            return None  # the clock was set back since: the wait would last that much longer
        when = f"{slot.eligible_at:%Y-%m-%dT%H:%M:%SZ}"
        return f"retry backoff (attempt {made}/{entry.retry.max_attempts}; next eligible at {when})"
    return None


def _news(entry: Orchestrated, last_runs: Mapping[str, LastRun]) -> dict[str, datetime]:
    """Of those that trigger a workflow, the successes since its last good slot. Its slot, not its end: some may have
    come while it ran."""
    assert entry.triggered_by is not None
    own = last_runs.get(entry.name)
    since = own.last_success_slot or own.last_success_at if own is not None else None
    successes = {name: last_runs[name].last_success_at for name in entry.triggered_by.leaves() if name in last_runs}
    return {name: at for name, at in successes.items() if at is not None and (since is None or at > since)}


def _by(who: str) -> str:
    return f" by {who}" if who else ""
