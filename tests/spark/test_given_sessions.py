"""Sessions that the user made: their settings stay, they are not stopped, their DataFrames are loaded where they live.

Each test is a process of its own, as a notebook is: PySpark has one Spark per process, and ours must not be the first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ematix_flow
from ematix_flow.backends.jars import resolve

HEAD = """
    import os, sys, traceback
    def fail(*what):  # a Spark Connect server in this process would keep a broken one alive
        traceback.print_exception(*what)
        sys.stderr.flush()
        os._exit(1)
    sys.excepthook = fail
"""
CLASSIC = """
    from pyspark.sql import SparkSession
    mine = (
        SparkSession.builder.master("local[1]").appName("mine")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.sql.ansi.enabled", "false")
        .config("spark.sql.execution.arrow.pyspark.enabled", "false")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    NAMES = ("spark.app.name", "spark.sql.session.timeZone", "spark.sql.shuffle.partitions", "spark.sql.ansi.enabled",
             "spark.sql.execution.arrow.pyspark.enabled")
    before = {name: mine.conf.get(name) for name in NAMES}
"""
CONNECT = """
    from pyspark.sql import SparkSession
    mine = SparkSession.builder.remote("local[1]").config("spark.sql.shuffle.partitions", "3").getOrCreate()
    NAMES = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone")
    before = {name: mine.conf.get(name) for name in NAMES}
"""
USE = """
    import datetime as dt
    import pandas as pd
    import ematix_flow.df
    import ematix_flow.spark
    from ematix_flow import Annotated, BigInt, ObjectStoreLocalConnection, Text, TimestampTZ, connect, ematix, pk
    from ematix_flow.normalize import trim

    db = connect("db", url="sqlite:///shop.db")
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)

    # A frame in memory that needs Spark goes through the session there is, whatever its clock.
    @ematix.table(schema="main")
    class Cleaned:
        id: Annotated[BigInt, pk()]
        name: Annotated[Text, trim()]
        at: TimestampTZ
        wall: TimestampTZ

    frame = pd.DataFrame({"id": [1, 2], "name": [" a ", "b"], "at": [noon, noon]})
    frame["wall"] = pd.Timestamp("2026-01-01 12:00")
    db.write_df(frame, "main.cleaned", mode="append", target=Cleaned)
    found = db.to_polars("SELECT id, name, at, wall FROM cleaned ORDER BY id").rows()
    assert found == [(1, "a", noon, noon), (2, "b", noon, noon)], found

    # Reading into the session that is named, and into the one there is.
    for session in (mine, None):
        rows = db.to_pyspark("SELECT id, name FROM cleaned", session=session)
        assert rows.sparkSession is mine
    rows = db.read_spark_df(mine, "SELECT id, name FROM cleaned ORDER BY id")
    db.execute("DELETE FROM cleaned WHERE id = 2")
    assert [tuple(row) for row in rows.orderBy("id").collect()] == [(1, "a"), (2, "b")], "it has been read"

    # A DataFrame of the user's, by function, by method, and from a pipeline.
    users = mine.createDataFrame([(7, "x"), (8, None)], "id long, name string")
    assert ematix_flow.spark.from_pyspark(users, "main.users", connection=db, mode="append").rows_inserted == 2
    assert db.write_spark_df(users, "main.users", mode="merge", keys=["id"]).rows_unchanged == 2
    assert db.write_df(users.where("id = 7"), "main.users", mode="truncate").rows_inserted == 1

    @ematix.table(schema="main")
    class Loaded:
        id: Annotated[BigInt, pk()]
        name: Text | None

    @ematix.pipeline(target=Loaded, target_connection=db.connection, mode="append")
    def load(conn):
        return users

    assert load.sync().rows_inserted == 2
    assert db.from_pyspark(users, Loaded, mode="merge").rows_unchanged == 2
    assert db.to_polars("SELECT * FROM users").rows() == [(7, "x")]

    # SQL over files: their rows are there when the reading is over, wherever the tables of a query are looked up.
    users.write.parquet("files/main/users")
    files = ObjectStoreLocalConnection(name="files", path="files", format="parquet")
    assert ematix_flow.df.to_polars(files, "SELECT id FROM main.users ORDER BY id").rows() == [(7,), (8,)]
    assert ematix_flow.df.to_pyspark(files, "SELECT id FROM main.users").count() == 2

    # From another thread, where Spark knows of no active session.
    import threading
    failed = []
    def elsewhere():
        try:
            db2 = connect("db", url="sqlite:///shop.db")
            db2.write_df(users, "main.threaded", mode="append")
            db2.write_df(frame.assign(id=[3, 4]), "main.cleaned", mode="append", target=Cleaned)
            db2.close()
        except BaseException as exc:
            failed.append(exc)
    thread = threading.Thread(target=elsewhere)
    thread.start(); thread.join()
    assert not failed, failed

    assert {name: mine.conf.get(name) for name in NAMES} == before, "settings stay"
    from ematix_flow.spark.session import close_session
    close_session()
    assert mine.range(3).count() == 3, "it was not stopped"
    mine.stop()
    try:
        db.write_df(users, "main.late", mode="append")
    except ematix_flow.errors.EngineFailed as exc:
        assert "has been stopped" in str(exc), exc
    else:
        raise AssertionError("a frame of a stopped session was taken")
    try:
        db.to_pyspark("SELECT 1 AS a", session=mine)
    except ematix_flow.errors.EngineFailed as exc:
        assert "has been stopped" in str(exc), exc
    else:
        raise AssertionError("a stopped session was used")
    db.close()
    print("all of it", flush=True)
