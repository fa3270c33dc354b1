"""Files of one folder that are not alike: read together as declared, or refused with the files named; never half."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc, parquet

from ematix_flow import BigInt, Double, ObjectStoreLocalConnection, SQLiteConnection, Text, ematix
from ematix_flow.backends.files_store import LocalStore
from ematix_flow.backends.files_table import DataFile, Manifest, TableFolder
from ematix_flow.config.handles import connect
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.errors import InvalidSource, MissingSourceColumn, UnfitValue
from ematix_flow.testing.registry import isolated_registry

Columns = dict[str, list[Any]]


class Inbox:
    """A folder of files, and a load of it into SQLite."""

    def __init__(self, folder: Path, file_format: str) -> None:
        self.folder, self.file_format = folder, file_format
        self.connection = ObjectStoreLocalConnection(name="inbox", path=str(folder / "inbox"), format=file_format)

    def put(self, name: str, data: str | bytes | Columns) -> None:
        file = self.folder / "inbox" / "raw" / "things" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, dict):
            written = io.BytesIO()
            (parquet if self.file_format == "parquet" else orc).write_table(pa.table(data), written)
            data = written.getvalue()
        file.write_bytes(data.encode() if isinstance(data, str) else data)

    def pipeline(self, mode: str = "append", **columns: Any) -> Pipeline:
        table = type("Things", (), {"__annotations__": columns, "__module__": __name__})
        shop = SQLiteConnection(name="shop", path=str(self.folder / "shop.db"))
        declared = ematix.pipeline(
            name="load",
            source_connection=self.connection,
            source_table="raw.things",
            target=ematix.table(schema="main", name="things")(table),
            target_connection=shop,
            mode=mode,
        )(lambda: None)
        assert isinstance(declared, Pipeline)
        return declared

    def rows(self, *columns: str) -> list[list[Any]]:
        with connect(url=f"sqlite:///{self.folder / 'shop.db'}") as db:
            found: list[list[Any]] = db.query(f"SELECT {', '.join(columns)} FROM things ORDER BY 1")["rows"]
            return found


@pytest.fixture
def inbox(tmp_project: Path, request: pytest.FixtureRequest) -> Iterator[Inbox]:
    with isolated_registry():
        yield Inbox(tmp_project, request.param)


TYPED = pytest.mark.parametrize("inbox", ["parquet", "orc"], indirect=True)
CSV = pytest.mark.parametrize("inbox", ["csv"], indirect=True)
JSON_LINES = pytest.mark.parametrize("inbox", ["json_lines"], indirect=True)


@TYPED
def test_a_column_that_some_files_lack_is_null_there(inbox: Inbox) -> None:
    inbox.put(f"a.{inbox.file_format}", {"id": [1]})
    inbox.put(f"b.{inbox.file_format}", {"id": [2], "name": ["bob"]})
    inbox.pipeline(id=BigInt, name=Text | None).sync()
    assert inbox.rows("id", "name") == [[1, None], [2, "bob"]]
    with pytest.raises(UnfitValue, match="'name' is NOT NULL"):
        inbox.pipeline("truncate", id=BigInt, name=Text).sync()
    assert inbox.rows("id", "name") == [[1, None], [2, "bob"]]


@TYPED
def test_a_column_of_two_types_is_refused_and_both_files_are_named(inbox: Inbox) -> None:
    inbox.put(f"a.{inbox.file_format}", {"id": [1], "size": [1.5]})
    inbox.put(f"b.{inbox.file_format}", {"id": [2], "size": ["XL"]})
    with pytest.raises(InvalidSource) as caught:
        inbox.pipeline(id=BigInt, size=Text).sync()
    ending = inbox.file_format
    assert f"column 'size' is double in 'a.{ending}' and string in 'b.{ending}'" in str(caught.value)
    assert "XL" not in str(caught.value)


@CSV
def test_csv_files_are_read_by_their_own_headers(inbox: Inbox) -> None:
    inbox.put("a.csv", "id,name\n1,ann\n")
    inbox.put("b.csv", "size,id\n2.5,2\n")
    inbox.pipeline(id=BigInt, name=Text | None, size=Double | None).sync()
    assert inbox.rows("id", "name", "size") == [[1, "ann", None], [2, None, 2.5]]
    with pytest.raises(MissingSourceColumn, match="'color'"):
        inbox.pipeline("truncate", id=BigInt, color=Text | None).sync()


@CSV
@pytest.mark.parametrize(("kind", "said"), [("parquet", "Parquet"), ("orc", "ORC"), ("zip", "workbook")])
def test_a_file_that_is_no_csv_is_named_and_its_bytes_are_not_shown(inbox: Inbox, kind: str, said: str) -> None:
    written = io.BytesIO()
    if kind == "zip":
        import zipfile

        with zipfile.ZipFile(written, "w") as archive:
            archive.writestr("sheet", "id,name")
    else:
        (parquet if kind == "parquet" else orc).write_table(pa.table({"id": [4711]}), written)
    inbox.put("a.csv", written.getvalue())
    with pytest.raises(InvalidSource, match=rf"a\.csv' holds .*{said}.*, not csv") as caught:
        inbox.pipeline(id=BigInt).sync()
    assert "\x00" not in str(caught.value)


@CSV
def test_a_header_may_begin_like_another_format(inbox: Inbox) -> None:
    inbox.put("a.csv", "ORCHARD,id\nnorth,1\n")
    inbox.pipeline(id=BigInt, ORCHARD=Text).sync()
    assert inbox.rows("id") == [[1]]


@JSON_LINES
def test_json_values_of_two_types_become_the_declared_one_or_stop_the_load(inbox: Inbox) -> None:
    inbox.put("a.jsonl", '{"id": 1, "size": 2}\n')
    inbox.put("b.jsonl", '{"id": 2, "size": "secret-XL"}\n{"id": 3}\n')
    with pytest.raises(UnfitValue) as caught:
        inbox.pipeline(id=BigInt, size=BigInt | None).sync()
    assert "secret-XL" not in str(caught.value) and "size" in str(caught.value)
    inbox.pipeline(id=BigInt, size=Text | None).sync()
    assert inbox.rows("id", "size") == [[1, "2"], [2, "secret-XL"], [3, None]]


@JSON_LINES
def test_a_file_that_is_no_json_stops_the_load_and_no_line_of_it_is_shown(inbox: Inbox) -> None:
    inbox.put("a.jsonl", '{"id": 1}\n')
    inbox.pipeline(id=BigInt).sync()
    inbox.put("b.jsonl", "id;name\n1;secret-ann\n")
    with pytest.raises(InvalidSource, match="holds a record that is not JSON") as caught:
        inbox.pipeline("truncate", id=BigInt).sync()
    assert "secret-ann" not in str(caught.value) and str(caught.value.where).endswith("/raw/things/b.jsonl")
    assert inbox.rows("id") == [[1]]


def test_files_of_a_first_publish_that_was_not_committed_do_not_count(tmp_path: Path) -> None:
    folder = TableFolder(LocalStore(str(tmp_path)), "raw/things", "csv")
    place = tmp_path / "raw" / "things"
    (place / "_ematix_flow").mkdir(parents=True)
    (place / "theirs.csv").write_text("id\n1\n")
    (place / "ours.csv").write_text("id\n2\n")
    intent = {"id": "x", "adds": ["ours.csv"], "removes": [], "leftovers": []}
    (place / "_ematix_flow" / "publishing.json").write_text(json.dumps(intent))
    assert [file.path for file in folder.live_files(None)] == ["theirs.csv"]
    with folder.locked():
        assert folder.current() == Manifest(files=(DataFile("theirs.csv", 5),))
    assert [file.path for file in folder.live_files(folder.manifest())] == ["theirs.csv"]


def test_a_first_publish_that_is_committed_while_somebody_looks_counts(tmp_path: Path) -> None:
    class Busy(LocalStore):
        """A place where a commit happens just after the files were listed."""

        def read_json(self, path: str) -> Any:
            found = super().read_json(path)
            if path.endswith("publishing.json") and found is not None:
                (place / "late.csv").write_text("id\n3\n")
                files = [{"path": name, "bytes": 5} for name in ("ours.csv", "late.csv")]
                content = {"version": 1, "publish_id": "x", "files": files, "schema": None, "pipelines": {}}
                self.write_json("raw/things/_ematix_flow/manifest.json", content)
            return found

    place = tmp_path / "raw" / "things"
    (place / "_ematix_flow").mkdir(parents=True)
    (place / "ours.csv").write_text("id\n2\n")
    intent = {"id": "x", "adds": ["ours.csv", "late.csv"], "removes": [], "leftovers": []}
    (place / "_ematix_flow" / "publishing.json").write_text(json.dumps(intent))
    folder = TableFolder(Busy(str(tmp_path)), "raw/things", "csv")
    assert sorted(file.path for file in folder.live_files(folder.manifest())) == ["late.csv", "ours.csv"]
