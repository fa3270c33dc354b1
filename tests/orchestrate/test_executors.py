"""Executors by URL, what a worker is started with, and workers that are processes of this host."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ematix_flow import executors as window
from ematix_flow.contracts.orchestration import DispatchReport, DispatchSpec, WatchedExecutor
from ematix_flow.errors import DispatchError, InvalidConfig
from ematix_flow.orchestrate.executors.lambda_ import LambdaExecutor
from ematix_flow.orchestrate.executors.open import executor_from_url
from ematix_flow.orchestrate.executors.subprocess_ import SubprocessExecutor
from ematix_flow.orchestrate.executors.worker_command import worker_argv, worker_environment

SPEC = DispatchSpec(
    "sync customers",
    "shop",
    "3f1c9a7e-token",
    300.0,
    "postgresql://ann:s3cret@db/runs",
    ["https://hooks.slack.com/services/T0/B0/s3cret", "email://relay?to=a@x.org,b@x.org"],
    "prometheus://:9108",
    {"EMATIX_FLOW_RERUN_FULL": "1"},
)
PLAIN = DispatchSpec("load", "shop", "t0k3n", 2.5, "sqlite:///runs.db")

# A program in the place of `flow`: writes down what it was started with, then does what the file `deed` says.
PROGRAM = """\
import json, os, sys, time
from pathlib import Path
started = {"argv": sys.argv[1:], "env": dict(os.environ), "session": os.getsid(0), "stdin": sys.stdin.read()}
Path(f"started-{os.getpid()}.part").write_text(json.dumps(started))
os.rename(f"started-{os.getpid()}.part", f"started-{os.getpid()}.json")
while not Path("go").exists():
    time.sleep(0.01)
