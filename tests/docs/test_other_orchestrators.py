"""The recipes for Airflow and Dagster, neither of which is installed here: what they import is stood in for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ematix_flow.testing.registry import isolated_registry
from tests.docs.snippets import pages

TIMES = ("2026-03-01T06:15:00+00:00", "2026-03-01T06:30:00+00:00")


class Airflow:
    """Runs a task when it is called, for the logical time that is set; a task that asks for `ts` is given it."""

    def __init__(self) -> None:
        self.ts = ""
        self.results: list[Any] = []
        self.dags: dict[str, Callable[[], Any]] = {}

    def task(self, **_options: Any) -> Callable[[Callable[..., Any]], Callable[[], None]]:
        return lambda body: lambda: self.results.append(body(ts=self.ts))

    def dag(self, **options: Any) -> Callable[[Callable[[], Any]], Callable[[], None]]:
        assert options == {"schedule": "*/15 * * * *", "catchup": False}

        def declare(body: Callable[[], Any]) -> Callable[[], None]:
            return lambda: self.dags.update({body.__name__: body})

        return declare


class Dagster:
    """Knows the six names of the recipe, and materializes a partition of an asset when it is told to."""

    def __init__(self) -> None:
        self.assets: dict[str, Callable[[Any], Any]] = {}
        self.jobs: dict[str, Any] = {}
        self.scheduled: list[Any] = []
        self.partitions: list[dict[str, str]] = []

    def names(self) -> dict[str, Any]:
        def partitions(**options: str) -> dict[str, str]:
            datetime.strptime(options["start"], options["fmt"])
            self.partitions.append(options)
            return options

        def asset(*, partitions_def: Any, retry_policy: int) -> Callable[[Callable[[Any], Any]], Any]:
            assert partitions_def in self.partitions and retry_policy == 3
            return lambda body: self.assets.setdefault(body.__name__, body)

        def job(name: str, *, selection: list[Any], partitions_def: Any) -> str:
            assert partitions_def in self.partitions
            self.jobs[name] = selection
            return name

        def definitions(*, assets: list[Any], jobs: list[str], schedules: list[str]) -> None:
            assert assets == list(self.assets.values()) and jobs == list(self.jobs)
            self.scheduled = schedules

        return {
            "TimeWindowPartitionsDefinition": partitions,
            "RetryPolicy": lambda max_retries: max_retries,
            "asset": asset,
            "define_asset_job": job,
            "build_schedule_from_partitioned_job": lambda name: f"schedule of {name}",
            "Definitions": definitions,
        }

    def materialize(self, name: str, partition: str) -> Any:
        return self.assets[name](SimpleNamespace(partition_key=partition))


@pytest.fixture
def recipe(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """What the page shows for an orchestrator, with the page's pipelines as a module beside it."""
    (page,) = [page for page in pages() if page.name == "docs/deployment.md"]
    module = next(block.text for block in page.blocks if block.text.startswith("# orders.py"))
    (tmp_project / "orders.py").write_text(module)
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    monkeypatch.syspath_prepend(str(tmp_project))
    with isolated_registry():
        yield lambda wanted: next(block.text for block in page.blocks if f"from {wanted} import" in block.text)
    sys.modules.pop("orders", None)


def test_a_task_of_airflow_that_is_repeated_loads_once(
    recipe: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow, decorators = Airflow(), ModuleType("airflow.decorators")
    vars(decorators).update(dag=airflow.dag, task=airflow.task)
    monkeypatch.setitem(sys.modules, "airflow", ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.decorators", decorators)
    exec(compile(recipe("airflow.decorators"), "deployment.md", "exec"), {})
    import orders  # type: ignore[import-not-found]

    orders.fetch_orders()
    for airflow.ts in (TIMES[0], TIMES[0], TIMES[1]):  # a task that is repeated, and the next one
        airflow.dags["orders"]()
    loaded_once(airflow.results)


def test_a_partition_of_dagster_that_is_repeated_loads_once(
    recipe: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dagster, module = Dagster(), ModuleType("dagster")
    vars(module).update(dagster.names())
    monkeypatch.setitem(sys.modules, "dagster", module)
    exec(compile(recipe("dagster"), "deployment.md", "exec"), {})
    import orders  # type: ignore[import-not-found]

    assert dagster.scheduled == ["schedule of load_orders"]
    orders.fetch_orders()
    times = ("2026-03-01-06:15", "2026-03-01-06:15", "2026-03-01-06:30")
    loaded_once([dagster.materialize("loaded_orders", at) for at in times])


def loaded_once(results: list[Any]) -> None:
    """A time, the same again, and the next one."""
    assert [result.get("replayed", False) for result in results] == [False, True, False]
    assert [result["rows_inserted"] for result in results] == [2, 0, 0]
