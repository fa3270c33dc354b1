"""The table `freshness_state` of a SQLite file: where every promise stood when somebody looked last, for dashboards."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from datetime import datetime
from pathlib import Path

from ematix_flow.errors import InvalidConfig
from ematix_flow.quality.freshness import FreshnessState

_TABLE = """
CREATE TABLE IF NOT EXISTS freshness_state (
    pipeline TEXT PRIMARY KEY,
    sla_seconds REAL NOT NULL,
    lag_seconds INTEGER,
    state TEXT NOT NULL,
    last_success TEXT,
    evaluated_at TEXT NOT NULL
)
"""


def write_states(path: str, states: Iterable[FreshnessState]) -> None:
    """Replace what the table says about these pipelines; the file and the table are made when they are missing.

    Raises:
        InvalidConfig: The file cannot be written, or is no SQLite database.
    """
    rows = [
        (one.pipeline, one.sla_seconds, one.lag_seconds, one.state, _text(one.last_success), _text(one.evaluated_at))
        for one in states
    ]
    file = Path(path).expanduser()
    try:
        with closing(sqlite3.connect(file, timeout=30)) as db, db:
            db.execute(_TABLE)
            db.executemany("INSERT OR REPLACE INTO freshness_state VALUES (?, ?, ?, ?, ?, ?)", rows)
    except sqlite3.Error as exc:
        raise InvalidConfig(
            f"'{file}' cannot hold the table freshness_state: {exc}.",
            fix="name a SQLite file, or a new one, with --analytics-db or EMATIX_FLOW_ANALYTICS_DB",
        ) from exc


def _text(moment: datetime | None) -> str | None:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment is not None else None
