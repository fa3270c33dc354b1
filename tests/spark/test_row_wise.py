"""SQL in front of a window says something of each row by itself, or is refused with the reason."""

from __future__ import annotations

import pytest

from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.errors import InvalidSource
from ematix_flow.spark.stream_sql import StreamSql

DIALECTS: list[SqlDialect] = ["spark", "duckdb"]
ROW_BY_ROW = [
    "SELECT k, v+1 AS v FROM source",
    "SELECT * FROM source s LEFT JOIN users u ON u.id=s.id",
    "SELECT * FROM source UNION ALL SELECT * FROM source",
    "WITH a AS (SELECT * FROM source WHERE v>1) SELECT a.* FROM a JOIN users u USING (id)",
    "SELECT * FROM source WHERE id IN (SELECT id FROM users)",
    "SELECT * FROM source s WHERE EXISTS (SELECT 1 FROM users u WHERE u.id=s.id)",
    "SELECT s.* FROM users u JOIN source s ON u.id=s.id",
    "SELECT s.* FROM users u RIGHT JOIN source s ON u.id=s.id",
    "SELECT * FROM (SELECT * FROM source) x LEFT ANTI JOIN users u ON u.id=x.id",
    "SELECT k, x FROM source LATERAL VIEW explode(xs) t AS x",
    "SELECT s.*, (SELECT u.n FROM users u WHERE u.id = s.id) FROM source s",
    "SELECT * FROM source s JOIN (SELECT id FROM users UNION SELECT id FROM others) u ON u.id = s.id",
    "(SELECT * FROM source) UNION ALL (SELECT * FROM source)",
    "WITH a AS (SELECT * FROM source), b AS (SELECT * FROM source) SELECT * FROM a UNION ALL SELECT * FROM b",
    "SELECT * FROM source CROSS JOIN users",
    "SELECT * FROM source ORDER BY k",
    "WITH RECURSIVE n AS (SELECT k, v FROM source UNION ALL SELECT k, v - 1 FROM n WHERE v > 0) SELECT * FROM n",
]
TOGETHER = [
    ("SELECT * FROM source a JOIN source b ON a.k=b.k", "a join of source with itself"),
    ("SELECT * FROM source EXCEPT SELECT * FROM source WHERE v>1", "EXCEPT"),
    ("SELECT k FROM source UNION SELECT k FROM source", "UNION without ALL"),
    ("SELECT * FROM source WHERE k IN (SELECT k FROM source)", "a query over source within an expression"),
    (
        "SELECT * FROM source s WHERE NOT EXISTS (SELECT 1 FROM source t WHERE t.k=s.k AND t.v>s.v)",
        "a query over source within an expression",
    ),
    ("WITH a AS (SELECT * FROM source) SELECT * FROM a, source", "a join of source with itself"),
    ("SELECT * FROM source UNION ALL SELECT * FROM users", "a UNION ALL with rows that are not of source"),
    ("SELECT * FROM users", "a query that does not read source"),
    ("SELECT * FROM users u LEFT JOIN source s ON s.id=u.id", "a join that keeps rows of a lookup"),
    ("SELECT * FROM source s FULL JOIN users u ON s.id=u.id", "a join that keeps rows of a lookup"),
    ("SELECT * FROM users u LEFT SEMI JOIN source s ON u.id=s.id", "a join that keeps rows of a lookup"),
    ("SELECT * FROM source INTERSECT SELECT * FROM source", "INTERSECT"),
    ("SELECT * FROM users WHERE id IN (SELECT id FROM source)", "a query over source within an expression"),
    ("SELECT k, (SELECT v FROM source) FROM source", "a query over source within an expression"),
    (
        "SELECT * FROM source s JOIN users u ON u.id IN (SELECT id FROM source)",
        "a query over source within an expression",
    ),
    ("SELECT * FROM source s RIGHT JOIN users u ON s.id=u.id", "a join that keeps rows of a lookup"),
    ("SELECT * FROM (SELECT k FROM source UNION SELECT k FROM source) x", "UNION without ALL"),
    ("SELECT * FROM source EXCEPT SELECT * FROM users", "EXCEPT"),
]


def front(sql: str, dialect: SqlDialect) -> StreamSql:
    return StreamSql(sql, dialect, ["users", "others"], None, ["at"])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("sql", ROW_BY_ROW)
def test_what_says_something_of_each_row_may_stand_before_a_window(sql: str, dialect: SqlDialect) -> None:
    front(sql, dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("sql", "reason"), TOGETHER)
def test_what_takes_rows_of_a_batch_together_is_refused(sql: str, reason: str, dialect: SqlDialect) -> None:
    with pytest.raises(InvalidSource, match=f"{reason}.* would depend on which rows share a batch"):
        front(sql, dialect)
