"""Orders from a folder of CSV files, appended as they arrive."""

from __future__ import annotations

from ematix_flow import Annotated, BigInt, Numeric, Text, TimestampTZ, ematix, pk
from ematix_flow.normalize import trim


@ematix.connection
class inbox:
    kind = "object_store_local"
    format = "csv"
    path = "inbox"


@ematix.connection
class warehouse:
    kind = "postgres"
    url = "${WAREHOUSE_URL}"


@ematix.table(schema="shop")
class Orders:
    order_id: Annotated[BigInt, pk()]
    item: Annotated[Text, trim()]
    amount: Numeric[10, 2]
    ordered_at: TimestampTZ


@ematix.pipeline(
    source_connection="inbox",
    target=Orders,
    target_connection="warehouse",
    mode="append",
    incremental_column="ordered_at",
)
def load_orders(files):
    return "orders"
