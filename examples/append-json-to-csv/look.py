"""What arrived."""

from __future__ import annotations

import csv
from pathlib import Path

rows = []
for path in Path("office/web/feedback").glob("*.csv"):
    with path.open(newline="") as file:
        rows += list(csv.DictReader(file))
for row in sorted(rows, key=lambda row: row["feedback_id"]):
    print(row["feedback_id"], row["stars"], row["words"])
