"""Members of a club, kept in MySQL or MariaDB, mirrored into PostgreSQL: also those who leave."""

from __future__ import annotations

from ematix_flow import Annotated, BigInt, Date, Text, ematix, pk
from ematix_flow.normalize import email_normalize, trim


@ematix.connection
class club:
    kind = "mysql"
    url = "${CLUB_URL}"


@ematix.connection
class warehouse:
    kind = "postgres"
    url = "${WAREHOUSE_URL}"


@ematix.table(schema="club")
class Members:
    member_id: Annotated[BigInt, pk()]
    name: Annotated[Text, trim()]
    email: Annotated[Text | None, email_normalize()]
    joined_on: Date


@ematix.pipeline(
    source_connection="club",
    target=Members,
    target_connection="warehouse",
    mode="merge",
    handle_deletes="hard",
)
def mirror_members(conn):
    return "SELECT member_id, name, email, joined_on FROM members"
