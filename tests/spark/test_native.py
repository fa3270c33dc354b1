"""The native engine: in a process of its own, since PySpark cannot change its engine within one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from ematix_flow.backends.files_store import require_no_pattern
from ematix_flow.contracts.plans import DdlPlan
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.declare.columns import BigInt, Date, Double
from ematix_flow.declare.table import ColumnSpec, TableSpec
from ematix_flow.declare.target import FileOptions, TargetSpec
from ematix_flow.errors import AlreadyRunning, RouteImpossible
from ematix_flow.plan.native import against_native, against_native_target
from ematix_flow.plan.route import choose_route
from ematix_flow.spark.session import open_session

ROOT = Path(__file__).parents[2]

# What a load leans on, once each: values, markers, every mode, errors, and types from and to every kind of system.
SLICE = (
    "tests/spark/test_fitting.py",
    "tests/spark/test_expressions.py",
    "tests/backends/test_postgres.py::TestPostgres::test_all_markers_mean_the_same_on_every_route",
    "tests/backends/test_postgres.py::TestPostgres::test_every_type_keeps_every_value",
    "tests/backends/test_postgres.py::TestPostgres::test_both_routes_write_the_same_history_to_the_last_byte",
    "tests/backends/test_postgres.py::TestPostgres::test_targets_that_go_through_spark_share_one_reading",
    "tests/backends/test_sqlite.py::TestSqlite::test_truncate_replaces_everything_or_nothing",
    "tests/backends/test_type_matrix.py::test_every_value_arrives_from_this_system_in_every_other[Parquet]",
    "tests/backends/test_type_matrix.py::"
    "test_every_value_goes_into_tables_of_this_format_and_from_there_into_every_system[Delta]",
    "tests/backends/test_delta.py",
    "tests/plan/test_crowds.py",
)


def test_a_slice_of_the_contract_holds_on_the_native_engine() -> None:
    environment = {**os.environ, "EMATIX_TEST_ENGINE": "native"}
    for name in [name for name in environment if name.startswith(("PYTEST_", "EMATIX_PROVE"))]:
        del environment[name]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", *SLICE],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-500:]


PROGRAM = """
import json, sys, threading
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.errors import AlreadyRunning
from ematix_flow.spark.session import close_session, open_session
spark = open_session(SessionNeeds(), SparkSettings(engine="native"))
said = {"rows": spark.range(3).count(), "again": open_session(SessionNeeds(), SparkSettings(engine="native")) is spark}
said["zone"] = spark.conf.get("spark.sql.session.timeZone")
try:
    open_session(SessionNeeds(), SparkSettings())
except AlreadyRunning as exc:
    said["refused"] = exc.message
close_session()
try:
    open_session(SessionNeeds(), SparkSettings())
except AlreadyRunning as exc:
    said["refused later"] = exc.message
