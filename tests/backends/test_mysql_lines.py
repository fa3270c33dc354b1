"""Rows of a query become Arrow values exactly, whatever their length and whatever is in them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ematix_flow.backends import mysql_lines
from ematix_flow.backends.mysql import MysqlBackend
from ematix_flow.backends.mysql_arrow import read_batches
from ematix_flow.backends.mysql_dialect import MysqlDialect
from ematix_flow.backends.mysql_session import MysqlSession, open_session
from ematix_flow.connections import MySQLConnection
from ematix_flow.declare.columns import BigInt, Bytes, Text
from ematix_flow.errors import StatementFailed, UnfitValue


@pytest.fixture
def db(mysql_url: str) -> Iterator[MysqlSession]:
    session = open_session(mysql_url, "shop")
    yield session
    session.close()


def batches(url: str, sql: str) -> Iterator[pa.RecordBatch]:
    """What a Spark worker would get."""
    shapes = MysqlBackend(MySQLConnection(name="shop", url=url)).describe_query(sql)
    names, types = [shape.name for shape in shapes], [shape.type for shape in shapes]
    return read_batches(url, "shop", mysql_lines.as_lines(sql, shapes), names, types)


def read(url: str, sql: str) -> list[dict[str, Any]]:
    return [row for batch in batches(url, sql) for row in batch.to_pylist()]


_TEXTS = st.one_of(
    st.none(),
    st.text(max_size=8),
    st.text("\x00\n\r\t,\"'\\x", max_size=6),
    st.integers(200, 300).map(lambda n: "é" * n),
    st.just("y" * 70_000),
)
_ROWS = st.lists(
    st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), _TEXTS, st.none() | st.binary(max_size=5)), max_size=8
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_ROWS)
def test_any_values_come_out_as_they_went_in(
    db: MysqlSession, mysql_url: str, rows: list[tuple[Any, Any, Any]]
) -> None:
    literal = MysqlDialect().literal
    db.execute("CREATE OR REPLACE TABLE t (place INT, n BIGINT, s LONGTEXT, b LONGBLOB)")
    for place, (number, text, content) in enumerate(rows):
        values = f"{literal(number, BigInt())}, {literal(text, Text())}, {literal(content, Bytes())}"
        db.execute(f"INSERT INTO t VALUES ({place}, {values})")
    found = sorted(read(mysql_url, "SELECT place, n, s, b, s AS again FROM t"), key=lambda row: row["place"])
    assert [(row["n"], row["s"], row["b"], row["again"]) for row in found] == [(n, s, b, s) for n, s, b in rows]


def test_a_single_column_may_be_null_or_empty(db: MysqlSession, mysql_url: str) -> None:
    db.execute("CREATE TABLE t (s VARCHAR(9))")
    db.execute("INSERT INTO t VALUES (NULL), (''), (NULL), ('a')")
    assert [row["s"] for row in read(mysql_url, "SELECT s FROM t")] == [None, "", None, "a"]


def test_many_rows_come_in_batches_of_bounded_size(db: MysqlSession, mysql_url: str) -> None:
    db.execute("CREATE TABLE t (id BIGINT, pad CHAR(200))")
    db.execute("INSERT INTO t SELECT seq, REPEAT('x', 200) FROM seq_1_to_100000")
    sizes = [(batch.num_rows, batch.nbytes) for batch in batches(mysql_url, "SELECT id, pad FROM t")]
    assert sum(rows for rows, _ in sizes) == 100_000
    assert max(size for _, size in sizes) < 2 * mysql_lines.BATCH_BYTES


def test_a_row_longer_than_the_server_sends_is_an_error(db: MysqlSession, mysql_url: str) -> None:
    most = int(db.execute("SELECT @@max_allowed_packet").fetchone()[0])
    db.execute("CREATE TABLE t (s LONGTEXT)")
    db.execute(f"INSERT INTO t VALUES (REPEAT('x', {most}))")
    with pytest.raises(UnfitValue, match="max_allowed_packet"):
        read(mysql_url, "SELECT s FROM t")


def test_an_answer_without_rows_gives_no_batch(mysql_url: str) -> None:
    assert list(batches(mysql_url, "SELECT 'a' AS s FROM dual WHERE 1 = 0")) == []


def test_native_types_are_read_as_their_counterparts(db: MysqlSession, mysql_url: str) -> None:
    db.execute(
        "CREATE TABLE t (a TINYINT, b TINYINT UNSIGNED, c SMALLINT UNSIGNED, d MEDIUMINT, e INT UNSIGNED, "
        "f BIGINT UNSIGNED, g FLOAT, h DOUBLE, i DECIMAL(65,30), j BIT(1), k YEAR, l TIME(3), m TIMESTAMP(6) NULL, "
        "n DATETIME(3), o ENUM('x','Y'), p SET('a','b'), q CHAR(4), r VARBINARY(9), s TINYTEXT, t BOOLEAN, "
        "u VARCHAR(9) CHARACTER SET latin1, v DATE, w BINARY(3), x DECIMAL(20,0) UNSIGNED)"
    )
    db.execute(
        "INSERT INTO t VALUES (-128, 255, 65535, -8388608, 4294967295, 18446744073709551615, 0.1, 0.1, "
        "-12345678901234567890123456789012345.123456789012345678901234567890, b'1', 2026, '-12:30:00.5', "
        "'2026-03-29 02:30:00.000001', '0001-01-01 00:00:00.25', 'Y', 'a,b', 'ab', X'00ff', 'tiny', TRUE, "
        "_utf8mb4'ä', '9999-12-31', X'0102', 7)"
    )
    (found,) = read(mysql_url, "SELECT * FROM t")
    moment = datetime(2026, 3, 29, 2, 30, 0, 1, tzinfo=timezone.utc)
    assert found == {
        "a": -128,
        "b": 255,
        "c": 65535,
        "d": -8388608,
        "e": 4294967295,
        "f": Decimal(18446744073709551615),
        "g": 0.10000000149011612,
        "h": 0.1,
        "i": "-12345678901234567890123456789012345.123456789012345678901234567890",
        "j": True,
        "k": 2026,
        "l": "-12:30:00.500",
        "m": moment,
        "n": datetime(1, 1, 1, 0, 0, 0, 250000),
        "o": "Y",
        "p": "a,b",
        "q": "ab",
        "r": b"\x00\xff",
        "s": "tiny",
        "t": True,
        "u": "ä",
        "v": date(9999, 12, 31),
        "w": b"\x01\x02\x00",
        "x": Decimal(7),
    }


def test_what_is_no_value_of_its_type_is_refused_by_name_and_not_told(db: MysqlSession, mysql_url: str) -> None:
    db.execute("SET SESSION sql_mode = ''")
    db.execute("CREATE TABLE t (d DATE, flag TINYINT(1))")
    db.execute("INSERT INTO t VALUES ('0000-00-00', 42)")
    with pytest.raises(UnfitValue, match="'d'") as caught:
        read(mysql_url, "SELECT d FROM t")
    assert "0000" not in str(caught.value) and "NULLIF" in (caught.value.fix or "")
    with pytest.raises(UnfitValue, match="'flag'") as caught:
        read(mysql_url, "SELECT flag FROM t")
    assert "42" not in str(caught.value)


def test_a_reader_sees_one_moment(db: MysqlSession, mysql_url: str) -> None:
    db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, pad CHAR(200))")
    db.execute("INSERT INTO t SELECT seq, REPEAT('x', 200) FROM seq_1_to_200000")
    rows = batches(mysql_url, "SELECT id, pad FROM t")
    first = next(rows)
    db.execute("DELETE FROM t WHERE id > 100")
    assert first.num_rows + sum(batch.num_rows for batch in rows) == 200_000


def test_a_query_that_fails_while_it_runs_is_an_error_of_ours(db: MysqlSession, mysql_url: str) -> None:
    db.execute("CREATE TABLE t (id BIGINT)")
    db.execute("INSERT INTO t SELECT seq FROM seq_1_to_100000")
    query = "SELECT IF(id < 90000, id, (SELECT a.id FROM t AS a WHERE a.id IN (1, t.id))) AS id FROM t"
    with pytest.raises(StatementFailed, match="more than 1 row"):
        read(mysql_url, query)
