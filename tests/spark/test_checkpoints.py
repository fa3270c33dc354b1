"""The folder of a checkpoint: what is damaged in it, or cannot be a folder at all, is one error with a way out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import types as t

from ematix_flow.errors import ConnectionFailed, StateIncompatible
from ematix_flow.spark.checkpoints import CheckpointFolder, Generation


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder("orders", str(tmp_path / "orders"))


@pytest.fixture
def begun(folder: CheckpointFolder) -> Generation:
    """A generation of which two batches are done, as Spark leaves it on a disk."""
    begun = folder.begin("kafka:orders")
    place = folder.path / f"gen-{begun.name}"
    written = {
        "metadata": '{"id": "x"}',
        **{f"offsets/{number}": f'v1\n{{"batchTimestampMs": 1}}\n{{"orders": {{"0": {number}}}}}' for number in (0, 1)},
        **{f"commits/{number}": 'v1\n{"nextBatchWatermarkMs": 0}' for number in (0, 1)},
    }
    for name, text in written.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.with_name(f".{file.name}.crc").write_bytes(b"crc")
    return begun


def left(folder: CheckpointFolder, begun: Generation) -> set[str]:
    place = folder.path / f"gen-{begun.name}"
    return {str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()}


def test_what_is_whole_is_left_as_it_is(folder: CheckpointFolder, begun: Generation) -> None:
    before = left(folder, begun)
    folder.mend(begun, 1)
    assert left(folder, begun) == before


@pytest.mark.parametrize("name", ["metadata", "offsets/1", "commits/1"])
def test_a_checksum_whose_file_is_gone_is_removed(folder: CheckpointFolder, begun: Generation, name: str) -> None:
    before = left(folder, begun)
    file = folder.path / f"gen-{begun.name}" / name
    file.unlink()
    folder.mend(begun, 1)
    assert before - left(folder, begun) == {name, name.replace(file.name, f".{file.name}.crc")}


@pytest.mark.parametrize("name", ["metadata", "offsets/1", "commits/1"])
def test_a_file_that_is_half_written_is_removed(folder: CheckpointFolder, begun: Generation, name: str) -> None:
    before = left(folder, begun)
    file = folder.path / f"gen-{begun.name}" / name
    file.write_text(file.read_text()[:-1])
    folder.mend(begun, 1)
    assert before - left(folder, begun) == {name, name.replace(file.name, f".{file.name}.crc")}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"generation": 1}', '{"generation": "x"}'])
def test_a_damaged_note_is_one_error_and_a_reset_begins_anew(
    folder: CheckpointFolder, begun: Generation, text: str
) -> None:
    (folder.path / "current.json").write_text(text)
    with pytest.raises(StateIncompatible, match=r"current\.json") as caught:
        folder.current()
    assert "flow state reset orders" in (caught.value.fix or "")
    fresh = folder.begin("kafka:orders")
    assert folder.current() is not None and fresh.name != begun.name
    assert not list(folder.path.glob(f"gen-{begun.name}"))


def test_a_reset_leaves_the_checkpoint_of_another_stream_alone(folder: CheckpointFolder, begun: Generation) -> None:
    with pytest.raises(StateIncompatible, match="that of stream 'orders'"):
        CheckpointFolder("visits", str(folder.path)).begin("kafka:visits")
    found = folder.current()
    assert found is not None and found.name == begun.name


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"type": "struct", "fields": [{}]}'])
def test_damaged_columns_are_one_error_that_says_what_to_remove(folder: CheckpointFolder, text: str) -> None:
    folder.keep_schema("orders", t.StructType().add("id", t.IntegerType()))
    (file,) = (folder.path / "schemas").iterdir()
    file.write_text(text)
    with pytest.raises(StateIncompatible, match=file.name) as caught:
        folder.schema("orders")
    assert "remove it" in (caught.value.fix or "")


@pytest.mark.parametrize("text", ["", "[1]"])
def test_damaged_identities_are_one_error(folder: CheckpointFolder, begun: Generation, text: str) -> None:
    (folder.path / "sources.json").write_text(text)
    with pytest.raises(StateIncompatible, match=r"sources\.json"):
        folder.identities(begun)


@pytest.mark.parametrize("place", ["a_file", "a_file/below", "no\0name"])
def test_a_place_that_can_be_no_folder_is_one_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "a_file").write_text("")
    folder = CheckpointFolder("orders", str(tmp_path / place))
    for use in (folder.current, lambda: folder.begin("shape"), lambda: folder.held().__enter__()):
        with pytest.raises(ConnectionFailed, match="cannot be used") as caught:
            use()
        assert "--checkpoint" in (caught.value.fix or "")


def test_a_folder_that_is_removed_while_its_stream_runs_ends_no_stream_badly(folder: CheckpointFolder) -> None:
    with folder.held():
        shutil.rmtree(folder.path)
