"""How soon a message is a row: Kafka into PostgreSQL, exactly once, at a steady rate; and whether memory stays flat.

    python benchmarks/stream_latency.py                         5,000 messages a second for one minute
    python benchmarks/stream_latency.py --rate 1000 --seconds 600

Starts a broker and a database of its own with the tests' launchers. Every message says when it was sent, and the table
notes when the row was inserted, just before it is committed; both clocks are this machine's. The first ten seconds are
left out: a stream that has just started compiles its code.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.watched import live_heap_mb, rss_mb

PROGRAM = """
import os
from ematix_flow import KafkaConnection, PostgresConnection, run_streaming_pipeline

print(run_streaming_pipeline(
    name="latency",
    source=KafkaConnection(name="broker", bootstrap_servers=os.environ["KAFKA"], group_id="latency"),
    source_query="events",
    target=PostgresConnection(name="warehouse", url=os.environ["TARGET_URL"]),
    target_table=("public", "events"),
    delivery="exactly_once",
    checkpoint=os.environ["CHECKPOINT"],
    idle_pause_ms=int(os.environ["IDLE_PAUSE_MS"]),
))
"""
WARM_UP_S = 10
SETTLED = 6
"""After how many times ten seconds everything that is made once has been made."""


def send(address: str, rate: int, seconds: float, begun: int) -> int:
    """Send at a steady rate; the number behind the last message."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "log_level": 0})
    began = time.time()
    number = begun
    while (passed := time.time() - began) < seconds:
        while number - begun < passed * rate:
            note = f"event {number} of a stream that is long enough to be real, {number * 31 % 1_000_003}"
            message = {"id": number, "sent": time.time(), "kind": "view", "amount": number % 100 / 4, "note": note}
            producer.produce("events", value=json.dumps(message).encode())
            number += 1
        producer.poll(0)
        time.sleep(0.002)
    producer.flush(30)
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--idle-pause-ms", type=int, default=100)
    options = parser.parse_args()
    import psycopg

    from tests.services import kafka, postgres

    with tempfile.TemporaryDirectory(prefix="ematix-flow-latency-") as made:
        home = Path(made)
        home.chmod(0o755)  # the database's own user must pass
        broker = kafka.start(home / "kafka")
        database = postgres.start(home / "postgres")
        try:
            database.run("CREATE DATABASE bench")
            url = database.url_of("bench")
            broker.create_topic("events", partitions=4)
            with psycopg.connect(url) as db:
                db.execute(
                    "CREATE TABLE public.events (id bigint, sent double precision, kind text, amount double precision, "
                    "note text, arrived timestamptz DEFAULT clock_timestamp())"
                )
            env = {
                "KAFKA": broker.address,
                "TARGET_URL": url,
                "CHECKPOINT": str(home / "checkpoint"),
                "IDLE_PAUSE_MS": str(options.idle_pause_ms),
                "EMATIX_FLOW_RUN_LOG_URL": "memory://",
                "PYTHONPATH": str(Path(__file__).parent.parent / "src"),
            }
            log = home / "stream.log"
            with log.open("w") as output:
                stream = subprocess.Popen(
                    [sys.executable, "-c", PROGRAM], env={**os.environ, **env}, stdout=output, stderr=output
                )
            number = send(broker.address, 100, 1, 0)
            while count(url) < number:
                assert stream.poll() is None, log.read_text()
                time.sleep(0.2)
            memory: list[float] = []
            heap: list[float] = []
            for _ in range(max(1, (options.seconds + WARM_UP_S) // 10)):
                number = send(broker.address, options.rate, 10, number)
                memory.append(rss_mb(stream.pid))
                if len(memory) == SETTLED:
                    heap.append(live_heap_mb(stream.pid))
            heap.append(live_heap_mb(stream.pid))
            while count(url) < number:  # one that cannot keep up shows in its latency
                assert stream.poll() is None, log.read_text()
                time.sleep(0.5)
            stream.send_signal(signal.SIGTERM)
            assert stream.wait(120) == 0, log.read_text()
            assert count(url) == number, (count(url), number)
            with psycopg.connect(url) as db:
                row = db.execute(
                    "WITH late AS (SELECT extract(epoch FROM arrived) - sent AS s FROM public.events WHERE sent > "
                    "(SELECT min(sent) FROM public.events WHERE id >= 100) + %s) SELECT count(*), "
                    "percentile_cont(0.5) WITHIN GROUP (ORDER BY s), percentile_cont(0.99) WITHIN GROUP (ORDER BY s), "
                    "max(s) FROM late",
                    (WARM_UP_S,),
                ).fetchone()
        finally:
            kafka.stop(home / "kafka")
            postgres.stop(home / "postgres")
    assert row is not None
    print(
        f"{row[0]:,} messages at {options.rate:,} a second: p50 {row[1]:.2f} s, p99 {row[2]:.2f} s, most {row[3]:.2f} s"
    )
    print("memory every 10 s: " + ", ".join(f"{mb:,.0f}" for mb in memory) + " MB")
    print("of it alive in Java, after a minute and at the end: " + ", ".join(f"{mb:,.0f}" for mb in heap) + " MB")


def count(url: str) -> int:
    """How many rows have arrived."""
    import psycopg

    with psycopg.connect(url) as db:
        row = db.execute("SELECT count(*) FROM public.events").fetchone()
        return int(row[0]) if row else 0


if __name__ == "__main__":
    main()
