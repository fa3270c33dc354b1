"""What has been declared in this process: one registry of names, and the place in the code behind each name.

Decorators add to it while the user's module is imported; planner, runner, scheduler and web UI read it from any thread.
Declaring a name again from the same place replaces the earlier declaration (a notebook cell, a reload, a file that is
both run and imported); declaring it from a second place is an error that names both.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ematix_flow.errors import DuplicateName, InvalidDeclaration

if TYPE_CHECKING:
    from ematix_flow.declare.connection import Connection

Shelf = Literal["connection", "pipeline", "transform", "feature view", "streaming pipeline", "workflow"]
"""The sorts of things that have names of their own; a pipeline and a transform may share one."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """The line of the user's code that declared something.

    Attributes:
        file: As Python knows it; notebooks and prompts give names such as ``<stdin>``.
        line: First line of the declaration, decorators included where Python tells.
        name: Qualified name of the declared function or class.
        module: Dotted name of the module, ``__main__`` in scripts and notebooks.
    """

    file: str
    line: int
    name: str = ""
    module: str = ""

    def __str__(self) -> str:
        """``pipelines/customers.py:14 (sync_customers)``, relative to the working directory where that is shorter."""
        suffix = f" ({self.name})" if self.name else ""
        return f"{_short_path(self.file)}:{self.line}{suffix}"

    @property
    def is_interactive(self) -> bool:
        """Whether the declaration was typed into a prompt or a notebook cell."""
        return self.file.startswith("<") or "ipykernel_" in self.file

    def is_same_place(self, other: SourceLocation) -> bool:
        """Whether `other` is this declaration executed again, rather than a second one that took the same name."""
        if self.module == other.module and self.is_interactive and other.is_interactive:
            # Every execution of a cell has a new file name, and people rename functions between two executions.
            return True
        if self.module and self.module == other.module and self.name and self.name == other.name:
            return True
        return self.file == other.file and (self.line == other.line or (self.name != "" and self.name == other.name))


@dataclass(frozen=True, slots=True)
class Declared:
    """One entry of the registry: a name, what it stands for, and where it was written."""

    name: str
    thing: object
    where: SourceLocation


class Registry:
    """Names declared by code, in order of first declaration. Safe to read and extend from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._connections: dict[str, tuple[Connection, SourceLocation]] = {}
        self._shelves: dict[Shelf, dict[str, Declared]] = {}
        self._upstreams: dict[str, tuple[str, ...]] = {}
        self._awaited: set[str] = set()

    # Connections: the last one wins, wherever it comes from, as documented for `register_connection`.

    def add_connection(self, connection: Connection, where: SourceLocation) -> None:
        """Register a connection under its own name, replacing an earlier one silently."""
        with self._lock:
            self._connections[connection.name] = (connection, where)

    def connection(self, name: str) -> Connection | None:
        """The connection of this name, or None."""
        with self._lock:
            found = self._connections.get(name)
        return found[0] if found else None

    def connection_where(self, name: str) -> SourceLocation | None:
        """Where the connection of this name was declared, or None."""
        with self._lock:
            found = self._connections.get(name)
        return found[1] if found else None

    def connections(self) -> dict[str, Connection]:
        """A copy: name → connection."""
        with self._lock:
            return {name: connection for name, (connection, _) in self._connections.items()}

    def clear_connections(self) -> None:
        """Forget every connection; pipelines and the rest stay."""
        with self._lock:
            self._connections.clear()

    # Everything else: a name belongs to one place.

    def add_pipeline(self, name: str, pipeline: object, where: SourceLocation, upstreams: tuple[str, ...] = ()) -> None:
        """Register a batch pipeline, and the names of the pipelines it waits for.

        Raises:
            DuplicateName: Another place already declares a pipeline of this name. Nothing is changed then.
        """
        with self._lock:
            self._add("pipeline", name, pipeline, where)
            self._upstreams[name] = upstreams
            self._awaited.update(upstreams)

    def pipeline(self, name: str) -> Declared | None:
        """The pipeline of this name, or None."""
        return self._get("pipeline", name)

    def pipelines(self) -> tuple[Declared, ...]:
        """All pipelines, in order of declaration."""
        return self._all("pipeline")

    def upstreams(self) -> dict[str, tuple[str, ...]]:
        """A copy: every pipeline, and the names it waits for, which need not be declared yet."""
        with self._lock:
            return dict(self._upstreams)

    def is_awaited(self, name: str) -> bool:
        """Whether a pipeline waits for this name, or once did."""
        with self._lock:
            return name in self._awaited

    def add_transform(self, name: str, transform: object, where: SourceLocation) -> None:
        """Register a post-load transform; duplicates are refused as for pipelines."""
        self._add("transform", name, transform, where)

    def transform(self, name: str) -> Declared | None:
        """The transform of this name, or None."""
        return self._get("transform", name)

    def transforms(self) -> tuple[Declared, ...]:
        """All transforms, in order of declaration."""
        return self._all("transform")

    def add_feature_view(self, name: str, view: object, where: SourceLocation) -> None:
        """Register a feature view; duplicates are refused as for pipelines."""
        self._add("feature view", name, view, where)

    def feature_view(self, name: str) -> Declared | None:
        """The feature view of this name, or None."""
        return self._get("feature view", name)

    def feature_views(self) -> tuple[Declared, ...]:
        """All feature views, in order of declaration."""
        return self._all("feature view")

    def add_streaming_pipeline(self, name: str, pipeline: object, where: SourceLocation) -> None:
        """Register a streaming pipeline; duplicates are refused as for pipelines."""
        self._add("streaming pipeline", name, pipeline, where)

    def streaming_pipeline(self, name: str) -> Declared | None:
        """The streaming pipeline of this name, or None."""
        return self._get("streaming pipeline", name)

    def streaming_pipelines(self) -> tuple[Declared, ...]:
        """All streaming pipelines, in order of declaration."""
        return self._all("streaming pipeline")

    def add_workflow(self, name: str, workflow: object, where: SourceLocation) -> None:
        """Register a workflow; duplicates are refused as for pipelines."""
        self._add("workflow", name, workflow, where)

    def workflow(self, name: str) -> Declared | None:
        """The workflow of this name, or None."""
        return self._get("workflow", name)

    def workflows(self) -> tuple[Declared, ...]:
        """All workflows, in order of declaration."""
        return self._all("workflow")

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._connections.clear()
            self._shelves.clear()
            self._upstreams.clear()
            self._awaited.clear()

    def _add(self, shelf: Shelf, name: str, thing: object, where: SourceLocation) -> None:
        if not isinstance(name, str) or not name.strip():
            raise InvalidDeclaration(f"A {shelf} needs a name.", where=str(where), fix="pass name='…'")
        with self._lock:
            entries = self._shelves.setdefault(shelf, {})
            earlier = entries.get(name)
            if earlier is not None and not earlier.where.is_same_place(where):
                raise DuplicateName(
                    f"{shelf.capitalize()} '{name}' is already registered by {earlier.where}.",
                    where=str(where),
                    fix=f"give one of the two another name with name='…': {earlier.where} or {where}",
                )
            entries[name] = Declared(name, thing, where)

    def _get(self, shelf: Shelf, name: str) -> Declared | None:
        with self._lock:
            return self._shelves.get(shelf, {}).get(name)

    def _all(self, shelf: Shelf) -> tuple[Declared, ...]:
        with self._lock:
            return tuple(self._shelves.get(shelf, {}).values())


