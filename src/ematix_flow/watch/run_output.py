"""What a run printed, kept per run: `<folder>/<run id>.log`, written while it happens, without secrets.

What Python prints is in the file when its line is whole. With `descriptors=True`, and in commands, what native code and
child processes (the JVM) write to the process's own stdout and stderr is taken as well, through a pipe that a thread
reads. Whoever looked at the output before still does. A file whose writer lives is locked, so that a reader knows when
no more comes.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, TextIO
from urllib.parse import quote

from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import UnknownName

log = logging.getLogger(__name__)

FOLDER_VARIABLE = "EMATIX_FLOW_LOGS_DIR"
SWITCH_VARIABLE = "EMATIX_FLOW_CAPTURE_LOGS"
AGE_VARIABLE = "EMATIX_FLOW_LOGS_MAX_AGE_DAYS"
DEFAULT_FOLDER = "~/.ematix-flow/logs"
DEFAULT_AGE_DAYS = 30.0

_LONGEST_NAME = 150
_LONGEST_LINE = 64 * 1024
_PIPE_BYTES = 1024 * 1024
_DRAIN_S = 5.0
_A_DAY_S = timedelta(days=1).total_seconds()


def logs_dir() -> Path:
    """Where output is kept: `$EMATIX_FLOW_LOGS_DIR`, or `~/.ematix-flow/logs`."""
    return Path(os.path.expanduser(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER))


def is_capture_wanted() -> bool:
    """Whether output is kept: unless `EMATIX_FLOW_CAPTURE_LOGS` says that it is not."""
    return os.environ.get(SWITCH_VARIABLE, "").strip().lower() not in ("0", "false", "no", "off")


def log_file(run_id: str) -> Path:
    """The file of a run. Whatever the id holds, the file is directly in the folder, and no two ids share one.

    >>> log_file("7f3a").name, log_file("../../etc/passwd").name
    ('7f3a.log', '%2E.%2F..%2Fetc%2Fpasswd.log')
    """
    name = quote(run_id, safe="")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _LONGEST_NAME or not name:
        name = f"{name[:_LONGEST_NAME]}%{sha256(run_id.encode()).hexdigest()[:32]}"
    return logs_dir() / f"{name}.log"


@contextmanager
def capture_pipeline_logs(run_id: str, *, descriptors: bool = False) -> Iterator[Path | None]:
    """Keep what is printed inside the block, and see it as before.

    Runs in threads of one process have a file each. What a thread prints that belongs to none of them, and what comes
    through the descriptors, goes to all. A folder that cannot be written to is a warning, and the block runs without.

    Args:
        run_id: whose output it is.
        descriptors: also what does not go through Python; for processes that do nothing but run pipelines, as commands
            are (`whole_process`).

    Yields:
        The file, or None when there is none.
    """
    path = log_file(run_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _prune_daily(path.parent)
        file = _LogFile(path)
    except OSError as exc:
        log.warning("the output of run '%s' is not kept: %s", run_id, exc)
        yield None
        return
    _process.begin(file, descriptors=descriptors or _process.is_whole)
    before = _here.set(file)
    try:
        yield path
    finally:
        _here.reset(before)
        _process.end(file)
        file.close()


@contextmanager
def kept_output(run_id: str) -> Iterator[None]:
    """`capture_pipeline_logs`, unless the variable says otherwise."""
    if is_capture_wanted():
        with capture_pipeline_logs(run_id):
            yield
    else:
        yield


@contextmanager
def whole_process() -> Iterator[None]:
    """Captures inside the block take what goes through the descriptors, too: this process does nothing but run them."""
    before, _process.is_whole = _process.is_whole, True
    try:
        yield
    finally:
        _process.is_whole = before


def take_descriptors() -> None:
    """Lead stdout and stderr through pipes from now on, until the process ends.

    A worker calls it before it starts anything that outlives a run: a JVM keeps the descriptors it was born with. From
    then on every capture takes what goes through them, too.
    """
    _process.take_descriptors()


def read_run_logs(run_id: str, *, tail: int | None = None) -> str:
    """What a run printed, so far.

    Args:
        run_id: the run's id; its first characters are enough when no other begins so.
        tail: only so many last lines.

    Raises:
        UnknownName: (a KeyError) Nothing is kept of such a run, or several begin so.
    """
    text = find_log(run_id).read_text(encoding="utf-8", errors="replace")
    if tail is None:
        return text
    return "".join(text.splitlines(keepends=True)[-tail:]) if tail > 0 else ""


def find_log(run_id: str) -> Path:
    """The file of a run by its id, or by the first characters of it.

    Raises:
        UnknownName: (a KeyError) There is none, or several are.
    """
    exact = log_file(run_id)
    if exact.exists():
        return exact
    begin = exact.name.removesuffix(".log")
    near = sorted(path for path in _log_files(exact.parent) if run_id and path.name.startswith(begin))
    if len(near) == 1:
        return near[0]
    if near:
        shown = ", ".join(path.stem for path in near[:5]) + (", …" if len(near) > 5 else "")
        raise UnknownName(
            f"The output of {len(near)} runs is kept whose id begins so.", fix=f"write more of it: {shown}"
        )
    raise UnknownName(
        f"No output of a run '{run_id}' is kept.",
        where=str(exact.parent),
        fix=f"`flow runs list` shows runs; output is kept where they ran, unless {SWITCH_VARIABLE}=0",
    )


def follow(path: Path, *, poll_s: float = 0.2) -> Iterator[str]:
    """The lines of a file from its beginning, as they come, until its writer has ended."""
    with path.open("r", encoding="utf-8", errors="replace") as file:
        unfinished = ""
        while True:
            is_over = not _has_writer(file)  # asked first: what was written before the end is read below
            for line in iter(file.readline, ""):
                unfinished += line
                if line.endswith("\n"):
                    yield unfinished
                    unfinished = ""
            if is_over:
                if unfinished:
                    yield unfinished
                return
            time.sleep(poll_s)


def prune_old_logs(max_age_days: float = DEFAULT_AGE_DAYS) -> int:
    """Remove files that nobody has written to for so long; how many went."""
    oldest = time.time() - max_age_days * _A_DAY_S
    gone = 0
    for path in _log_files(logs_dir()):
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
                gone += 1
        except OSError as exc:  # somebody else prunes as well, or it is not ours to remove
            log.debug("%s stays: %s", path, exc)
    return gone


def _prune_daily(folder: Path) -> None:
    mark = folder / ".pruned"
    if mark.exists() and time.time() - mark.stat().st_mtime < _A_DAY_S:
        return
    mark.touch()
    try:
        age = float(os.environ.get(AGE_VARIABLE) or DEFAULT_AGE_DAYS)
    except ValueError:
        log.warning("%s is not a number of days; %g is used", AGE_VARIABLE, DEFAULT_AGE_DAYS)
        age = DEFAULT_AGE_DAYS
    prune_old_logs(age)


def _log_files(folder: Path) -> Iterator[Path]:
    return folder.glob("*.log") if folder.is_dir() else iter(())


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _LogFile:
    """Whole lines, scrubbed, each in the file as soon as it is whole. Any thread may write."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = open(path, "ab", buffering=0)  # noqa: SIM115 - open for as long as the run
        _lock_for_writing(self._file)
        self._lock = threading.Lock()
        self._unfinished: dict[str, bytes] = {}

    def write(self, stream: str, data: bytes) -> None:
        """Add what came from a stream; its last line waits for its end, so that a secret is never cut in two."""
        with self._lock:
            if self._file.closed:
                return
            whole, newline, rest = (self._unfinished.pop(stream, b"") + data).rpartition(b"\n")
            if len(rest) > _LONGEST_LINE:
                whole, newline, rest = whole + newline + rest, b"\n", b""
            self._put(whole + newline)
            if rest:
                self._unfinished[stream] = rest

    def close(self) -> None:
        """Write what is left, and let readers know that this was all."""
        with self._lock:
            for rest in self._unfinished.values():
                self._put(rest + b"\n")
            self._unfinished.clear()
            self._file.close()

    def _put(self, data: bytes) -> None:
        if data:
            try:
                self._file.write(scrub(data.decode("utf-8", "replace")).encode())
            except OSError as exc:  # a full disk must not break the print() of a pipeline
                log.debug("output is lost: %s", exc)


