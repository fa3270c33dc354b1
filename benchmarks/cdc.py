"""Changes from Kafka into PostgreSQL: how many a second ours applies, and how many the program people write by hand.

    python benchmarks/cdc.py                       2 million changes of 400,000 keys
    python benchmarks/cdc.py --changes 200000      smaller

Starts a broker and a database of its own with the tests' launchers, fills a topic with Debezium's events, lets both
mirror it, each in a process of its own, compares the tables with what they should be, and prints changes a second. A
short stream before it pays for starting Java.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.topics import fill_topic

PROGRAM = Path(__file__).parent / "programs" / "plain_cdc.py"
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


def mirrored(address: str, topic: str, url: str, table: str, checkpoint: str) -> float:
    """Mirror all that is there; the seconds it took."""
    from ematix_flow import CDC, KafkaConnection, PostgresConnection, run_streaming_pipeline

    began = time.perf_counter()
    run_streaming_pipeline(
        name=f"bench_{table}",
        source=KafkaConnection(name="broker", bootstrap_servers=address, group_id=table),
        source_query=topic,
        target=PostgresConnection(name="warehouse", url=url),
        target_table=("public", table),
        cdc=CDC(),
        once=True,
        checkpoint=checkpoint,
    )
    return time.perf_counter() - began


def ours(address: str, url: str, home: str) -> float:
    """A short stream, then the long one."""
    mirrored(address, "warm", url, "warm", f"{home}/warm")
    return mirrored(address, "changes", url, "customers", f"{home}/customers")


def by_hand(address: str, url: str, home: str) -> float:
    """The same by the program that people write."""
    from benchmarks.loads import jdbc
    from ematix_flow.backends import jars

    env = {
        **os.environ,
        "KAFKA": address,
        "TARGET_URL": url,
        "TARGET_JDBC": jdbc(url, "postgresql"),
        "STREAM_JARS": ",".join(str(path) for path in jars.resolve(("kafka", "postgresql"))),
        "CHECKPOINT": f"{home}/by_hand",
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [sys.executable, str(PROGRAM), "warm", "warm_by_hand", "changes", "customers_by_hand"]
    said = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(said.split("seconds")[-1])


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
        for topic, changes, of_keys in (("warm", 1_000, 100), ("changes", options.changes, keys)):
            broker.create_topic(topic, partitions=options.partitions)
            fill_topic(broker.address, topic, changes_of(changes, of_keys, options.partitions))
        tables = {"ematix-flow": "customers", "PySpark by hand": "customers_by_hand"}
        with psycopg.connect(server.url, autocommit=True) as db:
            for table in ("warm", "warm_by_hand", *tables.values()):
                db.execute(f"CREATE TABLE public.{table} ({_COLUMNS})")  # type: ignore[arg-type]
        expected = keys - -(-keys // 20)
        for who, table in tables.items():
            # A process for each: what one leaves in memory is no business of the other.
            with multiprocessing.get_context("spawn").Pool(1) as process:
                run = ours if who == "ematix-flow" else by_hand
                seconds = process.apply(run, (broker.address, server.url, str(home)))
            with psycopg.connect(server.url) as db:
                (there,) = db.execute(f"SELECT count(*) FROM public.{table}").fetchone() or (0,)
            print(f"{who:16} {options.changes:,} changes in {seconds:.1f} s: {options.changes / seconds:,.0f} a second")
            if there != expected:
                raise SystemExit(f"{there:,} rows in {table}, not {expected:,}")
    finally:
        kafka.stop(home / "kafka")
        postgres.stop(home / "postgres")
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
