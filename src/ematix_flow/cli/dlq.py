"""`flow dlq`: messages that a stream could not bring to its targets: look at them, replay, set aside, remove."""

from __future__ import annotations

import base64
import time
from argparse import ArgumentTypeError, Namespace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.declared_stream import add_stream, declared_stream
from ematix_flow.contracts.dead_letters import DeadLetter, KeepsDeadLetters, Selection, check_page, position_text
from ematix_flow.errors import UnknownName, counted

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser

_SHORT = 8


def configure(parser: CommandParser) -> None:
    """Five sub-commands over the letters of one stream."""
    parser.say(
        example="flow dlq list pipeline.toml\nflow dlq replay --module my_streams orders_to_warehouse",
        then="flow dlq show CONFIG.toml ID",
    )
    commands = parser.add_subparsers(dest="action", metavar="list|show|replay|park|purge", required=True)
    listing = commands.add_parser("list", help="the letters of a stream, oldest first")
    add_stream(listing)
    listing.add_argument("--status", choices=("pending", "parked"), help="only those in this state")
    listing.add_argument("--page", type=_natural, default=0, metavar="N", help="which page, from 0")
    listing.add_argument("--page-size", type=_positive, default=50, metavar="N", help="letters per page (default 50)")
    listing.say(example="flow dlq list pipeline.toml --status parked", then="flow dlq show CONFIG.toml ID")

    showing = commands.add_parser("show", help="everything known of one letter, and its payload")
    add_stream(showing)
    showing.add_argument("letter", metavar="ID", help="its id; the first characters are enough when no other begins so")
    showing.say(example="flow dlq show pipeline.toml 39de450b", then="flow dlq replay CONFIG.toml --id ID")

    replaying = commands.add_parser("replay", help="send letters through the stream again, each once")
    add_stream(replaying)
    _add_selection(replaying)
    replaying.add_argument(
        "--max-attempts", type=_positive, metavar="N", help="park what has been tried so often, instead of as declared"
    )
    replaying.say(
        "Without a selection, all pending letters. Parked ones only by their id. The stream may be running.",
        example="flow dlq replay pipeline.toml --first 100\nflow dlq replay pipeline.toml --id 39de450b",
        then="flow dlq list CONFIG.toml   shows what failed again",
    )
    for name, help_, then in (
        (
            "park",
            "set letters aside, so that replays leave them",
            "flow dlq replay CONFIG.toml --id ID   brings one back",
        ),
        ("purge", "remove letters for good", "flow dlq list CONFIG.toml"),
    ):
        changing = commands.add_parser(name, help=help_)
        add_stream(changing)
        _add_selection(changing)
        changing.say(
            example=f"flow dlq {name} pipeline.toml --id 39de450b\nflow dlq {name} pipeline.toml --all", then=then
        )


