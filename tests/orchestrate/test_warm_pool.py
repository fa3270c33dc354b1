"""Warm workers: real processes that run one job after the other, killed, interrupted, frozen and replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.contracts.orchestration import DispatchHandle, DispatchReport, DispatchSpec
from ematix_flow.errors import DispatchError, NoFreeWorker
from ematix_flow.orchestrate.executors import warm_pool
from ematix_flow.orchestrate.executors.warm_pool import WarmPool

# What a job leaves: one line of JSON in `jobs`, one line per import in `imports`.
SHOP = """\
import json, os, sys, time, types
from pathlib import Path
from ematix_flow.pipeline import register

sys.modules["made_by_a_program"] = types.ModuleType("made_by_a_program")
sys.modules["made_by_a_program"].__file__ = "no_such_file.py"
VERSION = 1
with open("imports", "a") as file:
    file.write(f"{os.getpid()}\\n")
os.environ["SET_BY_THE_MODULE"] = "yes"

def leave(**facts):
    with open("jobs", "a") as file:
        file.write(json.dumps({"pid": os.getpid(), **facts}) + "\\n")

@register(name="note", schedule=None)
def note():
    variables = [os.environ.get(name) for name in ("EMATIX_FLOW_RUN_LOG_URL", "MINE", "SET_BY_THE_MODULE")]
    leave(version=VERSION, env=variables, stdin=sys.stdin.read(), spark="pyspark" in sys.modules)

@register(name="wait", schedule=None)
def wait():
    Path("waiting").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    leave()

@register(name="fork and wait", schedule=None)
def fork_and_wait():
    os.fork()
    wait()

@register(name="raise", schedule=None)
def fail():
    raise ValueError("no")

@register(name="exit", schedule=None)
def leave_early():
    os.chdir("/")
    sys.exit(3)
