"""Every place where Spark may run: which one is meant, what is said when nobody is there, and the contract on each.

The long proofs (`EMATIX_PROVE=1`) run slices of the contracts of PostgreSQL, Delta and Iceberg on a Spark Connect
server and on a standalone cluster, in processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ematix_flow.cli.main import main
from ematix_flow.config.spark_place import place_told, spark_settings
from ematix_flow.connections import PostgresConnection, SQLiteConnection
from ematix_flow.contracts.session import SparkSettings
from ematix_flow.errors import ConnectionFailed, InvalidConfig, RouteImpossible
from ematix_flow.spark.batch import refuse_files_out_of_reach
from ematix_flow.spark.reach import is_this_machine, require_master, require_server
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.endpoints import SqliteEndpoint
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.types import BigInt
from tests.services.spark import connect_server, standalone_cluster

ROOT = Path(__file__).parents[2]

SLICE = (
    "append_adds or truncate_replaces or columns_it_is_told or scd2_by or incremental_append or keeps_every_value "
    "or delivers or share_one or all_markers or no_json or (does_not_fit and merge)"
)
"""Every mode, every type, markers, sharing, and values that stop a load."""

LAKES = ("tests/backends/test_delta.py", "tests/backends/test_iceberg.py")
LAKE_SLICE = "append_adds or truncate_replaces or merge_inserts or scd2_by or one_commit_that_names or older_version"
"""Every mode into lake tables, and rows out of them again."""

PARTS = """
import os, sys
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.spark.session import fit_to_job, open_session
conf = {"spark.sql.shuffle.partitions": sys.argv[1]} if sys.argv[1:] else {}
session = open_session(SessionNeeds(), SparkSettings(remote=os.environ.get("SPARK_REMOTE"), conf=conf))
for size in (1000, 1 << 30):
    fit_to_job(session, size)
    print("parts", session.conf.get("spark.sql.shuffle.partitions"))
"""
"""What two loads, one of a thousand bytes and one of a gigabyte, are shuffled into."""

LACKS = """
import os
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.errors import MissingJar
from ematix_flow.spark.session import open_session
settings = SparkSettings(remote=os.environ["SPARK_REMOTE"])
open_session(SessionNeeds(), settings)
for _ in range(2):
    try:
        open_session(SessionNeeds(jars=frozenset({"delta", "kafka"})), settings)
    except MissingJar as exc:
        print(exc)
"""


# ── which place ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_line_wins_over_the_environment_and_that_over_the_project(
    tmp_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_project / ".ematix-flow.toml").write_text('[spark]\nmaster = "local[3]"\nremote = "sc://file:1"\n')
    monkeypatch.delenv("EMATIX_FLOW_SHORT_JOB")
    assert spark_settings() == SparkSettings(master="local[3]", remote="sc://file:1")
    monkeypatch.setenv("SPARK_REMOTE", "sc://environment:1")
    assert spark_settings().remote == "sc://environment:1"
    with place_told(remote="sc://command:1"):
        assert spark_settings().remote == "sc://command:1"
    with place_told(master="local[1]"):
        assert (spark_settings().master, spark_settings().remote) == ("local[1]", None)
    assert spark_settings().remote == "sc://environment:1"


def test_two_places_at_once_are_refused(tmp_project: Path) -> None:
    with pytest.raises(InvalidConfig, match="name two places"), place_told(master="local", remote="sc://a"):
        pass


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('[spark]\nengine = "nativ"\n', "did you mean 'native'"),
        ('peers = ["http://a:1"]\n', 'master = "spark://host:7077"'),
        ('engine = "distributed"\n', 'remote = "sc://host:15002"'),
    ],
)
def test_settings_that_mean_nothing_here_are_answered_with_what_does(
    tmp_project: Path, written: str, said: str
) -> None:
    (tmp_project / ".ematix-flow.toml").write_text(written)
    with isolated_registry():
        here = SqliteEndpoint(SQLiteConnection(name="here", path="here.db"), "main")
        bench = Bench(here, here)
        table = bench.table("rows", a=BigInt)
        with pytest.raises(InvalidConfig) as caught:
            bench.pipeline(table, route="pushdown", mode="append", engine="auto").preview()
    assert said in f"{caught.value.fix}"


# ── nobody there ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_address_where_nobody_listens_is_refused_within_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match=r"sc://127\.0\.0\.1:9: Connection refused"):
        require_server("sc://127.0.0.1:9/;token=s3cret")
    with pytest.raises(ConnectionFailed, match=r"spark://127\.0\.0\.1:9,127\.0\.0\.1:10: Connection refused"):
        require_master("spark://127.0.0.1:9,127.0.0.1:10")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("address", ["http://host:1", "sc://", "sc://host:port", "host:15002"])
def test_what_is_no_address_of_spark_connect_is_refused(address: str) -> None:
    with pytest.raises(InvalidConfig, match="no address of Spark Connect"):
        require_server(address)


@pytest.mark.parametrize("master", ["spark:/host", "spark://", "mesos://host", "k8s://", "cluster"])
def test_what_is_no_master_is_refused(master: str) -> None:
    with pytest.raises(InvalidConfig, match="no Spark master"):
        require_master(master)


def test_a_token_behind_an_address_is_never_shown() -> None:
    with pytest.raises(ConnectionFailed) as caught:
        require_server("sc://127.0.0.1:9/;use_ssl=true;token=s3cret")
    assert "s3cret" not in str(caught.value)


def test_files_are_not_sent_to_a_server_that_cannot_see_them() -> None:
    from ematix_flow.backends.catalog import open_backend

    files = open_backend(SQLiteConnection(name="till", path="till.db"))
    database = open_backend(PostgresConnection(name="warehouse", url="postgresql://h/d"))
    far = SparkSettings(remote="sc://spark.example.org:15002")
    with pytest.raises(RouteImpossible, match="'till' .sqlite. is on the disk of this machine"):
        refuse_files_out_of_reach(far, database, files)
    refuse_files_out_of_reach(far, database, database)
    refuse_files_out_of_reach(SparkSettings(remote="sc://localhost:15002"), files, database)
    assert not is_this_machine("sc://spark.example.org:15002")


def test_the_commands_take_a_place(tmp_project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "dry-run", "preview", "validate"):
        assert main([command, "--help"]) == 0
        assert "--spark-master" in (said := capsys.readouterr().out) and "--spark-remote" in said


# ── the contract, elsewhere ──────────────────────────────────────────────────────────────────────────────────────────


def contract_holds(
    environment: dict[str, str], chosen: str = SLICE, of: tuple[str, ...] = ("tests/backends/test_postgres.py",)
) -> str:
    """Run a slice in a process of its own, and say what it said."""
    tests = [*of, "-k", f"({chosen}) and not pushdown"]
    return said_by([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", *tests], environment)


def said_by(command: list[str], environment: dict[str, str]) -> str:
    """What a process says that ends well."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def parts(environment: dict[str, str], *told: str) -> list[str]:
    """Into how many parts loads are shuffled that do not say it themselves, or that do."""
    said = said_by([sys.executable, "-c", PARTS, *told], environment)
    return [line.split()[1] for line in said.splitlines() if line.startswith("parts ")]


