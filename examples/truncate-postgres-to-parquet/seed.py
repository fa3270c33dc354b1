"""Fill the shop: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import sys

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

DAYS = {
    "day1": [
        "CREATE TABLE products (product_id bigint PRIMARY KEY, title text, price numeric(10,2), stock integer)",
        "INSERT INTO products VALUES (1, 'teapot', 24.90, 3), (2, 'lamp', 59, 0), (3, 'rug', 120, 1)",
    ],
    "day2": [
        "UPDATE products SET price = 19.90, stock = 0 WHERE product_id = 1",
        "DELETE FROM products WHERE product_id = 2",
    ],
}
with connect("shop") as db:
    for statement in DAYS[sys.argv[1]]:
        db.execute(statement)
