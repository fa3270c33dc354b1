"""Splitting a MySQL read into ranges of a key, for pipelines that ask for it with `parallel_reads=`.

Connections cannot share a snapshot there, so each reader has its own: rows that change meanwhile may be seen by one and
not by another. Only a plain select over one table is split, by an integer column that an index begins with. The ranges
leave no number out, so what is read does not depend on the keys that were found when they were made.
"""

from __future__ import annotations

import heapq
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.mysql_session import MysqlSession
from ematix_flow.contracts.mysql_words import backticked

_RANGES_PER_READER = 8  # dealt in turn, so that readers end together although some ranges hold more rows than others
_MOST_RANGES = 128  # making one costs a question to the server
_INTEGER = re.compile(r"(tiny|small|medium|big)?int\b", re.IGNORECASE)
_PLAIN = {"expressions", "from", "from_", "where"}
_MOMENTS = {"CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURDATE", "CURTIME", "LOCALTIME", "LOCALTIMESTAMP"}
_MOMENTS |= {"UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP"}
_NOT_PLAIN = "only a plain select over one table can be split"


@dataclass(frozen=True)
class Split:
    """A query as queries that together give the same rows, one for each reader; and that in words."""

    queries: tuple[str, ...]
    words: str


def split(sql: str, readers: int, db: MysqlSession) -> Split:
    """Divide a query between at most so many readers; one, with the reason, where that cannot be done."""
    if readers == 1:
        return _whole(sql, "a load from a mark on must see all rows as of one moment")
    scan = _scan(sql)
    if isinstance(scan, str):
        return _whole(sql, scan)
    column = _split_column(db, scan.table)
    if column is None:
        return _whole(sql, f"no index of {scan.table} begins with an integer column")
    name, may_be_null = column
    starts = _starts(db, scan.table, name, readers)
    if not starts:
        return _whole(sql, f"{scan.table} holds fewer than two values of {name}")
    value = f"{scan.alias}.{name}"
    ranges = [f"{value} < {starts[0]}" + (f" OR {value} IS NULL" if may_be_null else "")]
    ranges += [f"{value} >= {low} AND {value} < {high}" for low, high in zip(starts, starts[1:], strict=False)]
    ranges.append(f"{value} >= {starts[-1]}")
    queries = [scan.where(" OR ".join(ranges[reader::readers])) for reader in range(min(readers, len(ranges)))]
    return Split(tuple(queries), f"in {len(queries)} parts by {name}, each as of its own moment")


def _whole(sql: str, reason: str) -> Split:
    return Split((sql,), f"by one reader: {reason}")


# ── the query ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Scan:
    """A plain select over one table, as text that is open for one more condition where the table is read."""

    table: str
    alias: str
    before: str
    condition: str | None
    after: str

    def where(self, more: str) -> str:
        """The select, of the rows that meet one more condition."""
        # The text around it stays as it was written. No part of it ends inside a comment.
        if self.condition is None:
            return f"{self.before} WHERE ({more}){self.after}"
        return f"{self.before} ({self.condition}) AND ({more}){self.after}"


def _scan(sql: str) -> _Scan | str:
    """The query taken apart, or why it cannot be split."""
    import sqlglot
    from sqlglot import TokenType, exp

    try:
        (tree,) = sqlglot.parse(sql, read="mysql")
        tokens = sqlglot.tokenize(sql, read="mysql")
    except (sqlglot.errors.SqlglotError, ValueError):
        return "its SQL could not be taken apart"
    table, depth = _origin(tree)
    selects = [token for token in tokens if token.token_type == TokenType.SELECT]
    # A comment that the server reads as SQL is still a comment here.
    if tree is None or table is None or len(selects) != depth or "/*!" in sql or "/*M!" in sql:
        return _NOT_PLAIN
    for node in tree.find_all(exp.AggFunc, exp.Window, exp.Parameter, exp.Anonymous):
        word = node.name if isinstance(node, exp.Anonymous) else node.key.upper()
        return f"what {word} gives may depend on more than its row"
    quoted = (TokenType.IDENTIFIER, TokenType.STRING)
    for token in tokens:
        if token.token_type not in quoted and token.text.upper() in _MOMENTS:
            return f"{token.text.upper()} would be another moment for each reader"
    where, end = _condition(tokens, selects[-1])  # the last one to begin is the innermost
    parts = [part for part in (table.db, table.name) if part]
    return _Scan(
        table=".".join(backticked(part) for part in parts),
        alias=backticked(table.alias_or_name),
        before=sql[: end if where is None else where.end + 1],
        condition=None if where is None else sql[where.end + 1 : end],
        after=sql[end:],
    )


