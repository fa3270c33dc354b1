"""`flow preview`, `flow dry-run` and `flow validate`: three ways to look before running, from cheap to thorough."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from ematix_flow.cli.declared import add_module, add_name, decorated_pipeline, prints_on_stderr
from ematix_flow.cli.declared_stream import add_stream, declared_stream, is_file_name, stream_names
from ematix_flow.cli.spark_options import add_spark_place, spark_place

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser
    from ematix_flow.declare.pipeline import PipelineSpec

_NEXT = {"preview": "flow dry-run", "dry-run": "flow run", "validate": "flow preview"}


def configure(parser: CommandParser) -> None:
    """The same options for all three."""
    command = parser.prog.rpartition(" ")[2]
    if command == "preview":
        add_stream(parser)
    else:
        add_module(parser)
        add_name(parser, "pipeline")
    add_spark_place(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="every target, column and statement in full")
    of_a_stream = "\nflow preview pipeline.toml" if command == "preview" else ""
    parser.say(
        example=f"flow {command} --module my_pipelines sync_customers{of_a_stream}",
        then=f"{_NEXT[command]} --module my_pipelines sync_customers",
    )


def run(args: Namespace, console: Console) -> int:
    """Look, and print what was seen."""
    if args.command == "preview" and (args.module is None or _is_stream(args)):
        return _preview_stream(args, console)
    spec = decorated_pipeline(args).spec
    with spark_place(args):
        return _validate(spec, args, console) if args.command == "validate" else _preview(spec, args, console)


def _is_stream(args: Namespace) -> bool:
    return is_file_name(args.name) or args.name is None or args.name in stream_names(args.module)


def _preview_stream(args: Namespace, console: Console) -> int:
    from ematix_flow.run.stream_preview import preview_stream, render_stream

    facts = preview_stream(declared_stream(args, console))
    if console.is_json:
        console.json(facts)
    else:
        console.line(render_stream(facts))
    return 0


def _preview(spec: PipelineSpec, args: Namespace, console: Console) -> int:
    from ematix_flow.run.preview import dry_run, preview
    from ematix_flow.run.preview_text import render_text

    with prints_on_stderr():
        result = dry_run(spec) if args.command == "dry-run" else preview(spec)
    if console.is_json:
        console.json(result.to_dict())
    else:
        console.line(render_text(result, verbose=args.verbose))
    return 0 if result.ok else 1


def _validate(spec: PipelineSpec, args: Namespace, console: Console) -> int:
    from ematix_flow.run.preview import validate
    from ematix_flow.run.preview_text import render_validation

    with prints_on_stderr():
        result = validate(spec)
    if console.is_json:
        console.json(result.to_dict())
    elif result.ok:
        console.line(render_validation(result, verbose=args.verbose))
    else:
        console.note(render_validation(result, verbose=args.verbose))
        for error in result.errors:
            console.note(f"  - {error}")
    return 0 if result.ok else 1
