"""`lambda://FUNCTION`: each claimed pipeline is one asynchronous call of a function of AWS Lambda."""

from __future__ import annotations

import json
from typing import Any

from ematix_flow.contracts.orchestration import DispatchHandle, DispatchReport, DispatchSpec
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import DispatchError, InvalidConfig, MissingDriver
from ematix_flow.orchestrate.executors.worker_command import worker_argv, worker_environment

ACCEPTED = 202


class LambdaExecutor:
    """Calls a function with everything a worker needs; a call that was accepted cannot be taken back.

    Args:
        function: Its name or ARN; an ARN also says the region.
        qualifier: Its version or alias.

    Raises:
        MissingDriver: (an ImportError) `boto3` is not installed.
        InvalidConfig: No region is known.
    """

    backend = "lambda"

    def __init__(self, function: str, *, qualifier: str | None = None) -> None:
        self.function, self.qualifier = function, qualifier
        self._client = _lambda_client(function)

    def dispatch(self, spec: DispatchSpec) -> DispatchHandle:
        """Call the function; returns when AWS has put the call into its queue.

        Raises:
            DispatchError: AWS cannot be reached, refuses, or answers anything but 202.
        """
        which = {"Qualifier": self.qualifier} if self.qualifier else {}
        try:
            answer = self._client.invoke(
                FunctionName=self.function, InvocationType="Event", Payload=json.dumps(payload(spec)).encode(), **which
            )
        except Exception as exc:
            raise DispatchError(
                f"Function '{self.function}' was not called for '{spec.pipeline_name}': {scrub(str(exc))}"
            ) from exc
        if answer["StatusCode"] != ACCEPTED:
            raise DispatchError(
                f"Function '{self.function}' did not accept '{spec.pipeline_name}': status {answer['StatusCode']}."
            )
        return DispatchHandle(spec.pipeline_name, self.backend, answer["ResponseMetadata"]["RequestId"])

    def cancel(self, handle: DispatchHandle) -> None:
        """Nothing: Lambda has no way to stop a call."""

    def running(self) -> int:
        """Always 0: claims in the run log say what is under way."""
        return 0

    def reap(self) -> list[DispatchReport]:
        """Always nothing: nobody is told how an asynchronous call ended."""
        return []

    def close(self, timeout_s: float = 5.0) -> None:
        """Let go of connections to AWS; calls go on."""
        self._client.close()


def payload(spec: DispatchSpec) -> dict[str, Any]:
    """What the function receives. With `env` in its environment, it hands `argv` to `flow` and is a worker."""
    return {
        "pipeline_name": spec.pipeline_name,
        "module": spec.module,
        "claim_token": spec.claim_token,
        "lease_seconds": spec.lease_seconds,
        "run_log_url": spec.run_log_url,
        "alerter_urls": list(spec.alerter_urls),
        "metrics_url": spec.metrics_url,
        "env": worker_environment(spec),
        "argv": worker_argv(spec),
    }


def _lambda_client(function: str) -> Any:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import NoRegionError
    except ImportError as exc:
        raise MissingDriver(
            "The executor lambda:// needs 'boto3'.", fix='pip install "ematix-flow[executor-lambda]"'
        ) from exc
    parts = function.split(":")
    region = parts[3] if parts[0] == "arn" and len(parts) > 6 else None
    # One attempt: a second one after a lost answer would call the function twice with one claim.
    settings = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 1})
    try:
        return boto3.session.Session().client("lambda", region_name=region, config=settings)
    except NoRegionError as exc:
        raise InvalidConfig(
            f"The region of function '{function}' is not known.", fix="set AWS_DEFAULT_REGION, or give the ARN"
        ) from exc
