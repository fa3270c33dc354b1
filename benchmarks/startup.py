"""First Spark result of a fresh Python process: plain PySpark beside our session.

Run it with `python benchmarks/startup.py --runs 5`. The two take turns, so a busy machine slows both. The class
archive is recorded first when it is not there yet: it is made once per Java and Spark and serves every later run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

PLAIN = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
assert spark.range(10).count() == 10
"""
OURS = """
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.spark.session import open_session
spark = open_session(SessionNeeds(), SparkSettings({settings}))
assert spark.range(10).count() == 10
"""
VARIANTS = {
    "plain PySpark": PLAIN,
    "our session": OURS.format(settings=""),
    "our session, short_job": OURS.format(settings="short_job=True"),
}
TOLD = "\nimport sys; print('first result', flush=True)\n"


def main() -> int:
    """Measure, print one line per variant and the ratio that counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="how often each variant is started")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args()
    from ematix_flow.spark import appcds

    if not appcds.build():
        sys.stderr.write("no class archive could be recorded; measuring without\n")
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(options.runs):
        for name, program in VARIANTS.items():
            seconds[name].append(first_result_s(program))
            sys.stderr.write(f"{name}: {seconds[name][-1]:.2f} s\n")
    report(seconds, as_json=options.json)
    return 0


def first_result_s(program: str) -> float:
    """Seconds from starting Python to its first Spark result; the end of the process is awaited but not counted."""
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", program + TOLD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        elapsed = time.perf_counter() - began
        process.stdout.read()
    if line.strip() != "first result":
        raise SystemExit(f"a start failed with code {process.returncode}")
    return elapsed


def report(seconds: dict[str, list[float]], *, as_json: bool) -> None:
    """The figures, each also as a part of plain PySpark's."""
    base_best = min(seconds["plain PySpark"])
    base_median = statistics.median(seconds["plain PySpark"])
    rows = {
        name: {
            "best_s": round(min(values), 2),
            "median_s": round(statistics.median(values), 2),
            "best_ratio": round(min(values) / base_best, 3),
            "median_ratio": round(statistics.median(values) / base_median, 3),
        }
        for name, values in seconds.items()
    }
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    for name, row in rows.items():
        sys.stdout.write(
            f"{name:<24} best {row['best_s']:6.2f} s  median {row['median_s']:6.2f} s"
            f"  ratio best {row['best_ratio']:.2f}  median {row['median_ratio']:.2f}\n"
        )


if __name__ == "__main__":
    sys.exit(main())