# A plain global, not a ContextVar: worker threads and Spark's callback threads must see what the main thread declared.
_swap_lock = threading.Lock()
_current = Registry()


def current() -> Registry:
    """The registry that decorators write to and commands read from."""
    return _current


def _put(registry: Registry) -> Registry:
    """Make it the current one; what was it before comes back."""
    global _current
    with _swap_lock:
        previous, _current = _current, registry
    return previous


@contextmanager
def isolated() -> Iterator[Registry]:
    """An empty registry for the duration of a test; the previous one comes back afterwards, also after an error.

    Every thread of the process sees the swap, so tests that use it must not run in two threads of one process.
    """
    mine = Registry()
    previous = _put(mine)
    try:
        yield mine
    finally:
        _put(previous)


@contextmanager
def replaced() -> Iterator[Registry]:
    """An empty registry that stays when the block ends well; after an error the previous one is back, as it was."""
    mine = Registry()
    previous = _put(mine)
    try:
        yield mine
    except BaseException:
        _put(previous)
        raise


def caller_location(depth: int = 1, *, name: str = "") -> SourceLocation:
    """The line that is executing `depth` calls above the function that asks (0 is that function itself)."""
    frame = sys._getframe(1)
    for _ in range(depth):
        if frame.f_back is None:
            break
        frame = frame.f_back
    return SourceLocation(
        file=frame.f_code.co_filename,
        line=frame.f_lineno,
        name=name,
        module=str(frame.f_globals.get("__name__", "")),
    )


def user_location(name: str = "") -> SourceLocation:
    """The nearest line of code above that does not belong to this package: where the user wrote the declaration."""
    depth = 1
    while (found := caller_location(depth, name=name)).module.partition(".")[0] == "ematix_flow":
        deeper = caller_location(depth + 1, name=name)
        if deeper == found:
            break
        depth += 1
    return found


def function_location(function: Callable[..., object]) -> SourceLocation:
    """Where a function was written; falls back to the caller of the caller for things without code of their own."""
    code = getattr(function, "__code__", None)
    name = str(getattr(function, "__qualname__", ""))
    if code is None:
        return caller_location(2, name=name)
    return SourceLocation(
        file=code.co_filename,
        line=code.co_firstlineno,
        name=name,
        module=str(getattr(function, "__module__", "") or ""),
    )


def _short_path(file: str) -> str:
    if file.startswith("<"):
        return file
    try:
        relative = os.path.relpath(file)
    except (ValueError, OSError):  # another drive, or a working directory that is gone
        return file
    return file if relative.startswith(os.pardir) else relative
