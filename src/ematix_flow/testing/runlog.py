"""A run log that keeps nothing, for tests: in memory, and in use only inside a `with` block."""

from __future__ import annotations

from ematix_flow.run.runlogs.memory import InMemoryRunLog as MemoryRunLog
from ematix_flow.run.runlogs.open import use_run_log

__all__ = ["MemoryRunLog", "use_run_log"]
