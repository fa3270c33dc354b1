"""Ratings worked out in DuckDB, brought into the MySQL or MariaDB of the game that shows them."""

from __future__ import annotations

from ematix_flow import Annotated, BigInt, Numeric, String, ematix, pk


@ematix.connection
class analysis:
    kind = "duckdb"
    path = "analysis.duckdb"


@ematix.connection
class game:
    kind = "mysql"
    url = "${GAME_URL}"


@ematix.table(schema="game")
class Ratings:
    player: Annotated[String[30], pk()]
    rounds: BigInt
    average: Numeric[6, 2]


@ematix.pipeline(source_connection="analysis", target=Ratings, target_connection="game", mode="merge")
def rate_players(conn):
    return "SELECT player, count(*) AS rounds, CAST(avg(points) AS DECIMAL(6,2)) AS average FROM rounds GROUP BY player"