sys.exit(7)
"""


def until(is_so: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


# ── what a worker is started with ──


def test_the_arguments_hold_no_url_and_everything_else() -> None:
    assert worker_argv(SPEC) == [
        *("run", "--module", "shop", "--claim-token", "3f1c9a7e-token"),
        *("--heartbeat-interval", "100", "--lease-seconds", "300", "sync customers"),
    ]
    assert "s3cret" not in " ".join(worker_argv(SPEC))


def test_a_short_lease_has_a_heartbeat_each_second() -> None:
    assert worker_argv(PLAIN)[5:9] == ["--heartbeat-interval", "1", "--lease-seconds", "2.5"]


def test_a_name_that_looks_like_an_option_is_still_a_name() -> None:
    assert worker_argv(DispatchSpec("--odd", "shop", "t", 3, "memory://"))[-2:] == ["--", "--odd"]


def test_urls_travel_in_the_environment() -> None:
    assert worker_environment(SPEC) == {
        "EMATIX_FLOW_RERUN_FULL": "1",
        "EMATIX_FLOW_RUN_LOG_URL": "postgresql://ann:s3cret@db/runs",
        "EMATIX_FLOW_ALERTERS": "https://hooks.slack.com/services/T0/B0/s3cret,email://relay?to=a@x.org%2Cb@x.org",
        "EMATIX_FLOW_METRICS": "prometheus://:9108",
    }
    assert worker_environment(PLAIN) == {"EMATIX_FLOW_RUN_LOG_URL": "sqlite:///runs.db"}


# ── by URL ──


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("subproces://", "did you mean 'subprocess'?"),
        ("subprocess", "did you mean 'subprocess'?"),
        ("", "use one of subprocess://"),
        ("subprocess://host", "no place for 'host'"),
        ("subprocess://?count=2", "no option 'count'"),
        ("k8s://?image=flow:1", "lacks a namespace"),
        ("k8s://etl", "lacks an image"),
        ("k8s://etl?image=", "lacks an image"),
        ("k8s://etl?image=flow:1&sa=a&service-account=b", "two service accounts"),
        ("k8s://etl?imag=flow:1", "did you mean 'image'?"),
        ("k8s://etl?image=a&image=b", "given twice"),
        ("lambda://", "lacks the name or ARN"),
        ("lambda://?qualifier=live", "lacks the name or ARN"),
        ("workers://?count=0", "not a whole number from 1"),
        ("workers://?count=two", "not a whole number from 1"),
        ("workers://?warm=coffee", "write warm=spark"),
        ("workers://?max_job=3", "did you mean 'max_jobs'?"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url: str, said: str) -> None:
    with pytest.raises(ValueError) as refused:
        executor_from_url(url)
    assert isinstance(refused.value, InvalidConfig)
    assert said in str(refused.value)


def test_a_function_is_a_name_or_an_arn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    arn = "arn:aws:lambda:us-east-2:123456789012:function:flow-worker"
    by_name, by_arn = executor_from_url("lambda://flow-worker?qualifier=live"), executor_from_url(f"lambda://{arn}")
    assert isinstance(by_name, LambdaExecutor) and isinstance(by_arn, LambdaExecutor)
    assert (by_name.function, by_name.qualifier) == ("flow-worker", "live")
    assert (by_arn.function, by_arn.qualifier) == (arn, None)
    assert by_name._client.meta.region_name == "eu-west-1"
    assert by_arn._client.meta.region_name == "us-east-2"


@pytest.mark.parametrize(
    ("url", "library", "extra"),
    [("k8s://etl?image=flow:1", "kubernetes", "executor-k8s"), ("lambda://f", "boto3", "executor-lambda")],
)
def test_a_missing_library_is_named_with_its_extra(
    url: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"ematix-flow\[{extra}\]"):
        executor_from_url(url)


def test_the_window_shows_the_documented_names() -> None:
    assert window.executor_from_url is executor_from_url
    assert issubclass(window.DispatchError, RuntimeError)
    assert isinstance(executor_from_url("subprocess://"), WatchedExecutor)


# ── processes of this host ──


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py")]


def started(ref: str) -> dict[str, object]:
    file = Path(f"started-{ref}.json")
    until(file.exists)
    content: dict[str, object] = json.loads(file.read_text())
    return content


def test_a_worker_gets_arguments_and_environment_and_is_reaped(program: list[str]) -> None:
    executor = SubprocessExecutor(program)
    handle = executor.dispatch(SPEC)
    told = started(handle.ref)
    assert (handle.pipeline_name, handle.backend) == ("sync customers", "subprocess")
    assert told["argv"] == worker_argv(SPEC)
    assert worker_environment(SPEC).items() <= told["env"].items()  # type: ignore[attr-defined]
    assert told["env"]["PATH"] == os.environ["PATH"]  # type: ignore[index]
    assert told["stdin"] == ""
    assert (executor.running(), executor.reap()) == (1, [])
    Path("go").touch()
    until(lambda: executor.running() == 0)
    assert executor.reap() == [DispatchReport(handle, 7)]
    assert executor.reap() == []


def test_no_url_is_on_the_command_line_of_a_worker(program: list[str]) -> None:
    executor = SubprocessExecutor(program)
    handle = executor.dispatch(SPEC)
    started(handle.ref)
    assert b"s3cret" not in Path(f"/proc/{handle.ref}/cmdline").read_bytes()
    executor.cancel(handle)
    executor.close()


def test_a_worker_leads_a_session_of_its_own_and_outlives_close(program: list[str]) -> None:
    executor = SubprocessExecutor(program)
    handle = executor.dispatch(PLAIN)
    assert started(handle.ref)["session"] == int(handle.ref)
    executor.close(timeout_s=0)
    assert executor.running() == 1
    Path("go").touch()
    executor.close()
    assert executor.reap() == [DispatchReport(handle, 7)]


def test_cancel_ends_the_worker_and_only_a_worker_of_this_executor(program: list[str]) -> None:
    executor, other = SubprocessExecutor(program), SubprocessExecutor(program)
    handle = executor.dispatch(PLAIN)
    started(handle.ref)
    other.cancel(handle)
    assert executor.running() == 1
    executor.cancel(handle)
    until(lambda: executor.running() == 0)
    assert executor.reap() == [DispatchReport(handle, -signal.SIGTERM)]
    executor.cancel(handle)  # it is gone, and that is all right


def test_flow_is_looked_for_in_path(program: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = executor_from_url("subprocess://")
    with pytest.raises(RuntimeError, match=r"subprocess\+python://"):
        executor.dispatch(PLAIN)
    (tmp_path / "flow").write_text(f"#!{sys.executable}\n{PROGRAM}")
    (tmp_path / "flow").chmod(0o755)
    (tmp_path / "go").touch()
    handle = executor.dispatch(PLAIN)
    assert started(handle.ref)["argv"] == worker_argv(PLAIN)
    executor.close()
    assert executor.reap() == [DispatchReport(handle, 7)]


def test_a_program_that_cannot_be_started_is_a_dispatch_error(tmp_path: Path) -> None:
    with pytest.raises(DispatchError, match="could not be started for 'load'"):
        SubprocessExecutor([str(tmp_path / "nothing")]).dispatch(PLAIN)
