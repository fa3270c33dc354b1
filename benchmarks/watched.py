"""One program in a fresh process: how long it took, and the most memory it and its descendants held at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measured:
    """What a program cost. `code` is its exit code; `said` the end of what it wrote."""

    seconds: float
    peak_mb: float
    code: int
    said: str

    def __str__(self) -> str:
        if self.code != 0:
            return "out of memory" if "OutOfMemory" in self.said else f"failed ({self.code})"
        return f"{self.seconds:7.1f} s {self.peak_mb:7,.0f} MB"


def run(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float = 1800) -> Measured:
    """Start a program, wait for its end, and say what it cost, process start included."""
    log = cwd / "program.log"
    with log.open("w+") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=cwd, env={**os.environ, **env}, stdout=output, stderr=subprocess.STDOUT)
        peak = Peak(process.pid)
        peak.start()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        seconds = time.perf_counter() - began
        peak.stop()
        output.seek(0)
        said = output.read()
    return Measured(seconds, peak.mb, code, said)


def record_archive(*families: str) -> None:
    """See to it that Java starts as it does from the second run on: with the class archive of these connectors."""
    from ematix_flow.contracts.session import SessionNeeds
    from ematix_flow.spark import appcds

    if not appcds.build(SessionNeeds(jars=frozenset(families))):
        sys.stderr.write(f"no class archive for {', '.join(families)} could be recorded; measuring without\n")


def table(rows: int, cases: Mapping[str, Mapping[str, Measured]], ours: str) -> str:
    """Cases and programs as a table: seconds, how many times faster we are, and peak memory."""
    lines = [
        f"\n{rows:,} rows\n",
        "| case | program | seconds | we are faster by | peak memory |",
        "|---|---|---:|---:|---:|",
    ]
    for case, programs in cases.items():
        for name, done in programs.items():
            if done.code != 0:
                lines.append(f"| {case} | {name} | {done} | | |")
                continue
            ratio = "" if name == ours else f"{done.seconds / programs[ours].seconds:.2f}×"
            lines.append(f"| {case} | {name} | {done.seconds:.1f} | {ratio} | {done.peak_mb:,.0f} MB |")
    return "\n".join(lines) + "\n"


class Peak(threading.Thread):
    """Watches a process and its descendants. Counts memory of their own, not shared pages or mapped files."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.mb, self._over = pid, 0.0, threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.5):
            self.mb = max(self.mb, rss_mb(self.pid))

    def stop(self) -> None:
        """The process is over."""
        self._over.set()
        self.join()


def rss_mb(pid: int) -> float:
    """The memory that a process and its descendants hold now."""
    return sum(_resident_mb(one) for one in _family(pid))


def live_heap_mb(pid: int) -> float:
    """What Java's objects of a process and its descendants take when the garbage is gone; collects it."""
    from ematix_flow.backends.java import find_java

    jcmd, found = find_java().path / "bin" / "jcmd", 0.0
    for one in _family(pid):
        with suppress(OSError):
            if Path(f"/proc/{one}/exe").resolve().name == "java":
                told = subprocess.run([str(jcmd), str(one), "GC.class_histogram"], capture_output=True, text=True)
                found += int(told.stdout.splitlines()[-1].split()[2]) / 1024 / 1024
    return found


def _family(root: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        grown, found = bool(more), found | more
    return found


def _resident_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0.0)
