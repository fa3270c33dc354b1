"""A price list that comes as a CSV file, and the history of every price in MySQL or MariaDB."""

from __future__ import annotations

from ematix_flow import Annotated, Numeric, String, ematix, pk
from ematix_flow.normalize import trim


@ematix.connection
class mailbox:
    kind = "object_store_local"
    format = "csv"
    path = "mailbox"


@ematix.connection
class cafe:
    kind = "mysql"
    url = "${CAFE_URL}"


@ematix.table(schema="cafe")
class Prices:
    dish: Annotated[String[60], trim(), pk()]
    price: Numeric[6, 2]


@ematix.pipeline(
    source_connection="mailbox",
    target=Prices,
    target_connection="cafe",
    mode="scd2",
    handle_deletes="soft",
)
def remember_prices(files):
    return "prices.csv"
