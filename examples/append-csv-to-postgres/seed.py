"""The second day's file arrives."""

from __future__ import annotations

from pathlib import Path

Path("inbox/orders/2026-03-02.csv").write_text(
    "order_id,item,amount,ordered_at\n4,bowl,12.50,2026-03-02T08:10:00Z\n5,vase,33,2026-03-02T11:45:00Z\n"
)
