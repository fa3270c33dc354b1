"""`flow-worker` is answered with a cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_worker_of_a_mesh_is_answered_with_a_cluster() -> None:
    script = Path(sys.executable).parent / "flow-worker"
    done = subprocess.run([script, "--port", "50051"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'master = "spark://host:7077"' in done.stderr and "Traceback" not in done.stderr
