"""Sources that were replaced by others of their names: a topic that was deleted and made anew counts from 0 again.

Positions in the old one say nothing of the new one, and where it holds more messages by now, nothing else tells.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ematix_flow.contracts.streams import KnowsWhatIsLeft, SeeksPositions, TellsIdentity
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.errors import LostMessages

if TYPE_CHECKING:
    from ematix_flow.spark.checkpoints import CheckpointFolder, Generation

log = logging.getLogger(__name__)

LOOK_EVERY_S = 10.0
"""How often a running stream asks whether its sources are still the same."""


class SourceIdentities:
    """Whether the sources of a stream are those that its checkpoint knows."""

    def __init__(self, spec: StreamSpec, folder: CheckpointFolder, backends: Mapping[str, Any]) -> None:
        self._spec, self._folder = spec, folder
        self._asked = {query: one for query, one in backends.items() if isinstance(one, TellsIdentity)}
        self._backends = backends
        self._known: dict[str, str] = {}
        self._looked_at = 0.0

    def settled(self, generation: Generation) -> Generation:
        """The generation to go on with: as it is, or a new one that begins with a source that was made anew.

        Raises:
            LostMessages: (a ValueError) a source was made anew, and the stream is not to go on by itself, or cannot.
        """
        now = self._now()
        known = self._folder.identities(generation)
        replaced = [query for query, identity in now.items() if known.get(query, identity) != identity]
        if replaced:
            query = replaced[0]
            source = self._asked[query]
            if not self._begins_anew or not isinstance(source, SeeksPositions):
                raise self._lost(query)
            log.warning(
                "%s: '%s' was deleted and made anew; it is read from its beginning, and what the old one still had "
                "is gone",
                self._spec.name,
                query,
            )
            start = {query: source.position_at(query, "earliest")}
            generation = self._folder.begin(generation.shape, start)
            known = {}
        elif (moved := self._without_what_is_gone(generation)) is not generation:
            generation, known = moved, {}
        self._known = {**known, **now}
        if self._known != known:
            self._folder.keep_identities(generation, self._known)
        self._looked_at = time.monotonic()
        return generation

    def _without_what_is_gone(self, generation: Generation) -> Generation:
        """The generation to go on with, where a source has forgotten what comes next.

        Raises:
            LostMessages: (a ValueError) it has, and the stream is not to go on by itself, or cannot.
        """
        last = self._folder.newest(generation, "offsets")
        if last is None:
            return generation
        for source, line in zip(self._spec.sources, self._folder.offsets(generation, last), strict=False):
            backend = self._backends[source.query]
            if line == "-" or not isinstance(backend, KnowsWhatIsLeft):
                continue
            left = backend.place_left(source.query, backend.position(line))  # type: ignore[attr-defined]
            if left is None:
                continue
            # A batch that was only planned may be with some targets, and cannot be done again.
            if not self._begins_anew or not self._folder.is_committed(generation, last):
                raise LostMessages(
                    f"'{source.query}' no longer knows what came right after batch {last} of the stream "
                    f"'{self._spec.name}'.",
                    fix="on_gap='continue' goes on with what is there, for a stream of one source and without windows; "
                    f"flow state reset {self._spec.name} --from earliest reads all rows",
                )
            log.warning(
                "%s: '%s' no longer knows what came right after batch %d; it goes on with what is there",
                self._spec.name,
                source.query,
                last,
            )
            return self._folder.begin(generation.shape, {source.query: left})
        return generation

    def look(self) -> None:
        """Ask again, now and then.

        Raises:
            LostMessages: (a ValueError) a source was made anew while the stream ran.
        """
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = time.monotonic()
        for query, identity in self._now().items():
            if self._known.setdefault(query, identity) != identity:
                raise self._lost(query)

    def _now(self) -> dict[str, str]:
        found = {query: source.identity(query) for query, source in self._asked.items()}
        return {query: identity for query, identity in found.items() if identity is not None}

    @property
    def _begins_anew(self) -> bool:
        """Whether it goes on by itself: nothing else hangs on where it is, no other source and nothing remembered."""
        return self._spec.on_gap == "continue" and len(self._spec.sources) == 1 and not self._spec.is_stateful

    def _lost(self, query: str) -> LostMessages:
        return LostMessages(
            f"'{query}' was deleted and made anew since the stream '{self._spec.name}' read from it; what it had not "
            "read is gone, and its positions say nothing of the new one.",
            fix=f"begin with the new one: flow state reset {self._spec.name} --from earliest; a stream of one source "
            "and without windows does so by itself at its next start, with on_gap='continue'",
        )
