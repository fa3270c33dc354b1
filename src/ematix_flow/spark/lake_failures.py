"""What Spark's sources of lake tables say when a stream cannot go on, or a version is not there, as errors of ours."""

from __future__ import annotations

import re

from ematix_flow.errors import EngineFailed, FlowError, InvalidSource, LostMessages, StateIncompatible

_CHANGED = re.compile(
    r"(?:DELTA_SOURCE_(?:TABLE_IGNORE_CHANGES|IGNORE_DELETE)[\s\S]*?at version (?P<version>\d+)"
    r"|Cannot process (?:overwrite|delete) snapshot: (?P<snapshot>\d+))"
)
_PATH = re.compile(r"can be found at path (\S+?)\.? ")
_NO_VERSION = re.compile(r"Cannot time travel Delta table to version (\d+)\. Available versions: \[(\d+), (\d+)\]")
_TOO_EARLY = re.compile(r"timestamp \(([^)]+)\) is before the earliest version available to\s+this table \(([^)]+)\)")
_TOO_LATE = re.compile(r"[Tt]imestamp \(?([\d][^)]*?)\)? is after the\s[^(]*\(([^)]+)\)")
_NO_SNAPSHOT = re.compile(r"Cannot find (?:snapshot with ID (\d+)|a snapshot older than (\S+))")


def lake_version_failure(condition: str, text: str) -> FlowError | None:
    """A rule of `spark/failures.py`: somebody reads a version, or a time, that the table does not have."""
    version = _NO_VERSION.search(text)
    if version:
        return InvalidSource(
            f"This Delta table has no version {version[1]}: the oldest that can be read is {version[2]}, the newest "
            f"{version[3]}.",
            fix="ask for one of these, or for a time",
        )
    for pattern, end in ((_TOO_EARLY, "oldest"), (_TOO_LATE, "newest")):
        moment = pattern.search(text) if condition.startswith("DELTA_TIMESTAMP") else None
        if moment:
            return InvalidSource(
                f"There is no version of this Delta table at {moment[1]}: its {end} is of {moment[2]}.",
                fix="ask for a time between its oldest and its newest version, or for a version",
            )
    snapshot = _NO_SNAPSHOT.search(text)
    if snapshot:
        wanted = f"snapshot {snapshot[1]}" if snapshot[1] else f"snapshot as old as {snapshot[2]}"
        return InvalidSource(
            f"This Iceberg table has no {wanted}, or no longer.",
            fix="ask for one of its snapshots, or for a later time",
        )
    return None


def lake_stream_failure(condition: str, text: str) -> FlowError | None:
    """A rule of `spark/failures.py`."""
    changed = _CHANGED.search(text)
    if changed:
        number = changed["version"] or changed["snapshot"]
        path = _PATH.search(text)
        return StateIncompatible(
            f"{'Version' if changed['version'] else 'Snapshot'} {number} of the table changes or deletes rows, which a "
            "stream of its rows cannot say.",
            where=path[1] if path else None,
            fix='stream_changes = "skip" on the connection passes such commits over; or begin anew behind it: '
            "flow state reset NAME --from latest",
        )
    if "DELTA_SCHEMA_CHANGED" in text or "DELTA_STREAMING_CHECK_COLUMN_MAPPING" in text:
        return EngineFailed(
            "The columns of the table changed while it was read as a stream.",
            fix="start the stream again: it goes on with the new columns (--restart-on-error does so by itself)",
        )
    if "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE" in text:
        return LostMessages(
            "The table was deleted and made anew since the stream read from it.",
            fix="begin with the new one: flow state reset NAME --from earliest",
        )
    is_forgotten = "DELTA_LOG_FILE_NOT_FOUND" in text or "DELTA_VERSION_NOT_CONTIGUOUS" in text
    if is_forgotten or ("failOnDataLoss" in text and "delta" in text.lower()):
        return LostMessages(
            "The table no longer has versions that the stream has not read.",
            fix="on_gap='continue' goes on with what is there; flow state reset NAME --from earliest reads all rows",
        )
    if "Cannot load current offset at snapshot" in text:
        return LostMessages(
            "The table no longer has the snapshot that the stream ended with.",
            fix="flow state reset NAME --from earliest|latest, and keep snapshots longer than the stream may rest",
        )
    return None
