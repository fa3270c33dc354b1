"""A warm worker: a process that runs one job after the other, so that imports and Spark are paid for once.

Started by `executors/warm_pool.py`. Jobs come in as lines of JSON; what becomes of them goes out as lines of JSON, on a
pipe of its own, since stdout belongs to the user's code. A job is a command line of `flow`, run as `flow` would run it.
When the pool is gone, the line of jobs ends: the worker finishes what it has begun and ends too.

    python -m ematix_flow.orchestrate.warm_worker --answers FD --max-jobs N --max-rss-mb N [--warm spark]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import FlowError
from ematix_flow.orchestrate.loaded_code import LoadedCode

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""How often an idle worker looks whether the code it has loaded has changed."""
_WRONG, _INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the pool has no more jobs, or until there is a reason to begin afresh."""
    options = _options(argv)
    line = PoolLine(options.answers)
    _import_what_jobs_need()
    _prefer_speed_to_a_quick_start()
    if options.warm == "spark":
        _start_spark()
    WarmWorker(line, max_jobs=options.max_jobs, max_rss_mb=options.max_rss_mb).serve()
    return 0


class PoolLine:
    """The two pipes to the pool, out of the reach of the user's code and of the processes it starts."""

    def __init__(self, answers: int) -> None:
        self._jobs, self._answers = os.dup(0), answers
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # code that reads stdin must not read our jobs
        os.close(nothing)
        os.set_inheritable(answers, False)
        # The pool hears of a worker's death by the end of its answers; a forked child must not hold them open.
        os.register_at_fork(after_in_child=self._let_go)

    def next_job(self, timeout_s: float) -> Mapping[str, Any] | bool | None:
        """The next job, False when none came in time, None when there will be none."""
        if not select.select([self._jobs], [], [], timeout_s)[0]:
            return False
        read = bytearray()
        while not read.endswith(b"\n"):
            byte = os.read(self._jobs, 1)  # not more: the next line is not this job's
            if not byte:
                return None
            read += byte
        job: dict[str, Any] = json.loads(read)
        return job

    def say(self, what: str, **facts: object) -> None:
        """Tell the pool; when it is gone, nobody has to know."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._answers, json.dumps({"said": what, **facts}).encode() + b"\n")

    def _let_go(self) -> None:
        for pipe in (self._jobs, self._answers):
            with contextlib.suppress(OSError):
                os.close(pipe)


class WarmWorker:
    """Runs jobs in turn, and says after each whether the next one needs another process."""

    def __init__(self, line: PoolLine, *, max_jobs: int, max_rss_mb: int) -> None:
        self._line, self._max_jobs, self._max_rss_mb = line, max_jobs, max_rss_mb
        self._home = os.getcwd()
        self._code = LoadedCode(self._home)
        self._done = 0

    def serve(self) -> None:
        """Take jobs until there is a reason not to. Interruptions are for jobs: in between they are ignored."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._line.say("ready")
        while True:
            job = self._line.next_job(LOOK_EVERY_S)
            if job is None:
                return
            changed = self._code.changed()
            if changed:  # the job has not begun: the pool gives it to another worker
                self._line.say("leaving", reason=f"{changed} has changed")
                return
            if isinstance(job, bool):
                continue
            self._line.say("started", job=job["id"])
            exit_code = self._run(job)
            reason = self._reason_to_leave(exit_code)
            self._line.say("finished", job=job["id"], exit_code=exit_code, leaves=reason)
            if reason:
                return

    def _run(self, job: Mapping[str, Any]) -> int:
        began_ns = time.time_ns()
        with _variables(job["env"]):
            exit_code = _flow(job["argv"])
        self._done += 1
        self._code.note(began_ns)
        os.chdir(self._home)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # whoever read it is gone, or the job closed it
                stream.flush()
        return exit_code

    def _reason_to_leave(self, exit_code: int) -> str | None:
        if self._done >= self._max_jobs:
            return f"it has run {self._done} jobs"
        if exit_code == _WRONG:
            return "what a module declares may be known in part only"
        if (held := rss_mb()) > self._max_rss_mb:
            return f"it holds {held} MB of memory"
        if changed := self._code.changed():
            return f"{changed} has changed"
        return _renew_spark()


def rss_mb() -> int:
    """The memory of this Python process; Java has its own bound (`driver_memory`)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
    except OSError:  # not Linux: the most it ever had
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // 2**20 if sys.platform == "darwin" else peak // 2**10


def _flow(argv: Sequence[str]) -> int:
    """`flow` with these arguments, whatever comes out of the user's code."""
    from ematix_flow.cli.main import main as flow

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return flow(list(argv))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def _variables(told: Mapping[str, str]) -> Iterator[None]:
    """These variables while a job runs. Others stay as it leaves them: a module may set some while it is imported."""
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _import_what_jobs_need() -> None:
    """Half a second that no job has to wait for."""
    import ematix_flow.cli.claimed_run
    import ematix_flow.cli.console  # noqa: F401


def _prefer_speed_to_a_quick_start() -> None:
    """Java that serves many jobs compiles them well, unless the user says otherwise."""
    from ematix_flow.config.project import project_settings

    with contextlib.suppress(FlowError):  # the job says what is wrong with the file
        if project_settings().spark.short_job is None:
            os.environ.setdefault("EMATIX_FLOW_SHORT_JOB", "false")


def _start_spark() -> None:
    from ematix_flow.config.spark_place import spark_settings
    from ematix_flow.contracts.session import SessionNeeds

    try:
        from ematix_flow.spark.session import open_session

        open_session(SessionNeeds(), spark_settings())
    except (FlowError, ImportError) as exc:  # jobs that need no Spark can be served all the same
        log.warning("Spark could not be started ahead: %s", scrub(str(exc)))


def _renew_spark() -> str | None:
    """A session of its own for the next job; why not, when Spark does not answer any more."""
    if "ematix_flow.spark.session" not in sys.modules:
        return None
    from ematix_flow.spark.job_session import renew_session

    try:
        renew_session()
    except Exception as exc:  # Java was killed, or hangs: whatever it is, another process begins without it
        return f"Spark does not answer: {type(exc).__name__}"
    return None


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="warm_worker", description="Started by a pool of workers, not by hand.")
    parser.add_argument("--answers", type=int, required=True, metavar="FD")
    parser.add_argument("--max-jobs", type=int, required=True, metavar="N")
    parser.add_argument("--max-rss-mb", type=int, required=True, metavar="N")
    parser.add_argument("--warm", choices=("spark",))
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
