"""From a claim in a real run log, by an executor, to a worker that runs the pipeline and gives the claim back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.contracts.orchestration import DispatchReport, DispatchSpec, WatchedExecutor
from ematix_flow.orchestrate.executors.open import executor_from_url
from ematix_flow.run.runlogs.urls import from_url

SHOP = """\
from ematix_flow.pipeline import register

@register(name="note", schedule=None)
def note():
    open("done", "a").write("x")

@register(name="fail", schedule=None)
def fail():
    raise ValueError("no")
"""


@pytest.fixture(params=["subprocess+python://", "workers://?count=1"])
def executor(request: pytest.FixtureRequest, tmp_project: Path) -> Iterator[WatchedExecutor]:
    (tmp_project / "shop.py").write_text(SHOP)
    made = executor_from_url(request.param)
    yield made
    made.close(timeout_s=30)
    made.reap()


@pytest.fixture
def store(tmp_project: Path) -> Iterator[Any]:
    opened = from_url(f"sqlite:///{tmp_project / 'runs.db'}")
    yield opened
    opened.close()


def dispatched(executor: WatchedExecutor, name: str, token: str) -> DispatchReport:
    """Hand it over and wait for its end."""
    handle = executor.dispatch(DispatchSpec(name, "shop", token, 60, f"sqlite:///{Path('runs.db').absolute()}"))
    deadline = time.monotonic() + 30
    while not (ended := executor.reap()):
        assert time.monotonic() < deadline, "the worker did not end in time"
        time.sleep(0.01)
    [report] = ended
    assert report.handle == handle
    return report


@pytest.mark.parametrize(("name", "exit_code", "status"), [("note", 0, "succeeded"), ("fail", 1, "failed")])
def test_a_worker_runs_records_and_gives_the_claim_back(
    executor: WatchedExecutor, store: Any, name: str, exit_code: int, status: str
) -> None:
    claim = store.claim(name, "tester", 60)
    assert dispatched(executor, name, claim.token).exit_code == exit_code
    records, _ = store.list_runs(pipeline=name)
    assert [record.status for record in records] == [status]
    assert list(store.claims()) == []


def test_a_worker_whose_claim_is_gone_changes_nothing(executor: WatchedExecutor, store: Any) -> None:
    claim = store.claim("note", "tester", 60)
    store.release(claim.token)
    dispatched(executor, "note", claim.token)
    assert not Path("done").exists()
    assert store.list_runs(pipeline="note")[0] == []
