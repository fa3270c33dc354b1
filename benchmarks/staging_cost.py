"""What landing beside the table costs a small load: COPY into the table itself against COPY beside it and INSERT.

    python benchmarks/staging_cost.py

Both keep the ledger in the same transaction as the rows. Medians of 15, on a private PostgreSQL.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.loads import servers

TURNS = 15
COLUMNS = "id bigint, name text, amount numeric(10,2), at timestamptz"


def main() -> None:
    """Measure and print."""
    with servers(False) as (url, _), psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE TABLE rows ({COLUMNS})")
        db.execute("CREATE TABLE ledger (pipeline text PRIMARY KEY, generation int)")
        db.execute("INSERT INTO ledger VALUES ('load', 0)")
        sys.stdout.write("| rows | into the table | beside it, then in | difference |\n|---:|---:|---:|---:|\n")
        for rows in (1_000, 60_000):
            straight, landed = (_median(db, way, _lines(rows)) for way in (_straight, _landed))
            sys.stdout.write(f"| {rows:,} | {straight:.0f} ms | {landed:.0f} ms | {landed - straight:.0f} ms |\n")


def _lines(rows: int) -> bytes:
    return "".join(f"{n}\tname {n}\t{n % 1000}.50\t2026-01-01 00:00:00+00\n" for n in range(rows)).encode()


Way = Callable[[psycopg.Connection[tuple[object, ...]], bytes], None]


def _median(db: psycopg.Connection[tuple[object, ...]], way: Way, lines: bytes) -> float:
    took = []
    for _ in range(TURNS):
        db.execute("TRUNCATE rows")
        began = time.perf_counter()
        way(db, lines)
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def _copy(db: psycopg.Connection[tuple[object, ...]], table: str, lines: bytes) -> None:
    with db.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:
        copy.write(lines)


def _straight(db: psycopg.Connection[tuple[object, ...]], lines: bytes) -> None:
    with db.transaction():
        db.execute("SELECT generation FROM ledger FOR UPDATE")
        _copy(db, "rows", lines)
        db.execute("UPDATE ledger SET generation = generation + 1")


def _landed(db: psycopg.Connection[tuple[object, ...]], lines: bytes) -> None:
    with db.transaction():
        db.execute("CREATE UNLOGGED TABLE staged (LIKE rows)")
        _copy(db, "staged", lines)
    with db.transaction():
        db.execute("SELECT generation FROM ledger FOR UPDATE")
        db.execute("INSERT INTO rows SELECT * FROM staged")
        db.execute("UPDATE ledger SET generation = generation + 1")
        db.execute("DROP TABLE staged")


if __name__ == "__main__":
    main()
