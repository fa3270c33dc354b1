"""Workflows that start when a topic has new messages: what has come since somebody looked last becomes one slot.

How far a topic had come is noted in the run log, as a slot under a name of its own that is over from the beginning, so
that it is never run: `attempt` counts the topic's messages, `run_id` says which topic that was, and `eligible_at` is
the time of the workflow's slot that they are owed. Whoever replaces the note counted from what it said, so that one
of several hosts does, and the slot's time is what the note says, whoever writes the slot down. A process that dies in
between leaves the note, and the next look finds the slot missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from ematix_flow.backends.catalog import open_backend
from ematix_flow.config.resolve import resolve
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.orchestration import RunLog, Slot
from ematix_flow.contracts.streams import Newest, TellsNewest
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.workflow import topic_place
from ematix_flow.errors import FlowError, UnsupportedBackend, counted
from ematix_flow.orchestrate.desk import Desk

log = logging.getLogger(__name__)

WITHIN_S = 3.0
"""How long a broker may take to answer before the others go on without it."""
_AT_ONCE = 16
_KEY = datetime(1970, 1, 1, tzinfo=timezone.utc)
_A_LITTLE = timedelta(microseconds=1)

Looked = Callable[[Iterable[str]], tuple[Mapping[str, Newest], Mapping[str, str]]]
"""Of topics, each as `connection/topic`: how far they have come, and what is wrong with those that nobody knows of."""


def look_at(topics: Iterable[str]) -> tuple[Mapping[str, Newest], Mapping[str, str]]:
    """Ask the brokers, all at once, so that one that is away delays the others once."""
    wanted = sorted(set(topics))
    with ThreadPoolExecutor(min(_AT_ONCE, len(wanted))) as pool:
        answers = dict(zip(wanted, pool.map(_newest, wanted), strict=True))
    found = {topic: answer for topic, answer in answers.items() if isinstance(answer, Newest)}
    return found, {topic: answer for topic, answer in answers.items() if isinstance(answer, str)}


def write_down_messages(desk: Desk, now: datetime, *, look: Looked = look_at) -> None:
    """Write down a slot of every workflow whose topic has new messages, once, whoever looks and however often.

    At the first look a topic's messages are old. What cannot be looked at is a warning, and is looked at again by the
    next call.
    """
    waiting = {entry.name: entry.on_message for entry in desk.entries.values() if entry.on_message is not None}
    if not waiting:
        return
    store = desk.log
    store.still_declared(map(note_name, waiting))
    # Before the topics: what somebody else notes meanwhile is more than we have seen, not less.
    notes = {name: next(iter(store.slots(note_name(name), limit=1)), None) for name in waiting}
    found, problems = look(waiting.values())
    if problems:
        said = "; ".join(dict.fromkeys(problems.values()))
        away = counted(len(problems), "topic")
        log.warning("%s of on_message= cannot be looked at, until the next call: %s", away, said)
    last = store.last_slots()
    for name, topic in waiting.items():
        if topic in found:
            notes[name] = _noted(store, name, notes[name], next_note(name, topic, notes[name], found[topic], last, now))
    reached("messages-noted")
    owed = {name: note.eligible_at for name, note in notes.items() if note is not None}
    desk.add([Slot(name, at) for name, at in owed.items() if at is not None and (name not in last or at > last[name])])


def next_note(
    name: str, topic: str, note: Slot | None, seen: Newest, last: Mapping[str, datetime], now: datetime
) -> Slot | None:
    """What is noted of a topic as it is seen now; None when there is nothing new to it."""
    place = f"{topic}#{seen.identity}"
    if note is None:
        return Slot(note_name(name), _KEY, status="succeeded", attempt=seen.messages, run_id=place)
    changed = replace(note, attempt=seen.messages, run_id=place)
    known, _, identity = (note.run_id or "").rpartition("#")
    if known != topic:  # another declaration: the first look at this topic
        return changed
    # Without names for topics, fewer messages mean another one. With them, it is a broker that has just taken over.
    both_known = identity and seen.identity
    is_made_anew = identity != seen.identity if both_known else seen.messages < note.attempt
    if seen.messages <= (0 if is_made_anew else note.attempt):
        return changed if is_made_anew else None
    # Not at a time that has a slot, which would be taken for this one: clocks are set, and differ.
    at = max(now, last[name] + _A_LITTLE) if name in last else now
    return replace(changed, eligible_at=at)


def note_name(workflow: str) -> str:
    """Under which name the run log keeps how far a workflow's topic had come."""
    return f"_on_message:{workflow}"


def _noted(store: RunLog, name: str, note: Slot | None, new: Slot | None) -> Slot | None:
    """The note that stands now; the old one when somebody else was faster, who then sees to the rest."""
    if new is None or new == note:
        return note
    if note is None:
        store.add_slots([new])
        return new
    return new if store.move_slot(new, expected="succeeded", expected_attempt=note.attempt) else note


def _newest(topic: str) -> Newest | str:
    connection, query = topic_place(topic)
    try:
        backend = open_backend(resolve(connection, where="on_message= of a workflow").connection)
        if not isinstance(backend, TellsNewest):
            raise UnsupportedBackend(f"on_message= looks at topics of Kafka, and connection '{connection}' is none.")
        return backend.newest(query, WITHIN_S)
    except FlowError as exc:
        return f"{exc.message} ({exc.fix})" if exc.fix else exc.message
    except Exception as exc:  # whatever a driver says: other work goes on
        return scrub(f"'{topic}': {type(exc).__name__}: {exc}")
