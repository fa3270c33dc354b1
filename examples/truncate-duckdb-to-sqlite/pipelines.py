"""The most borrowed books, counted in DuckDB, for the library's small web page that reads SQLite."""

from __future__ import annotations

from ematix_flow import Annotated, BigInt, Text, ematix, pk


@ematix.connection
class analysis:
    kind = "duckdb"
    path = "analysis.duckdb"


@ematix.connection
class web_page:
    kind = "sqlite"
    path = "web_page.db"


@ematix.table(schema="main")
class MostBorrowed:
    title: Annotated[Text, pk()]
    times: BigInt


@ematix.pipeline(source_connection="analysis", target=MostBorrowed, target_connection="web_page", mode="truncate")
def publish_most_borrowed(conn):
    return "SELECT title, count(*) AS times FROM loans GROUP BY title ORDER BY times DESC, title LIMIT 2"
