"""What every bucket must do as a place for files: leases, commits that only one of two runs can make, crashes, faults.

A vendor's test derives from `BucketTests` and says which server, store and backend it is about.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest
from pyspark.sql import SparkSession, functions as F

from ematix_flow.backends.bucket_lease import BucketLease
from ematix_flow.backends.bucket_store import BucketStore
from ematix_flow.backends.files import FilesBackend
from ematix_flow.backends.files_table import DataFile, Manifest, TableFolder
from ematix_flow.backends.object_client import OnlyIf
from ematix_flow.contracts.session import SparkSettings
from ematix_flow.declare.columns import BigInt, Text
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.target import FileOptions
from ematix_flow.errors import ConnectionFailed, InvalidPlan, InvalidSource, UnsupportedBackend, WriteConflict
from tests.backends.test_files import FORMATS, ID, NOW, columns_of, ids, load, numbers, opened, plan_of, rows
from tests.services.postgres import _free_port

ROOT = Path(__file__).parents[2]
FOLDER = "raw/events"
IS_PROOF = bool(os.environ.get("EMATIX_PROVE"))  # S3's own tests have all of it in every run
NOBODY = ("http://127.0.0.1:{free}", "http://no-such-host.invalid:1/x")


class Server(Protocol):
    """What the tests ask of a stand-in."""

    def put(self, bucket: str, key: str, body: bytes) -> None: ...

    def objects(self, bucket: str) -> dict[str, bytes]: ...

    def secrets(self) -> list[str]: ...


HOLDER = """
import json, sys
from ematix_flow.backends.catalog import open_backend
from ematix_flow.declare.connection import connection_from_fields
told = json.loads(sys.argv[1])
lock = open_backend(connection_from_fields(told["kind"], "lake", told["fields"])).store.lock("locks/a.lock")
lock.note("mine")
print("held", flush=True)
sys.stdin.read()
"""

RUN = """
import json, sys
from ematix_flow.backends.catalog import open_backend
from ematix_flow.contracts.session import SparkSettings
from ematix_flow.declare.connection import connection_from_fields
from ematix_flow.spark.session import open_session
from tests.backends.test_files import ID, ids, load, plan_of
told = json.loads(sys.argv[1])
backend = open_backend(connection_from_fields(told["kind"], "lake", told["fields"]))
conf = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.eventLog.dir": told["events"]}
conf |= {"spark.redaction.regex": told["hidden"]} if told["hidden"] else {}
spark = open_session(backend.needs, SparkSettings(master="local[1]", conf=conf))
load(backend, ids(spark, 3, 4), plan_of(ID, mode=told["mode"]))
print("survived")
"""


def told(connection: Connection, **more: Any) -> str:
    """A connection for a program that is started by a test."""
    fields = {f.name: getattr(connection, f.name) for f in dataclasses.fields(connection) if f.name != "name"}
    return json.dumps({"kind": connection.kind, "fields": {k: v for k, v in fields.items() if v is not None}, **more})


def visible(store: Any, folder: str = FOLDER) -> list[str]:
    return [file.path for file in store.visible_files(folder)]


def awaited(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (found := condition()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.05)
    return found


def put_staged(store: Any, name: str) -> tuple[str, DataFile]:
    store.write_json(f"{FOLDER}/_ematix_flow_staging/{name}.csv", "id")
    return f"{FOLDER}/_ematix_flow_staging/{name}.csv", DataFile(f"{name}.csv", 4)


def publish(table: TableFolder, before: Manifest, *staged: tuple[str, DataFile]) -> None:
    files = (*before.files, *(file for _, file in staged))
    table.publish(staged, Manifest(files=files, version=before.version), replace=False)


def run_elsewhere(
    connection: Connection, folder: Path, *, mode: str = "truncate", crash_at: str = "", hidden: str = ""
) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(RUN),
            told(connection, events=folder.as_uri(), mode=mode, hidden=hidden),
        ],
        cwd=ROOT,
        env={**os.environ, "EMATIX_FLOW_CRASH_AT": crash_at},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class BucketTests:
    """Files in a bucket of one vendor. Subclasses have the fixtures `server` and `bucket`, and say the rest."""

    store_type: ClassVar[type[BucketStore]]
    backend_type: ClassVar[type[FilesBackend]]
    missing_words: ClassVar[str]
    condition_words: ClassVar[str]
    forbidden_words: ClassVar[str]

    def wrong_logins(self, server: Any) -> Mapping[str, Mapping[str, str]]:
        """Fields of logins that the server does not know, by what their error must say."""
        raise NotImplementedError

    def reading_login(self, server: Any) -> Mapping[str, str]:
        """Fields of a login that may only list and read."""
        raise NotImplementedError

    @pytest.fixture
    def spark(self) -> Iterator[SparkSession]:
        """A session that knows nothing of any bucket when it starts."""
        from ematix_flow.spark.session import open_session

        session = open_session(self.backend_type.needs, SparkSettings(master="local[2]"))
        session.sparkContext.setLogLevel("OFF")
        yield session

    @pytest.fixture
    def connection(self, server: Any, bucket: str) -> Any:
        return server.connection(bucket)

    @pytest.fixture
    def lake(self, connection: Connection) -> FilesBackend:
        return self.backend_type(connection)

    def store(self, connection: Connection, **options: Any) -> Any:
        return self.store_type(connection, **options)  # type: ignore[arg-type]

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_one_holds_a_lease_until_it_is_given_back(self, connection: Connection) -> None:
        store, other = self.store(connection), self.store(connection)
        lease = store.lock("locks/a.lock")
        assert lease is not None and other.lock("locks/a.lock") is None
        lease.note("for whoever asks")
        assert other.lock_note("locks/a.lock") == "for whoever asks"
        assert (another := other.lock("locks/b.lock")) is not None
        another.release()
        lease.release()
        assert store.children("locks") == []
        again = other.lock("locks/a.lock")
        assert again is not None
        again.release()

    def test_the_lease_of_a_killed_process_of_this_machine_is_free_at_once(self, connection: Connection) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, told(connection)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            store = self.store(connection)
            assert store.lock("locks/a.lock") is None and store.lock_note("locks/a.lock") == "mine"
            process.kill()
            process.wait()
            lease = store.lock("locks/a.lock")
            assert lease is not None
            lease.release()
        finally:
            process.kill()
            process.communicate()

    def test_a_silent_holder_loses_its_lease_and_finds_out(self, connection: Connection) -> None:
        store, other = self.store(connection, lease_s=2.0), self.store(connection, lease_s=2.0)
        silent = store.lock("locks/a.lock")
        assert isinstance(silent, BucketLease)
        silent._ended.set()  # as if the machine slept
        silent._keeper.join()
        assert other.lock("locks/a.lock") is None
        taken = awaited(lambda: other.lock("locks/a.lock"))
        silent._renew()
        assert silent.is_lost
        silent.release()  # what is not ours is left alone
        assert self.store(connection).lock("locks/a.lock") is None
        taken.release()

    def test_a_holder_that_is_heard_of_keeps_its_lease(self, connection: Connection) -> None:
        store, other = self.store(connection, lease_s=2.0), self.store(connection, lease_s=2.0)
        lease = store.lock("locks/a.lock")
        assert isinstance(lease, BucketLease)
        awaited(lambda: lease._beat >= 8)  # twice as long as a lease lasts
        assert other.lock("locks/a.lock") is None
        lease.release()

    def test_readers_share_a_lock_and_keep_writers_out(self, connection: Connection) -> None:
        store = self.store(connection)
        one, two = store.lock("readers.lock", shared=True), store.lock("readers.lock", shared=True)
        assert one is not None and two is not None
        one.release()
        assert store.lock("readers.lock") is None
        two.release()
        writer = store.lock("readers.lock")
        assert writer is not None
        writer.release()

    def test_a_store_that_ignores_conditions_is_refused(self, connection: Connection) -> None:
        class Careless(self.store_type):  # type: ignore[name-defined, misc]
            """A store whose server does not look at conditions, as some do."""

            def put(self, path: str, content: Any, only_if: OnlyIf | None = None) -> str:
                return str(super().put(path, content))

        store = Careless(connection)
        with pytest.raises(UnsupportedBackend, match=f"ignores the condition {self.condition_words}"):
            store.lock("locks/a.lock")
        assert store.children("locks") == []

    # ── commits ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("is_first", [True, False])
    def test_of_two_runs_that_both_believe_to_hold_the_table_one_commits(
        self, is_first: bool, connection: Connection
    ) -> None:
        store = self.store(connection)
        slow, fast = TableFolder(store, FOLDER, "csv"), TableFolder(self.store(connection), FOLDER, "csv")
        if not is_first:
            publish(fast, fast.current(), put_staged(store, "old"))
        seen = slow.current()
        publish(fast, fast.current(), put_staged(store, "fast"))
        fast.clear_replaced()
        with pytest.raises(WriteConflict, match="at the same time"):
            publish(slow, seen, put_staged(store, "slow"))
        wanted = ["fast.csv"] if is_first else ["fast.csv", "old.csv"]
        manifest = fast.manifest()
        assert manifest is not None and sorted(file.path for file in manifest.files) == wanted
        assert visible(store) == wanted

    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_publish_that_was_given_up_for_dead_cannot_commit_files_that_are_gone(
        self, is_first: bool, connection: Connection
    ) -> None:
        class Interrupted(self.store_type):  # type: ignore[name-defined, misc]
            """A process that sleeps between putting files in place and committing, while somebody else does this."""

            meanwhile: Callable[[], None]

            def move_all(self, moves: Any) -> None:
                super().move_all(moves)
                self.meanwhile()

        store, sleepy = self.store(connection), Interrupted(connection)
        other, slow = TableFolder(store, FOLDER, "csv"), TableFolder(sleepy, FOLDER, "csv")
        if not is_first:
            publish(other, other.current(), put_staged(store, "old"))
            other.clear_replaced()
        sleepy.meanwhile = other.sweep
        with pytest.raises(WriteConflict):
            publish(slow, slow.current(), put_staged(store, "slow"))
        manifest = other.manifest()
        assert ([] if manifest is None else [file.path for file in manifest.files]) == ([] if is_first else ["old.csv"])
        assert visible(store) == ([] if is_first else ["old.csv"])
        publish(other, other.current(), put_staged(store, "new"))
        assert visible(store) == (["new.csv"] if is_first else ["new.csv", "old.csv"])

    def test_a_commit_whose_answer_got_lost_is_one(self, connection: Connection) -> None:
        class Echo(self.store_type):  # type: ignore[name-defined, misc]
            """A store whose answers to a commit get lost, so that the same request is sent again."""

            def replace_json(self, path: str, content: Any, version: str | None) -> None:
                super().replace_json(path, content, version)
                super().replace_json(path, content, version)

        table = TableFolder(Echo(connection), FOLDER, "csv")
        publish(table, table.current(), put_staged(self.store(connection), "a"))
        manifest = table.manifest()
        assert manifest is not None and [file.path for file in manifest.files] == ["a.csv"]

    def test_many_files_are_moved_and_removed_together(self, connection: Connection) -> None:
        store = self.store(connection)
        for number in range(40):
            store.write_json(f"a/b/{number:02d}.json", number)
        store.move_all([(f"a/b/{number:02d}.json", f"c/{number:02d}.json") for number in range(40)])
        store.remove_tree("a")
        assert not store.exists("a")
        assert [store.read_json(f"c/{file.path}") for file in store.visible_files("c")] == list(range(40))
        store.remove("c/00.json")
        store.remove("c/00.json")  # gone already, and fine
        assert len(store.children("c")) == 39

    def test_an_object_is_read_in_parts(self, connection: Connection, server: Server, bucket: str) -> None:
        body = bytes(range(256)) * 4096
        server.put(bucket, "raw/a.bin", body)
        with self.store(connection).open("raw/a.bin") as file:
            assert file.seek(-10, io.SEEK_END) == len(body) - 10
            assert file.read() == body[-10:]
            file.seek(500_000)
            assert file.read(300_000) == body[500_000:800_000]

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def refused(self, connection: Connection, server: Server) -> ConnectionFailed:
        """What a load says to a bucket that it cannot use, soon, and without any secret."""
        backend, started = self.backend_type(connection), time.monotonic()
        with pytest.raises(ConnectionFailed) as caught, backend.lease("load"):
            pass
        assert time.monotonic() - started < 20
        health = backend.check()
        for text in (str(caught.value), repr(caught.value), repr(backend.store), health.detail):
            assert not any(secret in text for secret in server.secrets())
        assert caught.value.fix
        return caught.value

    def test_a_bucket_that_is_not_there(self, server: Any) -> None:
        nowhere = server.connection("nowhere")
        assert f"{self.missing_words} 'nowhere' does not exist" in str(self.refused(nowhere, server))
        assert not self.backend_type(nowhere).check().ok

    def test_a_wrong_login(self, server: Any, bucket: str) -> None:
        for words, fields in self.wrong_logins(server).items():
            error = self.refused(server.connection(bucket).with_fields(**fields), server)
            assert words in str(error)

    def test_a_login_that_may_only_read(self, server: Any, bucket: str) -> None:
        error = self.refused(server.connection(bucket).with_fields(**self.reading_login(server)), server)
        assert self.forbidden_words in str(error) and "list" in str(error.fix)

    @pytest.mark.parametrize("endpoint", NOBODY if IS_PROOF else NOBODY[:1])
    def test_an_endpoint_where_nobody_answers(self, endpoint: str, server: Any, bucket: str) -> None:
        connection = server.connection(bucket).with_fields(endpoint=endpoint.format(free=_free_port()))
        assert "endpoint" in str(self.refused(connection, server).fix)

    def test_an_endpoint_that_is_no_address(self, server: Any, bucket: str) -> None:
        self.refused(server.connection(bucket).with_fields(endpoint="http://not an address"), server)

    def test_faults_are_told_before_spark_is_asked(self, server: Any, spark: SparkSession) -> None:
        started = time.monotonic()
        with pytest.raises(ConnectionFailed, match="'nowhere' does not exist"):
            rows(self.backend_type(server.connection("nowhere")), spark)
        assert time.monotonic() - started < 20

    def test_a_prefix_that_is_not_there_and_one_of_another_format(self, lake: Any, spark: SparkSession) -> None:
        with pytest.raises(InvalidSource, match="does not exist"):
            rows(lake, spark)
        lake.store.write_json(f"{FOLDER}/a.json", {})
        with pytest.raises(InvalidSource, match="no parquet files") as caught:
            rows(lake, spark)
        assert ".json" in str(caught.value.fix)

    def test_a_corrupt_file_fails_the_load_or_is_left_out_where_that_is_declared(
        self, lake: Any, server: Any, bucket: str, spark: SparkSession
    ) -> None:
        load(lake, ids(spark, 1, 2), plan_of(ID))
        (whole,) = [body for key, body in server.objects(bucket).items() if key.endswith(".parquet")]
        for name, data in {"good": whole, "cut": whole[:-5], "empty": b""}.items():
            server.put(bucket, f"raw/mixed/{name}.parquet", data)
        with pytest.raises(Exception, match="(?i)parquet"):
            rows(lake, spark, "SELECT * FROM raw.mixed")
        careful = self.backend_type(server.connection(bucket).with_fields(on_corrupt_file="quarantine"))
        assert sorted(row["id"] for row in rows(careful, spark, "SELECT * FROM raw.mixed")) == [1, 2]
        found = {file.path.rpartition("/")[2]: file.reason for file in careful.left_out}
        assert found == {"cut.parquet": "it is cut off, or not parquet", "empty.parquet": "it is empty"}
        assert numbers(lake, spark) == [1, 2]

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("file_format", FORMATS if IS_PROOF else ("parquet",))
    def test_every_format_is_appended_replaced_and_read_back(
        self, file_format: str, spark: SparkSession, server: Any, bucket: str
    ) -> None:
        backend: Any = self.backend_type(server.connection(bucket, file_format))
        load(backend, ids(spark, 1, 2), plan_of(ID))
        load(backend, ids(spark, 3), plan_of(ID))
        assert numbers(backend, spark) == [1, 2, 3]
        assert load(backend, ids(spark, 3), plan_of(ID), logical_run="one").rows == 1
        assert load(backend, ids(spark, 3), plan_of(ID), logical_run="one").replayed
        assert numbers(backend, spark) == [1, 2, 3, 3]
        load(backend, ids(spark, 7), plan_of(ID, mode="truncate"))
        assert numbers(backend, spark) == [7]
        assert len(visible(backend.store)) == 1
        left = {key.split("/")[2] for key in server.objects(bucket) if key.startswith("raw/events/")} - {""}
        assert left == {visible(backend.store)[0], "_ematix_flow"}

    def test_others_who_list_the_folder_see_the_committed_rows(self, lake: Any, spark: SparkSession) -> None:
        load(lake, ids(spark, 1, 2), plan_of(ID))
        load(lake, ids(spark, 3), plan_of(ID, mode="truncate"))
        load(lake, ids(spark, 4), plan_of(ID))
        assert sorted(row.id for row in spark.read.parquet(lake.store.spark_uri(FOLDER)).collect()) == [3, 4]

    def test_partitions_are_folders_and_come_back_as_columns(self, lake: Any, spark: SparkSession) -> None:
        columns = columns_of(id=BigInt(), zone=Text())
        given = [(1, "a/b"), (2, "ü 1"), (3, None)]
        frame = spark.createDataFrame(given, "id bigint, zone string")
        load(lake, frame, plan_of(columns, options=FileOptions(partition_by=["zone"])))
        assert sorted((row.id, row.zone) for row in rows(lake, spark, columns=columns)) == given
        assert {name.split("/")[0] for name in visible(lake.store)} == {
            "zone=__HIVE_DEFAULT_PARTITION__",
            "zone=a%2Fb",
            "zone=ü 1",
        }

    def test_files_of_others_are_read_by_their_own_headers(self, spark: SparkSession, server: Any, bucket: str) -> None:
        server.put(bucket, f"{FOLDER}/a.csv", b"id,name\n1,ann\n")
        server.put(bucket, f"{FOLDER}/b [1].csv.gz", gzip.compress(b"name,id\nbob,2\n"))
        server.put(bucket, f"{FOLDER}/_hidden/c.csv", b"id\n9\n")
        backend = self.backend_type(server.connection(bucket, "csv"))
        assert sorted((row.id, row.name) for row in rows(backend, spark)) == [("1", "ann"), ("2", "bob")]
        assert [row.id for row in rows(backend, spark, f"{FOLDER}/a.csv")] == ["1"]

    def test_who_may_only_read_can_read_our_tables(
        self, lake: Any, spark: SparkSession, server: Any, bucket: str
    ) -> None:
        # Spark keeps what it has open by its first login, so the manifest alone is looked at with the other one.
        load(lake, ids(spark, 1, 2), plan_of(ID))
        backend = self.backend_type(server.connection(bucket).with_fields(**self.reading_login(server)))
        table = backend._table(plan_of(ID).table)
        with table.being_read():
            assert len(table.live_files(table.manifest())) == 1
        shape = backend.describe(plan_of(ID).table)
        assert shape is not None and [column.name for column in shape.columns] == ["id"]
        with pytest.raises(InvalidPlan, match="another endpoint or login"):
            rows(backend, spark)

    def test_what_a_reader_reads_is_removed_after_it_has_finished(self, lake: Any, spark: SparkSession) -> None:
        load(lake, ids(spark, 1, 2), plan_of(ID))
        table = lake._table(plan_of(ID).table)
        with table.being_read():
            load(lake, ids(spark, 3), plan_of(ID, mode="truncate"))
            assert numbers(lake, spark) == [3]
            assert len(visible(lake.store)) == 2
        assert len(visible(lake.store)) == 1

    def test_files_of_others_are_described_by_their_footers(self, lake: Any, server: Any, bucket: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = io.BytesIO()
        pq.write_table(
            pa.table({"id": pa.array([1] * 100_000), "name": ["x" * 40] * 100_000}), sink, compression="none"
        )
        server.put(bucket, f"{FOLDER}/a.parquet", sink.getvalue())
        shape = lake.describe(plan_of(ID).table)
        assert shape is not None and shape.has_rows
        assert {column.name: column.type for column in shape.columns} == {"id": BigInt(), "name": Text()}

    def test_every_session_hides_the_login_that_it_is_told(self, lake: Any, server: Any, spark: SparkSession) -> None:
        spark.conf.unset("spark.sql.redaction.options.regex")
        for _ in range(2):
            lake.store.prepare(spark)
        hidden = str(spark.conf.get("spark.sql.redaction.options.regex"))
        told = [name for name, value in lake.store.spark_settings().items() if value in server.secrets()]
        found = spark.range(1).select(*(F.lit(name).rlike(hidden) for name in (*told, "jdbc.URL", "auth.type"))).first()
        assert found is not None and list(found) == [True] * (len(told) + 1) + [False]
        assert hidden.count("secret") == 1

    # ── crashes and two at once ──────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("point", ["staged", "mid-settle"])
    def test_a_killed_run_leaves_the_table_and_is_taken_up_by_the_next(
        self, point: str, lake: Any, connection: Connection, server: Any, spark: SparkSession, tmp_path: Path
    ) -> None:
        load(lake, ids(spark, 1, 2), plan_of(ID))
        # One in a session of ours, one in a session that hides what Spark does when nobody tells it what to hide.
        hidden = r"(?i)secret|password|token|access[.]?key" if point == "mid-settle" else ""
        process = run_elsewhere(connection, tmp_path / "events", crash_at=point, hidden=hidden)
        _, said = process.communicate(timeout=180)
        assert process.returncode == -9, said[-2000:]
        assert lake.store.exists(f"{FOLDER}/_ematix_flow_staging")
        assert numbers(lake, spark) == [1, 2]
        report = load(lake, ids(spark, 3, 4), plan_of(ID, mode="truncate"))
        assert (report.rows, numbers(lake, spark)) == (2, [3, 4])
        assert not lake.store.exists(f"{FOLDER}/_ematix_flow_staging")
        assert not lake.store.exists(f"{FOLDER}/_ematix_flow/publishing.json")
        assert len(visible(lake.store)) == 1
        assert lake.store.children("_ematix_flow/locks") == []
        events = b"".join(file.read_bytes() for file in (tmp_path / "events").rglob("*") if file.is_file())
        assert b"SparkListenerSQLExecutionStart" in events
        for secret in server.secrets():
            assert secret.encode() not in events and secret not in said

    def test_of_two_processes_at_once_each_row_is_there_once(
        self, lake: Any, connection: Connection, spark: SparkSession, tmp_path: Path
    ) -> None:
        processes = [run_elsewhere(connection, tmp_path / str(n), mode="append") for n in range(2)]
        ends = [process.communicate(timeout=300) for process in processes]
        survivors = sum(said == "survived\n" for said, _ in ends)
        refusals = [trouble for said, trouble in ends if said != "survived\n"]
        assert survivors >= 1 and all("AlreadyRunning" in trouble for trouble in refusals), refusals
        assert numbers(lake, spark) == sorted([3, 4] * survivors)
        with lake.lease("load"):
            run = opened(lake, plan_of(ID))
            assert not run.resumed
            lake.close_run(run, error=None, now=NOW)


PROOFS = {
    "test_a_holder_that_is_heard_of_keeps_its_lease",
    "test_a_corrupt_file_fails_the_load_or_is_left_out_where_that_is_declared",
    "test_a_killed_run_leaves_the_table_and_is_taken_up_by_the_next",
    "test_an_endpoint_that_is_no_address",
    "test_files_of_others_are_read_by_their_own_headers",
    "test_of_two_processes_at_once_each_row_is_there_once",
    "test_others_who_list_the_folder_see_the_committed_rows",
    "test_what_a_reader_reads_is_removed_after_it_has_finished",
    "test_who_may_only_read_can_read_our_tables",
}
"""What takes long and goes through code that S3's tests go through in every run; `make prove` runs it here, too."""

if not IS_PROOF:
    for name in PROOFS:
        assert hasattr(BucketTests, name), name
        setattr(BucketTests, name, None)