def _origin(tree: Any) -> tuple[Any, int]:
    """The one table that a select reads row by row, and through how many selects; None where it is more than that."""
    from sqlglot import exp

    depth = 0
    while isinstance(tree, exp.Select) and not _given(tree) - _PLAIN:
        depth += 1
        origin = tree.args.get("from_") or tree.args.get("from")
        tree = origin.this if origin is not None else None
        while isinstance(tree, exp.Subquery) and not _given(tree) - {"this", "alias"}:
            tree = tree.this
    plain = isinstance(tree, exp.Table) and isinstance(tree.this, exp.Identifier)
    return (tree if plain and not _given(tree) - {"this", "db", "alias"} else None), depth


def _given(node: Any) -> set[str]:
    return {name for name, value in node.args.items() if value}


def _condition(tokens: list[Any], select: Any) -> tuple[Any, int]:
    """The WHERE of a select, if it has one, and the place in the text where the select ends."""
    from sqlglot import TokenType

    where, depth = None, 0
    for token in tokens[tokens.index(select) :]:
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth < 0:
            return where, token.start
        if token.token_type == TokenType.WHERE and depth == 0:
            where = token
    return where, tokens[-1].end + 1


# ── the keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _split_column(db: MysqlSession, table: str) -> tuple[str, bool] | None:
    """An integer column that an index begins with, the primary key's before others; and whether it may be NULL."""
    import pymysql

    found: list[tuple[bool, bool, int, str]] = []
    with suppress(pymysql.err.ProgrammingError):  # a name that stands for no table, such as DUAL
        columns = db.execute(f"SHOW COLUMNS FROM {table}").fetchall()
        integers = {row[0]: row[2] == "YES" for row in columns if _INTEGER.match(row[1])}
        answer = db.execute(f"SHOW INDEX FROM {table}")
        names = [column.name for column in answer.description or ()]
        for values in answer.fetchall():
            index = dict(zip(names, values, strict=True))
            in_use = index.get("Visible", "YES") == "YES" and index.get("Ignored", "NO") == "NO"
            first = index["Seq_in_index"] == 1 and index["Column_name"] in integers
            if in_use and first and index["Index_type"] == "BTREE" and index["Sub_part"] is None:
                is_primary, is_unique = index["Key_name"] == "PRIMARY", not index["Non_unique"]
                found.append((is_primary, is_unique, int(index["Cardinality"] or 0), index["Column_name"]))
    if not found:
        return None
    name = max(found)[-1]
    return backticked(name), integers[name]


def _starts(db: MysqlSession, table: str, name: str, readers: int) -> list[int]:
    """Where the second range and every later one begins.

    The widest range is halved again and again, and each half is cut down to the keys that are there: a few lookups in
    the index, whatever the size of the table. So neither a gap nor a single far key costs a range of its own.
    """
    low, high = db.execute(f"SELECT MIN({name}), MAX({name}) FROM {table}").fetchone()
    if low is None:
        return []
    ranges = [(low - high, low, high)]
    most = max(readers, min(readers * _RANGES_PER_READER, _MOST_RANGES))
    while len(ranges) < most and ranges[0][0] < 0:
        _, low, high = heapq.heappop(ranges)
        middle = low + (high - low + 1) // 2
        left, right = db.execute(
            f"SELECT (SELECT MAX({name}) FROM {table} WHERE {name} < {middle}), "
            f"(SELECT MIN({name}) FROM {table} WHERE {name} >= {middle})"
        ).fetchone()
        # Keys may have come and gone since the range was made.
        left = low if left is None else max(left, low)
        right = middle if right is None else right
        heapq.heappush(ranges, (low - left, low, left))
        heapq.heappush(ranges, (min(right - high, 0), right, max(right, high)))
    return sorted(begin for _, begin, _ in ranges)[1:]
