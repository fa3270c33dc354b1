"""The door of a source that is read by one reader, and by several only when a pipeline asks for it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ematix_flow.contracts.plans import Reading


@runtime_checkable
class SplitsOnRequest(Protocol):
    """A source whose parallel readers do not see one moment, so that `parallel_reads=` must be said."""

    def parts_in_words(self, reading: Reading) -> str:
        """How a reading that asks for several readers would be divided now, or why it is not; for people."""
        ...
