"""The supplier leaves a file a day: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DAYS = {"day1": (1, {"bolt": 900, "nut": 850, "washer": 40}), "day2": (2, {"nut": 700, "rivet": 65, "washer": 40})}
day, counts = DAYS[sys.argv[1]]
Path("supplier/counts").mkdir(parents=True, exist_ok=True)
moment = datetime(2026, 3, day, 17, tzinfo=timezone.utc)
rows = [{"article": name, "pieces": pieces, "counted_at": moment} for name, pieces in counts.items()]
pq.write_table(pa.Table.from_pylist(rows), f"supplier/counts/2026-03-{day:02d}.parquet")
