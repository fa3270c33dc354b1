"""The folder one test run shares between its worker processes, and the promise that its servers end with the run.

The main pytest process makes the folder, holds a lock in it for as long as it lives, and names it in the environment
for its workers. A server is started by the first worker that wants it, under another lock. Normally the main process
stops what was started when the run ends. If it is killed, the kernel drops its lock, and the guard that was started
beside the server wakes up and does the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

VARIABLE = "EMATIX_TEST_RUN_FOLDER"
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class RunFolder:
    """One test run's shared folder. `path` may be entered by any user, so that a server can run as another one."""

    path: Path
    _alive: IO[str] | None = field(default=None, repr=False)

    @classmethod
    def create(cls, environ: MutableMapping[str, str] = os.environ) -> RunFolder:
        """Make the folder and hold it. Called once, by the main process, before workers start."""
        path = Path(tempfile.mkdtemp(prefix="ematix-tests-"))
        path.chmod(0o711)
        # Python does not hand open files to the programs it starts, so this process alone holds the lock.
        alive = (path / "alive").open("w")
        fcntl.flock(alive, fcntl.LOCK_EX)
        environ[VARIABLE] = str(path)
        return cls(path, alive)

    @classmethod
    def joined(cls) -> RunFolder:
        """The folder of the run this process belongs to."""
        return cls(Path(os.environ[VARIABLE]))

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """One worker at a time; the others wait."""
        with (self.path / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def guard(self, module: str) -> None:
        """Start a process that runs `python -m MODULE stop FOLDER` if the main process dies without having done it."""
        (self.path / f"{module}.guarded").touch()
        subprocess.run(
            # The shell leaves it behind as nobody's child, so no one has to wait for it.
            ["sh", "-c", '"$@" &', "sh", sys.executable, "-m", __name__, str(self.path), module],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is not for it
            check=True,
        )

    def close(self) -> None:
        """Remove the folder and let go of it. The servers in it have been stopped before."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._alive is not None:
            self._alive.close()


def wait_for_the_end(folder: Path, module: str) -> None:
    """What a guard does: wait until nobody holds the folder, then stop the server in it and clear up."""
    try:
        alive = (folder / "alive").open()
    except FileNotFoundError:
        return  # the run ended before the guard was up, and cleared up itself
    with alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        if folder.exists():
            subprocess.run([sys.executable, "-m", module, "stop", str(folder)], cwd=REPOSITORY, check=False)
            (folder / f"{module}.guarded").unlink(missing_ok=True)
            if not list(folder.glob("*.guarded")):  # the guards of other servers need the folder to find them
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    wait_for_the_end(Path(sys.argv[1]), sys.argv[2])
