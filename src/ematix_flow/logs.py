"""Window: the kept output of runs, as documented under this path."""

from __future__ import annotations

from ematix_flow.watch.run_output import capture_pipeline_logs, logs_dir, prune_old_logs, read_run_logs

__all__ = ["capture_pipeline_logs", "logs_dir", "prune_old_logs", "read_run_logs"]
