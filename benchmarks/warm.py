"""How soon a due pipeline works: given to a warm worker, beside a process of its own for each run.

    python benchmarks/warm.py                 a load through Spark, five times each

The load takes ten thousand rows from a Parquet file into SQLite through Spark. Its function notes when it is called, so
that both the start and the whole run can be told. A worker's first run starts Spark, and is told by itself.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ematix_flow.contracts.orchestration import DispatchSpec
from ematix_flow.orchestrate.executors.warm_pool import WarmPool

MODULE = """
import time
from pathlib import Path

from ematix_flow import Annotated, BigInt, ObjectStoreLocalConnection, SQLiteConnection, ematix, pk

files = ObjectStoreLocalConnection(name="files", path=".", format="parquet")
place = SQLiteConnection(name="place", path="place.db")


@ematix.table(schema="main")
class Numbers:
    number: Annotated[BigInt, pk()]


@ematix.pipeline(source_connection=files, target=Numbers, target_connection=place, mode="truncate")
def numbers(conn):
    Path("began").write_text(str(time.time()))
    return "SELECT number FROM raw"
"""
ROWS = 10_000


def main() -> int:
    """Measure, print one line each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("numbers_project.py").write_text(MODULE)
        Path("raw").mkdir()
        pq.write_table(pa.table({"number": range(ROWS)}), "raw/rows.parquet")
        cold = [timed(run_by_itself) for _ in range(times + 1)][1:]  # the first one compiles
        pool = WarmPool(1, patience_s=60, argv=run_words)
        try:
            first = timed(lambda: run_warm(pool))
            warm = [timed(lambda: run_warm(pool)) for _ in range(times)]
        finally:
            pool.close(timeout_s=30)
    for name, runs in (("a process of its own", cold), ("a worker's first", [first]), ("a warm worker", warm)):
        starts, whole = (statistics.median(part) for part in zip(*runs, strict=True))
        sys.stdout.write(f"{name:<22} begins after {starts:6.3f} s   is done after {whole:6.2f} s\n")
    return 0


def timed(run: Callable[[], None]) -> tuple[float, float]:
    """Seconds until the pipeline's function was called, and until its rows were there."""
    asked = time.time()
    run()
    return float(Path("began").read_text()) - asked, time.time() - asked


def run_words(spec: DispatchSpec) -> list[str]:
    """What a worker is told."""
    return ["run", "--module", spec.module, "--no-run-log", spec.pipeline_name]


def job() -> DispatchSpec:
    """The one pipeline."""
    return DispatchSpec("numbers", "numbers_project", "token", 300, "memory://")


def run_by_itself() -> None:
    """As cron would start it."""
    subprocess.run([sys.executable, "-m", "ematix_flow", *run_words(job())], check=True, capture_output=True)


def run_warm(pool: WarmPool) -> None:
    """Give it to the worker, and wait for its end."""
    handle = pool.dispatch(job())
    while not (reports := [report for report in pool.reap() if report.handle == handle]):
        time.sleep(0.005)
    if reports[0].exit_code != 0:
        raise SystemExit("the worker's run failed")


if __name__ == "__main__":
    sys.exit(main())
