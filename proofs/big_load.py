"""Proof that memory stays flat: load many rows from PostgreSQL to PostgreSQL through Spark with a 2 GiB driver.

    python proofs/big_load.py --rows 20000000 [--url postgresql://…]

Without a URL it starts a private server with the tests' launcher. Makes its own source and target schemas, prints one
line per load with wall time and the peak memory of every process of the run, and fails when a row is lost or when the
larger load needs more than 1.3 times the smaller one's memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        small = measured(url, args.small)
        large = measured(url, args.rows)
    ratio = large / small
    print(f"peak memory ratio {args.rows:,} / {args.small:,} rows: {ratio:.2f}")
    return 0 if ratio <= 1.3 else 1


@contextmanager
def _database(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.services import postgres
    from tests.services.run_folder import RunFolder

    folder = RunFolder.create()
    try:
        with postgres.shared_server(folder).fresh_database() as fresh:
            yield fresh
    finally:
        postgres.stop(folder.path / "postgres")
        folder.close()


def measured(url: str, rows: int) -> float:
    """Load that many rows in a fresh process; its peak memory in MB, JVM and Python workers included."""
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
            began = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "ematix_flow", "run", "--module", "proof_pipelines", "big"],
                cwd=folder,
                env={**os.environ, "EMATIX_FLOW_DSN_PROOF": url, "EMATIX_FLOW_RUN_LOG_URL": "memory://"},
            )
            peak = _Peak(process.pid)
            peak.start()
            code = process.wait()
            peak.stop()
            took = time.perf_counter() - began
        loaded = db.execute("SELECT count(*), sum(amount) FROM proof_target.big").fetchone() if code == 0 else None
        expected = db.execute("SELECT count(*), sum(amount) FROM proof_source.big").fetchone()
        for schema in ("proof_source", "proof_target"):
            db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    if loaded != expected:
        raise SystemExit(f"{rows:,} rows: exit code {code}, loaded {loaded}, expected {expected}")
    print(f"{rows:>12,} rows  {took:7.1f} s  {rows / took:10,.0f} rows/s  peak {peak.mb:,.0f} MB")
    return peak.mb


class _Peak(threading.Thread):
    """Watches a process and its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.mb, self._over = pid, 0.0, threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.5):
            self.mb = max(self.mb, sum(_resident_mb(pid) for pid in _family(self.pid)))

    def stop(self) -> None:
        self._over.set()
        self.join()


def _family(root: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        grown, found = bool(more), found | more
    return found


def _resident_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0.0)


if __name__ == "__main__":
    raise SystemExit(main())
