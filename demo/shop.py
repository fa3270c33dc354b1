"""The pipelines of a small shop: raw files become an orders table, a customers table, their history and a report.

A module as a user writes it. `demo/run.py` runs it; `flow list --module shop` in this folder lists it.
"""

from __future__ import annotations

from ematix_flow import Annotated, BigInt, Date, Numeric, Target, Text, TimestampTZ, ematix, pk
from ematix_flow.normalize import (
    deduplicate_by,
    email_normalize,
    empty_to_null,
    lower,
    parse_date,
    parse_int,
    parse_numeric,
    parse_timestamp,
    trim,
)

# ── where things are: `${…}` is read from the environment when a pipeline runs ──────────────────────────────────────


@ematix.connection
class customer_files:
    kind = "object_store_local"
    format = "csv"
    path = "${SHOP_INBOX}"


@ematix.connection
class order_files:
    kind = "object_store_local"
    format = "json_lines"
    path = "${SHOP_INBOX}"


@ematix.connection
class shop:
    kind = "sqlite"
    path = "${SHOP_OUT}/shop.db"


@ematix.connection
class lake:
    kind = "object_store_local"
    format = "parquet"
    path = "${SHOP_OUT}/lake"


# ── what the tables look like: a type, and how raw values are cleaned on the way in ─────────────────────────────────


@ematix.table(schema="main")
class Orders:
    order_id: Annotated[BigInt, pk()]
    customer_id: BigInt
    item: Annotated[Text, trim(), lower()]
    amount: Annotated[Numeric[10, 2] | None, parse_numeric(10, 2)]
    ordered_on: Annotated[Date, parse_date()]
    recorded_at: Annotated[TimestampTZ, parse_timestamp()]


@ematix.table(schema="main")
class Customers:
    customer_id: Annotated[BigInt, parse_int(), pk()]
    name: Annotated[Text, trim()]
    email: Annotated[Text | None, email_normalize(), empty_to_null()]
    city: Annotated[Text, trim()]
    credit: Annotated[Numeric[10, 2] | None, parse_numeric(10, 2)]
    member_since: Annotated[Date | None, parse_date()]
    changed_at: Annotated[TimestampTZ, parse_timestamp()]


@ematix.table(schema="main")
class CustomerHistory(Customers):
    pass


@ematix.table(schema="main")
class CitySales:
    city: Annotated[Text, pk()]
    orders: BigInt
    amount: Numeric[12, 2]


@ematix.table(schema="reports")
class OrderReport:
    order_id: BigInt
    item: Text
    amount: Numeric[10, 2] | None
    customer: Text | None
    ordered_on: Date


# ── what moves where ────────────────────────────────────────────────────────────────────────────────────────────────


@ematix.pipeline(
    source_connection="order_files",
    target=Orders,
    target_connection="shop",
    mode="append",
    incremental_column="recorded_at",
)
def load_orders(files):
    return "orders.jsonl"


@ematix.pipeline(
    source_connection="customer_files",
    target=Customers,
    target_connection="shop",
    mode="merge",
    transforms_pre=[deduplicate_by("customer_id", order_by="changed_at desc")],
    handle_deletes="hard",
)
def load_customers(files):
    return "customers.csv"


@ematix.pipeline(
    source_connection="customer_files",
    target=CustomerHistory,
    target_connection="shop",
    mode="scd2",
    event_timestamp_column="changed_at",
    handle_deletes="soft",
)
def keep_history(files):
    return "customers.csv"


@ematix.pipeline(target=CitySales, target_connection="shop", mode="truncate")
def sum_up_cities(conn):
    return """
        SELECT c.city, count(*) AS orders, sum(coalesce(o.amount, 0)) AS amount
        FROM orders o JOIN customers c USING (customer_id) GROUP BY c.city
    """


@ematix.pipeline(
    source_connection="shop",
    targets=[Target(table=OrderReport, connection="lake", mode="truncate", partition_by=["ordered_on"])],
)
def publish_report(conn):
    return """
        SELECT o.order_id, o.item, o.amount, c.name AS customer, o.ordered_on
        FROM orders o LEFT JOIN customers c USING (customer_id)
    """
