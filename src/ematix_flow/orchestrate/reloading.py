"""What the user's module declares, loaded again in this process when one of its files changes.

Only the import is repeated, into an empty registry that takes the place of the old one when all went well. A module
that cannot be loaded changes nothing: what it declared before still counts, until it can be.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType

from ematix_flow.declare import registry
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import FlowError, counted, listed
from ematix_flow.orchestrate.loaded_code import LoadedCode, Stamp

log = logging.getLogger("ematix_flow.scheduler")

TRY_AGAIN_S = 30.0
"""A module that does not load is tried again after so long: what it lacks may be a file that nobody watches yet."""
_NEVER_UNLOADED = ("__main__", "ematix_flow")


class WatchedModule:
    """The user's module, loaded, with everything that it imports from below the working directory.

    Made once by a process that only reads declarations; `refreshed` is called from the same thread, now and then, when
    nobody else reads them.

    Args:
        name: For people.
        load: Imports it and checks what it declares; raises a `FlowError` when that is wrong.

    Raises:
        FlowError: What `load` raises the first time.
    """

    def __init__(self, name: str, load: Callable[[], object]) -> None:
        self._name, self._load = name, load
        self._home = os.getcwd()
        self._looked: Mapping[str, Stamp] | None = None
        self._problem: str | None = None
        self._try_again_at = 0.0
        self._code = LoadedCode(self._home)
        began_ns = time.time_ns()
        load()
        self._code.note(began_ns)

    def refreshed(self) -> bool:
        """Load it again if a file has changed, and rests since the last look; whether there are new declarations."""
        changed = self._code.changed()
        if changed is not None:
            seen, self._looked = self._looked, self._code.stamps()
            if seen != self._looked:
                return False  # somebody is writing: half a change is none
        elif self._problem is None or time.monotonic() < self._try_again_at:
            return False
        self._looked = None
        return self._loaded_again(changed)

    def _loaded_again(self, changed: str | None) -> bool:
        known, code, began_ns = _names(), LoadedCode(self._home), time.time_ns()
        unloaded = self._unload(code)
        _forget_bytecode(unloaded.values())
        try:
            with registry.replaced():
                self._load()
        except Exception as exc:  # it is the user's code; whatever it raises, the old declarations stay
            code.note(began_ns)
            self._unload(code)
            sys.modules.update(unloaded)
            code.note_as_they_are(self._code.stamps())
            self._code, self._try_again_at = code, time.monotonic() + TRY_AGAIN_S
            self._say_problem(exc)
            return False
        code.note(began_ns)
        self._code, self._problem = code, None
        why = f"{changed} has changed" if changed is not None else "it can be loaded again"
        log.info("module loaded again: %s (%s): %s", self._name, why, _difference(known, _names()))
        return True

    def _unload(self, code: LoadedCode) -> dict[str, ModuleType]:
        """Take the user's modules out of the interpreter's list; they come back as they were."""
        mine = {
            name: module
            for name, module in tuple(sys.modules.items())
            if name.partition(".")[0] not in _NEVER_UNLOADED and _is_source_of(code, module)
        }
        for name in mine:
            del sys.modules[name]
        return mine

    def _say_problem(self, exc: Exception) -> None:
        words = exc.message if isinstance(exc, FlowError) else f"{type(exc).__name__}: {exc}"
        place = f" ({exc.where})" if isinstance(exc, FlowError) and exc.where else ""
        problem = scrub(" ".join(f"{words}{place}".split()))
        if problem != self._problem:
            log.error(
                "module does not load any more: %s; what it declared before still counts: %s", self._name, problem
            )
        self._problem = problem


def _is_source_of(code: LoadedCode, module: ModuleType) -> bool:
    """Whether it is Python of the user's: compiled modules can be imported once only."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.endswith(".py") and code.covers(file)


def _forget_bytecode(modules: Iterable[ModuleType]) -> None:
    """Python tells whether it is old by whole seconds; a file may have changed twice within one."""
    for module in modules:
        with contextlib.suppress(OSError, NotImplementedError):
            os.remove(importlib.util.cache_from_source(str(module.__file__)))


def _names() -> list[str]:
    declared = registry.current()
    return [entry.name for entry in (*declared.pipelines(), *declared.workflows())]


def _difference(before: list[str], after: list[str]) -> str:
    words = [counted(len(after), "pipeline or workflow", "pipelines and workflows")]
    for word, names in (("new", set(after) - set(before)), ("gone", set(before) - set(after))):
        if names:
            words.append(f"{word}: {listed(sorted(names))}")
    return "; ".join(words)
