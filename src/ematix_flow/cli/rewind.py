"""`flow rewind`: send a stream back, or forth; what lies behind that place is read and written again."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

from ematix_flow.cli.declared_stream import add_stream, declared_stream
from ematix_flow.cli.state import add_confirmation, position_text
from ematix_flow.declare.instants import instant_of
from ematix_flow.run.stream_state import Place, StreamState

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser


def configure(parser: CommandParser) -> None:
    """The stream and the place."""
    add_stream(parser)
    parser.add_argument(
        "--to",
        dest="place",
        type=_place,
        required=True,
        metavar="PLACE",
        help="offset:JSON, timestamp:2026-03-01T06:00:00Z (without a zone: UTC), earliest or latest",
    )
    add_confirmation(parser)
    parser.say(
        "The stream must not run. Rows that its targets hold stay there: an append target gets the rows again.",
        example="flow rewind pipeline.toml --to timestamp:2026-03-01T06:00:00Z\n"
        """flow rewind pipeline.toml --to 'offset:{"0": 17, "1": 5}'\n"""
        "flow rewind --module my_streams orders_to_warehouse --to earliest",
        then="flow consume   begins there",
    )


def run(args: Namespace, console: Console) -> int:
    """Find the place and begin a new checkpoint there."""
    state = StreamState(declared_stream(args, console))
    begun = state.rewind(args.place, confirmed=args.confirm_state_reset)
    if console.is_json:
        console.json({"pipeline": state.spec.name, "begins_at": begun, "state_cleared": state.spec.is_stateful})
    else:
        console.line(f"{state.spec.name} begins at {position_text(begun)}")
    return 0


def _place(text: str) -> Place:
    kind, _, rest = text.partition(":")
    if kind in ("earliest", "latest") and not rest:
        return Place(when="earliest" if kind == "earliest" else "latest")
    try:
        if kind == "timestamp":
            return Place(when=instant_of(rest))
        if kind == "offset":
            return Place(offset=json.loads(rest))
    except ValueError as exc:
        raise ArgumentTypeError(f"'{rest}' is no {'time' if kind == 'timestamp' else 'JSON'}") from exc
    raise ArgumentTypeError(f"'{text}' is none of offset:JSON, timestamp:TIME, earliest, latest")
