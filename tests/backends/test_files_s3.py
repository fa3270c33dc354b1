"""Files in a bucket: leases, commits that only one of two runs can make, crashes, faults, and no key anywhere."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ematix_flow.backends.bucket_lease import BucketLease
from ematix_flow.backends.files_s3 import S3FilesBackend
from ematix_flow.backends.files_store_s3 import S3Store
from ematix_flow.backends.files_table import DataFile, Manifest, TableFolder
from ematix_flow.backends.object_client import OnlyIf
from ematix_flow.contracts.session import SparkSettings
from ematix_flow.declare.columns import BigInt, Text
from ematix_flow.declare.connection import ObjectStoreS3Connection
from ematix_flow.declare.target import FileOptions
from ematix_flow.errors import ConnectionFailed, InvalidPlan, InvalidSource, UnsupportedBackend, WriteConflict
from tests.backends.test_files import FORMATS, ID, NOW, columns_of, ids, load, numbers, opened, plan_of, rows
from tests.services.moto import S3Server
from tests.services.postgres import _free_port

ROOT = Path(__file__).parents[2]
FOLDER = "raw/events"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session that knows nothing of any bucket when it starts."""
    from ematix_flow.spark.session import open_session

    session = open_session(S3FilesBackend.needs, SparkSettings(master="local[2]"))
    session.sparkContext.setLogLevel("OFF")
    yield session


@pytest.fixture
def bucket(s3_server: S3Server, s3_bucket: str) -> ObjectStoreS3Connection:
    return s3_server.connection(s3_bucket)


@pytest.fixture
def lake(bucket: ObjectStoreS3Connection) -> S3FilesBackend:
    return S3FilesBackend(bucket)


def visible(store: S3Store, folder: str = FOLDER) -> list[str]:
    return [file.path for file in store.visible_files(folder)]


