"""Which stream a command means: the one of a TOML file, or one that a module declares."""

from __future__ import annotations

import os
import warnings
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.declared import add_module, load
from ematix_flow.declare import registry
from ematix_flow.errors import UnknownName, closest, listed

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.declare.stream_spec import StreamSpec

DEFAULT_FILE = "pipeline.toml"


def add_stream(parser: ArgumentParser) -> None:
    """The stream, in one of its two forms, and where it remembers how far it is."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="CONFIG.toml|NAME",
        help=f"a TOML file (default {DEFAULT_FILE}), or with --module the name of a stream",
    )
    add_module(parser, required=False, what="module that declares the stream, seen from the working directory")
    parser.add_argument("--checkpoint", metavar="DIR", help="where it remembers how far it is, instead of as declared")


def declared_stream(args: Namespace, console: Console) -> StreamSpec:
    """The stream that the arguments mean, checked. Nothing connects.

    Raises:
        UnknownName: The module declares no such stream, or there is no such file.
        FlowError: The file, the module or the declaration is wrong.
    """
    spec = _of_module(args) if args.module is not None and not is_file_name(args.name) else _of_file(args, console)
    return spec if args.checkpoint is None else replace(spec, checkpoint=args.checkpoint)


def stream_names(module: str) -> list[str]:
    """The streams of a module, sorted."""
    load(module)
    return sorted(entry.name for entry in registry.current().streaming_pipelines())


def _of_module(args: Namespace) -> StreamSpec:
    names = stream_names(args.module)
    if args.name is None:
        raise UnknownName(
            f"Which stream of module '{args.module}'?", fix=f"name one of {listed(names)}" if names else "it has none"
        )
    found = registry.current().streaming_pipeline(args.name)
    if found is None:
        raise UnknownName(
            f"Module '{args.module}' declares no stream named '{args.name}'.",
            fix=" ".join(filter(None, (closest(args.name, names), f"it declares: {listed(names)}"))),
        )
    thing: Any = found.thing
    spec: StreamSpec = thing.spec
    return spec


def _of_file(args: Namespace, console: Console) -> StreamSpec:
    from ematix_flow.config.stream_toml import read_stream_file

    path = args.name or DEFAULT_FILE
    if not is_file_name(path) and not os.path.isfile(path):
        raise UnknownName(
            f"There is no file '{path}'.", fix=f"a stream of a module: --module M {path}; a file: its path"
        )
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        spec = read_stream_file(path)
    for warning in heard:
        console.warning(str(warning.message))
    return spec


def is_file_name(name: str | None) -> bool:
    """Whether a stream is named by its file."""
    return name is not None and name.endswith(".toml")
