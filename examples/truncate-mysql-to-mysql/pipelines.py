"""A summary table in the same MySQL or MariaDB that holds the rows: no Spark is started."""

from __future__ import annotations

from ematix_flow import Annotated, BigInt, Numeric, String, ematix, pk


@ematix.connection
class clinic:
    kind = "mysql"
    url = "${CLINIC_URL}"


@ematix.table(schema="reports")
class VisitsByWard:
    ward: Annotated[String[40], pk()]
    visits: BigInt
    fees: Numeric[12, 2]


@ematix.pipeline(target=VisitsByWard, target_connection="clinic", mode="truncate")
def summarise_visits(conn):
    return "SELECT ward, count(*) AS visits, sum(fee) AS fees FROM visits GROUP BY ward"
