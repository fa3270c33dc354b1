"""Stand-ins that ask for other versions of packages than the project has: each in a Python environment of its own."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

from ematix_flow.backends.jars import cache_root


def python_with(name: str, version: str, packages: Sequence[str]) -> Path:
    """The Python in the cache that has these packages; made when it is not there.

    Raises:
        subprocess.CalledProcessError: they cannot be had; `stderr` says why.
    """
    home = Path(os.environ.get("EMATIX_TEST_CACHE", str(cache_root()))) / f"{name}-{version}"
    python = home / "bin" / "python"
    if not (home / "installed").exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        venv.create(home, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(install, check=True, capture_output=True, text=True)
        (home / "installed").touch()
    return python
