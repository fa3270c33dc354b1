"""Records of Kinesis that retention removed before a stream had read them, found when it starts.

Sequence numbers have gaps of their own, so nothing can be counted, and Kinesis gives what is left without a word. What
can be told: the record that was read last is gone, and nobody has read up to the end of the shards since before that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ematix_flow.backends.kinesis_client import (
    BEGINNING,
    LOST_FIX,
    SHARD_END,
    Shard,
    ShardReader,
    Stream,
    is_sequence,
    list_shards,
)
from ematix_flow.backends.queue_spool import write_json
from ematix_flow.errors import LostMessages, listed

log = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
_LEAST_RETENTION_MS = 24 * _HOUR_MS
_NOTED_EVERY_MS = 60_000
_LOOKS = 5
"""How often a shard is asked for its oldest record: of one with few records, the service also gives empty answers."""


class ReadUpTo:
    """The moment at which all shards had been read to their ends, in a file beside the messages."""

    def __init__(self, folder: Path) -> None:
        self._place = folder / "_read_up_to.json"
        self._noted_ms = 0

    def ms(self) -> int | None:
        """In milliseconds since 1970; None when it is not known."""
        return int(json.loads(self._place.read_text())["ms"]) if self._place.exists() else None

    def note(self, ms: int) -> None:
        """Keep a moment, once a minute: days count here."""
        if ms - self._noted_ms >= _NOTED_EVERY_MS:
            write_json(self._place, {"ms": ms})
            self._noted_ms = ms

    def forget(self) -> None:
        """The stream begins elsewhere, and nothing is known of what lies behind that."""
        self._place.unlink(missing_ok=True)


def without_lost(
    stream: Stream, positions: Mapping[str, str], read_up_to_ms: int | None, now_ms: int, *, tolerates_gaps: bool
) -> dict[str, str]:
    """The positions to go on from: those that are still there, and the beginning of what is left of others.

    Raises:
        LostMessages: (a ValueError) records may be gone, and the stream is not to go on without them.
    """
    if read_up_to_ms is not None and now_ms - read_up_to_ms < _LEAST_RETENTION_MS:
        return dict(positions)
    known = {shard: position for shard, position in positions.items() if is_sequence(position)}
    if not known:
        return dict(positions)
    client = stream.client()
    hours = int(stream.summary(client)["RetentionPeriodHours"])
    if read_up_to_ms is not None and now_ms - read_up_to_ms < hours * _HOUR_MS:
        return dict(positions)
    shards = {shard.id: shard for shard in list_shards(stream, client)}
    lost = [shard for shard, position in sorted(known.items()) if _is_gone(stream, shards.get(shard), position, client)]
    if not lost:
        return dict(positions)
    if not tolerates_gaps:
        raise LostMessages(
            f"Kinesis no longer has the records of '{stream.stream_name}' that the stream read last, nor what came "
            f"after them until {hours} hours ago: {listed(lost)}.",
            where=f"connection '{stream.name}' (kinesis)",
            fix=LOST_FIX,
        )
    log.warning(
        "records of '%s' were gone before they could be read: those of %s from the last one that was read until %d "
        "hours ago; nobody can say how many",
        stream.stream_name,
        listed(lost),
        hours,
    )
    return {**positions, **{shard: BEGINNING if shard in shards else SHARD_END for shard in lost}}


def _is_gone(stream: Stream, shard: Shard | None, position: str, client: Any) -> bool:
    """Whether the record at a position is: its shard, or all that was there up to it."""
    if shard is None:
        return True
    reader = ShardReader(stream, shard.id, BEGINNING, client)
    for _ in range(_LOOKS):
        if oldest := reader.read(1):
            return int(oldest[0].sequence) > int(position)
    return False
