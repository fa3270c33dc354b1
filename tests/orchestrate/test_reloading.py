"""Modules that change while a scheduler runs: loaded again as a whole, or not at all."""

from __future__ import annotations

import logging
import re
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ematix_flow.config.loader import load_module
from ematix_flow.declare import registry
from ematix_flow.errors import ModuleNotLoaded
from ematix_flow.orchestrate import reloading
from ematix_flow.orchestrate.reloading import WatchedModule
from ematix_flow.run.registered import orchestrated
from tests.orchestrate.project import Project
from tests.orchestrate.test_scheduler import scheduler

NAMED = """
from ematix_flow import pipeline
from shop_names import NAMES

for name in NAMES:
    pipeline.register(name=name, schedule="@daily")(lambda: None)
"""


@pytest.fixture
def shop(tmp_project: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Path]:
    """A folder with a module that imports another, which nobody has loaded."""
    caplog.set_level(logging.INFO, logger="ematix_flow.scheduler")
    (tmp_project / "shop_flows.py").write_text(NAMED)
    (tmp_project / "shop_names.py").write_text("NAMES = ['a', 'b']\n")
    with registry.isolated():
        yield tmp_project
    for name in ("shop_flows", "shop_names", "shop_more"):
        sys.modules.pop(name, None)
    sys.path[:] = [place for place in sys.path if place != str(tmp_project)]


def watched() -> WatchedModule:
    return WatchedModule("shop_flows", partial(load_module, "shop_flows"))


def declared() -> list[str]:
    return [entry.name for entry in orchestrated()]


def looked_twice(module: WatchedModule) -> bool:
    """Two looks, with nothing written in between; whether the second one found something new."""
    assert module.refreshed() is False, "somebody may still be writing"
    return module.refreshed()


def test_a_changed_file_that_the_module_imports_changes_what_is_declared(
    shop: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = watched()
    assert not module.refreshed() and not module.refreshed(), "nothing has changed"
    # Of the same length and within the same second: Python alone would take its old bytecode.
    (shop / "shop_names.py").write_text("NAMES = ['a', 'c']\n")
    assert looked_twice(module)
    assert declared() == ["a", "c"]
    assert not module.refreshed(), "once"
    (line,) = caplog.messages
    assert "shop_names.py has changed" in line and "new: 'c'; gone: 'b'" in line


def test_a_file_that_is_being_written_is_waited_for(shop: Path) -> None:
    module = watched()
    for written in range(3):
        (shop / "shop_names.py").write_text(f"NAMES = ['a'] * {written}\n")
        assert not module.refreshed()
    (shop / "shop_names.py").write_text("NAMES = ['d']\n")
    assert looked_twice(module) and declared() == ["d"]


def test_a_module_that_does_not_load_any_more_changes_nothing_and_says_so_once(
    shop: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = watched()
    before = (registry.current(), sys.modules["shop_flows"], sys.modules["shop_names"])
    (shop / "shop_names.py").write_text("NAMES = ['x']\n")
    (shop / "shop_flows.py").write_text(f"{NAMED}\nraise RuntimeError('half a thought')\n")
    assert not looked_twice(module)
    assert (registry.current(), sys.modules["shop_flows"], sys.modules["shop_names"]) == before
    assert declared() == ["a", "b"]
    assert not module.refreshed() and not module.refreshed(), "it is not tried again before something changes"
    (shop / "shop_flows.py").touch()
    assert not looked_twice(module)
    (line,) = caplog.messages
    assert "half a thought" in line and "shop_flows.py" in line and "still counts" in line
    (shop / "shop_flows.py").write_text(NAMED)
    assert looked_twice(module) and declared() == ["x"]


def test_a_graph_that_makes_no_sense_is_a_module_that_does_not_load(
    shop: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = watched()
    (shop / "shop_flows.py").write_text(
        "from ematix_flow import pipeline\n"
        "pipeline.register(name='a', schedule=None, depends_on=['nobody'])(lambda: None)\n"
    )
    assert not looked_twice(module)
    assert declared() == ["a", "b"] and "nobody" in caplog.text


def test_a_file_that_was_missing_is_found_when_it_comes(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = watched()
    (shop / "shop_flows.py").write_text(NAMED.replace("shop_names", "shop_more"))
    assert not looked_twice(module)
    (shop / "shop_more.py").write_text("NAMES = ['late']\n")
    assert not module.refreshed(), "nobody watches a file that was not there"
    monkeypatch.setattr(module, "_try_again_at", 0.0)
    assert module.refreshed() and declared() == ["late"]


def test_a_module_that_is_wrong_from_the_start_is_an_error(shop: Path) -> None:
    (shop / "shop_flows.py").write_text("1 / 0\n")
    with pytest.raises(ModuleNotLoaded, match="ZeroDivisionError"):
        watched()
    assert reloading.TRY_AGAIN_S > 0


FLOWS = """
from names import NAMES

for name in NAMES:
    def body(name=name):
        ran(name)
        return {"rows": 1}
    pipeline.register(name=name, schedule="* * * * * */6", catchup="all", idempotent=True)(body)
"""


@pytest.mark.parametrize("executor", ["subprocess+python://", "workers://?count=1"])
def test_a_scheduler_takes_up_changed_modules_between_two_ticks(project: Project, executor: str) -> None:
    names = project.folder / "names.py"
    names.write_text("NAMES = ['orders']\n")
    project.write(FLOWS)
    running = scheduler(project, "--executor", executor, "--lease-seconds", "30")
    project.until(project.executions)
    names.write_text("NAMES = ['orders', 'returns']\n")
    project.until(lambda: "returns" in _executed(project))
    assert project.said().count("module loaded again") == 1
    whole = (project.folder / "flows.py").read_text()
    (project.folder / "flows.py").write_text(f"{whole}\nraise RuntimeError('half a thought')\n")
    project.until(lambda: "does not load any more" in project.said())
    (project.folder / "flows.py").write_text(whole)
    names.write_text("NAMES = ['orders', 'refunds']\n")
    project.until(lambda: "refunds" in _executed(project))
    assert running.poll() is None
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=30) == 0
    assert project.said().count("does not load any more") == 1
    assert re.search(r"module loaded again: flows \(.*new: 'refunds'; gone: 'returns'", project.said()), project.said()
    assert set(project.times().values()) == {1}, "each time of each of them once"


def _executed(project: Project) -> set[str]:
    return {one["name"] for one in project.executions()}
