"""Servers of a test run that are plain programs: started in the background, awaited until they answer, ended by id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def start_program(home: Path, command: Sequence[str]) -> int:
    """Start a program in `home`, which keeps its log and its process id; the id."""
    done = subprocess.run(
        # The shell leaves the server behind as nobody's child, so no one has to wait for it.
        ["sh", "-c", 'log=$1; shift; "$@" >>"$log" 2>&1 & echo $!', "sh", str(home / "log"), *command],
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,  # Ctrl-C in the terminal is not for it
        check=True,
    )
    (home / "pid").write_text(done.stdout.strip())
    (home / "command").write_text("\n".join(command))
    return int(done.stdout)


def restart_program(home: Path, is_up: Callable[[], bool], patience: float) -> None:
    """Let the server in `home` crash and come back as it was started."""
    stop_program(home)
    pid = start_program(home, (home / "command").read_text().splitlines())
    if not answers(pid, is_up, patience):
        raise RuntimeError(f"It did not come back:\n{(home / 'log').read_text()[-2000:]}")


def answers(pid: int, is_up: Callable[[], bool], patience: float) -> bool:
    """Wait until a server is up; False when its process has ended, or is ended here for want of an answer."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if is_up():
            return True
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    return False


def stop_program(home: Path) -> None:
    """Stop the server in `home`; nothing to do when none was started or it is gone."""
    with contextlib.suppress(ProcessLookupError, ValueError, FileNotFoundError):
        os.kill(int((home / "pid").read_text()), signal.SIGKILL)  # nothing of it is kept
