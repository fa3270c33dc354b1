"""`flow jars`: the connector jars Spark needs, on this machine before they are needed."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends import jars

if TYPE_CHECKING:
    from ematix_flow.backends.jars import JarState, Progress
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser

_NEWS_S = 5.0


def configure(parser: CommandParser) -> None:
    """Three sub-commands with the same arguments."""
    parser.say(example="flow jars list\nflow jars fetch delta kafka", then="flow jars check   reads them all again")
    commands = parser.add_subparsers(dest="action", metavar="list|fetch|check", required=True)
    words = (
        ("list", "which jars are known, and which are here", "flow jars fetch FAMILY"),
        ("fetch", "bring jars into the cache, so that later runs need no network", "flow jars check"),
        ("check", "compare the jars in the cache with their checksums", "flow jars fetch   replaces damaged ones"),
    )
    for name, purpose, then in words:
        command = commands.add_parser(name, help=purpose)
        command.add_argument(
            "families", nargs="*", metavar="FAMILY", help="for example delta; `flow jars list` shows all"
        )
        command.add_argument("--all", action="store_true", help="every family of the table")
        command.say(example=f"flow jars {name}\nflow jars {name} delta kafka", then=then)


def run(args: Namespace, console: Console) -> int:
    """Look, fetch, or look closely."""
    if args.action == "list":
        _show(jars.state(args.families or None), console)
        return 0
    if args.action == "check":
        return _check(args, console)
    return _fetch(args, console)


def _fetch(args: Namespace, console: Console) -> int:
    wanted = _families(args)
    if not wanted and not console.is_json:
        console.line(f"nothing to fetch: databases and local files need no jar ({jars.jar_cache_dir()})")
        console.note(
            "lake tables and buckets: flow jars fetch delta iceberg hadoop-aws   everything: flow jars fetch --all"
        )
        return 0
    _show(jars.fetch(wanted, progress=None if console.is_json else _story(console)), console)
    return 0


def _check(args: Namespace, console: Console) -> int:
    """Damaged jars fail. Missing ones only when they were asked for: nobody needs every family."""
    needed = set(_families(args))
    states = jars.check(args.families or None)
    _show(states, console)
    bad = [state for state in states if state.sha1_ok is False or (not state.present and state.name in needed)]
    if bad and not console.is_json:
        console.note(f"fix    flow jars fetch {' '.join(sorted({state.name for state in bad}))}")
    return 1 if bad else 0


def _families(args: Namespace) -> Sequence[str]:
    if args.all:
        return jars.families()
    return args.families or jars.SHIPPED_FAMILIES


def _show(states: Sequence[JarState], console: Console) -> None:
    if console.is_json:
        console.json(
            [
                {
                    "family": state.name,
                    "coordinate": state.coordinate,
                    "state": _state(state),
                    "bytes": state.bytes,
                    "path": state.path,
                }
                for state in states
            ]
        )
        return
    rows = [(state.name, state.coordinate, _state(state), _size(state.bytes)) for state in states]
    console.table(("FAMILY", "JAR", "STATE", "SIZE"), rows)
    console.note(str(jars.jar_cache_dir()))


def _state(state: JarState) -> str:
    if not state.present:
        return "missing"
    return {True: "ok", False: "damaged", None: "here"}[state.sha1_ok]


def _story(console: Console) -> Callable[[Progress], None]:
    """A line when a jar begins, and again every few seconds while it is on its way."""
    told: dict[str, float] = {}

    def tell(progress: Progress) -> None:
        name, now = progress.jar.file_name, time.monotonic()
        if name not in told or now - told[name] >= _NEWS_S:
            told[name] = now
            of = f" of {_size(progress.total)}" if progress.total else ""
            console.note(f"  … {name}  {_size(progress.done)}{of}")

    return tell


def _size(count: int) -> str:
    return "" if not count else f"{count / 1_000_000:.1f} MB"
