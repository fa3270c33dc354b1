"""Run logs, by class or by URL: the documented import path of what `run/runlogs/` owns."""

from __future__ import annotations

from ematix_flow.contracts.orchestration import (
    AttemptState,
    Claim,
    ClaimResult,
    ExpiredClaim,
    LastRun,
    RunEvent,
    RunLog,
    Slot,
)
from ematix_flow.run.runlogs.azure import AzureBlobRunLog
from ematix_flow.run.runlogs.duckdb import DuckDBRunLog
from ematix_flow.run.runlogs.gcs import GcsRunLog
from ematix_flow.run.runlogs.memory import InMemoryRunLog
from ematix_flow.run.runlogs.mysql import MySQLRunLog
from ematix_flow.run.runlogs.open import current_run_log, open_run_log, use_run_log
from ematix_flow.run.runlogs.postgres import PostgresRunLog
from ematix_flow.run.runlogs.s3 import S3RunLog
from ematix_flow.run.runlogs.sqlite import SqliteRunLog
from ematix_flow.run.runlogs.urls import from_url

__all__ = [
    "AttemptState",
    "AzureBlobRunLog",
    "Claim",
    "ClaimResult",
    "DuckDBRunLog",
    "ExpiredClaim",
    "GcsRunLog",
    "InMemoryRunLog",
    "LastRun",
    "MySQLRunLog",
    "PostgresRunLog",
    "RunEvent",
    "RunLog",
    "S3RunLog",
    "Slot",
    "SqliteRunLog",
    "current_run_log",
    "from_url",
    "open_run_log",
    "use_run_log",
]