spark = open_session(SessionNeeds(), SparkSettings(engine="native"))
said["after closing"] = spark.range(4).count()
print(json.dumps(said))
"""


def test_a_process_has_one_engine_from_start_to_end_and_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    said = json.loads(done.stdout)
    assert (said["rows"], said["again"], said["zone"], said["after closing"]) == (3, True, "UTC", 4)
    assert "already moves rows with the native engine" in said["refused"]
    assert said["refused later"] == said["refused"]
    assert done.stderr == "", "nothing but our own words on the terminal"


FRAMES = """
import ematix_flow.df
from ematix_flow import ObjectStoreLocalConnection
files = ObjectStoreLocalConnection(name="files", path="files", format="parquet")
print(ematix_flow.df.to_polars(files, "SELECT id FROM main.users ORDER BY id").rows())
"""


def test_sql_over_files_becomes_a_frame_in_memory(tmp_path: Path) -> None:
    (tmp_path / ".ematix-flow.toml").write_text('[spark]\nengine = "native"\n')
    (tmp_path / "files/main/users").mkdir(parents=True)
    parquet.write_table(pa.table({"id": [7, 8]}), tmp_path / "files/main/users/a.parquet")
    done = subprocess.run([sys.executable, "-c", FRAMES], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[(7,), (8,)]\n", done.stderr[-2000:]


def test_a_process_that_runs_spark_refuses_the_native_engine(spark: object) -> None:
    with pytest.raises(AlreadyRunning, match="PySpark cannot change to the native engine") as caught:
        open_session(SessionNeeds(), SparkSettings(engine="native"))
    assert "process of its own" in (caught.value.fix or "")


def test_the_route_is_forced_by_the_pipeline_or_chosen_by_the_project() -> None:
    assert choose_route("native", []).engine == "native"
    assert choose_route("auto", ["files are not a database"], mover="native").engine == "native"
    assert choose_route("auto", [], mover="native").engine == "pushdown"
    assert choose_route("spark", ["x"], mover="native").engine == "spark"
    assert choose_route("auto", ["x"], against_native=["y"]).engine == "spark"


STATISTICS = """
import json, os
from decimal import Decimal
import pyarrow as pa
from deltalake import write_deltalake
from pyarrow import parquet
from ematix_flow.backends.delta_native import rows_of
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.spark.session import open_session
spark = open_session(SessionNeeds(), SparkSettings(engine="native"))
nan = pa.table({"v": [5.0, float("nan"), 5.0]})
parquet.write_table(nan, "nan.parquet")
said = {"files": [row.v for row in spark.read.parquet("nan.parquet").collect()]}
write_deltalake("nan", nan)
said["delta"] = [row.v for row in rows_of(spark, os.path.abspath("nan"), None).collect()]
long = pa.array([Decimal("-10058162284998.2132")] * 3, pa.decimal128(18, 4))
write_deltalake("long", pa.table({"v": long, "d": [-6.569647899572688e+196] * 3}))
rows = rows_of(spark, os.path.abspath("long"), None).collect()
said["long"] = sorted({str(row.v) + " " + repr(row.d) for row in rows})
print(json.dumps({key: [str(value) for value in values] for key, values in said.items()}))
"""


def test_values_are_read_from_files_and_not_from_statistics_about_them(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STATISTICS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path)
    said = json.loads(done.stdout)
    assert said["files"] == said["delta"] == ["5.0", "nan", "5.0"]
    assert said["long"] == ["-10058162284998.2132 -6.569647899572688e+196"]


VIEWS = """
import json, threading
from decimal import Decimal
import pyarrow as pa
from pyarrow import parquet
from ematix_flow.backends.files_native import as_view
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.spark.session import open_session
long = "x" * 200
tables = {
    "exact": pa.table({"v": [Decimal("5.00")] * 3, "t": [long + "a", long + "c", long + "b"]}),
    "floats": pa.table({"v": [5.0, float("nan"), 5.0]}),
    "inside": pa.table({"v": pa.array([{"x": [1.0]}, {"x": [2.0]}])}),
}
spark = open_session(SessionNeeds(), SparkSettings(engine="native"))
said = {}
def look(name, view):
    as_view(spark.read.parquet(f"{name}.parquet"), view)
    plan = spark.sql(f"EXPLAIN SELECT count(*) FROM {view}").collect()[0][0]
    said[view] = "asks statistics" if "DataSourceExec" not in plan else "reads rows"
for name, table in tables.items():
    parquet.write_table(table, f"{name}.parquet")
    look(name, name)
