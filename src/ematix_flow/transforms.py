"""The documented import path of the row steps; they live in `declare/steps.py`."""

from __future__ import annotations

from ematix_flow.declare.steps import (
    deduplicate_by as deduplicate_by,
    filter_where as filter_where,
    limit as limit,
    sample_pct as sample_pct,
)
