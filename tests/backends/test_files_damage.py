"""Files that cannot be read: found by their ends, left out only where that was declared, and always told."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import pyarrow as pa
import pytest
from pyarrow import orc, parquet

from ematix_flow import BigInt, ObjectStoreLocalConnection, SQLiteConnection, Target, Text, ematix, pk
from ematix_flow.backends.files_damage import parted
from ematix_flow.backends.files_s3 import S3FilesBackend
from ematix_flow.backends.files_store import LocalStore
from ematix_flow.backends.files_store_s3 import S3Store
from ematix_flow.backends.files_table import DataFile
from ematix_flow.backends.object_client import StoreRefused
from ematix_flow.cli.main import main
from ematix_flow.declare.fileformats import FileFormat
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.errors import FlowError, InvalidConnection, InvalidSource
from ematix_flow.testing.registry import isolated_registry
from tests.services.moto import S3Server

TYPED: tuple[FileFormat, ...] = ("parquet", "orc")


def content(file_format: str, *ids: int) -> bytes:
    names = pa.array([f"name-{number}" for number in ids], pa.string())
    table = pa.table({"id": pa.array(ids, pa.int64()), "name": names})
    file = io.BytesIO()
    (parquet if file_format == "parquet" else orc).write_table(table, file)
    return file.getvalue()


def damages(file_format: str) -> dict[str, bytes]:
    """What becomes of files: uploads that ended early, bytes that are gone, other things under the same name."""
    whole = content(file_format, *range(500))
    other = content("orc" if file_format == "parquet" else "parquet", 1)
    return {
        "empty": b"",
        "end-gone": whole[:-5],
        "half": whole[: len(whole) // 2],
        "start-gone": whole[len(whole) // 2 :],
        "footer-overwritten": whole[:-60] + b"\xff" * 45 + whole[-15:],
        "text": b"id,name\n1,ann\n" * 200,
        "other-format": other,
    }


# ── finding them, without Spark ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("file_format", TYPED)
def test_every_kind_of_damage_at_the_end_is_found_and_sound_files_are_not_touched(
    file_format: FileFormat, tmp_path: Path
) -> None:
    files = {"good": content(file_format, 1, 2), "none": content(file_format), **damages(file_format)}
    for name, data in files.items():
        (tmp_path / f"{name}.{file_format}").write_bytes(data)
    listed = [DataFile(f"{name}.{file_format}", len(data)) for name, data in files.items()]
    sound, damaged = parted(LocalStore(str(tmp_path)), ".", listed, file_format)
    assert [file.path for file in sound] == [f"good.{file_format}", f"none.{file_format}"]
    reasons = {Path(file.path).stem: file.reason for file in damaged}
    assert reasons.keys() == damages(file_format).keys()
    assert reasons["empty"] == "it is empty" and reasons["start-gone"] == "a part of it is missing"
    assert reasons["half"] == f"it is cut off, or not {file_format}"
    assert {(tmp_path / f"{name}.{file_format}").read_bytes() for name in files} == set(files.values())


class Unreliable(LocalStore):
    """A place whose answers get lost on the way."""

    def open(self, path: str) -> IO[bytes]:
        class Lost(io.BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                raise StoreRefused("The store does not answer.", "there", "wait")

        return Lost(Path(self.local_path(path)).read_bytes())


@pytest.mark.parametrize("file_format", TYPED)
def test_a_place_that_does_not_answer_is_not_taken_for_damage(file_format: FileFormat, tmp_path: Path) -> None:
    data = content(file_format, 1)
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(StoreRefused, match="does not answer"):
        parted(Unreliable(str(tmp_path)), ".", [DataFile("a", len(data))], file_format)


def test_files_in_a_bucket_are_asked_for_their_ends_too(s3_server: S3Server, s3_bucket: str) -> None:
    for name, data in {"good": content("parquet", 1), **damages("parquet")}.items():
        s3_server.client().put_object(Bucket=s3_bucket, Key=f"raw/{name}.parquet", Body=data)
    store = S3Store(s3_server.connection(s3_bucket))
    listed = [DataFile(file.path, file.size) for file in store.visible_files("raw")]
    sound, damaged = parted(store, "raw", listed, "parquet")
    assert [file.path for file in sound] == ["good.parquet"]
    assert {file.path for file in damaged} == {f"s3://{s3_bucket}/raw/{name}.parquet" for name in damages("parquet")}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "parquet", "on_corrupt_file": "skip"}, "on_corrupt_file 'skip' is unknown"),
        ({"format": "csv", "on_corrupt_file": "quarantine"}, "is for 'parquet', 'orc' files.*never loaded"),
        ({"format": "json_lines", "on_corrupt_file": "quarantine"}, "is for 'parquet', 'orc' files"),
        ({"format": "parquet", "on_corrupt_file": True}, "must be text"),
    ],
)
def test_what_cannot_be_promised_is_refused_when_it_is_declared(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConnection, match=said):
        ObjectStoreLocalConnection(name="inbox", path="inbox", **options)


def test_text_files_may_say_that_they_fail_and_the_choice_tells_two_sources_apart() -> None:
    ObjectStoreLocalConnection(name="inbox", path="inbox", format="csv", on_corrupt_file="fail")
    one, other = (
        ObjectStoreLocalConnection(name="inbox", path="inbox", format="orc", on_corrupt_file=choice)
        for choice in ("fail", "quarantine")
    )
    assert one.identity() != other.identity()
    assert one.identity() == ObjectStoreLocalConnection(name="b", path="inbox", format="orc").identity()


def test_a_damaged_orc_file_is_named_when_its_folder_is_described(s3_server: S3Server, s3_bucket: str) -> None:
    s3_server.client().put_object(Bucket=s3_bucket, Key="raw/events/a.orc", Body=b"no orc at all")
    backend = S3FilesBackend(s3_server.connection(s3_bucket, "orc"))
    with pytest.raises(InvalidSource, match="is not orc, or is damaged") as caught:
        backend.describe(backend.table_ref("raw", "events"))
    assert "a.orc" in str(caught.value.where)


# ── loads ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Project:
    """Parquet files in an inbox, a SQLite database and a lake of files to load them into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inbox = ObjectStoreLocalConnection(
            name="inbox", path=str(folder / "inbox"), format="parquet", on_corrupt_file="quarantine"
        )
        self.shop = SQLiteConnection(name="shop", path=str(folder / "shop.db"))
        self.lake = ObjectStoreLocalConnection(name="lake", path=str(folder / "lake"), format="parquet")

    def put(self, name: str, data: bytes) -> Path:
        file = self.folder / "inbox" / "raw" / "people" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return file

    def pipeline(self, mode: str, **options: Any) -> Pipeline:
        @ematix.table(schema="main", name="people")
        class People:
            id: Annotated[BigInt, pk()]
            name: Text

        @ematix.table(schema="main", name="people")
        class Heap:
            id: BigInt
            name: Text

        @ematix.table(schema="archive", name="people")
        class Archive:
            id: BigInt
            name: Text

        if "targets" not in options:
            options |= {"target": Heap if mode == "append" else People, "target_connection": self.shop, "mode": mode}
        else:
            options["targets"] = [
                Target(table=People, connection=self.shop, mode="merge"),
                Target(table=Archive, connection=self.lake, mode="append"),
            ]
        declared = ematix.pipeline(
            name="load", source_connection=self.inbox, source_table="raw.people", engine="spark", **options
        )(lambda: None)
        assert isinstance(declared, Pipeline)
        return declared

    def query(self, sql: str) -> list[Any]:
        db = sqlite3.connect(self.folder / "shop.db")
        try:
            return db.execute(sql).fetchall()
        finally:
            db.close()

    def ids(self) -> list[int]:
        return [row[0] for row in self.query("SELECT id FROM people ORDER BY id")]