said["values"] = [str(row.v) for row in spark.sql("SELECT v FROM floats").collect()]
said["greatest"] = [str(spark.sql(f"SELECT max(v) FROM {name}").collect()[0][0]) for name in ("floats", "exact")]
said["texts"] = [value[200:] for value in spark.sql("SELECT min(t), max(t) FROM exact").collect()[0]]
said["frame"] = [str(row.v) for row in spark.read.parquet("floats.parquet").collect()]
other = threading.Thread(target=look, args=("exact", "beside"))
other.start()
other.join()
print(json.dumps(said))
"""


def test_views_of_files_without_floating_point_numbers_are_made_with_their_statistics(tmp_path: Path) -> None:
    command = [sys.executable, "-c", VIEWS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["exact"] == "asks statistics" and said["floats"] == said["inside"] == "reads rows"
    assert said["beside"] == "reads rows", "a session that threads share is left as it is"
    assert said["values"] == said["frame"] == ["5.0", "nan", "5.0"]
    assert said["greatest"] == ["nan", "5.00"] and said["texts"] == ["a", "c"]


SQL_OVER_FILES = """
import ematix_flow.df
from ematix_flow import ObjectStoreLocalConnection
files = ObjectStoreLocalConnection(name="files", path="files", format="parquet")
asked = "SELECT f.v, o.n FROM main.floats f JOIN main.orders o ON o.id = f.id ORDER BY o.n"
print(ematix_flow.df.to_polars(files, asked).rows())
"""


def test_a_nan_among_equal_numbers_is_joined_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / ".ematix-flow.toml").write_text('[spark]\nengine = "native"\n')
    for name, table in {
        "floats": pa.table({"id": [1, 2, 3], "v": [5.0, float("nan"), 5.0]}),
        "orders": pa.table({"id": [1, 2, 3], "n": [10, 20, 30]}),
    }.items():
        (tmp_path / "files/main" / name).mkdir(parents=True)
        parquet.write_table(table, tmp_path / "files/main" / name / "a.parquet")
    command = [sys.executable, "-c", SQL_OVER_FILES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[(5.0, 10), (nan, 20), (5.0, 30)]\n", done.stderr[-2000:]


@pytest.mark.parametrize(("source", "sink"), [("postgres", "kafka"), ("iceberg", "postgres"), ("sqlite", "delta_s3")])
def test_a_system_that_needs_a_jvm_is_refused_when_planning(source: str, sink: str) -> None:
    reasons = against_native((source, None), (sink, None))
    with pytest.raises(RouteImpossible, match="connectors for a JVM") as caught:
        choose_route("native", [], against_native=reasons)
    assert "engine='spark'" in (caught.value.fix or "")


def test_only_parquet_files_are_for_the_native_engine() -> None:
    for file_format in ("csv", "json_lines", "orc"):
        assert against_native(("object_store_local", file_format), ("sqlite", None)), file_format
        assert against_native(("sqlite", None), ("object_store_local", file_format)), file_format
    assert not against_native(("object_store_local", "parquet"), ("postgres", None))


ODD_NAMES = """
import datetime, json, os
import pyarrow as pa
from pyarrow import parquet
from ematix_flow import Annotated, BigInt, Date, Target, Text, connect, ematix
from ematix_flow.connections import DeltaLocalConnection, DuckDBConnection, ObjectStoreLocalConnection, SQLiteConnection
from ematix_flow.errors import InvalidSource, RouteImpossible
from ematix_flow.normalize import derive, sql
inbox = ObjectStoreLocalConnection(name="inbox", path="in[box]", format="parquet")
lake = ObjectStoreLocalConnection(name="lake", path="lake", format="parquet")
db = SQLiteConnection(name="db", path="in[box]/back.db")
other = DuckDBConnection(name="other", path="in[box]/back.duckdb")
names = ["one", "t[w]o", "day=[x] 100%/three", "{four}/a%20b", "w*", "q?"]
for number, name in enumerate(names):
    os.makedirs(os.path.dirname(f"in[box]/raw/odd{number}/{name}"), exist_ok=True)
    parquet.write_table(pa.table({"id": [number]}), f"in[box]/raw/odd{number}/{name}.parquet")
zones = ["plain", None, "\u00fc", "a:b", "x/y", "100%", "[q]*?{}"]
days = [datetime.date(2026, 3, 1), None, *[datetime.date(1970, 1, 1)] * 5]
os.makedirs("in[box]/raw/zones")
parquet.write_table(pa.table({"id": range(7), "zone": zones, "day": days}), "in[box]/raw/zones/all.parquet")
@ematix.table(schema="main", name="ids")
class Ids:
    id: BigInt
@ematix.table(schema="main", name="zones")
class Zones:
    id: BigInt
    zone: Text | None
    day: Date | None
def load(name, source, table, target, **options):
    end = {"targets": [Target(table=table, connection=target, mode="truncate", **options)]}
    return ematix.pipeline(name=name, source_connection=source, engine="native", **end)(lambda conn: name)
said = {"odd": []}
for number in range(len(names)):
    load(f"raw/odd{number}", inbox, Ids, db).sync()
    with connect(url="sqlite:///in[box]/back.db") as there:
        said["odd"] += [row[0] for row in there.query("SELECT id FROM ids")["rows"]]
load("raw/zones", inbox, Zones, lake, partition_by=["zone", "day"]).sync()
said["folders"] = sorted(
    f"{zone}/{day}" for zone in os.listdir("lake/main/zones") if "=" in zone
    for day in os.listdir(f"lake/main/zones/{zone}")
)
load("main/zones", lake, Zones, db).sync()
with connect(url="sqlite:///in[box]/back.db") as there:
    said["zones"] = there.query("SELECT id, zone, day FROM zones ORDER BY id")["rows"]
load("SELECT id, zone, day FROM main.zones", db, Zones, other).sync()
load("SELECT id + 100 AS id, zone, day FROM main.zones", other, Zones, db).sync()
with connect(url="sqlite:///in[box]/back.db") as there:
    said["around"] = there.query("SELECT count(*), min(id), max(id) FROM zones")["rows"]
said["told"] = []
class Named(Ids):
    __tablename__ = "named"
    zone: Annotated[Text | None, derive("upper(zonne)")]
