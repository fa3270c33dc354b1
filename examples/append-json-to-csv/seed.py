"""The web form writes a file a day: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

DAYS = {
    "day1": [
        {"feedback_id": 1, "stars": 5, "words": " Lovely, and quick "},
        {"feedback_id": 2, "stars": 2, "words": ""},
    ],
    "day2": [{"feedback_id": 3, "stars": 4, "words": 'The "small" size is large'}],
}
day = sys.argv[1]
Path("website/feedback").mkdir(parents=True, exist_ok=True)
Path(f"website/feedback/{day}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in DAYS[day]))
