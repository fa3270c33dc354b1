"""`subprocess://` and `subprocess+python://`: each claimed pipeline is a process of its own on this host.

Workers are leaders of their own sessions: neither Ctrl-C in the scheduler's terminal nor the scheduler's end ends them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from ematix_flow.contracts.orchestration import DispatchHandle, DispatchReport, DispatchSpec
from ematix_flow.errors import DispatchError
from ematix_flow.orchestrate.executors.worker_command import worker_argv, worker_environment


class SubprocessExecutor:
    """Starts `flow run …` per pipeline; stdout and stderr of a worker are the scheduler's.

    Args:
        program: What stands in front of the arguments; None: `flow`, looked for in PATH at each dispatch.
    """

    backend = "subprocess"

    def __init__(self, program: Sequence[str] | None = None) -> None:
        self._program = program
        self._children: dict[DispatchHandle, subprocess.Popen[bytes]] = {}

    @classmethod
    def of_this_python(cls) -> SubprocessExecutor:
        """Workers run by the Python that runs the scheduler, whatever PATH says."""
        return cls([sys.executable, "-m", "ematix_flow.cli"])

    def dispatch(self, spec: DispatchSpec) -> DispatchHandle:
        """Start the worker.

        Raises:
            DispatchError: There is no `flow`, or the system starts no more processes.
        """
        command = [*(self._program or [_flow()]), *worker_argv(spec)]
        environment = {**os.environ, **worker_environment(spec)}
        try:
            child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as exc:
            raise DispatchError(
                f"'{command[0]}' could not be started for '{spec.pipeline_name}': {exc.strerror}."
            ) from exc
        handle = DispatchHandle(spec.pipeline_name, self.backend, str(child.pid))
        self._children[handle] = child
        return handle

    def cancel(self, handle: DispatchHandle) -> None:
        """Tell the worker and everything it started to end (SIGTERM); nothing happens to a process of somebody else."""
        child = self._children.get(handle)
        if child is not None and child.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended in this moment
                os.killpg(child.pid, signal.SIGTERM)

    def running(self) -> int:
        """How many workers are under way."""
        return sum(child.poll() is None for child in self._children.values())

    def reap(self) -> list[DispatchReport]:
        """Workers that ended since the last call; without it they would stay in the table of processes."""
        ended = [
            DispatchReport(handle, code)
            for handle, child in self._children.items()
            if (code := child.poll()) is not None
        ]
        for report in ended:
            del self._children[report.handle]
        return ended

    def close(self, timeout_s: float = 5.0) -> None:
        """Wait so long for workers; those that need longer go on without the scheduler."""
        deadline = time.monotonic() + timeout_s
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))


def _flow() -> str:
    found = shutil.which("flow")
    if found is None:
        raise DispatchError(
            "There is no `flow` in PATH to run a pipeline with.",
            fix="start the scheduler in the environment that has it, or use subprocess+python://",
        )
    return found
