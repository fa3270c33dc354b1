"""What a worker is started with: the arguments of `flow run` and the variables beside them, the same everywhere.

URLs may hold passwords, and every user of a host can read the command lines of all processes: URLs travel in the
environment.
"""

from __future__ import annotations

from ematix_flow.contracts.orchestration import DispatchSpec

RUN_LOG_VARIABLE = "EMATIX_FLOW_RUN_LOG_URL"
ALERTERS_VARIABLE = "EMATIX_FLOW_ALERTERS"
METRICS_VARIABLE = "EMATIX_FLOW_METRICS"
URL_VARIABLES = (RUN_LOG_VARIABLE, ALERTERS_VARIABLE, METRICS_VARIABLE)
"""The variables whose values may hold secrets."""


def worker_argv(spec: DispatchSpec) -> list[str]:
    """The arguments of `flow` for one claimed pipeline.

    >>> " ".join(worker_argv(DispatchSpec("load", "shop", "t0k3n", 300, "sqlite:///runs.db")))
    'run --module shop --claim-token t0k3n --heartbeat-interval 100 --lease-seconds 300 load'
    """
    return [
        "run",
        *("--module", spec.module),
        *("--claim-token", spec.claim_token),
        *("--heartbeat-interval", _number(max(1, spec.lease_seconds // 3))),
        *("--lease-seconds", _number(spec.lease_seconds)),
        *(["--"] if spec.pipeline_name.startswith("-") else []),  # else it would be read as an option
        spec.pipeline_name,
    ]


def worker_environment(spec: DispatchSpec) -> dict[str, str]:
    """The variables that a worker finds besides those of its place.

    >>> spec = DispatchSpec("load", "shop", "t0k3n", 300, "sqlite:///runs.db", ["email://relay?to=ann,ben", "stdout://"])
    >>> worker_environment(spec)["EMATIX_FLOW_ALERTERS"]
    'email://relay?to=ann%2Cben,stdout://'
    """
    environment = {**spec.env, RUN_LOG_VARIABLE: spec.run_log_url}
    if spec.alerter_urls:
        # The variable is a list with commas between its URLs, so those inside of one are written as URLs write them.
        environment[ALERTERS_VARIABLE] = ",".join(url.replace(",", "%2C") for url in spec.alerter_urls)
    if spec.metrics_url:
        environment[METRICS_VARIABLE] = spec.metrics_url
    return environment


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
