"""Window: traces of runs, as documented under this path."""

from __future__ import annotations

from ematix_flow.watch.traces import (
    StepSpans,
    Tracer,
    close_traces,
    configure_tracer_from_url,
    flush_traces,
    get_global_tracer,
    pipeline_run_span,
    set_global_tracer,
)

__all__ = [
    "StepSpans",
    "Tracer",
    "close_traces",
    "configure_tracer_from_url",
    "flush_traces",
    "get_global_tracer",
    "pipeline_run_span",
    "set_global_tracer",
]
