"""Kubernetes Jobs and Lambda calls: the vendors' own clients, talking to stand-ins of the two services.

The stand-ins are small HTTP servers that keep what they receive and answer as the services do; no Job and no function
runs. They show what is sent and how answers are read, not that a cluster accepts it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.cli.init import project_files
from ematix_flow.contracts.orchestration import DispatchHandle, DispatchSpec, WatchedExecutor
from ematix_flow.errors import DispatchError, InvalidConfig
from ematix_flow.orchestrate.executors.kubernetes_ import job_name
from ematix_flow.orchestrate.executors.open import executor_from_url
from ematix_flow.orchestrate.executors.worker_command import worker_argv, worker_environment

SPEC = DispatchSpec(
    "Sync Customers (EU)",
    "shop",
    "3F1c9a7e-0000",
    300.0,
    "postgresql://ann:s3cret@db/runs",
    ["https://hooks.slack.com/services/T0/B0/s3cret"],
    "prometheus://:9108",
    {"EMATIX_FLOW_RERUN_FULL": "1"},
)
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass
class StandIn:
    """A server that keeps requests and gives one answer to all of them."""

    address: str
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    status: int = 200
    answer: Any = field(default_factory=dict)


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kept.requests.append((self.command, self.path, json.loads(body) if body else None))
            said = json.dumps(kept.answer).encode() if kept.answer is not None else b""
            self.send_response(kept.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.send_header("x-amzn-RequestId", "request-1")
            self.end_headers()
            self.wfile.write(said)

        do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept = StandIn(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield kept
    server.shutdown()
    server.server_close()
    thread.join()


# ── Kubernetes ──


@pytest.fixture
def kubeconfig(stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": stand_in.address}}],
        "users": [{"name": "me", "user": {"token": "abc"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))  # JSON is YAML
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    stand_in.status = 201
    return stand_in


@pytest.fixture
def cluster(kubeconfig: StandIn) -> Iterator[WatchedExecutor]:
    executor = executor_from_url("k8s://etl?image=ghcr.io/acme/flow:1.2&sa=loader")
    yield executor
    executor.close()


def test_a_job_is_made_as_documented(cluster: WatchedExecutor, kubeconfig: StandIn) -> None:
    handle = cluster.dispatch(SPEC)
    [(method, path, job)] = kubeconfig.requests
    assert (method, path) == ("POST", "/apis/batch/v1/namespaces/etl/jobs")
    labels = {"ematix-flow/pipeline": "sync-customers-eu", "ematix-flow/claim-token-short": "3f1c9a7e"}
    assert re.fullmatch(r"flow-sync-customers-eu-[0-9a-f]{8}", job["metadata"]["name"])
    assert job == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": handle.ref,
            "labels": labels,
            "annotations": {"ematix-flow/pipeline": "Sync Customers (EU)"},
        },
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": 3600,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": "Never",
                    "serviceAccountName": "loader",
                    "containers": [
                        {
                            "name": "worker",
                            "image": "ghcr.io/acme/flow:1.2",
                            "command": ["flow"],
                            "args": worker_argv(SPEC),
                            "env": [{"name": n, "value": v} for n, v in worker_environment(SPEC).items()],
                        }
                    ],
                },
            },
        },
    }
    assert (handle.backend, cluster.running(), cluster.reap()) == ("k8s", 0, [])


def test_the_image_of_a_new_project_executes_the_worker(cluster: WatchedExecutor, kubeconfig: StandIn) -> None:
    """As a cluster joins image and container: `command` takes the place of the entry point, `args` that of CMD."""
    cluster.dispatch(SPEC)
    [(_, _, job)] = kubeconfig.requests
    [container] = job["spec"]["template"]["spec"]["containers"]
    dockerfile = project_files("shop")["Dockerfile"]
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", dockerfile, flags=re.MULTILINE)
    entry_point = json.loads(entry[1]) if entry else []
    executed = [*container.get("command", entry_point), *container["args"]]
    assert executed == ["flow", *worker_argv(SPEC)]
    assert executed[:2] == ["flow", "run"] and re.search(r"^RUN pip install .*requirements", dockerfile, re.MULTILINE)


def test_urls_can_come_from_a_secret_instead(kubeconfig: StandIn) -> None:
    executor = executor_from_url("k8s://etl?image=flow:1&env-from-secret=flow-urls")
    executor.dispatch(SPEC)
    executor.close()
    [(_, _, job)] = kubeconfig.requests
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "flow-urls"}}]
    assert container["env"] == [{"name": "EMATIX_FLOW_RERUN_FULL", "value": "1"}]
    assert "s3cret" not in json.dumps(job)


@pytest.mark.parametrize("name", ["load", "Load Me", "x" * 200, "-._-", "größe/élan", "a" * 48 + "-" * 20 + "b"])
def test_every_pipeline_has_a_valid_job_name(name: str, cluster: WatchedExecutor, kubeconfig: StandIn) -> None:
    cluster.dispatch(DispatchSpec(name, "shop", "t0k3n", 300, "memory://"))
    [(_, _, job)] = kubeconfig.requests
    for label in (job["metadata"]["name"], *job["metadata"]["labels"].values()):
        assert DNS_LABEL.fullmatch(label), label
    assert job["metadata"]["name"].startswith("flow-")


def test_names_differ_by_pipeline_and_claim_and_by_nothing_else() -> None:
    names = {job_name(pipeline, token) for pipeline in ("a b", "a-b") for token in ("t1", "t2")}
    assert len(names) == 4
    assert job_name("a b", "t1") in names


def test_a_job_that_is_there_already_is_the_job_of_this_claim(cluster: WatchedExecutor, kubeconfig: StandIn) -> None:
    kubeconfig.status, kubeconfig.answer = 409, {"kind": "Status", "reason": "AlreadyExists", "message": "exists"}
    assert cluster.dispatch(SPEC).ref == job_name(SPEC.pipeline_name, SPEC.claim_token)


def test_a_refusal_says_what_the_cluster_said_and_what_to_do(cluster: WatchedExecutor, kubeconfig: StandIn) -> None:
    kubeconfig.status, kubeconfig.answer = 403, {"kind": "Status", "message": 'jobs.batch is forbidden for "ann"'}
    with pytest.raises(DispatchError) as refused:
        cluster.dispatch(SPEC)
    assert "jobs.batch is forbidden" in refused.value.message
    assert "create and delete jobs" in (refused.value.fix or "")


def test_a_refusal_repeats_no_value_of_the_environment(cluster: WatchedExecutor, kubeconfig: StandIn) -> None:
    said = f'env[1].value: Invalid value: "{worker_environment(SPEC)["EMATIX_FLOW_ALERTERS"]}": no'
    kubeconfig.status, kubeconfig.answer = 422, {"kind": "Status", "message": said}
    with pytest.raises(DispatchError) as refused:
        cluster.dispatch(SPEC)
    assert "Invalid value" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_cluster_that_is_not_there_is_a_dispatch_error(tmp_path: Path, kubeconfig: StandIn) -> None:
    config = (tmp_path / "kubeconfig").read_text().replace(kubeconfig.address, "http://127.0.0.1:9")
    (tmp_path / "kubeconfig").write_text(config)
    executor = executor_from_url("k8s://etl?image=flow:1")
    with pytest.raises(DispatchError, match="No Job was made"):
        executor.dispatch(SPEC)
    executor.close()


def test_cancel_deletes_the_job_with_its_pod(cluster: WatchedExecutor, kubeconfig: StandIn) -> None:
    kubeconfig.status = 200
    cluster.cancel(DispatchHandle("load", "k8s", "flow-load-1"))
    kubeconfig.status, kubeconfig.answer = 404, {"kind": "Status", "message": "not found"}
    cluster.cancel(DispatchHandle("load", "k8s", "flow-load-2"))
    paths = [(method, path.partition("?")[0]) for method, path, _ in kubeconfig.requests]
    assert paths == [("DELETE", f"/apis/batch/v1/namespaces/etl/jobs/flow-load-{n}") for n in (1, 2)]
    assert all("propagationPolicy=Background" in path for _, path, _ in kubeconfig.requests)


def test_without_any_cluster_the_places_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InvalidConfig) as refused:
        executor_from_url("k8s://etl?image=flow:1")
    assert "$KUBECONFIG" in refused.value.tried


# ── Lambda ──


@pytest.fixture
def function(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedExecutor]:
    for name, value in {
        "AWS_ENDPOINT_URL_LAMBDA": stand_in.address,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(name, value)
    stand_in.status, stand_in.answer = 202, None
    executor = executor_from_url("lambda://flow-worker?qualifier=live")
    yield executor
    executor.close()


def test_a_function_is_called_with_everything_a_worker_needs(function: WatchedExecutor, stand_in: StandIn) -> None:
    handle = function.dispatch(SPEC)
    [(method, path, payload)] = stand_in.requests
    assert (method, path) == ("POST", "/2015-03-31/functions/flow-worker/invocations?Qualifier=live")
    assert payload == {
        "pipeline_name": "Sync Customers (EU)",
        "module": "shop",
        "claim_token": "3F1c9a7e-0000",
        "lease_seconds": 300.0,
        "run_log_url": "postgresql://ann:s3cret@db/runs",
        "alerter_urls": ["https://hooks.slack.com/services/T0/B0/s3cret"],
        "metrics_url": "prometheus://:9108",
        "env": worker_environment(SPEC),
        "argv": worker_argv(SPEC),
    }
    assert handle == DispatchHandle("Sync Customers (EU)", "lambda", "request-1")
    function.cancel(handle)
    assert (function.running(), function.reap(), len(stand_in.requests)) == (0, [], 1)


def test_anything_but_202_is_a_dispatch_error(function: WatchedExecutor, stand_in: StandIn) -> None:
    stand_in.status = 200
    with pytest.raises(DispatchError, match="status 200"):
        function.dispatch(SPEC)


def test_a_call_is_tried_once(function: WatchedExecutor, stand_in: StandIn) -> None:
    stand_in.status, stand_in.answer = 500, {"Message": "try again"}
    with pytest.raises(DispatchError, match="was not called"):
        function.dispatch(SPEC)
    assert len(stand_in.requests) == 1
