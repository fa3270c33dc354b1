"""Named transforms: functions that run on a connection, after a load or on their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.schedule import Orchestration
from ematix_flow.declare.target import ConnectionRef


@dataclass(frozen=True)
class TransformSpec:
    """A declared transform: the user's function, unchanged, and where it runs."""

    name: str
    function: Callable[..., Any]
    parameters: int
    where: SourceLocation
    target_connection: ConnectionRef | None = None
    schedule: str | None = None

    @property
    def orchestration(self) -> Orchestration:
        """What the orchestrator must know of it."""
        return Orchestration(schedule=self.schedule)
