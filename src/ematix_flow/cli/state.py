"""`flow state`: what a stream remembers, whether it can go on with it, beginning anew, and leaving nothing behind."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.queue_stream import BEHIND
from ematix_flow.cli.declared_stream import add_stream, declared_stream
from ematix_flow.run.stream_state import BEGINNINGS, StreamState

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser


def configure(parser: CommandParser) -> None:
    """Four sub-commands over one stream."""
    parser.say(
        example="flow state check pipeline.toml\nflow state inspect --module my_streams orders_to_warehouse\n"
        "flow state reset pipeline.toml --from earliest",
        then="flow consume   goes on with it",
    )
    commands = parser.add_subparsers(dest="action", metavar="check|inspect|reset|let-go", required=True)
    checking = commands.add_parser("check", help="whether the stream, as it is now, can use its checkpoint")
    add_stream(checking)
    checking.say("exit codes: 0 it can, 1 it cannot", example="flow state check pipeline.toml", then="flow state reset")
    inspecting = commands.add_parser(
        "inspect", help="generation, batches, positions, columns, and what windows or a join remember"
    )
    add_stream(inspecting)
    inspecting.say(example="flow state inspect pipeline.toml --json", then="flow rewind   to begin elsewhere")
    resetting = commands.add_parser("reset", help="begin a new checkpoint; the stream must not run")
    add_stream(resetting)
    resetting.add_argument(
        "--from",
        dest="beginning",
        choices=BEGINNINGS,
        default="targets",
        metavar="|".join(BEGINNINGS),
        help="where to begin: where the targets are (default), where the consumer group is, or at one of the ends",
    )
    add_confirmation(resetting)
    resetting.say(example="flow state reset pipeline.toml", then="flow consume pipeline.toml")
    leaving = commands.add_parser(
        "let-go", help="remove what sources keep for a stream that will not come back: replication slots"
    )
    add_stream(leaving)
    leaving.say(example="flow state let-go pipeline.toml", then="remove the declaration")


def add_confirmation(parser: CommandParser) -> None:
    """For streams with windows or joins, whose open state would be lost."""
    parser.add_argument(
        "--confirm-state-reset", action="store_true", help="windows and joins: forget what they have gathered so far"
    )


def run(args: Namespace, console: Console) -> int:
    """Look, or begin anew."""
    state = StreamState(declared_stream(args, console))
    if args.action == "check":
        return _check(state, console)
    if args.action == "inspect":
        _inspect(state.inspect(), console)
        return 0
    if args.action == "let-go":
        return _let_go(state, console)
    begun = state.reset(args.beginning, confirmed=args.confirm_state_reset)
    if console.is_json:
        console.json({"pipeline": state.spec.name, "begins_at": begun, "from": args.beginning})
    else:
        where = "where its targets are" if begun is None else position_text(begun)
        console.line(f"{state.spec.name} begins anew: {where}")
    return 0


def _let_go(state: StreamState, console: Console) -> int:
    removed = state.let_go()
    if console.is_json:
        console.json({"pipeline": state.spec.name, "removed": removed})
    else:
        console.line(f"{state.spec.name}: removed {', '.join(removed)}" if removed else "its sources keep nothing")
    return 0


def _check(state: StreamState, console: Console) -> int:
    verdict = state.check()
    if console.is_json:
        console.json(
            {
                "pipeline": state.spec.name,
                "can_go_on": verdict.can_go_on,
                "says": verdict.says,
                "fix": verdict.fix,
                "checkpoint": state.folder.place,
            }
        )
    else:
        console.line(f"{'✓' if verdict.can_go_on else '✗'} {state.spec.name}: {verdict.says}")
        if verdict.fix:
            console.line(f"  fix    {verdict.fix}")
    return 0 if verdict.can_go_on else 1


def _inspect(facts: dict[str, Any], console: Console) -> None:
    if console.is_json:
        console.json(facts)
        return
    for name, value in facts.items():
        label = name.replace("_", " ")
        if name in ("positions", "started_from") and isinstance(value, dict):
            for query, position in value.items():
                console.line(f"{label:<20} {position_text({query: position})}")
        elif name == "columns":
            for query, columns in value.items():
                console.line(f"{label:<20} {query}: {', '.join(f'{field} {kind}' for field, kind in columns.items())}")
        elif name == "memory" and value is not None:
            _remembered(value, console)
        elif name == "bytes" and value is not None:
            console.line(f"{label:<20} {value:,}")
        elif value is not None:
            console.line(f"{label:<20} {value}")
    if facts["generation"] is None:
        console.line("it has not been started yet")


def _remembered(memory: dict[str, Any], console: Console) -> None:
    """What windows or a join remember, a line each."""
    console.line(f"{'event time':<20} {memory['event_time'] or 'none yet'}")
    for source, moment in memory["sources"].items():
        console.line(f"{'event time of':<20} {source}: {moment}")
    for name, part in memory["parts"].items():
        span = f", from {part['oldest']} to {part['newest']}" if part["oldest"] else ""
        console.line(f"{'remembers':<20} {name}: {part['rows']:,} rows, {part['bytes']:,} bytes{span}")
    for name in ("open_windows", "groups", "keys"):
        if name in memory:
            console.line(f"{name.replace('_', ' '):<20} {memory[name]:,}")


def position_text(positions: Any) -> str:
    """Positions for people: `orders 0: 17, 1: 5`, as far as a source's words allow."""
    words = []
    for query, position in positions.items():
        inner = position.get(query, position.get(BEHIND, position)) if isinstance(position, dict) else position
        if isinstance(inner, dict):
            inner = ", ".join(f"{part}: {offset}" for part, offset in inner.items())
        words.append(f"{query} {inner}")
    return " · ".join(words)
