"""Loads of 6 million rows: ours beside the programs people write by hand, in one run, process start included.

    python benchmarks/loads.py                         all cases, one after the other
    python benchmarks/loads.py --only append merge     some of them
    python benchmarks/loads.py --rows 600000           smaller

Makes its data, starts private servers with the tests' launchers, runs every program in a fresh process, checks what
arrived, and prints a table of seconds, ratios and peak memory. The programs are in `benchmarks/programs/`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import lineitem, watched
from benchmarks.watched import Measured

PROGRAMS = Path(__file__).parent / "programs"
CHANGED = 0.01


@dataclass
class Stage:
    """Where the programs play: folders, servers, rows."""

    rows: int
    home: Path
    postgres: str
    mariadb: str | None
    jars: str
    results: dict[str, dict[str, Measured]] = field(default_factory=dict)

    @property
    def lake(self) -> Path:
        return self.home / "lake"

    @property
    def source(self) -> Path:
        return self.lake / "raw" / f"lineitem_{self.rows}"

    @property
    def changes(self) -> Path:
        return self.lake / "raw" / f"changes_{self.rows}"

    def environment(self) -> dict[str, str]:
        """What the programs are told."""
        known = {
            "LAKE": str(self.lake),
            "ROWS": str(self.rows),
            "TARGET_URL": self.postgres,
            "TARGET_JDBC": jdbc(self.postgres, "postgresql"),
            "JDBC_JARS": self.jars,
            "HIGHEST_KEY": str(self.rows // 4 + 1),
            "EMATIX_FLOW_RUN_LOG_URL": "memory://",
            "EMATIX_FLOW_APPCDS": "use",
            "PYSPARK_PYTHON": sys.executable,
        }
        if self.mariadb:
            known |= {"SOURCE_URL": self.mariadb, "SOURCE_JDBC": jdbc(self.mariadb, "mysql")}
        return known

    def sql(self, *statements: str) -> list[tuple[object, ...]]:
        """Run statements on PostgreSQL; the rows of the last one."""
        import psycopg

        with psycopg.connect(self.postgres, autocommit=True) as db:
            for statement in statements:
                cursor = db.execute(statement)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def plain(self, program: str, *arguments: str) -> Measured:
        """One of the programs written by hand."""
        return self._run([sys.executable, str(PROGRAMS / f"{program}.py"), *arguments])

    def flow(self, pipeline: str, *options: str) -> Measured:
        """One of our pipelines, as a user would start it."""
        return self._run([sys.executable, "-m", "ematix_flow", "run", "--module", "pipelines", pipeline, *options])

    def _run(self, command: list[str]) -> Measured:
        with tempfile.TemporaryDirectory(dir=self.home) as folder:
            shutil.copy(PROGRAMS / "pipelines.py", folder)
            return watched.run(command, cwd=Path(folder), env=self.environment())

    def count(self, table: str) -> int:
        """How many rows arrived."""
        return int(str(self.sql(f"SELECT count(*) FROM {table}")[0][0]))

    def expect(self, table: str, rows: int) -> None:
        """A load that lost or doubled rows is no result."""
        found = self.count(table)
        if found != rows:
            raise SystemExit(f"{table} holds {found:,} rows, expected {rows:,}")


def jdbc(url: str, kind: str) -> str:
    """The same address as JDBC spells it."""
    parts = urlsplit(url)
    return (
        f"jdbc:{kind}://{parts.hostname}:{parts.port}{parts.path}?user={parts.username}&password={parts.password or ''}"
    )


OURS, PLAIN, TUNED, DUCKDB = "ematix-flow", "PySpark JDBC", "PySpark JDBC, partitioned", "DuckDB + COPY"
STREAMING = "PySpark JDBC, fetch size"
NATIVE, PARALLEL = "ematix-flow (native)", "ematix-flow, 2 readers"
TABLE = (
    "CREATE TABLE {} (l_orderkey bigint{key}, l_linenumber int{key}, l_partkey bigint, l_suppkey bigint, "
    "l_quantity numeric(15,2), l_extendedprice numeric(15,2), l_discount numeric(15,2), l_tax numeric(15,2), "
    "l_returnflag text, l_linestatus text, l_shipdate date, l_commitdate date, l_receiptdate date, "
    "l_shipinstruct text, l_shipmode text, l_comment text)"
)


def first_load(stage: Stage) -> None:
    """Parquet into a PostgreSQL table that is not there yet (the hand-written COPY needs one)."""

    def fresh() -> None:
        _clean(stage)

    def with_table() -> None:
        _clean(stage)
        stage.sql(TABLE.format("bench.lineitem", key=""))

    _compare(
        stage,
        "first load",
        {
            OURS: (fresh, lambda: stage.flow("append_rows")),
            NATIVE: (fresh, lambda: stage.flow("append_rows", "--engine", "native")),
            PLAIN: (fresh, lambda: stage.plain("plain_load", str(stage.source), "bench.lineitem", "append")),
            DUCKDB: (with_table, lambda: stage.plain("duckdb_load", str(stage.source), "bench.lineitem")),
        },
        lambda: stage.expect("bench.lineitem", stage.rows),
    )


def truncate(stage: Stage) -> None:
    """Parquet over a full PostgreSQL table."""

    def full() -> None:
        _clean(stage)
        _fill(stage, "append_rows")

    _compare(
        stage,
        "truncate",
        {
            OURS: (full, lambda: stage.flow("replace_rows")),
            PLAIN: (full, lambda: stage.plain("plain_load", str(stage.source), "bench.lineitem", "overwrite")),
            DUCKDB: (lambda: _plain_table(stage), lambda: _duckdb(stage, "empty")),
        },
        lambda: stage.expect("bench.lineitem", stage.rows),
    )


def append(stage: Stage) -> None:
    """Parquet into a PostgreSQL table that already has rows."""

    def seeded() -> None:
        _clean(stage)
        stage.sql(
            TABLE.format("bench.lineitem", key=""),
            "INSERT INTO bench.lineitem (l_orderkey, l_linenumber) VALUES (0, 0)",
        )

    _compare(
        stage,
        "append",
        {
            OURS: (seeded, lambda: stage.flow("append_rows")),
            PLAIN: (seeded, lambda: stage.plain("plain_load", str(stage.source), "bench.lineitem", "append")),
            DUCKDB: (seeded, lambda: _duckdb(stage)),
        },
        lambda: stage.expect("bench.lineitem", stage.rows + 1),
    )


def unload(stage: Stage) -> None:
    """A PostgreSQL table into Parquet files."""
    _clean(stage)
    _fill(stage, "append_rows")
    out = stage.home / "unloaded"

    def clean() -> None:
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(stage.lake / "bench", ignore_errors=True)

    def arrived() -> None:
        import pyarrow.dataset as ds

        folder = next((f for f in (out, stage.lake / "bench" / "lineitem") if f.exists()), None)
        found = ds.dataset(folder, format="parquet", exclude_invalid_files=True).count_rows() if folder else 0
        if found != stage.rows:
            raise SystemExit(f"the folder holds {found:,} rows, expected {stage.rows:,}")

    _compare(
        stage,
        "PostgreSQL to Parquet",
        {
            OURS: (clean, lambda: stage.flow("unload")),
            PLAIN: (clean, lambda: stage.plain("plain_unload", "bench.lineitem", str(out), "defaults")),
            TUNED: (clean, lambda: stage.plain("plain_unload", "bench.lineitem", str(out), "partitioned")),
        },
        arrived,
    )


def merge(stage: Stage) -> None:
    """One percent changed rows into a keyed PostgreSQL table; the changes lie in the same database, then in files."""
    changed = -(-stage.rows // round(1 / CHANGED))

    def full() -> None:
        _clean(stage)
        stage.sql(
            TABLE.format("bench.keyed_lineitem", key=" NOT NULL"),
            TABLE.format("bench.changes", key=""),
        )
        _duckdb(stage, table="bench.keyed_lineitem")
        _duckdb(stage, table="bench.changes", folder=str(stage.changes))
        stage.sql(
            "ALTER TABLE bench.keyed_lineitem ADD PRIMARY KEY (l_orderkey, l_linenumber)",
            "VACUUM ANALYZE bench.keyed_lineitem",
            "ANALYZE bench.changes",
        )

    def arrived() -> None:
        stage.expect("bench.keyed_lineitem", stage.rows)
        stage.expect("bench.keyed_lineitem WHERE l_comment LIKE '% again'", changed)

    for label, source, ours in (
        ("merge 1 %, same database", ("table", "bench.changes"), "merge_table"),
        ("merge 1 %, from Parquet", ("parquet", str(stage.changes)), "merge_files"),
    ):
        _compare(
            stage,
            label,
            {
                OURS: (full, lambda pipeline=ours: stage.flow(pipeline)),
                PLAIN: (full, lambda given=source: stage.plain("plain_merge", *given, "bench.keyed_lineitem")),
            },
            arrived,
        )


def mariadb(stage: Stage) -> None:
    """A MariaDB table into PostgreSQL."""
    assert stage.mariadb is not None
    _fill_mariadb(stage)
    _compare(
        stage,
        "MariaDB to PostgreSQL",
        {
            OURS: (lambda: _clean(stage), lambda: stage.flow("from_mariadb")),
            PLAIN: (lambda: _clean(stage), lambda: stage.plain("plain_copy", "bench.lineitem", "append", "defaults")),
            STREAMING: (
                lambda: _clean(stage),
                lambda: stage.plain("plain_copy", "bench.lineitem", "append", "streaming"),
            ),
            # The last one, since the table gets a key for it.
            PARALLEL: (lambda: _with_key(stage), lambda: stage.flow("from_mariadb_in_parts")),
        },
        lambda: stage.expect("bench.lineitem", stage.rows),
    )


CASES: dict[str, Callable[[Stage], None]] = {
    "first": first_load,
    "truncate": truncate,
    "append": append,
    "unload": unload,
    "merge": merge,
    "mariadb": mariadb,
}


def _compare(
    stage: Stage,
    label: str,
    programs: dict[str, tuple[Callable[[], None], Callable[[], Measured]]],
    arrived: Callable[[], None],
) -> None:
    """Run each program on a prepared stage, look at what arrived, print a line."""
    found = stage.results.setdefault(label, {})
    for name, (prepare, program) in programs.items():
        prepare()
        stage.sql("CHECKPOINT")
        found[name] = done = program()
        if done.code == 0:
            arrived()
        elif name == OURS:
            raise SystemExit(f"{label}: {name} failed with code {done.code}\n{done.said[-4000:]}")
        elif "OutOfMemory" not in done.said:
            sys.stderr.write(done.said[-4000:])
        sys.stderr.write(f"{label:<26} {name:<26} {done}\n")


def _clean(stage: Stage) -> None:
    stage.sql("DROP SCHEMA IF EXISTS bench CASCADE", "DROP SCHEMA IF EXISTS ematix_flow CASCADE", "CREATE SCHEMA bench")


def _fill(stage: Stage, pipeline: str) -> None:
    done = stage.flow(pipeline)
    if done.code != 0:
        raise SystemExit(done.said)


def _plain_table(stage: Stage) -> None:
    _clean(stage)
    stage.sql(TABLE.format("bench.lineitem", key=""))
    _duckdb(stage)


def _duckdb(stage: Stage, *more: str, table: str = "bench.lineitem", folder: str | None = None) -> Measured:
    return stage.plain("duckdb_load", folder or str(stage.source), table, *more)


def _fill_mariadb(stage: Stage) -> None:
    """By CSV and LOAD DATA, without the code under test."""
    import duckdb

    csv = stage.home / "lineitem.csv"
    duckdb.sql(f"COPY (SELECT * FROM read_parquet('{stage.source}/*.parquet')) TO '{csv}' (FORMAT csv, HEADER false)")
    _on_mariadb(
        stage,
        "DROP DATABASE IF EXISTS bench",
        "CREATE DATABASE bench",
        TABLE.format("bench.lineitem", key="").replace("numeric", "decimal").replace(" text", " varchar(100)"),
        f"LOAD DATA LOCAL INFILE '{csv}' INTO TABLE bench.lineitem CHARACTER SET utf8mb4 "
        "FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"'",
    )
    csv.unlink()


def _with_key(stage: Stage) -> None:
    """The MariaDB table with the key that its reads are split by."""
    _clean(stage)
    _on_mariadb(stage, "ALTER TABLE bench.lineitem ADD PRIMARY KEY (l_orderkey, l_linenumber)")


def _on_mariadb(stage: Stage, *statements: str) -> None:
    import pymysql

    parts = urlsplit(stage.mariadb or "")
    with pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        local_infile=True,
        autocommit=True,
    ) as db:
        cursor = db.cursor()
        for statement in statements:
            cursor.execute(statement)


def report(stage: Stage, *, as_json: bool) -> None:
    """A table: seconds, how many times faster we are, and peak memory."""
    if as_json:
        whole = {
            case: {
                name: {"seconds": round(m.seconds, 1), "peak_mb": round(m.peak_mb), "code": m.code}
                for name, m in programs.items()
            }
            for case, programs in stage.results.items()
        }
        sys.stdout.write(json.dumps({"rows": stage.rows, "cases": whole}) + "\n")
        return
    sys.stdout.write(watched.table(stage.rows, stage.results, OURS))


@contextmanager
def servers(with_mariadb: bool) -> Iterator[tuple[str, str | None]]:
    """A private PostgreSQL, and a MariaDB when it is needed."""
    from tests.services import postgres
    from tests.services.run_folder import RunFolder

    folder = RunFolder.create()
    with ExitStack() as stack:
        stack.callback(folder.close)
        stack.callback(lambda: postgres.stop(folder.path / "postgres"))
        base = stack.enter_context(postgres.shared_server(folder).fresh_database())
        other = None
        if with_mariadb:
            from tests.services import mariadb as mariadb_service

            stack.callback(lambda: mariadb_service.stop(folder.path / "mariadb"))
            other = mariadb_service.shared_server(folder).url
        yield base, other


def jdbc_jars() -> str:
    """The JDBC drivers that the hand-written programs need, fetched when they are missing."""
    from ematix_flow.backends import jars

    families = ("postgresql", "mysql")
    jars.fetch(families)
    return ",".join(str(path) for path in jars.resolve(families))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--home", type=Path, help="where data is made and kept; a temporary folder without it")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    home = options.home or Path(tempfile.mkdtemp(prefix="ematix-benchmark-"))
    try:
        with servers("mariadb" in options.only) as (postgres, other):
            stage = Stage(options.rows, home.resolve(), postgres, other, jdbc_jars())
            lineitem.write(stage.source, options.rows)
            lineitem.write_changes(stage.changes, options.rows, CHANGED)
            for name in options.only:
                CASES[name](stage)
            report(stage, as_json=options.json)
    finally:
        if options.home is None:
            shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
