"""Windows over a topic: ours beside `groupBy(window())` and `session_window()` of Spark's streaming, with its defaults.

    python benchmarks/windows.py                     5 million JSON messages, 4 partitions
    python benchmarks/windows.py --rows 500000       smaller
    python benchmarks/windows.py --only tumbling

Counts per key and minute (`tumbling`), the same with windows that late rows open again (`reopen`, for which Spark has
nothing of its own, so it is held against the same operator), and sessions. Both sides read the same topic with the same
bound of a batch and write the windows to Parquet files; the sums of what came out are compared.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import watched
from benchmarks.topics import fill_topic
from benchmarks.watched import Measured

PROGRAM = Path(__file__).parent / "programs" / "windows.py"
BY_HAND, OURS = "PySpark by hand", "ematix-flow"
CASES = ("tumbling", "reopen", "session")


def events(rows: int) -> Iterator[tuple[int, Any, Any]]:
    """10,000 keys, each about every seven seconds of an hour of event time, a little out of order."""
    for n in range(rows):
        second = 1_772_346_000 + n * 3600 // rows - (n * 7919 % 5)
        yield (
            n % 4,
            None,
            {"user": n * 7919 % 10_007, "at": second * 1000, "amount": n % 1000, "page": f"/page/{n % 97}"},
        )


def counted(folder: str) -> tuple[int, int]:
    """How many rows came out, and how many messages they count."""
    import duckdb

    rows, messages = duckdb.sql(f"SELECT count(*), sum(n) FROM read_parquet('{folder}/**/*.parquet')").fetchall()[0]
    return rows, int(messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--only", nargs="*", choices=CASES, default=CASES)
    options = parser.parse_args()
    from ematix_flow.backends import jars
    from tests.services import kafka

    results: dict[str, dict[str, Measured]] = {}
    with tempfile.TemporaryDirectory(prefix="ematix-flow-windows-") as made:
        home = Path(made)
        broker = kafka.start(home / "kafka")
        try:
            topic = broker.create_topic("events", partitions=4)
            fill_topic(broker.address, topic, events(options.rows))
            known = {
                "KAFKA": broker.address,
                "STREAM_JARS": ",".join(str(path) for path in jars.resolve(("kafka",))),
                "EMATIX_FLOW_RUN_LOG_URL": "memory://",
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(Path(__file__).parent.parent / "src"),
            }
            for case in options.only:
                results[case], out = {}, {}
                for who, side in ((BY_HAND, "plain"), (OURS, "flow")):
                    place = home / f"{case}-{side}"
                    place.mkdir()
                    env = {**known, "CHECKPOINT": str(place / "checkpoint")}
                    command = [sys.executable, str(PROGRAM), side, case, topic, str(place / "out")]
                    done = watched.run(command, cwd=place, env=env)
                    if done.code != 0:
                        print(done.said[-4000:], file=sys.stderr)
                    else:
                        out[who] = counted(str(place / "out"))
                    results[case][who] = done
                    print(
                        f"{case:9} {who:16} {done}  {options.rows / done.seconds:10,.0f} rows/s  {out.get(who)}",
                        flush=True,
                    )
        finally:
            kafka.stop(home / "kafka")
    print(watched.table(options.rows, results, OURS))


if __name__ == "__main__":
    os.environ.setdefault("EMATIX_FLOW_APPCDS", "use")
    main()
