"""Importing the user's module, so that its decorators fill the registry."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from ematix_flow.declare.dependencies import check_graph
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import FlowError, ModuleNotLoaded, closest

_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[1]) + os.sep


def load_modules(names: Sequence[str]) -> list[ModuleType]:
    """Import several modules, whose pipelines may wait for each other, then check the whole graph.

    Raises:
        ModuleNotLoaded: As `load_module`.
        FlowError: As `load_module`.
    """
    modules = [_import(name) for name in names]
    check_graph()
    return modules


def load_module(name: str) -> ModuleType:
    """Import the module given with `--module`; the working directory is searched first.

    A path to a file below the working directory (``pipelines/customers.py``) is read as its dotted name. A module that
    is already imported is not run again.

    Raises:
        ModuleNotLoaded: There is no such module (near ones are suggested), or it raised while being imported; then the
            error names the line and the reason, without a traceback.
        FlowError: A declaration in the module is wrong, or what it declares does not fit together; passed on as it is,
            with its place.
    """
    return load_modules([name])[0]


def _import(name: str) -> ModuleType:
    dotted = _dotted(name)
    _search_here()
    try:
        return importlib.import_module(dotted)
    except FlowError as exc:
        exc.at(_place(exc) or dotted)
        raise
    except ModuleNotFoundError as exc:
        if exc.name is not None and (dotted == exc.name or dotted.startswith(f"{exc.name}.")) and not _place(exc):
            raise _not_found(name, dotted) from exc
        raise _broken(dotted, exc) from exc
    except (Exception, SystemExit) as exc:  # it is the user's code: anything may come out of it
        raise _broken(dotted, exc) from exc


def _dotted(name: str) -> str:
    """``pipelines/customers.py`` → ``pipelines.customers``."""
    text = name.strip()
    if text.endswith(".py"):
        text = text.removesuffix(".py").removeprefix("./").replace("/", ".").replace(os.sep, ".")
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", text):
        raise ModuleNotLoaded(
            f"'{scrub(name)}' is not the name of a module.",
            fix="give a dotted name such as my_pipelines or project.pipelines, seen from the working directory",
        )
    return text


def _search_here() -> None:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    # A file written a moment ago may be missing from the import system's picture of the folder.
    importlib.invalidate_caches()


def _not_found(name: str, dotted: str) -> ModuleNotLoaded:
    near = _modules_here()
    return ModuleNotLoaded(
        f"There is no module '{scrub(name)}'.",
        tried=("the working directory", "sys.path"),
        fix=closest(dotted, near)
        or (f"modules here: {', '.join(near[:8])}" if near else "run the command in the folder that holds the module"),
    )


def _modules_here() -> list[str]:
    """Dotted names of modules in the working directory and its packages."""
    here = Path.cwd()
    found = [path.stem for path in here.glob("*.py")]
    for folder in sorted(path for path in here.iterdir() if path.is_dir() and path.name.isidentifier()):
        names = [path.stem for path in folder.glob("*.py")]
        found.extend(folder.name if stem == "__init__" else f"{folder.name}.{stem}" for stem in names)
    return sorted(name for name in found if not name.startswith(("test_", "setup", "conftest")))


def _broken(dotted: str, exc: BaseException) -> ModuleNotLoaded:
    said = scrub(str(exc)).splitlines()
    reason = f"{type(exc).__name__}: {said[0]}" if said else type(exc).__name__
    if isinstance(exc, SyntaxError):
        reason = f"{type(exc).__name__}: {exc.msg}"
    fix = None
    if isinstance(exc, ModuleNotFoundError) and exc.name:
        fix = f"install the package that brings '{exc.name}', or correct the import"
    return ModuleNotLoaded(f"Module '{dotted}' could not be imported: {reason}", where=_place(exc), fix=fix)


def _place(exc: BaseException) -> str | None:
    """The innermost line of the user's own code; None when the error came from outside it."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return f"{_relative(exc.filename)}:{exc.lineno}"
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if _is_users(frame.filename)]
    return f"{_relative(frames[-1].filename)}:{frames[-1].lineno}" if frames else None


def _is_users(file: str) -> bool:
    if file.startswith("<") or file.startswith(_PACKAGE_FOLDER):
        return False
    outside = (
        f"{os.sep}site-packages{os.sep}",
        f"{os.sep}dist-packages{os.sep}",
        os.path.dirname(os.__file__) + os.sep,
    )
    return not any(part in file for part in outside)


def _relative(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith(os.pardir) else relative
