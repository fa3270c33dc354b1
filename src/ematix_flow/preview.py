"""The documented import path of preview results: `from ematix_flow.preview import PreviewResult, render_text`."""

from __future__ import annotations

from ematix_flow.run.preview_result import PreviewResult, TargetPlan, TransformPlan
from ematix_flow.run.preview_text import render_text

__all__ = ["PreviewResult", "TargetPlan", "TransformPlan", "render_text"]
