"""The price list arrives: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import sys
from pathlib import Path

DAYS = {
    "day1": "dish,price\nSoup,4.50\n Pie ,6.00\nCrème brûlée,5.20\n",
    "day2": "dish,price\nSoup,4.90\nCrème brûlée,5.20\nSalad,7.00\n",
}
Path("mailbox").mkdir(exist_ok=True)
Path("mailbox/prices.csv").write_text(DAYS[sys.argv[1]], encoding="utf-8")