def awaited(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (found := condition()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.05)
    return found


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────

HOLDER = """
import sys
from ematix_flow.backends.files_store_s3 import S3Store
from ematix_flow.declare.connection import ObjectStoreS3Connection
import json
lock = S3Store(ObjectStoreS3Connection(**json.loads(sys.argv[1]))).lock("locks/a.lock")
lock.note("mine")
print("held", flush=True)
sys.stdin.read()
"""


def test_one_holds_a_lease_until_it_is_given_back(bucket: ObjectStoreS3Connection) -> None:
    store, other = S3Store(bucket), S3Store(bucket)
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


def test_the_lease_of_a_killed_process_of_this_machine_is_free_at_once(bucket: ObjectStoreS3Connection) -> None:
    fields = {name: getattr(bucket, name) for name in bucket.required}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, json.dumps({"name": "lake", **fields})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        store = S3Store(bucket)
        assert store.lock("locks/a.lock") is None and store.lock_note("locks/a.lock") == "mine"
        process.kill()
        process.wait()
        lease = store.lock("locks/a.lock")
        assert lease is not None
        lease.release()
    finally:
        process.kill()
        process.communicate()


def test_a_silent_holder_loses_its_lease_and_finds_out(bucket: ObjectStoreS3Connection) -> None:
    store, other = S3Store(bucket, lease_s=2.0), S3Store(bucket, lease_s=2.0)
    silent = store.lock("locks/a.lock")
    assert isinstance(silent, BucketLease)
    silent._ended.set()  # as if the machine slept
    silent._keeper.join()
    assert other.lock("locks/a.lock") is None
    taken = awaited(lambda: other.lock("locks/a.lock"))
    silent._renew()
    assert silent.is_lost
    silent.release()  # what is not ours is left alone
    assert S3Store(bucket).lock("locks/a.lock") is None
    taken.release()


def test_a_holder_that_is_heard_of_keeps_its_lease(bucket: ObjectStoreS3Connection) -> None:
    store, other = S3Store(bucket, lease_s=2.0), S3Store(bucket, lease_s=2.0)
    lease = store.lock("locks/a.lock")
    assert isinstance(lease, BucketLease)
    awaited(lambda: lease._beat >= 8)  # twice as long as a lease lasts
    assert other.lock("locks/a.lock") is None
    lease.release()


def test_readers_share_a_lock_and_keep_writers_out(bucket: ObjectStoreS3Connection) -> None:
    store = S3Store(bucket)
    one, two = store.lock("readers.lock", shared=True), store.lock("readers.lock", shared=True)
    assert one is not None and two is not None
    one.release()
    assert store.lock("readers.lock") is None
    two.release()
    writer = store.lock("readers.lock")
    assert writer is not None
    writer.release()


class Careless(S3Store):
    """A store whose server does not look at conditions, as some do."""

    def put(self, path: str, content: Any, only_if: OnlyIf | None = None) -> str:
        return super().put(path, content)


def test_a_store_that_ignores_conditions_is_refused(bucket: ObjectStoreS3Connection) -> None:
    store = Careless(bucket)
    with pytest.raises(UnsupportedBackend, match="ignores the condition IfNoneMatch"):
        store.lock("locks/a.lock")
    assert store.children("locks") == []


# ── commits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def put_staged(store: S3Store, name: str) -> tuple[str, DataFile]:
    store.write_json(f"{FOLDER}/_ematix_flow_staging/{name}.csv", "id")
    return f"{FOLDER}/_ematix_flow_staging/{name}.csv", DataFile(f"{name}.csv", 4)


def publish(table: TableFolder, before: Manifest, *staged: tuple[str, DataFile]) -> None:
    files = (*before.files, *(file for _, file in staged))
    table.publish(staged, Manifest(files=files, version=before.version), replace=False)


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_runs_that_both_believe_to_hold_the_table_one_commits(
    is_first: bool, bucket: ObjectStoreS3Connection
) -> None:
    store = S3Store(bucket)
    slow, fast = TableFolder(store, FOLDER, "csv"), TableFolder(S3Store(bucket), FOLDER, "csv")
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


class Interrupted(S3Store):
    """A process that sleeps between putting its files in place and committing them, while somebody else does this."""

    meanwhile: Callable[[], None]

    def move_all(self, moves: Any) -> None:
        super().move_all(moves)
        self.meanwhile()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_publish_that_was_given_up_for_dead_cannot_commit_files_that_are_gone(
    is_first: bool, bucket: ObjectStoreS3Connection
) -> None:
    store, sleepy = S3Store(bucket), Interrupted(bucket)
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


class Echo(S3Store):
    """A store whose answers to a commit get lost, so that the same request is sent again."""

    def replace_json(self, path: str, content: Any, version: str | None) -> None:
        super().replace_json(path, content, version)
        super().replace_json(path, content, version)


def test_a_commit_whose_answer_got_lost_is_one(bucket: ObjectStoreS3Connection) -> None:
    table = TableFolder(Echo(bucket), FOLDER, "csv")
    publish(table, table.current(), put_staged(S3Store(bucket), "a"))
    manifest = table.manifest()
    assert manifest is not None and [file.path for file in manifest.files] == ["a.csv"]


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def refused(connection: ObjectStoreS3Connection) -> ConnectionFailed:
    """What a load says to a bucket that it cannot use, soon, and without the secret."""
    backend, started = S3FilesBackend(connection), time.monotonic()
    with pytest.raises(ConnectionFailed) as caught, backend.lease("load"):
        pass
    assert time.monotonic() - started < 20
    health = backend.check()
    for text in (str(caught.value), repr(caught.value), repr(backend.store), health.detail):
        assert connection.secret_access_key not in text and connection.access_key_id not in text
    assert caught.value.fix
    return caught.value


def test_a_bucket_that_is_not_there(s3_server: S3Server) -> None:
    assert "'nowhere' does not exist" in str(refused(s3_server.connection("nowhere")))


@pytest.mark.parametrize("wrong", ["key", "secret"])
def test_a_wrong_login(wrong: str, s3_server: S3Server, s3_bucket: str) -> None:
    key, secret = s3_server.loader
    login = ("AKIAIOSFODNN7EXAMPLE", secret) if wrong == "key" else (key, "not-the-secret-4711")
    error = refused(s3_server.connection(s3_bucket, login=login))
    assert "refuses the login" in str(error) and "access_key_id" in str(error.fix)


def test_a_login_that_may_only_read(s3_server: S3Server, s3_bucket: str) -> None:
    error = refused(s3_server.connection(s3_bucket, login=s3_server.reader))
    assert "may not do this in bucket" in str(error) and "put" in str(error.fix)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:{free}", "http://no-such-host.invalid"])
def test_an_endpoint_where_nobody_answers(endpoint: str, s3_server: S3Server, s3_bucket: str) -> None:
    connection = s3_server.connection(s3_bucket).with_fields(endpoint=endpoint.format(free=_free_port()))
    error = refused(connection)
    assert "does not answer" in str(error) and "endpoint" in str(error.fix)
    assert not S3FilesBackend(connection).check().ok


def test_an_endpoint_that_is_no_address(s3_server: S3Server, s3_bucket: str) -> None:
    refused(s3_server.connection(s3_bucket).with_fields(endpoint="http://not an address"))


def test_faults_are_told_before_spark_is_asked(s3_server: S3Server, spark: SparkSession) -> None:
    started = time.monotonic()
    with pytest.raises(ConnectionFailed, match="'nowhere' does not exist"):
        rows(S3FilesBackend(s3_server.connection("nowhere")), spark)
    assert time.monotonic() - started < 20


def test_a_prefix_that_is_not_there_and_one_of_another_format(lake: S3FilesBackend, spark: SparkSession) -> None:
    with pytest.raises(InvalidSource, match="does not exist"):
        rows(lake, spark)
    lake.store.write_json(f"{FOLDER}/a.json", {})
    with pytest.raises(InvalidSource, match="no parquet files") as caught:
        rows(lake, spark)
    assert ".json" in str(caught.value.fix)


def test_a_corrupt_file_fails_the_load_and_leaves_the_table(lake: S3FilesBackend, spark: SparkSession) -> None:
    load(lake, ids(spark, 1, 2), plan_of(ID))
    lake.store.write_json("raw/broken/a.parquet", "no parquet at all")
    with pytest.raises(Exception, match="(?i)parquet"):
        rows(lake, spark, "SELECT * FROM raw.broken")
    assert numbers(lake, spark) == [1, 2]


def test_a_corrupt_file_is_left_out_where_that_is_declared(
    lake: S3FilesBackend, s3_server: S3Server, s3_bucket: str, spark: SparkSession
) -> None:
    load(lake, ids(spark, 1, 2), plan_of(ID))
    (good,) = [key for key in s3_server.objects(s3_bucket) if key.endswith(".parquet")]
    whole = s3_server.objects(s3_bucket)[good]
    for name, data in {"good": whole, "cut": whole[:-5], "empty": b""}.items():
        s3_server.client().put_object(Bucket=s3_bucket, Key=f"raw/mixed/{name}.parquet", Body=data)
    careful = S3FilesBackend(s3_server.connection(s3_bucket).with_fields(on_corrupt_file="quarantine"))
    assert sorted(row["id"] for row in rows(careful, spark, "SELECT * FROM raw.mixed")) == [1, 2]
    found = {file.path.removeprefix(f"s3://{s3_bucket}/raw/mixed/"): file.reason for file in careful.left_out}
    assert found == {"cut.parquet": "it is cut off, or not parquet", "empty.parquet": "it is empty"}


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_is_appended_replaced_and_read_back(
    file_format: str, spark: SparkSession, s3_server: S3Server, s3_bucket: str
) -> None:
    backend = S3FilesBackend(s3_server.connection(s3_bucket, file_format))
    load(backend, ids(spark, 1, 2), plan_of(ID))
    load(backend, ids(spark, 3), plan_of(ID))
    assert numbers(backend, spark) == [1, 2, 3]
    assert load(backend, ids(spark, 3), plan_of(ID), logical_run="one").rows == 1
    assert load(backend, ids(spark, 3), plan_of(ID), logical_run="one").replayed
    assert numbers(backend, spark) == [1, 2, 3, 3]
    load(backend, ids(spark, 7), plan_of(ID, mode="truncate"))
    assert numbers(backend, spark) == [7]
    assert len(visible(backend.store)) == 1  # type: ignore[arg-type]
    left = {key.split("/")[2] for key in s3_server.objects(s3_bucket) if key.startswith("raw/")}
    assert left == {visible(backend.store)[0], "_ematix_flow"}  # type: ignore[arg-type]


def test_others_who_list_the_folder_see_the_committed_rows(
    lake: S3FilesBackend, spark: SparkSession, s3_bucket: str
) -> None:
    load(lake, ids(spark, 1, 2), plan_of(ID))
    load(lake, ids(spark, 3), plan_of(ID, mode="truncate"))
    load(lake, ids(spark, 4), plan_of(ID))
    assert sorted(row.id for row in spark.read.parquet(f"s3a://{s3_bucket}/{FOLDER}").collect()) == [3, 4]


def test_partitions_are_folders_and_come_back_as_columns(lake: S3FilesBackend, spark: SparkSession) -> None:
    columns = columns_of(id=BigInt(), zone=Text())
    frame = spark.createDataFrame([(1, "a/b"), (2, "ü 1"), (3, None)], "id bigint, zone string")
    load(lake, frame, plan_of(columns, options=FileOptions(partition_by=["zone"])))
    assert sorted((row.id, row.zone) for row in rows(lake, spark, columns=columns)) == [
        (1, "a/b"),
        (2, "ü 1"),
        (3, None),
    ]
    assert {name.split("/")[0] for name in visible(lake.store)} == {  # type: ignore[arg-type]
        "zone=__HIVE_DEFAULT_PARTITION__",
        "zone=a%2Fb",
        "zone=ü 1",
    }


def test_files_of_others_are_read_by_their_own_headers(
    spark: SparkSession, s3_server: S3Server, s3_bucket: str
) -> None:
    client = s3_server.client()
    client.put_object(Bucket=s3_bucket, Key=f"{FOLDER}/a.csv", Body=b"id,name\n1,ann\n")
    client.put_object(Bucket=s3_bucket, Key=f"{FOLDER}/b [1].csv.gz", Body=gzip.compress(b"name,id\nbob,2\n"))
    client.put_object(Bucket=s3_bucket, Key=f"{FOLDER}/_hidden/c.csv", Body=b"id\n9\n")
    client.put_object(Bucket=s3_bucket, Key=f"{FOLDER}/", Body=b"")
    backend = S3FilesBackend(s3_server.connection(s3_bucket, "csv"))
    assert sorted((row.id, row.name) for row in rows(backend, spark)) == [("1", "ann"), ("2", "bob")]
    assert [row.id for row in rows(backend, spark, f"{FOLDER}/a.csv")] == ["1"]


def test_who_may_only_read_can_read_our_tables(
    lake: S3FilesBackend, spark: SparkSession, s3_server: S3Server, s3_bucket: str
) -> None:
    # Spark keeps a bucket open by its first login, so the manifest alone is looked at with the other one.
    load(lake, ids(spark, 1, 2), plan_of(ID))
    backend = S3FilesBackend(s3_server.connection(s3_bucket, login=s3_server.reader))
    table = backend._table(plan_of(ID).table)
    with table.being_read():
        assert len(table.live_files(table.manifest())) == 1
    shape = backend.describe(plan_of(ID).table)
    assert shape is not None and [column.name for column in shape.columns] == ["id"]


def test_a_second_login_for_an_open_bucket_is_refused(
    lake: S3FilesBackend, spark: SparkSession, s3_server: S3Server, s3_bucket: str
) -> None:
    load(lake, ids(spark, 1), plan_of(ID))
    with pytest.raises(InvalidPlan, match="another endpoint or login"):
        rows(S3FilesBackend(s3_server.connection(s3_bucket, login=s3_server.reader)), spark)


def test_what_a_reader_reads_is_removed_after_it_has_finished(lake: S3FilesBackend, spark: SparkSession) -> None:
    load(lake, ids(spark, 1, 2), plan_of(ID))
    table = lake._table(plan_of(ID).table)
    with table.being_read():
        load(lake, ids(spark, 3), plan_of(ID, mode="truncate"))
        assert numbers(lake, spark) == [3]
        assert len(visible(lake.store)) == 2  # type: ignore[arg-type]
    assert len(visible(lake.store)) == 1  # type: ignore[arg-type]


def test_files_of_others_are_described_by_their_footers(
    lake: S3FilesBackend, s3_server: S3Server, s3_bucket: str
) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array([1] * 100_000), "name": ["x" * 40] * 100_000}), sink, compression="none")
    s3_server.client().put_object(Bucket=s3_bucket, Key=f"{FOLDER}/a.parquet", Body=sink.getvalue())
    shape = lake.describe(plan_of(ID).table)
    assert shape is not None and shape.has_rows
    assert {column.name: column.type for column in shape.columns} == {"id": BigInt(), "name": Text()}


