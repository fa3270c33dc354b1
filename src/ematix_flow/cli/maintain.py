"""`flow maintain`: put the small files of lake tables together, and remove what nobody needs any more."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.declared import add_module, load, prints_on_stderr
from ematix_flow.cli.spark_options import add_spark_place, spark_place
from ematix_flow.declare import registry
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.stream_pipeline import StreamingPipeline
from ematix_flow.errors import FlowError

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser
    from ematix_flow.contracts.maintenance import TableFiles
    from ematix_flow.run.maintenance import LakeTable


def configure(parser: CommandParser) -> None:
    """The module, and which of its tables."""
    add_module(parser)
    parser.add_argument(
        "tables",
        nargs="*",
        metavar="TABLE",
        help="schema.table; without any, all that declare maintenance=",
    )
    parser.add_argument("--dry-run", action="store_true", help="look at the tables and change nothing")
    add_spark_place(parser)
    parser.say(
        "exit codes: 0 maintained, 1 a table could not be, 2 the command or the configuration is wrong",
        example="flow maintain --module my_pipelines\nflow maintain --module my_pipelines sales.orders --dry-run",
        then="flow run --module my_pipelines NAME   maintains by itself what is due",
    )


def run(args: Namespace, console: Console) -> int:
    """One table after the other; one that fails does not keep the others from it."""
    from ematix_flow.run.maintenance import lake_tables

    load(args.module)
    known = registry.current()
    declared = [entry.thing for entry in (*known.pipelines(), *known.streaming_pipelines())]
    owners = [thing.spec for thing in declared if isinstance(thing, Pipeline | StreamingPipeline)]
    with spark_place(args):
        places = lake_tables(owners, args.tables)
        if not places and not console.is_json:
            console.line("no table declares maintenance=; name those that are meant: flow maintain --module M TABLE")
        answers = [_answer(place, args, console) for place in places]
    if console.is_json:
        console.json(answers)
    return 1 if any("error" in answer for answer in answers) else 0


def _answer(place: LakeTable, args: Namespace, console: Console) -> dict[str, Any]:
    """What came of one table: as lines now, or as data for the whole answer."""
    connection = place.connection.connection
    head = {"table": str(place.table), "connection": connection.name}
    if not console.is_json:
        console.line(f"{place.table} in {connection.name} ({connection.kind})")
    try:
        with prints_on_stderr():
            told = _looked_at(place) if args.dry_run else _maintained(place)
    except FlowError as exc:
        if not console.is_json:
            console.error(exc)
        return {**head, "error": scrub(exc.message)}
    for label, words in () if console.is_json else told.lines:
        console.line(f"  {label:<9} {words}")
    return {**head, **told.facts}


@dataclass(frozen=True)
class _Told:
    """One table's answer twice: as data, and as labelled lines."""

    facts: Mapping[str, Any]
    lines: Sequence[tuple[str, str]]


_NOT_THERE = _Told({"exists": False}, [("nothing", "the table is not there yet")])


def _maintained(place: LakeTable) -> _Told:
    from ematix_flow.cli.console import duration_text
    from ematix_flow.run.maintenance import maintain_now

    report = maintain_now(place)
    if report is None:
        return _NOT_THERE
    lines = [
        *_files_lines(report.before, report.after),
        *(("done", words) for words in report.done or ("there was nothing to do",)),
        *(("left out", words) for words in report.left_out),
        ("took", duration_text(report.duration_s)),
    ]
    return _Told(report.to_dict(), lines)


def _looked_at(place: LakeTable) -> _Told:
    from ematix_flow.run.maintenance import intentions

    with place.opened() as (maintenance, table):
        found, last = maintenance.look(table), maintenance.last(table)
    if found is None:
        return _NOT_THERE
    would = intentions(place.wanted)
    lines = [
        *_files_lines(found),
        ("last", f"{last:%Y-%m-%d %H:%M} UTC" if last else "never"),
        *(("would", words) for words in would),
    ]
    return _Told({"before": asdict(found), "last": last, "would": would}, lines)


def _files_lines(before: TableFiles, after: TableFiles | None = None) -> list[tuple[str, str]]:
    from ematix_flow.run.maintenance import files_text

    counts = [("live", before.live, after and after.live), ("on disk", before.stored, after and after.stored)]
    return [
        (label, files_text(old) + (f" → {files_text(new)}" if new else ""))
        for label, old, new in counts
        if old is not None
    ]
