"""`flow-worker`: the process of a mesh that this system does not have. It says how the same is done, and ends."""

from __future__ import annotations

import sys

from ematix_flow.cli.main import WRONG
from ematix_flow.declare.pipeline import CLUSTER_ANSWER
from ematix_flow.errors import InvalidConfig


def main() -> int:
    """Whatever it is told, the answer is the same; the script `flow-worker` hands the code to `sys.exit`."""
    answer = InvalidConfig(
        "There are no workers to start: rows are moved by Spark, alone or on a cluster.",
        fix=f"start a Spark cluster and name it: {CLUSTER_ANSWER}",
    )
    sys.stderr.write(f"{answer}\n")
    return WRONG