"""


def plain_run(spec: DispatchSpec) -> list[str]:
    return ["run", "--module", spec.module, "--no-run-log", spec.pipeline_name]


def spec(name: str, module: str = "shop", **env: str) -> DispatchSpec:
    return DispatchSpec(name, module, f"token-{name}", 300, "memory://", env=env)


def until(is_so: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def lines(file: str) -> list[Any]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()] if Path(file).exists() else []


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def pid_of(handle: DispatchHandle) -> int:
    return int(handle.ref.partition(".")[0])


@pytest.fixture
def shop(tmp_project: Path) -> Path:
    (tmp_project / "shop.py").write_text(SHOP)
    return tmp_project / "shop.py"


@pytest.fixture
def opened(shop: Path) -> Iterator[Callable[..., WarmPool]]:
    pools: list[WarmPool] = []

    def open_pool(count: int = 1, **options: Any) -> WarmPool:
        pools.append(WarmPool(count, **{"patience_s": 30.0, "argv": plain_run, **options}))
        return pools[-1]

    yield open_pool
    (shop.parent / "go").touch()
    for pool in pools:
        pool.close(timeout_s=30)
        assert not pool._workers


def done(pool: WarmPool, handle: DispatchHandle) -> int:
    """The exit code of a job, once it has ended."""
    until(lambda: any(report.handle == handle for report in pool._reports))
    reports = pool.reap()
    return next(report.exit_code for report in reports if report.handle == handle)


def run(pool: WarmPool, job: DispatchSpec) -> int:
    return done(pool, pool.dispatch(job))


def test_the_second_job_finds_the_module_imported_and_spark_not_started(opened: Callable[..., WarmPool]) -> None:
    pool = opened()
    handles = [pool.dispatch(spec("note", MINE="first"))]
    assert done(pool, handles[0]) == 0
    handles.append(pool.dispatch(spec("note")))
    assert done(pool, handles[1]) == 0
    pid = pid_of(handles[0])
    assert lines("imports") == [pid]
    same = {"pid": pid, "version": 1, "stdin": "", "spark": False}
    assert lines("jobs") == [
        {**same, "env": ["memory://", "first", "yes"]},
        {**same, "env": ["memory://", None, "yes"]},
    ]
    assert [(h.pipeline_name, h.backend, pid_of(h)) for h in handles] == [("note", "workers", pid)] * 2
    assert handles[0] != handles[1]


def test_a_job_that_fails_or_exits_leaves_the_worker_as_it_was(opened: Callable[..., WarmPool]) -> None:
    pool = opened()
    assert [run(pool, spec(name)) for name in ("raise", "exit", "note")] == [1, 1, 0]
    assert len(lines("imports")) == 1
    assert len(lines("jobs")) == 1  # in the folder where the worker was started, though `exit` left it


def test_changed_code_is_run_by_another_worker(opened: Callable[..., WarmPool], shop: Path) -> None:
    pool = opened()
    assert run(pool, spec("note")) == 0
    shop.write_text(SHOP.replace("VERSION = 1", "VERSION = 22"))
    assert run(pool, spec("note")) == 0
    first, second = lines("jobs")
    assert (first["version"], second["version"]) == (1, 22)
    assert first["pid"] != second["pid"]


def test_an_idle_worker_notices_changed_code_by_itself(opened: Callable[..., WarmPool], shop: Path) -> None:
    pool = opened()
    handle = pool.dispatch(spec("note"))
    assert done(pool, handle) == 0
    shop.write_text(SHOP.replace("VERSION = 1", "VERSION = 22"))
    until(lambda: [w for w in pool._workers if w.is_free and w.process.pid != pid_of(handle)])


def test_code_that_changes_while_its_first_job_runs_counts_as_changed(
    opened: Callable[..., WarmPool], shop: Path
) -> None:
    pool = opened()
    handle = pool.dispatch(spec("wait"))
    until(Path("waiting").exists)
    shop.write_text(SHOP.replace("VERSION = 1", "VERSION = 22"))
    Path("go").touch()
    assert done(pool, handle) == 0
    assert run(pool, spec("note")) == 0
    assert lines("jobs")[-1]["version"] == 22


def test_a_module_that_was_broken_is_read_afresh(opened: Callable[..., WarmPool], shop: Path) -> None:
    pool = opened()
    shop.write_text(SHOP + "\nnonsense\n")
    assert run(pool, spec("note")) == 2
    shop.write_text(SHOP)
    assert run(pool, spec("note")) == 0


@pytest.mark.parametrize("limit", [{"max_jobs": 1}, {"max_rss_mb": 1}])
def test_a_worker_is_replaced_between_jobs(opened: Callable[..., WarmPool], limit: dict[str, int]) -> None:
    pool = opened(**limit)
    assert [run(pool, spec("note")) for _ in range(2)] == [0, 0]
    first, second = lines("imports")
    assert first != second
    assert is_gone(first)


def test_when_all_are_busy_nobody_waits(opened: Callable[..., WarmPool]) -> None:
    pool = opened()
    handle = pool.dispatch(spec("wait"))
    assert pool.running() == 1
    with pytest.raises(NoFreeWorker, match="1 worker is busy"):
        pool.dispatch(spec("note"))
    Path("go").touch()
    assert done(pool, handle) == 0
    assert pool.running() == 0
    assert run(pool, spec("note")) == 0


def test_jobs_run_side_by_side(opened: Callable[..., WarmPool]) -> None:
    pool = opened(2)
    handles = [pool.dispatch(spec("wait")) for _ in range(2)]
    assert pool.running() == 2
    Path("go").touch()
    assert [done(pool, handles[0])] == [0]
    until(lambda: pool.running() == 0)
    assert len({job["pid"] for job in lines("jobs")}) == 2


@pytest.mark.parametrize("name", ["wait", "fork and wait"])
def test_a_killed_worker_is_noticed_and_the_next_job_runs(opened: Callable[..., WarmPool], name: str) -> None:
    pool = opened()
    handle = pool.dispatch(spec(name))
    until(Path("waiting").exists)
    os.kill(pid_of(handle), signal.SIGKILL)
    until(lambda: pool._reports)
    assert pool.reap() == [DispatchReport(handle, -signal.SIGKILL)]
    assert pool.running() == 0
    assert run(pool, spec("note")) == 0
    assert lines("jobs")[-1]["pid"] != pid_of(handle)


def test_a_worker_that_died_while_idle_costs_no_job(opened: Callable[..., WarmPool]) -> None:
    pool = opened()
    handle = pool.dispatch(spec("note"))
    assert done(pool, handle) == 0
    os.kill(pid_of(handle), signal.SIGKILL)
    assert run(pool, spec("note")) == 0
    assert len(lines("jobs")) == 2


def test_a_frozen_worker_is_killed_before_anybody_else_gets_its_job(
    opened: Callable[..., WarmPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opened()
    handle = pool.dispatch(spec("note"))
    assert done(pool, handle) == 0
    monkeypatch.setattr(warm_pool, "TAKE_TIMEOUT_S", 0.3)
    os.kill(pid_of(handle), signal.SIGSTOP)
    with pytest.raises(DispatchError, match="was killed") as refused:
        pool.dispatch(spec("note"))
    assert not isinstance(refused.value, NoFreeWorker)
    until(lambda: is_gone(pid_of(handle)))
    assert len(lines("jobs")) == 1


def test_cancel_interrupts_the_job_and_keeps_the_worker(opened: Callable[..., WarmPool]) -> None:
    pool = opened()
    handle = pool.dispatch(spec("wait"))
    until(Path("waiting").exists)
    pool.cancel(handle)
    assert done(pool, handle) == 130
    pool.cancel(handle)  # it has ended: nobody is interrupted
    assert run(pool, spec("note")) == 0
    assert [job["pid"] for job in lines("jobs")] == [pid_of(handle)]


def test_a_closed_pool_lets_its_jobs_finish(opened: Callable[..., WarmPool]) -> None:
    pool = opened()
    handle = pool.dispatch(spec("wait"))
    until(Path("waiting").exists)
    pool.close(timeout_s=0)
    with pytest.raises(DispatchError, match="closed"):
        pool.dispatch(spec("note"))
    assert not is_gone(pid_of(handle))
    Path("go").touch()
    until(lambda: is_gone(pid_of(handle)))
    assert [job["pid"] for job in lines("jobs")] == [pid_of(handle)]
    assert pool.reap() == [DispatchReport(handle, 0)]


def test_a_worker_finishes_its_job_and_ends_when_its_pool_is_killed(shop: Path) -> None:
    program = (
        "import time\n"
        "from ematix_flow.contracts.orchestration import DispatchSpec\n"
        "from ematix_flow.orchestrate.executors.warm_pool import WarmPool\n"
        "run = lambda spec: ['run', '--module', 'shop', '--no-run-log', spec.pipeline_name]\n"
        "pool = WarmPool(2, patience_s=30, argv=run)\n"
        "print(pool.dispatch(DispatchSpec('wait', 'shop', 't', 300, 'memory://')).ref, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as scheduler:
        assert scheduler.stdout is not None
        worker = int(scheduler.stdout.readline().partition(".")[0])
        until(Path("waiting").exists)
        scheduler.kill()
    assert not is_gone(worker)
    Path("go").touch()
    until(lambda: is_gone(worker))
    assert [job["pid"] for job in lines("jobs")] == [worker]


def test_workers_that_do_not_come_up_are_tried_again_at_a_distance(
    opened: Callable[..., WarmPool], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/bin/false")
        pool = opened(patience_s=0.5)
        with pytest.raises(NoFreeWorker, match="No worker is ready"):
            pool.dispatch(spec("note"))
    assert [r.getMessage() for r in caplog.records if "before it was ready" in r.getMessage()]
    pool._patience_s = 30.0
    assert run(pool, spec("note")) == 0


SPARK_SHOP = """\
import json
from ematix_flow.config.spark_place import spark_settings
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.pipeline import register