class Changed(Ids):
    __tablename__ = "changed"
    zone: Annotated[Text | None, sql("uper(col)")]
queries = ["SELECT nummber AS id FROM raw.zones", "SELECT twice(id) AS id FROM raw.zones"]
for query, table in [(queries[0], Ids), (queries[1], Ids), ("raw/zones", Named), ("raw/zones", Changed)]:
    try:
        load(query, inbox, table, db).sync()
    except InvalidSource as exc:
        said["told"].append(exc.message.splitlines()[0].partition(": ")[2])
try:
    load("raw/odd0", inbox, Ids, DeltaLocalConnection(name="tables", path="tab[les]")).preview()
except RouteImpossible as exc:
    said["refused"] = exc.message
print(json.dumps(said))
"""


def test_files_of_any_name_are_read_and_the_values_of_folders_come_back(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ODD_NAMES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert said["odd"] == [0, 1, 2, 3, 4, 5], "a name that could be a pattern hides no rows"
    zones = ["plain", None, "ü", "a:b", "x/y", "100%", "[q]*?{}"]
    days = ["2026-03-01", None, *["1970-01-01"] * 5]
    assert said["zones"] == [[n, zone, day] for n, (zone, day) in enumerate(zip(zones, days, strict=True))]
    assert said["folders"] == [
        "zone=%5Bq%5D%2A%3F%7B}/day=1970-01-01",
        "zone=100%25/day=1970-01-01",
        "zone=__HIVE_DEFAULT_PARTITION__/day=__HIVE_DEFAULT_PARTITION__",
        "zone=a%3Ab/day=1970-01-01",
        "zone=plain/day=2026-03-01",
        "zone=x%2Fy/day=1970-01-01",
        "zone=ü/day=1970-01-01",
    ], "as Spark names them"
    assert said["around"] == [[7, 100, 106]], "databases that are a file, too"
    assert said["told"] == [
        "The source SQL (spark), line 1, column 8: 'nummber': there is no column 'nummber'.",
        "The source SQL (spark), line 1, column 8: 'twice': the native engine has no function 'twice'.",
        "derive of column 'zone' (spark), line 1, column 7: 'zonne': there is no column 'zonne'.",
        "sql of column 'zone' (spark), line 1, column 1: 'uper': the native engine has no function 'uper'.",
    ]
    assert said["refused"] == "The native engine cannot work in a folder with '[' in its name."


def test_folders_named_by_values_that_it_spells_differently_are_refused_when_planning() -> None:
    types = {"id": BigInt(), "price": Double(), "day": Date()}
    table = TableSpec("s", "t", tuple(ColumnSpec(name, kind) for name, kind in types.items()))
    files = FileOptions(partition_by=["price", "day"])
    target = TargetSpec(table=table, connection="lake", mode="append", files=files)
    reasons = against_native_target("object_store_local", target, DdlPlan("match"))
    assert reasons == [
        "folders would be named by the values of 'price', and it spells floating-point numbers differently"
    ]


@pytest.mark.parametrize("folder", ["in[box]", "in*", "100%"])
def test_a_folder_that_could_be_a_pattern_is_refused_since_it_would_be_read_as_empty(folder: str) -> None:
    with pytest.raises(RouteImpossible, match="cannot work in a folder with"):
        require_no_pattern(f"/data/{folder}/orders")


DAMAGED = """
import pathlib
import pyarrow as pa
from pyarrow import parquet
from ematix_flow import BigInt, ematix
from ematix_flow.connections import ObjectStoreLocalConnection
from ematix_flow.errors import InvalidSource
@ematix.table(schema="shop")
class Orders:
    id: BigInt
inbox = ObjectStoreLocalConnection(name="inbox", path="in", format="parquet")
out = ObjectStoreLocalConnection(name="out", path="out", format="parquet")
folder = pathlib.Path("in/raw/orders")
folder.mkdir(parents=True)
parquet.write_table(pa.table({"id": [1]}), folder / "sound.parquet")
(folder / "cut.parquet").write_bytes(b"PAR1 and no end")
@ematix.pipeline(
    source_connection=inbox, source_table="raw.orders", target=Orders, target_connection=out, mode="append",
    engine="native",
)
def load(): ...
try:
    load.sync()
except InvalidSource as exc:
    print(exc.message)
"""


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DAMAGED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path)
    assert "cut.parquet (it is cut off" in done.stdout and "sound.parquet" not in done.stdout
    assert not list(tmp_path.glob("out/**/*.parquet"))
