"""What a command works on: the user's module, and the pipeline or transform in it that was named."""

from __future__ import annotations

import os
import sys
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, TextIO

from ematix_flow.config.loader import load_modules
from ematix_flow.declare import registry
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.declare.registry import Declared
from ematix_flow.errors import UnknownName, WrongDeclarationType, closest, listed

if TYPE_CHECKING:
    from ematix_flow.run.registered import Orchestrated


class _Modules(Action):
    """Several modules become one text, with commas between: what a worker is told, too."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


def add_module(
    parser: ArgumentParser,
    *,
    required: bool = True,
    what: str = "module that declares the pipelines, seen from the working directory; may be given several times",
) -> None:
    """`--module M`, once or several times; all that they declare is one graph."""
    parser.add_argument("--module", required=required, action=_Modules, metavar="M", help=what)


def add_name(parser: ArgumentParser, what: str) -> None:
    """The name of one declared thing."""
    parser.add_argument("name", metavar="NAME", help=f"the {what}'s name; `flow list --module M` shows them")


def load(module: str) -> None:
    """Import the user's module, or those with commas between, so that its declarations are known."""
    with prints_on_stderr():
        load_modules([name for part in module.split(",") if (name := part.strip())] or [module])


@contextmanager
def prints_on_stderr() -> Iterator[None]:
    """While the user's code runs, what it prints is part of the story: stdout holds the answer and nothing else.

    That goes for native code and child processes, too; what they print is kept with the run that is under way.
    """
    from ematix_flow.watch.run_output import whole_process

    with whole_process(), _first_descriptor_on_second(sys.stdout), redirect_stdout(sys.stderr):
        yield


@contextmanager
def _first_descriptor_on_second(stdout: TextIO) -> Iterator[None]:
    stdout.flush()
    try:
        answers = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed: there is nothing to keep apart
        yield
        return
    try:
        yield
    finally:
        with suppress(ValueError):  # closed by the user's code
            stdout.flush()  # by somebody who kept the stream from before
        os.dup2(answers, 1)
        os.close(answers)


def declared_pipeline(args: Namespace) -> Any:
    """The pipeline the command names, after importing its module.

    Raises:
        UnknownName: The module declares no such pipeline; the nearest one is suggested.
    """
    load(args.module)
    return _named("pipeline", args, registry.current().pipeline(args.name), registry.current().pipelines())


def declared_entry(module: str, name: str) -> Orchestrated:
    """The pipeline or workflow of that name, as the orchestrator sees it, after importing its module.

    Raises:
        UnknownName: The module declares neither; the nearest one is suggested.
    """
    from ematix_flow.run.registered import orchestrated

    load(module)
    entries = {entry.name: entry for entry in orchestrated()}
    if name not in entries:
        raise UnknownName(
            f"Module '{module}' declares no pipeline or workflow named '{name}'.",
            fix=closest(name, entries) or f"it declares: {listed(sorted(entries))}",
        )
    return entries[name]


def decorated_pipeline(args: Namespace) -> Pipeline:
    """Like `declared_pipeline`, and it must have been made by `@ematix.pipeline`, which knows what it will do.

    Raises:
        WrongDeclarationType: (a TypeError) The pipeline is a bare function.
    """
    pipeline = declared_pipeline(args)
    if not isinstance(pipeline, Pipeline):
        raise WrongDeclarationType(
            f"Pipeline '{args.name}' is a bare function; there is nothing to look at before it runs.",
            fix="declare it with @ematix.pipeline(...)",
        )
    return pipeline


def declared_transform(args: Namespace) -> Any:
    """The transform the command names, after importing its module.

    Raises:
        UnknownName: The module declares no such transform; the nearest one is suggested.
    """
    load(args.module)
    return _named("transform", args, registry.current().transform(args.name), registry.current().transforms())


def schedule_of(thing: Any) -> str | None:
    """The cron expression of a pipeline or transform, or None."""
    schedule = getattr(getattr(thing, "spec", thing), "schedule", None)
    return str(schedule) if schedule else None


def _named(what: str, args: Namespace, found: Declared | None, known: tuple[Declared, ...]) -> Any:
    if found is not None:
        return found.thing
    names = [entry.name for entry in known]
    raise UnknownName(
        f"Module '{args.module}' declares no {what} named '{args.name}'.",
        fix=closest(args.name, names) or f"it declares: {listed(sorted(names))}",
    )