# ── crashes and two at once ──────────────────────────────────────────────────────────────────────────────────────────

RUN = """
import json, sys
from ematix_flow.backends.files_s3 import S3FilesBackend
from ematix_flow.contracts.session import SparkSettings
from ematix_flow.declare.connection import ObjectStoreS3Connection
from ematix_flow.spark.session import open_session
from tests.backends.test_files import ID, ids, load, plan_of
told = json.loads(sys.argv[1])
conf = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.eventLog.dir": told["events"]}
spark = open_session(S3FilesBackend.needs, SparkSettings(master="local[1]", conf=conf))
backend = S3FilesBackend(ObjectStoreS3Connection(name="lake", **told["fields"]))
load(backend, ids(spark, 3, 4), plan_of(ID, mode=told["mode"]))
print("survived")
"""


def run_elsewhere(
    connection: ObjectStoreS3Connection, folder: Path, *, mode: str = "truncate", crash_at: str = ""
) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    fields = {name: getattr(connection, name) for name in connection.required}
    told = {"fields": fields, "events": folder.as_uri(), "mode": mode}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(RUN), json.dumps(told)],
        cwd=ROOT,
        env={**os.environ, "EMATIX_FLOW_CRASH_AT": crash_at},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("point", ["staged", "mid-settle"])
