"""Who sat in which office and when: a history in SQLite of a PostgreSQL table that knows only today."""

from __future__ import annotations

from ematix_flow import Annotated, BigInt, Text, ematix, pk


@ematix.connection
class directory:
    kind = "postgres"
    url = "${DIRECTORY_URL}"


@ematix.connection
class archive:
    kind = "sqlite"
    path = "archive.db"


@ematix.table(schema="main")
class Seats:
    person_id: Annotated[BigInt, pk()]
    name: Text
    office: Text | None


@ematix.pipeline(source_connection="directory", target=Seats, target_connection="archive", mode="scd2")
def remember_seats(conn):
    return "SELECT person_id, name, office FROM people"
