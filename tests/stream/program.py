"""A stream in a process of its own, to be killed: `python -m tests.stream.program OPTIONS`, options as JSON.

`connections` holds the fields of each connection by name; everything else is given to `run_streaming_pipeline`, where
`{"connection": NAME, …}` stands for a `Source` or a `Target`, and the fields of a window, a join and their like for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ematix_flow import (
    CDC,
    Aggregation,
    Join,
    Source,
    StateStore,
    Target,
    Watermark,
    Window,
    run_streaming_pipeline,
)
from ematix_flow.backends import kafka_rows
from ematix_flow.contracts.crashpoints import VARIABLE
from ematix_flow.declare.connection import Connection, connection_from_fields

ROOT = Path(__file__).parents[2]
PART_BYTES = "TEST_PART_BYTES"
"""The variable that cuts batches for Kafka into smaller parts."""


def keywords(options: dict[str, Any]) -> dict[str, Any]:
    """The keywords of `run_streaming_pipeline`."""
    known: dict[str, Connection] = {
        name: connection_from_fields(fields["kind"], name, {k: v for k, v in fields.items() if k != "kind"})
        for name, fields in options["connections"].items()
    }
    targets = [Target(**{**target, "connection": known[target["connection"]]}) for target in options.get("targets", [])]
    rest = {key: value for key, value in options.items() if key not in ("connections", "targets", "source")}
    if isinstance(rest.get("window"), dict):
        made = [Aggregation(**one) for one in rest["window"]["aggregations"]]
        rest["window"] = Window(**{**rest["window"], "aggregations": made})
    if isinstance(rest.get("cdc"), dict):
        rest["cdc"] = CDC(**rest["cdc"])
    if isinstance(rest.get("state_store"), dict):
        rest["state_store"] = StateStore(**rest["state_store"])
    if isinstance(rest.get("join"), dict):
        rest["join"] = Join(**rest["join"])
    if isinstance(rest.get("watermark"), dict):
        rest["watermark"] = Watermark(**rest["watermark"])
    if "sources" in rest:
        rest["sources"] = [Source(known[one["connection"]], one["query"]) for one in rest["sources"]]
        return {**rest, "targets": targets}
    return {**rest, "source": known[options["source"]], "targets": targets}


def run_and_die(given: dict[str, Any], point: str, *, code: int = -9, folder: Path = ROOT) -> None:
    """Run a stream in a process of its own that dies at a point; one in a worker of Spark's fails it instead.

    Args:
        folder: Where the process runs; a project file in there is its own.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.stream.program", json.dumps(given)],
        env={**os.environ, VARIABLE: point, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr[-4000:]


if __name__ == "__main__":
    kafka_rows.PART_BYTES = int(os.environ.get(PART_BYTES, kafka_rows.PART_BYTES))
    print(json.dumps(run_streaming_pipeline(**keywords(json.loads(sys.argv[1])))))
