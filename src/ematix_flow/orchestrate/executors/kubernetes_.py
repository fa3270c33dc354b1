"""`k8s://NAMESPACE?image=IMAGE`: each claimed pipeline is a Job of Kubernetes.

The cluster is the one this process runs in, or the current context of the kubeconfig. A Job's name comes from the
claim, so that dispatching one claim twice makes one Job.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

from ematix_flow.contracts.orchestration import DispatchHandle, DispatchReport, DispatchSpec
from ematix_flow.declare.redaction import REDACTED, scrub
from ematix_flow.errors import DispatchError, InvalidConfig, MissingDriver
from ematix_flow.orchestrate.executors.worker_command import URL_VARIABLES, worker_argv, worker_environment

LONGEST_NAME = 63
TTL_AFTER_FINISHED_S = 3600
_REQUEST_TIMEOUT_S = 10  # a tick of the scheduler must not outlive its leader lease


class KubernetesExecutor:
    """Makes Jobs; they are done when the run log says so, the cluster is not asked again.

    Args:
        namespace: Where the Jobs are made.
        image: The image of the worker, with `flow` in its PATH.
        service_account: Under which the worker runs; None: the namespace's default one.
        env_from_secret: A Secret that holds `EMATIX_FLOW_RUN_LOG_URL` and its like, which are then not part of the Job.

    Raises:
        MissingDriver: (an ImportError) `kubernetes` is not installed.
        InvalidConfig: Neither a cluster around this process nor a kubeconfig.
    """

    backend = "k8s"

    def __init__(
        self,
        namespace: str,
        image: str,
        *,
        service_account: str | None = None,
        env_from_secret: str | None = None,
    ) -> None:
        self.namespace, self.image = namespace, image
        self.service_account, self.env_from_secret = service_account, env_from_secret
        self._jobs = _batch_api()

    def dispatch(self, spec: DispatchSpec) -> DispatchHandle:
        """Make the Job; its pod starts when the cluster has room.

        Raises:
            DispatchError: The cluster cannot be reached or refuses the Job.
        """
        job = self.job(spec)
        name = job["metadata"]["name"]
        try:
            self._jobs.create_namespaced_job(self.namespace, job, _request_timeout=_REQUEST_TIMEOUT_S)
        except Exception as exc:
            if getattr(exc, "status", None) != 409:  # 409: the answer to the first request was lost, the Job was not
                raise self._refusal(exc, spec) from exc
        return DispatchHandle(spec.pipeline_name, self.backend, name)

    def cancel(self, handle: DispatchHandle) -> None:
        """Delete the Job and its pod; one that is gone already is as good.

        Raises:
            DispatchError: The cluster cannot be reached or refuses.
        """
        try:
            self._jobs.delete_namespaced_job(
                handle.ref, self.namespace, propagation_policy="Background", _request_timeout=_REQUEST_TIMEOUT_S
            )
        except Exception as exc:
            if getattr(exc, "status", None) != 404:
                raise DispatchError(f"Job '{handle.ref}' was not deleted: {_reason(exc)}") from exc

    def running(self) -> int:
        """Always 0: claims in the run log say what is under way."""
        return 0

    def reap(self) -> list[DispatchReport]:
        """Always nothing: the cluster removes finished Jobs by itself after an hour."""
        return []

    def close(self, timeout_s: float = 5.0) -> None:
        """Let go of connections to the cluster; Jobs go on."""
        self._jobs.api_client.close()

    def job(self, spec: DispatchSpec) -> dict[str, Any]:
        """The Job of a claimed pipeline, as it is sent."""
        labels = {
            "ematix-flow/pipeline": dns_label(spec.pipeline_name),
            "ematix-flow/claim-token-short": dns_label(spec.claim_token[:8]),
        }
        environment = worker_environment(spec)
        container: dict[str, Any] = {
            "name": "worker",
            "image": self.image,
            "command": ["flow"],  # an image may have another entry point, or none
            "args": worker_argv(spec),
        }
        if self.env_from_secret:
            container["envFrom"] = [{"secretRef": {"name": self.env_from_secret}}]
            environment = {name: value for name, value in environment.items() if name not in URL_VARIABLES}
        container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
        pod: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
        if self.service_account:
            pod["serviceAccountName"] = self.service_account
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": job_name(spec.pipeline_name, spec.claim_token),
                "labels": labels,
                "annotations": {"ematix-flow/pipeline": spec.pipeline_name},  # the name as it was declared
            },
            "spec": {
                "backoffLimit": 0,
                "ttlSecondsAfterFinished": TTL_AFTER_FINISHED_S,
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }

    def _refusal(self, exc: Exception, spec: DispatchSpec) -> DispatchError:
        reason = _reason(exc)
        for value in worker_environment(spec).values():  # the cluster repeats values that it does not like
            reason = reason.replace(value, REDACTED)
        fix = None
        if getattr(exc, "status", None) in (401, 403):
            fix = f"the scheduler needs the right to create and delete jobs (batch/v1) in namespace '{self.namespace}'"
        return DispatchError(
            f"No Job was made for '{spec.pipeline_name}': {reason}", where=f"namespace '{self.namespace}'", fix=fix
        )


def job_name(pipeline: str, claim_token: str) -> str:
    """The name of a claim's Job: at most 63 characters, all of them allowed in a DNS label.

    >>> job_name("Sync Customers (EU)", "t0k3n")
    'flow-sync-customers-eu-963657b0'
    """
    digest = hashlib.sha256(f"{pipeline}\0{claim_token}".encode()).hexdigest()[:8]
    middle = dns_label(pipeline)[: LONGEST_NAME - len("flow--") - len(digest)].strip("-")
    return f"flow-{middle}-{digest}"


def dns_label(text: str) -> str:
    """The text in the letters of a DNS label.

    >>> dns_label("Sync Customers (EU)"), dns_label("__"), len(dns_label("x" * 80))
    ('sync-customers-eu', 'x', 63)
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST_NAME].strip("-") or "x"


def _batch_api() -> Any:
    try:
        from kubernetes import client, config
    except ImportError as exc:
        raise MissingDriver(
            "The executor k8s:// needs 'kubernetes'.", fix='pip install "ematix-flow[executor-k8s]"'
        ) from exc
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        try:
            config.load_kube_config(config_file=os.environ.get("KUBECONFIG"), client_configuration=settings)
        except (config.ConfigException, OSError) as exc:
            raise InvalidConfig(
                "The executor k8s:// finds no cluster: this process runs in none, and there is no kubeconfig.",
                tried=["the service account of a pod", "$KUBECONFIG", "~/.kube/config"],
                fix="run the scheduler in the cluster, or set KUBECONFIG",
            ) from exc
    settings.retries = False  # a cluster that does not answer is asked again in the next tick
    return client.BatchV1Api(client.ApiClient(settings))


def _reason(exc: Exception) -> str:
    """What the cluster said, in one line."""
    try:
        said = json.loads(getattr(exc, "body", None) or "{}").get("message")
    except (ValueError, AttributeError):
        said = None
    status = getattr(exc, "status", None)
    return scrub(f"{said or getattr(exc, 'reason', None) or exc}" + (f" (status {status})" if status else ""))
