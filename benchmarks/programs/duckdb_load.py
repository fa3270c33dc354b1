"""By hand, without Spark: DuckDB writes Parquet rows as CSV, COPY takes them.   duckdb_load.py FOLDER TABLE [empty]"""

from __future__ import annotations

import os
import sys
import tempfile

import duckdb
import psycopg

folder, table, *empty = sys.argv[1:]
with tempfile.TemporaryDirectory() as place, psycopg.connect(os.environ["TARGET_URL"]) as db:
    pipe = os.path.join(place, "rows.csv")
    duckdb.sql(f"COPY (SELECT * FROM read_parquet('{folder}/*.parquet')) TO '{pipe}' (FORMAT csv, HEADER false)")
    if empty:
        db.execute(f"TRUNCATE {table}")
    with db.cursor().copy(f"COPY {table} FROM STDIN (FORMAT csv)") as copy, open(pipe, "rb") as rows:
        while block := rows.read(1 << 20):
            copy.write(block)
