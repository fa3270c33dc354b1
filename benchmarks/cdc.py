"""Changes from Kafka into PostgreSQL: how many a second are applied, and how many when they all come a second time.

    python benchmarks/cdc.py                       2 million changes of 400,000 keys
    python benchmarks/cdc.py --changes 200000      smaller

Starts a broker and a database of its own with the tests' launchers, fills a topic with Debezium's events, mirrors them
in a fresh process, compares the table with what it should be, and prints changes a second and peak memory. A short run
before it pays for starting Java.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.topics import fill_topic

_COLUMNS = "id bigint PRIMARY KEY, name text, city text, balance numeric(12, 2), visits bigint, seen timestamptz"


def changes_of(changes: int, keys: int, partitions: int) -> Iterator[tuple[int, Any, Any]]:
    """Creates first, then updates, and a delete of every twentieth key at the end."""
    for n in range(changes):
        key = n % keys
        ts = 1_772_344_800_000 + n // 100
        row = {
            "id": key,
            "name": f"customer {key}",
            "city": ("Rome", "Oslo", "Lima")[n % 3],
            "balance": n % 100_000 / 100,
            "visits": n // keys,
            "seen": ts,
        }
        is_last = n >= changes - keys and key % 20 == 0
        event = {
            "op": "d" if is_last else "c" if n < keys else "u",
            "before": {"id": key} if is_last else None,
            "after": None if is_last else row,
            "source": {"ts_ms": ts, "lsn": n, "table": "customers"},
            "ts_ms": ts + 5,
        }
        yield key % partitions, {"id": key}, event


def mirrored(address: str, topic: str, url: str, table: str, checkpoint: str) -> tuple[float, int]:
    """Mirror all that is there; seconds and applied changes."""
    from ematix_flow import CDC, KafkaConnection, PostgresConnection, run_streaming_pipeline

    began = time.perf_counter()
    result = run_streaming_pipeline(
        name=f"bench_{table}",
        source=KafkaConnection(name="broker", bootstrap_servers=address, group_id=table),
        source_query=topic,
        target=PostgresConnection(name="warehouse", url=url),
        target_table=("public", table),
        cdc=CDC(),
        once=True,
        checkpoint=checkpoint,
    )
    return time.perf_counter() - began, result["total_rows"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, default=2)
    options = parser.parse_args()
    import psycopg

    from tests.services import kafka, postgres

    home = Path(tempfile.mkdtemp(prefix="ematix-flow-bench-"))
    home.chmod(0o755)  # the database's own user must pass
    try:
        broker, server = kafka.start(home / "kafka"), postgres.start(home / "postgres")
        keys = max(options.changes // 5, 1)
        topics = {name: broker.create_topic(name, partitions=options.partitions) for name in ("warm", "changes")}
        fill_topic(broker.address, topics["warm"], changes_of(1_000, 100, options.partitions))
        fill_topic(broker.address, topics["changes"], changes_of(options.changes, keys, options.partitions))
        with psycopg.connect(server.url, autocommit=True) as db:
            for table in ("warm", "customers"):
                db.execute(f"CREATE TABLE public.{table} ({_COLUMNS})")  # type: ignore[arg-type]
        mirrored(broker.address, topics["warm"], server.url, "warm", str(home / "warm"))
        seconds, applied = mirrored(broker.address, topics["changes"], server.url, "customers", str(home / "customers"))
        with psycopg.connect(server.url) as db:
            (there,) = db.execute("SELECT count(*) FROM public.customers").fetchone() or (0,)
        expected = keys - -(-keys // 20)
        print(f"{applied:,} changes applied in {seconds:.1f} s: {applied / seconds:,.0f} a second")
        print(f"{there:,} rows, {'as many as there should be' if there == expected else f'not {expected:,}'}")
        if there != expected:
            raise SystemExit(1)
    finally:
        kafka.stop(home / "kafka")
        postgres.stop(home / "postgres")
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
