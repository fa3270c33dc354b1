"""Payments from the till's PostgreSQL, appended to the bookkeeper's MySQL or MariaDB."""

from __future__ import annotations

from ematix_flow import Annotated, BigInt, Numeric, String, TimestampTZ, ematix, pk
from ematix_flow.normalize import lower, trim


@ematix.connection
class till:
    kind = "postgres"
    url = "${TILL_URL}"


@ematix.connection
class bookkeeping:
    kind = "mysql"
    url = "${BOOKKEEPING_URL}"


@ematix.table(schema="accounts")
class Payments:
    payment_id: Annotated[BigInt, pk()]
    method: Annotated[String[20], trim(), lower()]
    amount: Numeric[10, 2]
    paid_at: TimestampTZ


@ematix.pipeline(
    source_connection="till",
    target=Payments,
    target_connection="bookkeeping",
    mode="append",
    incremental_column="paid_at",
)
def book_payments(conn):
    return "SELECT payment_id, method, amount, paid_at FROM payments"
