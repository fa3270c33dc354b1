"""`workers://`: claimed pipelines go to processes that are up already and stay up (`orchestrate/warm_worker.py`).

Every worker has a keeper, a thread that starts it, hears what it says, and starts another when it has ended: of its own
accord between two jobs, or killed in the middle of one. Workers end when the pool's process does, after their job.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ematix_flow.contracts.orchestration import DispatchHandle, DispatchReport, DispatchSpec
from ematix_flow.errors import DispatchError, InvalidConfig, NoFreeWorker, counted
from ematix_flow.orchestrate.executors.worker_command import worker_argv, worker_environment

log = logging.getLogger(__name__)

MAX_JOBS, MAX_RSS_MB = 200, 1024
TAKE_TIMEOUT_S = 10.0
"""An idle worker takes a job at once; one that does not is frozen."""
END_TIMEOUT_S = 60.0
"""A worker that wants to end has so long for it: Spark ends with it."""
_LONGEST_PAUSE_S = 30.0


@dataclass
class _Job:
    handle: DispatchHandle
    id: int
    is_taken: bool = False


@dataclass
class _Worker:
    """One process. `starting` until it says ready, `leaving` from when it takes no more jobs."""

    process: subprocess.Popen[bytes]
    state: Literal["starting", "ready", "leaving"] = "starting"
    job: _Job | None = None
    was_ready: bool = False

    @property
    def is_free(self) -> bool:
        return self.state == "ready" and self.job is None


class WarmPool:
    """A fixed number of warm workers, started at once.

    Args:
        count: How many workers, which is also how many jobs run at a time.
        max_jobs: After so many jobs a worker is replaced.
        max_rss_mb: A worker whose Python process holds more memory than that after a job is replaced.
        warm: "spark": workers start Spark before their first job; None: with the first job that needs it.
        patience_s: How long `dispatch` waits for a worker that is about to be ready.
        argv: The command line of a job.

    Raises:
        InvalidConfig: On Windows, which cannot hand a worker its pipes.
    """

    backend = "workers"

    def __init__(
        self,
        count: int = 2,
        *,
        max_jobs: int = MAX_JOBS,
        max_rss_mb: int = MAX_RSS_MB,
        warm: Literal["spark"] | None = None,
        patience_s: float = 5.0,
        argv: Callable[[DispatchSpec], list[str]] = worker_argv,
    ) -> None:
        if sys.platform == "win32":
            raise InvalidConfig("Warm workers need a POSIX system.", fix="use subprocess+python://")
        self.count = count
        self._options = ["--max-jobs", str(max_jobs), "--max-rss-mb", str(max_rss_mb)]
        self._options += ["--warm", warm] if warm else []
        self._patience_s, self._argv = patience_s, argv
        self._news = threading.Condition()
        self._closing = threading.Event()
        self._workers: list[_Worker] = []
        self._reports: list[DispatchReport] = []
        self._dispatched = 0
        for number in range(count):
            threading.Thread(target=self._keep_one, name=f"keeper-{number + 1}", daemon=True).start()

    def dispatch(self, spec: DispatchSpec) -> DispatchHandle:
        """Give the pipeline to a free worker; returns when it has taken it.

        Raises:
            NoFreeWorker: All are busy, or none is ready in time.
            DispatchError: The pool is closed, or a worker does not react; it is killed then, so the job has not begun.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            worker, job = self._offer(spec, deadline)
            line = json.dumps({"id": job.id, "argv": self._argv(spec), "env": worker_environment(spec)})
            assert worker.process.stdin is not None
            with contextlib.suppress(BrokenPipeError, ValueError):  # it has left, or has been told to
                worker.process.stdin.write(line.encode() + b"\n")
            with self._news:
                has_answered = self._news.wait_for(partial(_has_answered, worker, job), TAKE_TIMEOUT_S)
                if job.is_taken:
                    return job.handle
                worker.job = None  # it left without beginning; the next one gets the job
                if not has_answered:
                    worker.state = "leaving"
                    worker.process.kill()
                    raise DispatchError(
                        f"Worker {worker.process.pid} did not take '{spec.pipeline_name}' and was killed."
                    )

    def cancel(self, handle: DispatchHandle) -> None:
        """Interrupt the job, as Ctrl-C would; the worker goes on with others. One that has ended is left alone."""
        with self._news:
            for worker in self._workers:
                if worker.job is not None and worker.job.handle == handle:
                    worker.process.send_signal(signal.SIGINT)

    def running(self) -> int:
        """How many jobs are under way."""
        with self._news:
            return self._busy()

    def reap(self) -> list[DispatchReport]:
        """Jobs that ended since the last call, those among them whose worker died."""
        with self._news:
            ended, self._reports = self._reports, []
            return ended

    def close(self, timeout_s: float = 5.0) -> None:
        """Take no more jobs and wait so long for those under way; workers that need longer end by themselves."""
        with self._news:
            self._closing.set()
            for worker in self._workers:
                _end_of_jobs(worker)
            self._news.wait_for(lambda: not self._workers, timeout_s)

    # ── giving jobs out ──

    def _offer(self, spec: DispatchSpec, deadline: float) -> tuple[_Worker, _Job]:
        """A free worker, taken for this job; waits for one only while not all of them are busy."""
        with self._news:
            while True:
                if self._closing.is_set():
                    raise DispatchError(f"The workers are closed; '{spec.pipeline_name}' was not started.")
                free = next((worker for worker in self._workers if worker.is_free), None)
                if free is not None:
                    break
                if self._busy() >= self.count:
                    raise NoFreeWorker(f"{counted(self.count, 'worker is', 'workers are')} busy.")
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise NoFreeWorker("No worker is ready yet.")
                self._news.wait(left_s)
            self._dispatched += 1
            ref = f"{free.process.pid}.{self._dispatched}"
            free.job = _Job(DispatchHandle(spec.pipeline_name, self.backend, ref), self._dispatched)
            return free, free.job

    def _busy(self) -> int:
        return sum(worker.job is not None for worker in self._workers)

    # ── keeping workers ──

    def _keep_one(self) -> None:
        """The life of a keeper: one worker after the other, at growing distances while they do not get ready."""
        failures = 0
        while not self._closing.is_set():
            was_ready = False
            try:
                was_ready = self._see_through()
            except OSError as exc:
                log.error("a worker could not be started: %s", exc.strerror)
            failures = 0 if was_ready else failures + 1
            if failures and not self._closing.is_set():
                pause_s = min(_LONGEST_PAUSE_S, 2.0 ** (failures - 1))
                log.error("a worker ended before it was ready; the next one is started in %.0f s", pause_s)
                self._closing.wait(pause_s)

    def _see_through(self) -> bool:
        """One worker from its start to its end; whether it ever was ready."""
        ear, mouth = os.pipe()
        with open(ear, "rb") as answers:
            try:
                worker = self._started(mouth)
            finally:
                os.close(mouth)
            with self._news:
                self._workers.append(worker)
                if self._closing.is_set():
                    _end_of_jobs(worker)
            for line in answers:
                with contextlib.suppress(ValueError):  # code that writes to pipes it does not know must not end us
                    self._hear(worker, json.loads(line))
        exit_code = _ended(worker.process)
        with self._news:
            self._workers.remove(worker)
            _end_of_jobs(worker)
            if worker.job is not None and worker.job.is_taken:
                self._reports.append(DispatchReport(worker.job.handle, exit_code))
                name = worker.job.handle.pipeline_name
                log.error("worker %d died while it ran '%s' (exit code %d)", worker.process.pid, name, exit_code)
            worker.state = "leaving"
            self._news.notify_all()
        return worker.was_ready

    def _started(self, mouth: int) -> _Worker:
        program = [sys.executable, "-m", "ematix_flow.orchestrate.warm_worker", "--answers", str(mouth)]
        process = subprocess.Popen(
            [*program, *self._options],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=2,  # the scheduler's stdout is not for the prints of pipelines
            pass_fds=(mouth,),
            start_new_session=True,  # Ctrl-C in the terminal is the scheduler's
        )
        return _Worker(process)

    def _hear(self, worker: _Worker, answer: Mapping[str, Any]) -> None:
        with self._news:
            said, job = answer["said"], worker.job
            if said == "ready":
                worker.state, worker.was_ready = "ready", True
            elif said == "started" and job is not None:
                job.is_taken = True
            elif said == "finished" and job is not None:
                self._reports.append(DispatchReport(job.handle, answer["exit_code"]))
                worker.job = None
            reason = answer.get("reason") or answer.get("leaves")
            if reason:
                worker.state = "leaving"
                log.info("worker %d is replaced: %s", worker.process.pid, reason)
            self._news.notify_all()


def _has_answered(worker: _Worker, job: _Job) -> bool:
    return job.is_taken or worker.state == "leaving"


def _end_of_jobs(worker: _Worker) -> None:
    """No more jobs for this worker: it ends after the one it has."""
    if worker.process.stdin is not None:
        worker.process.stdin.close()


def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process that has said its last word."""
    try:
        return process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
