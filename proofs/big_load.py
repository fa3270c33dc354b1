"""Proof that memory stays flat: load many rows from PostgreSQL to PostgreSQL through Spark with a 2 GiB driver.

    python proofs/big_load.py --rows 20000000 [--url postgresql://…]

Without a URL it starts a private server with the tests' launcher. Makes its own source and target schemas, prints one
line per load with wall time and the peak memory of every process of the run, and fails when a row is lost or when the
larger load needs more than 1.3 times the smaller one's memory, or when a row costs a tenth more than in one million.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import watched

MODULE = """
from typing import Annotated
from ematix_flow import BigInt, Boolean, Double, Numeric, Text, TimestampTZ, ematix, pk

@ematix.table(schema="proof_target")
class Big:
    id: BigInt
    name: Text | None
    amount: Numeric[12, 2]
    at: TimestampTZ
    flag: Boolean
    x: Double

@ematix.pipeline(target=Big, target_connection="proof", mode="append", engine="spark")
def big(conn):
    return "SELECT id, name, amount, at, flag, x FROM proof_source.big"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a PostgreSQL database that may be written to")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--small", type=int, default=2_000_000, help="rows of the load it is compared with")
    args = parser.parse_args()
    with _database(args.url) as url:
        million = measured(url, 1_000_000)
        small = measured(url, args.small)
        large = measured(url, args.rows)
    memory = large[0] / small[0]
    print(f"peak memory, {args.rows:,} rows against {args.small:,}: {memory:.2f}")
    print(f"cost of a row, {args.rows:,} rows against 1,000,000, process start included: {large[1] / million[1]:.2f}")
    return 0 if memory <= 1.3 and large[1] <= 1.1 * million[1] else 1


@contextmanager
def _database(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    from tests.services import postgres
    from tests.services.run_folder import RunFolder

    folder = RunFolder.create()
    try:
        with postgres.shared_server(folder).fresh_database() as fresh:
            yield fresh
    finally:
        postgres.stop(folder.path / "postgres")
        folder.close()


def measured(url: str, rows: int) -> tuple[float, float]:
    """Load that many rows in a fresh process: peak memory in MB of all processes, seconds per million."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS proof_source CASCADE")
        db.execute("DROP SCHEMA IF EXISTS proof_target CASCADE")
        db.execute("CREATE SCHEMA proof_source")
        db.execute(
            "CREATE TABLE proof_source.big AS SELECT n::bigint AS id, 'name ' || n AS name, "
            "(n % 1000000 * 1.37)::numeric(12,2) AS amount, timestamptz '2020-01-01' + n * interval '1 second' AS at, "
            f"n % 7 = 0 AS flag, n * 0.5::double precision AS x FROM generate_series(1, {rows}) AS n"
        )
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "proof_pipelines.py").write_text(MODULE)
            Path(folder, ".ematix-flow.toml").write_text('[spark]\ndriver_memory = "2g"\n')
            done = watched.run(
                [sys.executable, "-m", "ematix_flow", "run", "--module", "proof_pipelines", "big"],
                cwd=Path(folder),
                env={"EMATIX_FLOW_DSN_PROOF": url, "EMATIX_FLOW_RUN_LOG_URL": "memory://"},
            )
        loaded = db.execute("SELECT count(*), sum(amount) FROM proof_target.big").fetchone() if done.code == 0 else None
        expected = db.execute("SELECT count(*), sum(amount) FROM proof_source.big").fetchone()
        for schema in ("proof_source", "proof_target"):
            db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    if loaded != expected:
        raise SystemExit(
            f"{rows:,} rows: exit code {done.code}, loaded {loaded}, expected {expected}\n{done.said[-4000:]}"
        )
    per_million = done.seconds / rows * 1e6
    print(f"{rows:>12,} rows  {done.seconds:7.1f} s  {per_million:6.2f} s per million  peak {done.peak_mb:,.0f} MB")
    return done.peak_mb, per_million


if __name__ == "__main__":
    raise SystemExit(main())
