"""The door to systems whose tables must be looked after, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from ematix_flow.contracts.runtime import instant_text
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.maintenance import Maintenance


@dataclass(frozen=True)
class FileCount:
    """So many files, and their bytes together."""

    files: int
    bytes: int


@dataclass(frozen=True)
class TableFiles:
    """What a table is made of.

    `live` are the files of its newest version. `stored` is everything in its folder: older versions and the log too;
    None when it lies where we cannot look.
    """

    live: FileCount
    stored: FileCount | None


@dataclass(frozen=True, kw_only=True)
class MaintenanceReport:
    """What one maintenance of a table did. `left_out` says what it did not do, and why."""

    table: TableRef
    at: datetime
    before: TableFiles
    after: TableFiles
    done: tuple[str, ...]
    left_out: tuple[str, ...]
    duration_s: float

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "table": str(self.table),
            "at": instant_text(self.at),
            "before": asdict(self.before),
            "after": asdict(self.after),
            "done": list(self.done),
            "left_out": list(self.left_out),
            "duration_s": round(self.duration_s, 3),
        }


class TableMaintenance(Protocol):
    """Looks after the tables behind one connection."""

    def look(self, table: TableRef) -> TableFiles | None:
        """What the table is made of now; None when it is not there."""
        ...

    def last(self, table: TableRef) -> datetime | None:
        """When it was maintained the last time; None when it never was."""
        ...

    def run(self, table: TableRef, wanted: Maintenance, *, now: datetime) -> MaintenanceReport:
        """Maintain the table. Its rows stay as they are; loads of ours into it wait meanwhile."""
        ...

    def run_if_due(
        self, table: TableRef, wanted: Maintenance, *, now: datetime, begin: Callable[[], None]
    ) -> MaintenanceReport | None:
        """Do it when the last time is `wanted.every` ago; `begin` is called just before. None when it is too early.

        A table seen for the first time becomes due that much later: a first load leaves nothing to tidy up.
        """
        ...


@runtime_checkable
class Maintains(Protocol):
    """A system whose tables gather small and old files as they are written: lake tables."""

    def maintenance(self) -> TableMaintenance:
        """Who looks after the tables."""
        ...