def _add_selection(parser: CommandParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", dest="all_letters", help="all of them")
    which.add_argument("--first", type=_positive, metavar="N", help="the oldest N")
    which.add_argument("--id", action="append", dest="ids", metavar="ID", help="this one; may be given several times")


def run(args: Namespace, console: Console) -> int:
    """Find the stream's letters and do what was asked."""
    from ematix_flow.run.dead_letter_replay import opened

    spec = declared_stream(args, console)
    with opened(spec) as (ready, keeper):
        if args.action == "list":
            return _list(args, console, ready.name, keeper)
        if args.action == "show":
            return _show(args, console, keeper)
        if args.action == "replay":
            return _replay(args, console, spec, keeper)
        return _change(args, console, ready.name, keeper)


def _list(args: Namespace, console: Console, name: str, keeper: KeepsDeadLetters) -> int:
    letters = keeper.records(check_page(args.status, args.page, args.page_size), args.page, args.page_size)
    stats = keeper.stats(_now_ms())
    if console.is_json:
        console.json({"pipeline": name, "stats": stats.to_dict(), "records": [to_json(letter) for letter in letters]})
        return 0
    if letters:
        columns = ("ID", "STAGE", "STATUS", "ATTEMPT", "FAILED (UTC)", "SOURCE", "POSITION", "ERROR")
        console.table(columns, [_row(letter) for letter in letters])
    more = " at least" if stats.truncated else ""
    console.note(f"{name}:{more} {stats.pending:,} pending, {stats.parked:,} parked in {keeper.label}")
    return 0


def _row(letter: DeadLetter) -> tuple[Any, ...]:
    return (
        letter.id[:_SHORT],
        letter.stage,
        letter.status,
        letter.attempt,
        _moment(letter.failed_at),
        letter.source_id,
        _place(letter),
        (letter.error.splitlines() or [""])[0],
    )


def _place(letter: DeadLetter) -> str:
    at = letter.position
    if "offset" in at:
        return f"{at.get('partition', 0)}:{at['offset']}"
    return position_text(at)[:24]


def _show(args: Namespace, console: Console, keeper: KeepsDeadLetters) -> int:
    letter = keeper.by_id(_full_id(keeper, args.letter))
    if letter is None:
        raise _not_one(args.letter, [])
    if console.is_json:
        console.json(to_json(letter))
        return 0
    shown = to_json(letter)
    for label, value in (
        ("letter", letter.id),
        ("pipeline", letter.pipeline_name),
        ("stage", letter.stage),
        ("status", letter.status),
        ("attempt", str(letter.attempt)),
        ("failed", f"{_moment(letter.failed_at)} UTC"),
        ("source", letter.source_id),
        ("position", position_text(letter.position)),
        ("event", None if letter.event_ts is None else f"{_moment(letter.event_ts // 1000)} UTC"),
        ("key", None if letter.key is None else _readable(letter.key)),
        *((f"header {name}", "" if value is None else _readable(value)) for name, value in letter.headers),
        ("error", letter.error),
        ("format", letter.payload_format),
    ):
        if value is not None:
            console.line(f"{label:<10} {value}")
    console.line()
    console.line(shown["payload"] if shown["payload"] is not None else f"base64: {shown['payload_base64']}")
    return 0


def _replay(args: Namespace, console: Console, spec: Any, keeper: KeepsDeadLetters) -> int:
    from ematix_flow.run.dead_letter_replay import replay

    report = replay(spec, _selection(args, keeper) or Selection(), max_attempts=args.max_attempts)
    if console.is_json:
        console.json(report.to_dict())
    else:
        console.line(
            f"{spec.name}: {counted(report.taken, 'letter')} replayed, {report.succeeded:,} succeeded, "
            f"{report.redeadlettered:,} failed again, {report.parked:,} parked"
        )
    return 0 if report.succeeded == report.taken else 1


def _change(args: Namespace, console: Console, name: str, keeper: KeepsDeadLetters) -> int:
    selection = _selection(args, keeper)
    if selection is None:
        raise UnknownName(f"Which letters of '{name}'?", fix="--id ID, --first N or --all")
    change, done = (keeper.park, "parked") if args.action == "park" else (keeper.purge, "purged")
    number = change(selection, now_ms=_now_ms())
    if console.is_json:
        console.json({"pipeline": name, done: number})
    else:
        console.line(f"{name}: {counted(number, 'letter')} {done}")
    return 0


def _selection(args: Namespace, keeper: KeepsDeadLetters) -> Selection | None:
    if args.ids:
        return Selection("ids", ids=tuple(dict.fromkeys(_full_id(keeper, one) for one in args.ids)))
    if args.first:
        return Selection("first_n", n=args.first)
    return Selection() if args.all_letters else None


def _full_id(keeper: KeepsDeadLetters, written: str) -> str:
    found = keeper.ids_like(written.strip().lower())
    if len(found) != 1:
        raise _not_one(written, found)
    return found[0]


def _not_one(written: str, near: list[str]) -> UnknownName:
    if not near:
        return UnknownName(f"No dead letter has an id that begins with '{written}'.", fix="flow dlq list shows them")
    return UnknownName(
        f"{len(near)} dead letters have an id that begins with '{written}'.",
        fix=f"write more of it: {', '.join(near[:5])}",
    )


def to_json(letter: DeadLetter) -> dict[str, Any]:
    """A letter as JSON: its payload as text where it is text, and in base64 whatever it is."""
    shown = letter.to_dict()
    del shown["offset_bytes"]
    payload = letter.payload
    try:
        shown["payload"] = None if payload is None else payload.decode()
    except UnicodeDecodeError:
        shown["payload"] = None
    shown["payload_base64"] = None if payload is None else base64.b64encode(payload).decode()
    shown["key"] = None if letter.key is None else _readable(letter.key)
    shown["headers"] = {name: None if value is None else _readable(value) for name, value in letter.headers}
    return shown


def _readable(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _now_ms() -> int:
    return int(time.time() * 1000)


def _natural(text: str) -> int:
    if not text.isdigit():
        raise ArgumentTypeError(f"'{text}' is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"'{text}' is not a number above zero")
    return int(text)