class _Tee:
    """A stream that also writes to the files of the runs under way. Everything else is the stream's own.

    Loggers keep the stream they were made with, so one that outlives its run goes on as the stream it replaced.
    """

    def __init__(self, name: str, stream: Any, before: Any) -> None:
        self._name, self._stream, self.before = name, stream, before

    def write(self, text: str) -> int:
        for file in _process.receivers():
            file.write(self._name, text.encode("utf-8", "replace"))
        written: int = self._stream.write(text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def release(self) -> None:
        self._stream.flush()
        if self._stream is not self.before:
            self._stream.close()
            self._stream = self.before

    def __getattr__(self, name: str) -> Any:
        # `buffer` is that of the stream before: its bytes come to the file through the descriptor, if at all.
        return getattr(self.before if name == "buffer" else self._stream, name)


class _Pump:
    """One descriptor (1 or 2) led through a pipe: a thread passes on what comes, and writes it to the runs' files.

    The thread lives as long as the process: a JVM that was started in one run keeps the pipe, and would be hurt by an
    end of it that nobody reads.
    """

    def __init__(self, number: int, name: str) -> None:
        self._number, self._name = number, name
        self._terminal = os.dup(number)
        self._read, self._write = os.pipe()
        _enlarge(self._write)
        self._seen = threading.Condition()
        self._marks = self._passed = 0
        threading.Thread(target=self._pass_on, name=f"output-{name}", daemon=True).start()

    def begin(self) -> None:
        """Lead the descriptor into the pipe, and what comes out of it to where the descriptor leads at this moment."""
        if not os.path.sameopenfile(self._number, self._write):
            os.dup2(self._number, self._terminal, inheritable=False)
        os.dup2(self._write, self._number)

    def end(self) -> None:
        """Lead it back."""
        os.dup2(self._terminal, self._number)

    def drain(self) -> None:
        """Wait until what was written before has been passed on."""
        with self._seen:
            self._marks += 1
            wanted = self._marks
        os.write(self._write, _MARK)
        with self._seen:
            self._seen.wait_for(lambda: self._passed >= wanted, _DRAIN_S)

    def past_the_pipe(self) -> TextIO:
        """A stream to where the descriptor led."""
        return open(os.dup(self._terminal), "w", encoding="utf-8", errors="replace", buffering=1)

    def _pass_on(self) -> None:
        held = b""
        while data := os.read(self._read, _LONGEST_LINE):
            held += data
            while _MARK in held:
                before, _, held = held.partition(_MARK)
                self._tell(before)
                with self._seen:
                    self._passed += 1
                    self._seen.notify_all()
            keep = _begun_mark(held)
            self._tell(held[: len(held) - keep])
            held = held[len(held) - keep :]

    def _tell(self, data: bytes) -> None:
        for file in _process.receivers():
            file.write(f"fd-{self._name}", data)
        while data:
            try:
                data = data[os.write(self._terminal, data) :]
            except OSError:  # the terminal is gone; whoever writes to it must not notice
                return


class _ProcessOutput:
    """The streams and descriptors of this process, and the files that get what goes through them.

    The first run takes them, the last gives them back.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._files: tuple[_LogFile, ...] = ()
        self._tees: tuple[_Tee, ...] = ()
        self._pumps: tuple[_Pump, ...] = ()
        self._leads = self._stays = False
        self.is_whole = False

    def receivers(self) -> tuple[_LogFile, ...]:
        """The file of the run that this thread works for, or all."""
        files, here = self._files, _here.get()
        return (here,) if here is not None and here in files else files

    def begin(self, file: _LogFile, *, descriptors: bool) -> None:
        with self._lock:
            self._files = (*self._files, file)
            if self._tees:
                return
            streams = sys.stdout, sys.stderr
            if descriptors:
                self._lead()
            out, err = (self._tee(name, stream) for name, stream in zip(("out", "err"), streams, strict=True))
            self._tees = out, err
            sys.stdout, sys.stderr = out, err

    def end(self, file: _LogFile) -> None:
        with self._lock:
            if len(self._files) == 1:
                for name, tee in zip(("stdout", "stderr"), self._tees, strict=True):
                    if getattr(sys, name) is tee:
                        setattr(sys, name, tee.before)
                    tee.release()
                self._tees = ()
            self._drain()
            self._files = tuple(one for one in self._files if one is not file)
            if not self._files and self._leads and not self._stays:
                self._leads = False
                for pump in self._pumps:
                    pump.end()

    def take_descriptors(self) -> None:
        with self._lock:
            self._lead()
            if not self._stays:
                self._stays = True
                atexit.register(self._give_back)

    def _lead(self) -> None:
        if not self._leads:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            self._pumps = self._pumps or (_Pump(1, "out"), _Pump(2, "err"))
            for pump in self._pumps:
                pump.begin()
            self._leads = True

    def _give_back(self) -> None:
        self._drain()
        for pump in self._pumps:
            pump.end()

    def _drain(self) -> None:
        if self._leads:
            for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
                if stream is not None and not stream.closed:
                    stream.flush()
            for pump in self._pumps:
                pump.drain()

    def _tee(self, name: str, stream: Any) -> Any:
        """Python's own streams write to the files at once, and past the pipe to where it leads."""
        number = _descriptor(stream)
        is_led = self._leads and number in (1, 2)
        return _Tee(name, self._pumps[number - 1].past_the_pipe() if is_led else stream, stream)


_MARK = b"\x00ematix-flow:end-of-run\x00"
_here: ContextVar[_LogFile | None] = ContextVar("ematix_flow_output", default=None)
_process = _ProcessOutput()


def _descriptor(stream: Any) -> int:
    """The descriptor a stream writes to; a stream that was replaced (by a test, a notebook) may have none."""
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return -1


def _begun_mark(data: bytes) -> int:
    """How many last bytes may be the beginning of the mark."""
    return next((n for n in range(min(len(_MARK) - 1, len(data)), 0, -1) if data.endswith(_MARK[:n])), 0)


def _enlarge(pipe: int) -> None:
    """Room for what native code says while it keeps Python from reading."""
    if sys.platform == "linux":
        import fcntl

        try:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError as exc:
            log.debug("the pipe stays small: %s", exc)


def _lock_for_writing(file: IO[bytes]) -> None:
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH)
        except OSError as exc:  # a file system without locks: readers cannot see the end, and stop early
            log.debug("the output file is not locked: %s", exc)


def _has_writer(file: IO[str]) -> bool:
    """Whether a living process still writes to the file."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(file.fileno(), fcntl.LOCK_UN)
    return False