def test_a_killed_run_leaves_the_table_and_is_taken_up_by_the_next(
    point: str, lake: S3FilesBackend, bucket: ObjectStoreS3Connection, spark: SparkSession, tmp_path: Path
) -> None:
    load(lake, ids(spark, 1, 2), plan_of(ID))
    process = run_elsewhere(bucket, tmp_path / "events", crash_at=point)
    _, said = process.communicate(timeout=180)
    assert process.returncode == -9, said[-2000:]
    assert lake.store.exists(f"{FOLDER}/_ematix_flow_staging")
    assert numbers(lake, spark) == [1, 2]
    report = load(lake, ids(spark, 3, 4), plan_of(ID, mode="truncate"))
    assert (report.rows, numbers(lake, spark)) == (2, [3, 4])
    assert not lake.store.exists(f"{FOLDER}/_ematix_flow_staging")
    assert not lake.store.exists(f"{FOLDER}/_ematix_flow/publishing.json")
    assert len(visible(lake.store)) == 1  # type: ignore[arg-type]
    assert lake.store.children("_ematix_flow/locks") == []
    events = b"".join(file.read_bytes() for file in (tmp_path / "events").rglob("*") if file.is_file())
    assert b"SparkListenerSQLExecutionStart" in events
    for secret in (bucket.secret_access_key, bucket.access_key_id):
        assert secret.encode() not in events and secret not in said


def test_of_two_processes_at_once_each_row_is_there_once(
    lake: S3FilesBackend, bucket: ObjectStoreS3Connection, spark: SparkSession, tmp_path: Path
) -> None:
    processes = [run_elsewhere(bucket, tmp_path / str(n), mode="append") for n in range(2)]
    ends = [process.communicate(timeout=300) for process in processes]
    survivors = sum(said == "survived\n" for said, _ in ends)
    refusals = [trouble for said, trouble in ends if said != "survived\n"]
    assert survivors >= 1 and all("AlreadyRunning" in trouble for trouble in refusals), refusals
    assert numbers(lake, spark) == sorted([3, 4] * survivors)
    with lake.lease("load"):
        run = opened(lake, plan_of(ID))
        assert not run.resumed
        lake.close_run(run, error=None, now=NOW)