"""


LAKES = """
    from pyspark.sql import SparkSession
    kept = {
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
        "spark.sql.storeAssignmentPolicy": "LEGACY",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "America/New_York",
    }
    given = {
        "spark.jars": os.environ["LAKE_JARS"],
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.ui.enabled": "false",
        **kept,
    }
    builder = SparkSession.builder.master("local[1]").appName("mine")
    for name, value in given.items():
        builder = builder.config(name, value)
    mine = builder.getOrCreate()

    import datetime as dt
    import pyarrow as pa
    from ematix_flow import Annotated, BigInt, Target, Text, TimestampTZ, ematix, pk
    from ematix_flow.connections import DeltaLocalConnection, IcebergConnection
    from ematix_flow.df import to_polars

    at = dt.datetime(2026, 7, 1, 0, 30, tzinfo=dt.timezone.utc)

    def rows(*found):
        return pa.table({"id": [i for i, _ in found], "city": [c for _, c in found], "at": [at] * len(found)})

    for lake in (DeltaLocalConnection(name="delta", path="delta"), IcebergConnection(name="ice", warehouse="ice")):
        tables = {}
        def load(name, mode, given, **options):
            if name not in tables:
                columns = {"id": Annotated[BigInt, pk()], "city": Text, "at": TimestampTZ}
                made = type(f"{name}_{lake.name}", (), {"__annotations__": columns})
                tables[name] = ematix.table(schema="s", name=name)(made)
            target = Target(table=tables[name], connection=lake, mode=mode, **options)
            title = f"{lake.name} {name} {mode} {len(options)}"
            ematix.pipeline(name=title, source_connection=lake, targets=[target])(lambda conn: given).sync()

        def stored(name):
            return sorted(to_polars(lake, f"SELECT id, city, at FROM s.{name}").rows())

        load("plain", "append", rows((1, "Rome")))
        load("plain", "append", rows((2, "Oslo")))
        assert stored("plain") == [(1, "Rome", at), (2, "Oslo", at)]
        load("parted", "truncate", rows((1, "Rome"), (2, "Oslo")), partition_by=["city"])
        load("parted", "truncate", rows((3, "Oslo")))
        assert stored("parted") == [(3, "Oslo", at)]
        for mode in ("merge", "scd2"):
            load(mode, mode, rows((1, "Rome"), (2, "Oslo")))
            load(mode, mode, rows((2, "Paris"), (3, "Bonn")))
        assert stored("merge") == [(1, "Rome", at), (2, "Paris", at), (3, "Bonn", at)]
        assert stored("scd2") == [(1, "Rome", at), (2, "Oslo", at), (2, "Paris", at), (3, "Bonn", at)]
    assert {name: mine.conf.get(name) for name in kept} == kept, "settings stay"
    print("all of it", flush=True)
    mine.stop()
"""


def run(script: str, folder: Path) -> None:
    paths = os.pathsep.join([str(Path(ematix_flow.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "HOME": str(folder), "EMATIX_FLOW_APPCDS": "use"},
        check=False,
    )
    assert done.returncode == 0 and "all of it" in done.stdout, done.stderr[-6000:]


def test_a_classic_session_of_the_users_is_used_as_it_is(tmp_path: Path) -> None:
    run(HEAD + CLASSIC + USE, tmp_path)


def test_a_connect_session_of_the_users_is_used_as_it_is(tmp_path: Path) -> None:
    run(HEAD + CONNECT + USE, tmp_path)


def test_lake_tables_are_loaded_whatever_a_session_of_the_users_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_JARS", ",".join(map(str, resolve(["delta", "iceberg"]))))
    run(HEAD + LAKES, tmp_path)
