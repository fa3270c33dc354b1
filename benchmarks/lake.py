"""Lake tables and buckets: ours beside the programs people write by hand, in one run, process start included.

    python benchmarks/lake.py                          6 million rows
    python benchmarks/lake.py --rows 600000 --only merge

Makes its data, runs every program in a fresh process, compares what the tables hold, and prints a table of seconds,
ratios and peak memory. The bucket is one of the tests' own S3 server, in Python, which both sides wait for.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import lineitem, watched
from benchmarks.watched import Measured
from ematix_flow.backends import jars

PROGRAMS = Path(__file__).parent / "programs"
OURS, PLAIN = "ematix-flow", "PySpark by hand"
CHANGED = 0.01


@dataclass
class Stage:
    """Where the programs play."""

    rows: int
    home: Path
    environment: Mapping[str, str]
    results: dict[str, dict[str, Measured]] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        return self.home / "lake" / "raw" / f"lineitem_{self.rows}"

    @property
    def changes(self) -> Path:
        return self.home / "lake" / "raw" / f"changes_{self.rows}"

    def flow(self, pipeline: str) -> Measured:
        """One of our pipelines, as a user would start it."""
        return self._run([sys.executable, "-m", "ematix_flow", "run", "--module", "lake_pipelines", pipeline])

    def plain(self, program: str, *arguments: str) -> Measured:
        """One of the programs written by hand."""
        return self._run([sys.executable, str(PROGRAMS / f"{program}.py"), *arguments])

    def _run(self, command: list[str]) -> Measured:
        with tempfile.TemporaryDirectory(dir=self.home) as folder:
            shutil.copy(PROGRAMS / "lake_pipelines.py", folder)
            done = watched.run(command, cwd=Path(folder), env=self.environment)
        if done.code != 0:
            raise SystemExit(f"{' '.join(command)} failed with code {done.code}\n{done.said[-4000:]}")
        return done

    def note(self, case: str, program: str, done: Measured) -> None:
        """Keep a result, and show it at once."""
        self.results.setdefault(case, {})[program] = done
        sys.stderr.write(f"{case:<26} {program:<20} {done}\n")


def merge(stage: Stage) -> None:
    """One percent changed rows into a Delta table; before that, the table is filled."""
    ours, plain = stage.home / "delta" / "bench" / "lineitem", stage.home / "plain_delta"
    stage.note("Delta, first load", OURS, stage.flow("fill_delta"))
    stage.note("Delta, first load", PLAIN, stage.plain("plain_delta", "fill", str(stage.source), str(plain)))
    stage.note("Delta, merge 1 %", OURS, stage.flow("merge_delta"))
    stage.note("Delta, merge 1 %", PLAIN, stage.plain("plain_delta", "merge", str(stage.changes), str(plain)))
    if _fingerprint(ours) != _fingerprint(plain):
        raise SystemExit("the two Delta tables hold different rows")


def _fingerprint(table: Path) -> Any:
    """Count and sums of a Delta table, by a program that is neither."""
    from deltalake import DeltaTable, QueryBuilder

    sums = "count(*), sum(l_orderkey), sum(l_extendedprice), sum(length(l_comment)), min(l_shipdate), max(l_comment)"
    found = QueryBuilder().register("t", DeltaTable(str(table))).execute(f"SELECT {sums} FROM t").read_all()
    return [[column.to_pylist() if hasattr(column, "to_pylist") else str(column) for column in found.columns]]


def s3(stage: Stage) -> None:
    """Parquet files into a bucket, and back."""
    bucket = stage.environment["S3_BUCKET"]
    stage.note("S3, write", OURS, stage.flow("write_s3"))
    stage.note("S3, write", PLAIN, stage.plain("plain_s3", str(stage.source), f"s3a://{bucket}/plain"))
    stage.note("S3, read", OURS, stage.flow("read_s3"))
    stage.note("S3, read", PLAIN, stage.plain("plain_s3", f"s3a://{bucket}/plain", str(stage.home / "plain_back")))
    import pyarrow.dataset as ds

    for folder in (stage.home / "lake" / "bench" / "read_back", stage.home / "plain_back"):
        found = ds.dataset(folder, format="parquet", exclude_invalid_files=True).count_rows()
        if found != stage.rows:
            raise SystemExit(f"{folder} holds {found:,} rows, expected {stage.rows:,}")


CASES: dict[str, Callable[[Stage], None]] = {"merge": merge, "s3": s3}


def jar_list(family: str) -> str:
    """The jars of a connector as Spark wants them, fetched when they are missing."""
    return ",".join(str(state.path) for state in jars.fetch([family]))


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    from tests.services import moto
    from tests.services.run_folder import RunFolder

    folder = RunFolder.create()
    try:
        with tempfile.TemporaryDirectory(prefix="lake-bench-") as home:
            server = moto.shared_server(folder)
            environment = {
                "LAKE": f"{home}/lake",
                "DELTA": f"{home}/delta",
                "ROWS": str(args.rows),
                "DELTA_JARS": jar_list("delta"),
                "S3_JARS": jar_list("hadoop-aws"),
                "S3_ENDPOINT": server.endpoint,
                "S3_BUCKET": server.new_bucket(),
                "S3_KEY": server.loader[0],
                "S3_SECRET": server.loader[1],
                "EMATIX_FLOW_RUN_LOG_URL": "memory://",
                "EMATIX_FLOW_APPCDS": "use",
                "PYSPARK_PYTHON": sys.executable,
            }
            watched.record_archive("hadoop-aws")
            watched.record_archive("delta")
            stage = Stage(args.rows, Path(home), environment)
            lineitem.write(stage.source, args.rows)
            lineitem.write_changes(stage.changes, args.rows, CHANGED)
            for name in args.only:
                CASES[name](stage)
            sys.stdout.write(watched.table(stage.rows, stage.results, OURS))
    finally:
        moto.stop(folder.path / "moto")
        folder.close()


if __name__ == "__main__":
    main()
