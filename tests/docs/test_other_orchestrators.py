"""The recipe for Airflow, which is not installed here: what the page shows is run with two decorators that stand in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
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


def test_a_task_of_airflow_that_is_repeated_loads_once(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (page,) = [page for page in pages() if page.name == "docs/deployment.md"]
    module = next(block.text for block in page.blocks if block.text.startswith("# orders.py"))
    recipe = next(block.text for block in page.blocks if "airflow.decorators" in block.text)
    (tmp_project / "orders.py").write_text(module)
    airflow, decorators = Airflow(), ModuleType("airflow.decorators")
    vars(decorators).update(dag=airflow.dag, task=airflow.task)
    monkeypatch.setitem(sys.modules, "airflow", ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.decorators", decorators)
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    monkeypatch.syspath_prepend(str(tmp_project))
    with isolated_registry():
        exec(compile(recipe, "deployment.md", "exec"), {})
        import orders  # type: ignore[import-not-found]

        orders.fetch_orders()
        for airflow.ts in (TIMES[0], TIMES[0], TIMES[1]):  # a task that is repeated, and the next one
            airflow.dags["orders"]()
    sys.modules.pop("orders")
    assert [result.get("replayed", False) for result in airflow.results] == [False, True, False]
    assert [result["rows_inserted"] for result in airflow.results] == [2, 0, 0]
