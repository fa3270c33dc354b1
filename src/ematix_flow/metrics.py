"""Window: where numbers about runs go, as documented under this path."""

from __future__ import annotations

from ematix_flow.contracts.orchestration import MetricsSink
from ematix_flow.watch.metrics import DetailedMetrics, MemoryMetrics, NullMetrics, StdoutMetrics, from_url

__all__ = ["DetailedMetrics", "MemoryMetrics", "MetricsSink", "NullMetrics", "StdoutMetrics", "from_url"]
