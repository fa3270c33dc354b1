"""Kafka into PostgreSQL and Delta: ours, exactly once, beside the program people write by hand, which is not.

    python benchmarks/streams.py                       5 million JSON messages of about 200 bytes, 4 partitions
    python benchmarks/streams.py --rows 500000         smaller
    python benchmarks/streams.py --only postgres

Starts a broker and a database of its own with the tests' launchers, fills a topic, runs every program in a fresh
process until the topic is read, counts what arrived, and prints seconds, ratios and peak memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import watched
from benchmarks.loads import jdbc
from benchmarks.topics import fill_topic
from benchmarks.watched import Measured

PROGRAMS = Path(__file__).parent / "programs"
BY_HAND, OURS = "PySpark by hand", "ematix-flow"


def events(rows: int) -> Iterator[tuple[int, Any, Any]]:
    """Messages of about 200 bytes, by turns in four partitions."""
    for n in range(rows):
        yield (
            n % 4,
            None,
            {
                "id": n,
                "user_id": n * 7919 % 100_003,
                "kind": ("view", "click", "order")[n % 3],
                "amount": n % 10_000 / 100,
                "at": f"2026-03-01T06:{n // 60 % 60:02d}:{n % 60:02d}.000Z",
                "note": f"event {n} of a stream that is long enough to be real, {n * 31 % 1_000_003}",
            },
        )


def arrived(target: str, table: str, url: str) -> tuple[int, int]:
    """How many rows there are, and how many different ones."""
    if target == "postgres":
        import psycopg

        with psycopg.connect(url) as db:
            row = db.execute(f"SELECT count(*), count(DISTINCT id) FROM public.{table}").fetchone()  # type: ignore[arg-type]
            return (row[0], row[1]) if row else (0, 0)
    import duckdb
    from deltalake import DeltaTable

    ids = duckdb.from_arrow(DeltaTable(table).to_pyarrow_dataset().scanner(columns=["id"]).to_reader())
    ((rows, different),) = ids.aggregate("count(*), count(DISTINCT id)").fetchall()
    return rows, different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--only", nargs="*", choices=("postgres", "delta"), default=("postgres", "delta"))
    options = parser.parse_args()
    from ematix_flow.backends import jars
    from tests.services import kafka, postgres

    results: dict[str, dict[str, Measured]] = {}
    with tempfile.TemporaryDirectory(prefix="ematix-flow-streams-") as made:
        home = Path(made)
        home.chmod(0o755)  # the database's own user must pass
        broker = kafka.start(home / "kafka")
        database = postgres.start(home / "postgres")
        try:
            database.run("CREATE DATABASE bench")
            url = database.url_of("bench")
            topic = broker.create_topic("events", partitions=4)
            fill_topic(broker.address, topic, events(options.rows))
            families = ("kafka", "postgresql", "delta")
            known = {
                "KAFKA": broker.address,
                "TARGET_URL": url,
                "TARGET_JDBC": jdbc(url, "postgresql"),
                "STREAM_JARS": ",".join(str(path) for path in jars.resolve(families)),
                "EMATIX_FLOW_RUN_LOG_URL": "memory://",
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(Path(__file__).parent.parent / "src"),
            }
            for target in options.only:
                watched.record_archive("kafka", *(["delta"] if target == "delta" else []))
                results[target] = {}
                for who, program in ((BY_HAND, "plain_stream.py"), (OURS, "flow_stream.py")):
                    place = home / f"{target}-{program}"
                    place.mkdir()
                    table = f"events_{program.split('_')[0]}" if target == "postgres" else str(place / "lake")
                    env = {**known, "CHECKPOINT": str(place / "checkpoint")}
                    done = watched.run(
                        [sys.executable, str(PROGRAMS / program), target, topic, table], cwd=place, env=env
                    )
                    if done.code != 0:
                        print(done.said[-4000:], file=sys.stderr)
                    else:
                        if target == "delta" and who == OURS:
                            table = f"{table}/bench/events"
                        found = arrived(target, table, url)
                        assert found == (options.rows, options.rows), (who, target, found)
                        shutil.rmtree(place / "lake", ignore_errors=True)
                    results[target][who] = done
                    print(f"{target:9} {who:16} {done}  {options.rows / done.seconds:10,.0f} rows/s", flush=True)
        finally:
            kafka.stop(home / "kafka")
            postgres.stop(home / "postgres")
    print(watched.table(options.rows, {f"Kafka → {name}": programs for name, programs in results.items()}, OURS))


if __name__ == "__main__":
    os.environ.setdefault("EMATIX_FLOW_APPCDS", "use")
    main()
