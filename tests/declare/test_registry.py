"""One registry per process: places decide whether a second declaration replaces or collides."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.declare import registry
from ematix_flow.declare.connection import SQLiteConnection
from ematix_flow.declare.registry import Registry, SourceLocation, caller_location, function_location, isolated
from ematix_flow.errors import DeclarationError, DuplicateName


@pytest.fixture
def fresh() -> Iterator[Registry]:
    with isolated() as mine:
        yield mine


HERE = SourceLocation("pipelines/a.py", 10, "sync", "pipelines.a")


def test_entries_come_back_in_order_with_their_place(fresh: Registry) -> None:
    fresh.add_pipeline("b", "second thing", HERE)
    fresh.add_pipeline("a", "first thing", SourceLocation("pipelines/a.py", 20, "other", "pipelines.a"))
    assert [entry.name for entry in fresh.pipelines()] == ["b", "a"]
    found = fresh.pipeline("b")
    assert found is not None and found.thing == "second thing" and str(found.where) == "pipelines/a.py:10 (sync)"
    assert fresh.pipeline("c") is None


@pytest.mark.parametrize(
    "again",
    [
        SourceLocation("pipelines/a.py", 10, "sync", "pipelines.a"),
        SourceLocation("pipelines/a.py", 14, "sync", "pipelines.a"),
        SourceLocation("elsewhere/a.py", 10, "sync", "pipelines.a"),
        SourceLocation("pipelines/a.py", 10, "sync", "__main__"),
        SourceLocation("pipelines/a.py", 10, "renamed", "pipelines.a"),
    ],
    ids=["the same line", "lines moved", "module reloaded from a copy", "run as a script", "function renamed in place"],
)
def test_declaring_again_from_the_same_place_replaces(fresh: Registry, again: SourceLocation) -> None:
    fresh.add_pipeline("sync", "old", HERE)
    fresh.add_pipeline("sync", "new", again)
    assert [entry.thing for entry in fresh.pipelines()] == ["new"]


@pytest.mark.parametrize(
    "other",
    [
        SourceLocation("pipelines/b.py", 3, "sync", "pipelines.b"),
        SourceLocation("pipelines/a.py", 30, "sync_again", "pipelines.a"),
    ],
    ids=["another module", "another function of the same file"],
)
@pytest.mark.parametrize("add", ["add_pipeline", "add_transform", "add_feature_view", "add_streaming_pipeline"])
def test_declaring_from_another_place_is_refused_and_changes_nothing(
    fresh: Registry, add: str, other: SourceLocation
) -> None:
    getattr(fresh, add)("sync", "old", HERE)
    with pytest.raises(DuplicateName) as caught:
        getattr(fresh, add)("sync", "new", other)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, DeclarationError)
    for part in ("'sync'", "already registered", str(HERE), str(other)):
        assert part in str(caught.value)
    kept = {
        "add_pipeline": fresh.pipelines,
        "add_transform": fresh.transforms,
        "add_feature_view": fresh.feature_views,
        "add_streaming_pipeline": fresh.streaming_pipelines,
    }
    assert [entry.thing for entry in kept[add]()] == ["old"]


def test_a_notebook_cell_may_be_changed_and_run_again(fresh: Registry) -> None:
    fresh.add_pipeline("sync", "old", SourceLocation("<ipython-input-1-abc>", 1, "sync", "__main__"))
    fresh.add_pipeline("sync", "new", SourceLocation("/tmp/ipykernel_77/12.py", 9, "sync_better", "__main__"))
    assert [entry.thing for entry in fresh.pipelines()] == ["new"]


def test_a_pipeline_and_a_transform_may_share_a_name(fresh: Registry) -> None:
    fresh.add_pipeline("clean", 1, HERE)
    fresh.add_transform("clean", 2, SourceLocation("b.py", 1, "clean", "b"))
    assert len(fresh.pipelines()) == len(fresh.transforms()) == 1


@pytest.mark.parametrize("name", ["", "  ", None])
def test_a_name_is_needed(fresh: Registry, name: str) -> None:
    with pytest.raises(ValueError, match="needs a name"):
        fresh.add_pipeline(name, 1, HERE)


def test_connections_replace_silently_wherever_they_come_from(fresh: Registry) -> None:
    fresh.add_connection(SQLiteConnection(name="w", path="a.db"), HERE)
    newer = SQLiteConnection(name="w", path="b.db")
    fresh.add_connection(newer, SourceLocation("b.py", 1, "w", "b"))
    assert fresh.connections() == {"w": newer}
    assert str(fresh.connection_where("w")) == "b.py:1 (w)"


def test_isolation_hides_what_was_there_and_brings_it_back_after_an_error() -> None:
    before = registry.current()
    with pytest.raises(RuntimeError), isolated() as mine:
        assert registry.current() is mine is not before
        raise RuntimeError
    assert registry.current() is before


def test_other_threads_see_what_the_main_thread_declared(fresh: Registry) -> None:
    fresh.add_pipeline("sync", 1, HERE)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(len(registry.current().pipelines())))
    thread.start()
    thread.join()
    assert seen == [1]


def test_threads_may_declare_at_the_same_time(fresh: Registry) -> None:
    def declare(number: int) -> None:
        for i in range(200):
            fresh.add_pipeline(f"p{number}_{i}", i, SourceLocation("a.py", i, f"f{number}_{i}", "a"))

    threads = [threading.Thread(target=declare, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fresh.pipelines()) == 800


def test_places_are_told_by_frame_and_by_function() -> None:
    def asks() -> SourceLocation:
        return caller_location(1, name="x")

    by_frame, by_function = asks(), function_location(asks)
    assert Path(by_frame.file).name == Path(by_function.file).name == "test_registry.py"
    assert by_frame.line > by_function.line
    assert by_function.name.endswith("asks")


def test_a_place_is_shown_relative_to_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(SourceLocation(str(tmp_path / "p" / "a.py"), 3)) == "p/a.py:3"
    assert str(SourceLocation("<stdin>", 1, "f")) == "<stdin>:1 (f)"
    assert str(SourceLocation("/elsewhere/a.py", 1)) == "/elsewhere/a.py:1"
