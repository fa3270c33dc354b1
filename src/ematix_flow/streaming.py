"""The documented import path of streams; what is here lives in `declare/stream_pipeline.py`."""

from __future__ import annotations

from ematix_flow.declare.stream_pipeline import (
    get_streaming_pipeline,
    list_streaming_pipelines,
    register_streaming_pipeline,
    render_streaming_pipeline_toml,
    run_pipeline,
    run_streaming_pipeline,
    streaming_pipeline,
)

__all__ = [
    "get_streaming_pipeline",
    "list_streaming_pipelines",
    "register_streaming_pipeline",
    "render_streaming_pipeline_toml",
    "run_pipeline",
    "run_streaming_pipeline",
    "streaming_pipeline",
]
