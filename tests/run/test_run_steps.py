"""The steps that a run's record has, what each waits for, and where a run went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import BigInt, SQLiteConnection, connect, ematix
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.errors import FlowError, InvalidConfig
from ematix_flow.orchestrate import control
from ematix_flow.run.runlogs.memory import InMemoryRunLog
from ematix_flow.run.runlogs.open import use_run_log
from ematix_flow.testing.registry import isolated_registry

POSTS = ["DELETE FROM loaded WHERE id = 2", "DELETE FROM nowhere"]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[SQLiteConnection]:
    with isolated_registry():
        place = SQLiteConnection(name="shop", path=str(tmp_path / "shop.db"))
        with connect(place) as db:
            db.execute("CREATE TABLE raw (id BIGINT)")
            db.execute("INSERT INTO raw VALUES (1), (2)")
        yield place


def declared(place: SQLiteConnection, *, tables: int = 1, source: Any = "SELECT id FROM raw", **options: Any) -> Any:
    names = ("Loaded", "Copied")[:tables]
    made = [type(name, (), {"__annotations__": {"id": BigInt}, "__module__": __name__}) for name in names]
    specs = [ematix.table(schema="main")(one) for one in made]
    if tables > 1:
        options["targets"] = [ematix.target(one, mode="append", target_connection=place) for one in specs]
    else:
        options |= {"target": specs[0], "target_connection": place, "mode": "append"}

    @ematix.pipeline(name="load_orders", **options)
    def load_orders(conn: Any) -> Any:
        return source

    return load_orders


def run(pipeline: Any, store: InMemoryRunLog) -> RunRecord:
    with use_run_log(store), suppress(FlowError):
        pipeline.sync()
    (record,), _ = store.list_runs(limit=1)
    return record


def told(record: RunRecord) -> list[tuple[str, str, list[str]]]:
    return [(step["name"], step["status"], step["depends_on"]) for step in record.extras["steps"]]


def test_a_run_has_its_source_its_load_and_what_comes_after_in_that_order(shop: SQLiteConnection) -> None:
    record = run(declared(shop, transforms_post=[POSTS[0], "DELETE FROM raw"]), InMemoryRunLog())
    assert told(record) == [
        ("source", "succeeded", []),
        ("load:main.loaded", "succeeded", ["source"]),
        ("post[0]", "succeeded", ["load:main.loaded"]),
        ("post[1]", "succeeded", ["post[0]"]),
    ]
    load = record.extras["steps"][1]
    assert [(stage["name"], stage["status"]) for stage in load["stages"]] == [
        ("plan", "succeeded"),
        ("settle", "succeeded"),
    ]
    assert all(step["duration_ms"] is not None for step in record.extras["steps"])


@pytest.mark.parametrize(
    ("options", "failed", "ends"),
    [
        ({"source": 5}, "source", ["failed", "skipped", "skipped", "skipped"]),
        ({"source": "SELECT id FROM nothing"}, "load:main.loaded", ["succeeded", "failed", "skipped", "skipped"]),
        ({}, "post[1]", ["succeeded", "succeeded", "succeeded", "failed"]),
    ],
)
def test_a_run_that_fails_names_the_step_and_those_that_never_came(
    shop: SQLiteConnection, options: dict[str, Any], failed: str, ends: list[str]
) -> None:
    record = run(declared(shop, transforms_post=POSTS, **options), InMemoryRunLog())
    assert record.failed_step == failed
    assert [status for _, status, _ in told(record)] == ends


def test_what_fails_after_the_loads_of_several_targets_is_no_failed_load(shop: SQLiteConnection) -> None:
    record = run(declared(shop, tables=2, transforms_post=POSTS), InMemoryRunLog())
    assert record.failed_step == "post[1]", "a restart goes on there, and loads nothing again"
    assert [status for _, status, _ in told(record)] == ["succeeded"] * 4 + ["failed"]


def test_a_restart_takes_load_for_the_load_whatever_its_table_is_called(shop: SQLiteConnection) -> None:
    store = InMemoryRunLog()
    record = run(declared(shop, source="SELECT id FROM nothing"), store)
    asked = store.get_run(control.restart(store, record.run_id, "load"))
    assert asked is not None and asked.extras["restart_from_step"] == "load:main.loaded"
    with pytest.raises(InvalidConfig, match="no step 'settle'") as refused:
        control.restart(store, record.run_id, "settle")
    assert refused.value.fix == "its steps: source, load:main.loaded"


def test_a_load_in_the_database_writes_its_record_six_times(shop: SQLiteConnection) -> None:
    written: list[str] = []

    class Counting(InMemoryRunLog):
        def record_run_record(self, record: RunRecord) -> None:
            written.append(record.status)
            super().record_run_record(record)

    run(declared(shop), Counting())
    assert written == ["running"] * 5 + ["succeeded"], "buckets take a second for each"
