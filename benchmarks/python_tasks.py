"""What a task in Python costs before it does any work: in a session of ours, and with Spark's own way to fork workers.

    python benchmarks/python_tasks.py

Each way has a process and a Java of its own, and runs jobs of two tasks. Processor time of a fresh worker and of a task
in one that has worked before, says the same on a busy machine; the time of a job does not.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

PROGRAM = """
import json, sys, time
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.spark.session import open_session

spark = open_session(SessionNeeds(), SparkSettings(conf=json.loads(sys.argv[1])))

def work(batches):
    import os, time
    import pyarrow as pa
    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"worker": [os.getpid()], "spent": [time.process_time()]})

spent, jobs = {}, []
for _ in range(12):
    began = time.perf_counter()
    done = spark.range(0, 1000, 1, 2).mapInArrow(work, "worker bigint, spent double").collect()
    jobs.append(time.perf_counter() - began)
    for row in done:
        spent.setdefault(row.worker, []).append(row.spent)
print(json.dumps({"spent": list(spent.values()), "jobs": jobs}))
"""
WAYS = {"ematix-flow": {}, "Spark's own": {"spark.python.daemon.module": "pyspark.daemon"}}


def main() -> None:
    """Measure and print."""
    sys.stdout.write("| workers | a fresh worker | a task | a job |\n|---|---:|---:|---:|\n")
    for name, conf in WAYS.items():
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(conf)], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        # The second task pays for what the first one's output made the worker import.
        fresh = statistics.median(spent[1] for spent in found["spent"] if len(spent) > 1)
        steps = [
            after - before for spent in found["spent"] for before, after in zip(spent[1:], spent[2:], strict=False)
        ]
        task, job = statistics.median(steps), statistics.median(found["jobs"][2:])
        sys.stdout.write(f"| {name} | {fresh * 1000:.0f} ms | {task * 1000:.1f} ms | {job * 1000:.0f} ms |\n")


if __name__ == "__main__":
    main()