def defaults(folder: Path, address: str) -> Path:
    """A folder of Spark settings that names the cluster, as an administrator would leave it."""
    place = folder / "conf"
    place.mkdir()
    lines = [f"spark.master {address}", "spark.executor.memory 700m", "spark.driver.host 127.0.0.1"]
    (place / "spark-defaults.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place


if os.environ.get("EMATIX_PROVE"):  # servers and minutes: `make prove`

    @pytest.mark.timeout(3600)
    def test_the_contract_holds_on_a_spark_connect_server(tmp_path: Path) -> None:
        with connect_server(tmp_path) as address:
            said = contract_holds({"SPARK_REMOTE": address})
        assert "passed" in said

    @pytest.mark.timeout(3600)
    def test_lake_tables_keep_their_contract_on_a_spark_connect_server(tmp_path: Path) -> None:
        with connect_server(tmp_path, connectors=("delta", "iceberg")) as address:
            said = contract_holds({"SPARK_REMOTE": address}, LAKE_SLICE, LAKES)
        assert "passed" in said

    @pytest.mark.timeout(3600)
    def test_lake_tables_keep_their_contract_on_a_standalone_cluster(tmp_path: Path) -> None:
        with standalone_cluster(tmp_path) as address:
            said = contract_holds({"SPARK_CONF_DIR": str(defaults(tmp_path, address))}, LAKE_SLICE, LAKES)
        assert "passed" in said

    def test_a_server_without_a_connector_is_one_error_and_loads_are_sized_by_its_cores(tmp_path: Path) -> None:
        with connect_server(tmp_path) as address:
            said = said_by([sys.executable, "-c", LACKS], {"SPARK_REMOTE": address})
            assert said.count("The Spark Connect server lacks the connectors delta, kafka") == 2
            assert "io.delta:delta-spark" in said and "spark.sql.extensions=io.delta.sql" in said
            assert parts({"SPARK_REMOTE": address}) == ["4", "16"]
            assert parts({"SPARK_REMOTE": address}, "7") == ["7", "7"]

    def test_loads_on_a_cluster_are_sized_by_its_cores_unless_somebody_says_otherwise(tmp_path: Path) -> None:
        with standalone_cluster(tmp_path) as address:
            conf = defaults(tmp_path, address)
            assert parts({"SPARK_CONF_DIR": str(conf)}) == ["4", "16"]
            assert parts({"SPARK_CONF_DIR": str(conf)}, "7") == ["7", "7"]
            with (conf / "spark-defaults.conf").open("a", encoding="utf-8") as file:
                file.write("spark.sql.shuffle.partitions 9\n")
            assert parts({"SPARK_CONF_DIR": str(conf)}) == ["9", "9"]

    @pytest.mark.timeout(3600)
    def test_the_contract_holds_on_a_standalone_cluster(tmp_path: Path) -> None:
        with standalone_cluster(tmp_path) as address:
            said = contract_holds({"SPARK_CONF_DIR": str(defaults(tmp_path, address))})
        assert "passed" in said

    @pytest.mark.timeout(3600)
    def test_a_worker_process_that_dies_on_a_cluster_doubles_nothing(tmp_path: Path) -> None:
        # The first attempt of every task is killed after its COPY committed; only the second one may count.
        with standalone_cluster(tmp_path, environment={"EMATIX_FLOW_CRASH_AT": "task-copied"}) as address:
            conf = {"SPARK_CONF_DIR": str(defaults(tmp_path, address))}
            said = contract_holds(conf, "append_adds or truncate_replaces or columns_it_is_told")
        assert "passed" in said
