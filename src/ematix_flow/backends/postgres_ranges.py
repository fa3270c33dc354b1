"""Splitting a PostgreSQL read into parts of the table's pages, so that several readers share the work.

Only a plain select over one table is split: each part is the same select over a range of physical pages, and all parts
read the same snapshot. Everything else is read by one reader, which streams.
"""

from __future__ import annotations

from ematix_flow.backends.books import Db

_PAGES_PER_PART = 16384  # 128 MB of 8 kB pages: a part becomes a file of a few dozen MB, not one of a few
_LEAST_PAGES = 1024  # below 8 MB a part is not worth its connection
_BALANCED_PARTS = 8  # so that a few cores end at the same time, also with tables of less than 1 GB
_MOST_PARTS = 256


def split(sql: str, db: Db) -> list[str]:
    """The query as one or more queries that together give the same rows."""
    table = _single_table(sql)
    if table is None:
        return [sql]
    tree, name = table
    row = db.execute(
        "SELECT c.relkind, pg_relation_size(c.oid) / current_setting('block_size')::bigint, "
        "current_setting('server_version_num')::int FROM pg_class c WHERE c.oid = to_regclass("
        f"'{name.replace(chr(39), chr(39) * 2)}')"
    ).fetchone()
    if row is None or row[0] not in ("r", b"r", "m", b"m") or row[2] < 140000:
        return [sql]  # a view, a partitioned or foreign table, or a server that cannot scan ranges of pages
    pages = int(row[1])
    parts = max(-(-pages // _PAGES_PER_PART), min(_BALANCED_PARTS, -(-pages // _LEAST_PAGES)))
    parts = min(_MOST_PARTS, parts)
    if parts <= 1:
        return [sql]
    step = -(-pages // parts)
    queries = []
    for part in range(parts):
        bounds = f"ctid >= '({part * step},0)'::tid"
        if part < parts - 1:  # the last part is open: rows may have been added since the pages were counted
            bounds += f" AND ctid < '({(part + 1) * step},0)'::tid"
        queries.append(tree.copy().where(bounds, dialect="postgres").sql(dialect="postgres"))  # type: ignore[attr-defined]
    return queries


def _single_table(sql: str) -> tuple[object, str] | None:
    """The parsed query and its table, when the query is a row-by-row select over exactly one table."""
    import sqlglot
    from sqlglot import exp

    try:
        tree = sqlglot.parse_one(sql, read="postgres")
    except sqlglot.errors.SqlglotError:
        return None
    if not isinstance(tree, exp.Select):
        return None
    blocking = (
        "with",
        "with_",
        "joins",
        "laterals",
        "group",
        "having",
        "distinct",
        "limit",
        "offset",
        "order",
        "windows",
        "locks",
    )
    if any(tree.args.get(part) for part in blocking):
        return None
    origin = tree.args.get("from") or tree.args.get("from_")
    if origin is None or not isinstance(origin.this, exp.Table) or origin.this.args.get("joins"):
        return None
    if tree.find(exp.AggFunc, exp.Window, exp.Subquery, exp.Anonymous, exp.TableSample) is not None:
        return None
    if len(list(tree.find_all(exp.Table))) != 1:
        return None
    table = origin.this.copy()
    table.set("alias", None)
    return tree, table.sql(dialect="postgres", identify=False)
