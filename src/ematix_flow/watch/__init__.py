"""What others hear of runs: alerts, metrics, traces, lineage, captured output. Watching never stops a run."""