@pytest.fixture
def project(tmp_project: Path) -> Iterator[Project]:
    with isolated_registry():
        yield Project(tmp_project)


def test_good_files_are_loaded_and_bad_ones_told_recorded_and_left_where_they_are(
    project: Project, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    project.put("a.parquet", content("parquet", 1, 2))
    half = content("parquet", *range(100, 600))
    bad = [project.put("b.parquet", half[: len(half) // 2]), project.put("c.parquet", b"")]
    result = project.pipeline("merge").sync()
    assert project.ids() == [1, 2]
    said = [{"file": str(bad[0]), "reason": "it is cut off, or not parquet"},
            {"file": str(bad[1]), "reason": "it is empty"}]  # fmt: skip
    assert result.files_left_out == said and "2 files cannot be read" in caplog.text
    steps = "SELECT metrics_json FROM ematix_flow_run_history WHERE step_name = 'quarantine' AND parent_run_id = "
    ((metrics,),) = project.query(f"{steps} '{result.run_id}'")
    assert json.loads(metrics) == {"files_left_out": said}
    assert main(["runs", "show", result.run_id]) == 0
    shown = capsys.readouterr().out
    assert "- quarantine" in shown and all(f"{file['file']} ({file['reason']})" in shown for file in said)
    assert bad[0].read_bytes() == half[: len(half) // 2] and bad[1].exists()
    bad[1].unlink()
    bad[0].write_bytes(half)
    mended = project.pipeline("merge").sync()
    assert "files_left_out" not in mended and project.ids() == [1, 2, *range(100, 600)]


def test_by_default_one_bad_file_stops_the_load_and_is_named(project: Project) -> None:
    project.inbox = project.inbox.with_fields(on_corrupt_file=None)
    project.put("a.parquet", content("parquet", 1))
    project.pipeline("merge").sync()
    for data in (content("parquet", 2)[:-5], b""):
        project.put("b.parquet", data)
        with pytest.raises(InvalidSource, match=r"b\.parquet"):
            project.pipeline("merge").sync()
    assert project.ids() == [1]


def test_damage_inside_of_the_rows_stops_the_load_and_nothing_of_the_file_is_there(project: Project) -> None:
    project.put("a.parquet", content("parquet", 1))
    whole = bytearray(content("parquet", *range(2000)))
    whole[40:400] = b"\xff" * 360
    project.put("b.parquet", bytes(whole))
    with pytest.raises(InvalidSource, match=r"b\.parquet cannot be read; it is damaged"):
        project.pipeline("truncate").sync()
    assert project.query("SELECT name FROM sqlite_master WHERE name = 'people'") == [] or project.ids() == []


def test_nothing_that_can_be_read_is_not_an_empty_source(project: Project) -> None:
    file = project.put("a.parquet", content("parquet", 1))
    project.pipeline("truncate").sync()
    file.write_bytes(b"")
    with pytest.raises(InvalidSource, match="no file can be read.*it is empty"):
        project.pipeline("truncate").sync()
    assert project.ids() == [1]


@pytest.mark.parametrize(
    ("mode", "options", "why"),
    [
        ("append", {"incremental_column": "id"}, "older than the mark that 'id' sets"),
        ("merge", {"handle_deletes": "hard"}, "would take their rows for deleted"),
        ("scd2", {"handle_deletes": "soft"}, "would take their rows for deleted"),
    ],
)
def test_a_load_that_must_know_all_rows_stops_nevertheless(
    project: Project, mode: str, options: dict[str, Any], why: str
) -> None:
    file = project.put("a.parquet", content("parquet", 1))
    project.put("b.parquet", content("parquet", 2))
    project.pipeline(mode, **options).sync()
    file.write_bytes(b"")
    with pytest.raises(InvalidSource, match=f"a.parquet .it is empty.*{why}"):
        project.pipeline(mode, **options).sync()
    assert project.ids() == [1, 2]


def test_every_target_of_a_run_is_told_what_is_missing(project: Project) -> None:
    project.put("a.parquet", content("parquet", 1, 2))
    bad = project.put("b.parquet", b"no parquet")
    results = project.pipeline("", targets=True).sync()
    assert [part.files_left_out[0]["file"] for part in results.values()] == [str(bad)] * len(results)
    assert project.ids() == [1, 2]
    history = (project.folder / "lake" / "_ematix_flow" / "run_history").glob("*.json")
    assert [record["step_name"] for record in map(json.loads, map(Path.read_text, history))].count("quarantine") == 1


def test_a_dry_run_tells_it_too_and_leaves_no_trace(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    project.put("a.parquet", content("parquet", 1))
    project.put("b.parquet", b"")
    project.pipeline("merge").dry_run()
    assert "b.parquet (it is empty)" in caplog.text
    with pytest.raises((sqlite3.OperationalError, FlowError)):
        project.ids()