@register(name="look", schedule=None)
def look():
    from pyspark.sql import SparkSession
    from ematix_flow.spark.session import open_session

    spark = open_session(SessionNeeds(), spark_settings())
    facts = {
        "java": spark._jvm.java.lang.ProcessHandle.current().pid(),
        "views": [table.name for table in spark.catalog.listTables()],
        "setting": spark.conf.get("spark.sql.session.timeZone"),
        "cached": spark.sparkContext._jsc.getPersistentRDDs().size(),
        "one": SparkSession.builder.getOrCreate() is spark and SparkSession.active() is spark,
    }
    with open("jobs", "a") as file:
        file.write(json.dumps(facts) + "\\n")
    spark.range(3).createOrReplaceTempView("mine")
    spark.table("mine").cache().collect()
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
"""


def test_spark_stays_up_has_a_session_per_job_and_ends_with_its_worker(
    opened: Callable[..., WarmPool], tmp_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_SHORT_JOB", "true")
    (tmp_project / "spark_shop.py").write_text(SPARK_SHOP)
    (tmp_project / ".ematix-flow.toml").unlink(missing_ok=True)  # this is about Java, whatever engine the others use
    pool = opened(warm="spark", patience_s=120.0)
    handles = []
    for _ in range(2):
        handles.append(pool.dispatch(spec("look", "spark_shop")))
        assert done(pool, handles[-1]) == 0
    jobs = lines("jobs")
    assert jobs[0] == jobs[1]
    assert len({pid_of(handle) for handle in handles}) == 1
    java = jobs[0].pop("java")
    assert jobs[0] == {"views": [], "setting": "UTC", "cached": 0, "one": True}
    pool._closing.set()  # nobody needs another worker with another Spark
    os.kill(pid_of(handles[0]), signal.SIGKILL)
    until(lambda: is_gone(java))


NATIVE_SHOP = """\
import json
from ematix_flow.config.spark_place import spark_settings
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.pipeline import register

@register(name="look", schedule=None)
def look():
    from ematix_flow.spark.session import open_session

    session = open_session(SessionNeeds(), spark_settings())
    with open("jobs", "a") as file:
        file.write(json.dumps([table.name for table in session.catalog.listTables()]) + "\\n")
    session.range(3).createOrReplaceTempView("mine")
"""


def test_the_native_engine_has_a_session_per_job_in_the_same_worker(
    opened: Callable[..., WarmPool], tmp_project: Path
) -> None:
    (tmp_project / ".ematix-flow.toml").write_text('[spark]\nengine = "native"\n')
    (tmp_project / "native_shop.py").write_text(NATIVE_SHOP)
    pool = opened()
    first = pool.dispatch(spec("look", "native_shop"))
    assert done(pool, first) == 0
    second = pool.dispatch(spec("look", "native_shop"))
    assert done(pool, second) == 0
    assert pid_of(first) == pid_of(second)
    assert lines("jobs") == [[], []]
