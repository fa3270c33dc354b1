"""What readers of the folder see."""

from __future__ import annotations

import pyarrow.parquet as pq

for row in pq.read_table("lake/catalogue/products").sort_by("product_id").to_pylist():
    print(row["product_id"], row["title"], row["price"], "in stock" if row["in_stock"] else "sold out")
