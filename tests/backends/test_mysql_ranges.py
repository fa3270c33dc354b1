"""A read that is divided between several readers gives each row once, or says why it is not divided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ematix_flow.backends.mysql_ranges import Split, split
from ematix_flow.backends.mysql_session import MysqlSession, open_session
from tests.services.mariadb import MariadbServer


@pytest.fixture
def db(mysql_url: str) -> Iterator[MysqlSession]:
    session = open_session(mysql_url, "shop")
    yield session
    session.close()


def read(db: MysqlSession, parts: Split) -> list[list[Any]]:
    """What each reader gets."""
    return [db.execute(query).fetchall() for query in parts.queries]


def divided(db: MysqlSession, sql: str, readers: int = 3) -> list[list[Any]]:
    """What each of several readers gets; together, the rows of the query."""
    parts = split(sql, readers, db)
    assert len(parts.queries) > 1, parts.words
    assert f"in {len(parts.queries)} parts" in parts.words
    found = read(db, parts)
    assert Counter(row for part in found for row in part) == Counter(db.execute(sql).fetchall())
    return found


# ── each row once ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_readers_share_a_table_with_gaps_evenly(db: MysqlSession) -> None:
    db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(9))")
    db.execute("INSERT INTO t SELECT seq, 'a' FROM seq_1_to_1000")
    db.execute("INSERT INTO t SELECT seq + 4000000000, 'b' FROM seq_1_to_1000")
    db.execute(f"INSERT INTO t VALUES ({2**63 - 1}, 'far')")
    sizes = [len(part) for part in divided(db, "SELECT id, name FROM t", 4)]
    assert len(sizes) == 4 and max(sizes) < 2 * min(sizes)


def test_rows_that_lie_close_only_in_some_places_are_still_shared(db: MysqlSession) -> None:
    db.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    db.execute("INSERT INTO t SELECT seq * 100 FROM seq_1_to_1000")
    db.execute("INSERT INTO t SELECT seq + 200000 FROM seq_1_to_20000")
    sizes = [len(part) for part in divided(db, "SELECT * FROM t", 2)]
    assert max(sizes) < 3 * min(sizes)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("INT", (-7, -3, -2, 0, 5)),
        ("BIGINT", (-(2**63), -1, 2**63 - 1)),
        ("BIGINT UNSIGNED", (0, 1, 2**63, 2**64 - 1)),
        ("TINYINT", (-128, 127)),
        ("INT(5) UNSIGNED ZEROFILL", (1, 2, 90000)),
    ],
)
def test_keys_of_every_integer_type_are_divided(db: MysqlSession, kind: str, keys: tuple[int, ...]) -> None:
    db.execute(f"CREATE TABLE t (id {kind} PRIMARY KEY)")
    db.execute(f"INSERT INTO t VALUES {', '.join(f'({key})' for key in keys)}")
    assert len(divided(db, "SELECT id FROM t", 2)) == 2
    assert len(divided(db, "SELECT id FROM t", 256)) == len(keys)


def test_a_key_of_several_columns_is_divided_by_its_first(db: MysqlSession) -> None:
    db.execute("CREATE TABLE t (name VARCHAR(9), line INT, ordered BIGINT, PRIMARY KEY (ordered, line, name))")
    db.execute("INSERT INTO t SELECT 'a', seq MOD 4, seq DIV 4 FROM seq_1_to_100")
    divided(db, "SELECT name FROM t")
    assert "by `ordered`" in split("SELECT name FROM t", 3, db).words


def test_rows_without_a_value_to_split_by_are_read_too(db: MysqlSession) -> None:
    db.execute("CREATE TABLE t (code VARCHAR(9) PRIMARY KEY, n INT NULL, KEY (n))")
    db.execute("INSERT INTO t SELECT seq, IF(seq MOD 3 = 0, NULL, seq) FROM seq_1_to_100")
    divided(db, "SELECT code, n FROM t")
    assert "by `n`" in split("SELECT code FROM t", 3, db).words


def test_the_primary_key_is_preferred_and_then_the_index_that_tells_most_apart(db: MysqlSession) -> None:
    db.execute("CREATE TABLE t (a INT NOT NULL, b INT NOT NULL, c INT NOT NULL, KEY (a), KEY (b), KEY (a, c))")
    db.execute("INSERT INTO t SELECT seq MOD 3, seq, seq FROM seq_1_to_500")
    db.execute("ANALYZE TABLE t").fetchall()
    assert "by `b`" in split("SELECT * FROM t", 2, db).words
    db.execute("ALTER TABLE t ADD PRIMARY KEY (c)")
    assert "by `c`" in split("SELECT * FROM t", 2, db).words


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t",
        "SELECT name FROM t WHERE id > 10 OR name = 'a3'",
        "SELECT name FROM t -- all of them",
        "SELECT name FROM t WHERE name <> 'x WHERE y' -- some of them",
        "SELECT name FROM t # WHERE\nWHERE id > 10 # OR 1 = 1",
        "select upper(t.name) as `where`, '\\' WHERE (' AS b from t where (id in (1, 2, 3)) or id > 15",
        "SELECT IF(q.id > 3, q.name, 'é🚲') AS n FROM t AS q WHERE NOT (q.id = 7)",
        "SELECT * FROM (SELECT id, name FROM t WHERE id > 2 OR id = 1\n) AS w WHERE w.id < 18",
        "SELECT n FROM (SELECT src.name AS n FROM (SELECT * FROM t -- all\n) AS src) AS s WHERE (n <> 'a4')",
    ],
)
def test_a_query_keeps_its_own_conditions(db: MysqlSession, sql: str) -> None:
    db.execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(9))")
    db.execute("INSERT INTO t SELECT seq, CONCAT('a', seq) FROM seq_1_to_20")
    assert len(divided(db, sql)) == 3


def test_names_are_taken_as_they_are(db: MysqlSession, mariadb_server: MariadbServer) -> None:
    db.execute("CREATE TABLE `wh``ere; DROP` (`i``d \\` INT PRIMARY KEY)")
    db.execute("INSERT INTO `wh``ere; DROP` SELECT seq FROM seq_1_to_20")
    divided(db, "SELECT * FROM `wh``ere; DROP`")
    divided(db, "SELECT * FROM `wh``ere; DROP` AS `se``lect`")
    here = db.execute("SELECT DATABASE()").fetchone()[0]
    with_database = open_session(mariadb_server.url_of("mysql"), "shop")
    divided(with_database, f"SELECT * FROM {here}.`wh``ere; DROP`")
    with_database.close()


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.none() | st.integers(-30, 30) | st.integers(-(2**63), 2**63 - 1), max_size=40),
    st.integers(2, 256),
)
def test_any_values_are_each_read_once(db: MysqlSession, values: list[int | None], readers: int) -> None:
    db.execute("CREATE OR REPLACE TABLE t (place INT, n BIGINT, KEY (n))")
    if values:
        shown = ", ".join(f"({place}, {'NULL' if n is None else n})" for place, n in enumerate(values))
        db.execute(f"INSERT INTO t VALUES {shown}")
    parts = split("SELECT place, n FROM t", readers, db)
    assert len(parts.queries) == max(1, min(readers, len(set(values) - {None})))
    assert Counter(row for part in read(db, parts) for row in part) == Counter(enumerate(values))


def test_rows_that_come_after_the_ranges_were_made_are_in_one_of_them(db: MysqlSession) -> None:
    db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    db.execute("INSERT INTO t VALUES (10), (20), (5000)")
    parts = split("SELECT id FROM t", 3, db)
    db.execute("INSERT INTO t VALUES (-5), (15), (700), (9000)")
    assert sorted(row for part in read(db, parts) for (row,) in part) == [-5, 10, 15, 20, 700, 5000, 9000]


def test_a_row_whose_key_stays_is_read_once_whatever_changes_between_the_readers(db: MysqlSession) -> None:
    db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, n INT)")
    db.execute("INSERT INTO t SELECT seq, 0 FROM seq_1_to_200")
    parts = split("SELECT id, n FROM t", 4, db)
    found: list[Any] = []
    for moment, query in enumerate(parts.queries, start=1):
        found += db.execute(query).fetchall()
        db.execute(f"UPDATE t SET n = {moment}")
        db.execute(f"DELETE FROM t WHERE id = {moment * 10}")
        db.execute(f"INSERT INTO t VALUES ({-moment}, 0), ({1000 + moment}, 0)")
    times = Counter(key for key, _ in found)
    assert set(times.values()) == {1} and {*range(1, 201)} - {10, 20, 30} <= times.keys()
    assert {n for _, n in found} == {0, 1, 2, 3}  # each reader saw a moment of its own


def test_whoever_may_read_the_table_may_divide_it(db: MysqlSession, mariadb_server: MariadbServer) -> None:
    db.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    db.execute("INSERT INTO t SELECT seq FROM seq_1_to_20")
    here = db.execute("SELECT DATABASE()").fetchone()[0]
    try:
        mariadb_server.run("CREATE USER reader IDENTIFIED BY 'maria-pass-82'", f"GRANT SELECT ON {here}.t TO reader")
        session = open_session(mariadb_server.url_of(here, user="reader", password="maria-pass-82"), "shop")
        divided(session, "SELECT id FROM t")
        session.close()
    finally:
        mariadb_server.run("DROP USER IF EXISTS reader")


# ── or one reader, and why ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT * FROM texts", "no index of `texts` begins with an integer"),
        ("SELECT * FROM bare", "no index of `bare`"),
        ("SELECT * FROM prefixed", "no index of `prefixed`"),
        ("SELECT * FROM seen", "no index of `seen`"),
        ("SELECT 1 AS one FROM dual", "no index of `dual`"),
        ("SELECT * FROM empty", "fewer than two values of `id`"),
        ("SELECT * FROM lonely", "fewer than two values of `id`"),
        ("SELECT t.id FROM t JOIN texts ON texts.id = t.name", "plain select"),
        ("SELECT t.id FROM t, texts", "plain select"),
        ("SELECT id FROM t UNION ALL SELECT id FROM lonely", "plain select"),
        ("SELECT id FROM t WHERE id IN (SELECT id FROM lonely)", "plain select"),
        ("SELECT id, (SELECT 1) AS one FROM t", "plain select"),
        ("SELECT DISTINCT name FROM t", "plain select"),
        ("SELECT name FROM t GROUP BY name", "plain select"),
        ("SELECT id FROM t ORDER BY id LIMIT 3", "plain select"),
        ("SELECT id FROM (SELECT id FROM t LIMIT 3) AS w", "plain select"),
        ("WITH w AS (SELECT id FROM t) SELECT id FROM w", "plain select"),
        ("SELECT id FROM t /*! LIMIT 3 */", "plain select"),
        ("SELECT id FROM t FOR SYSTEM_TIME ALL", "plain select"),
        ("SELECT COUNT(*) AS n FROM t", "COUNT"),
        ("SELECT JSON_ARRAYAGG(id) AS n FROM t", "JSON_ARRAYAGG"),
        ("SELECT id, ROW_NUMBER() OVER (ORDER BY id) AS n FROM t", "depend on more than its row"),
        ("SELECT id, @n := IFNULL(@n, 0) + 1 AS n FROM t", "depend on more than its row"),
        ("SELECT id, NOW() AS at FROM t", "NOW"),
        ("SELECT id, UTC_TIMESTAMP AS at FROM t", "UTC_TIMESTAMP"),
        ("SELECT id, current_date() AS at FROM t", "CURRENT_DATE"),
        ("VALUES (1), (2)", "taken apart"),
        ("SELECT 1 AS one", "plain select"),
        ("SELECT id FROM t LIMIT ROWS EXAMINED 100", "taken apart"),
    ],
)
def test_what_cannot_be_divided_has_one_reader_and_a_reason(db: MysqlSession, sql: str, reason: str) -> None:
    for statement in (
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(9)) WITH SYSTEM VERSIONING",
        "CREATE TABLE texts (id VARCHAR(9) PRIMARY KEY, n INT, note VARCHAR(9), KEY (note, n))",
        "CREATE TABLE bare (id INT, day DATE, KEY (day))",
        "CREATE TABLE prefixed (id INT, note TEXT, KEY (note(5), id))",
        "CREATE TABLE empty (id INT PRIMARY KEY)",
        "CREATE TABLE lonely (id INT PRIMARY KEY)",
        "CREATE VIEW seen AS SELECT * FROM t",
        "INSERT INTO t SELECT seq, seq FROM seq_1_to_9",
        "INSERT INTO lonely VALUES (7)",
    ):
        db.execute(statement)
    parts = split(sql, 4, db)
    assert parts.queries == (sql,)
    assert parts.words.startswith("by one reader: ") and reason in parts.words
    db.execute(sql).fetchall()  # it is a query of this server
