"""`flow connections`: what is known and from where, whether it answers, and how to define it."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.declared import add_module, load
from ematix_flow.config.edit import set_connection
from ematix_flow.config.handles import connection_health
from ematix_flow.config.resolve import ListedConnection, listed_connections, resolve
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import ConnectionFailed, FlowError, InvalidConfig

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser

_EXAMPLE = """\
flow connections list --module my_pipelines
flow connections check warehouse
flow connections set warehouse=postgres://ann:secret@db.example.com/sales
flow connections set warehouse url='postgres://ann:${WAREHOUSE_PASSWORD}@db.example.com/sales'
flow connections set events kind=kafka bootstrap_servers=broker:9092"""

_CHAIN = """\
A name is looked for in this order: the variable EMATIX_FLOW_DSN_<NAME>, ./.ematix-flow.toml,
~/.ematix-flow/connections.toml, declared in code."""


def configure(parser: CommandParser) -> None:
    """Add the three subcommands."""
    parser.say(_CHAIN, example=_EXAMPLE, then="flow doctor --module my_pipelines   asks all connections at once")
    commands = parser.add_subparsers(dest="connections_command", metavar="COMMAND", required=True)

    listing = commands.add_parser(
        "list", help="every connection that can be named, without its secrets, and its origin"
    )
    listing.say(example="flow connections list --module my_pipelines", then="flow connections check NAME")
    _add_module(listing)

    check = commands.add_parser("check", help="connect, and say whether it worked")
    check.say(example="flow connections check warehouse", then="flow run --module my_pipelines NAME")
    check.add_argument("name", metavar="NAME")
    _add_module(check)

    setting = commands.add_parser(
        "set",
        help="define a connection in ~/.ematix-flow/connections.toml",
        usage="%(prog)s [options] NAME=DSN | NAME url=DSN | NAME kind=KIND FIELD=VALUE ...",
    )
    setting.say(
        example="\n".join(line for line in _EXAMPLE.splitlines() if " set " in line),
        then="flow connections check NAME",
    )
    setting.add_argument("words", nargs="+", metavar="WORD", help="NAME=DSN, or NAME and then FIELD=VALUE words")


def run(args: Namespace, console: Console) -> int:
    """Do the subcommand that was parsed; 0 when it worked, 2 when a connection does not answer."""
    if getattr(args, "module", None):
        load(args.module)
    if args.connections_command == "list":
        return _list(console)
    if args.connections_command == "check":
        return _check(args.name, console)
    return _set(args.words, console)


def _list(console: Console) -> int:
    found = listed_connections()
    if console.is_json:
        console.json([_as_json(item) for item in found])
    elif not found:
        console.line("no connections configured")
    else:
        console.table(["NAME", "CONNECTION", "ORIGIN"], [[item.name, _shown(item), _origin(item)] for item in found])
    return 0


def _check(name: str, console: Console) -> int:
    try:
        resolved = resolve(name)
        health = connection_health(resolved)
        if not health.ok:
            raise ConnectionFailed(health.detail, fix=f"see `flow connections list` for where '{name}' comes from")
    except FlowError as exc:
        reason = scrub(exc.message)
        if console.is_json:
            console.json({"name": name, "ok": False, "reason": reason, "code": exc.code})
        console.error(
            ConnectionFailed(f"{name}: unreachable — {reason}", where=exc.where, tried=exc.tried, fix=exc.fix)
        )
        return 2
    shown = resolved.connection.display()
    if console.is_json:
        console.json(
            {
                "name": name,
                "ok": True,
                "kind": resolved.connection.kind,
                "connection": shown,
                "origin": resolved.origin,
                "place": resolved.place,
                "elapsed_ms": health.elapsed_ms,
            }
        )
    else:
        console.line(f"{name}: ok ({shown})")
    return 0


def _set(words: list[str], console: Console) -> int:
    name, fields = _definition(words)
    path = set_connection(name, fields=fields)
    if console.is_json:
        console.json({"name": name, "path": str(path)})
    else:
        console.line(str(path))
    return 0


def _definition(words: list[str]) -> tuple[str, dict[str, str]]:
    """`NAME=DSN`, or `NAME` and then `FIELD=VALUE` words. No word is repeated in an error: it may be a password."""
    fix = "write NAME=DSN, or NAME url=DSN, or NAME kind=KIND FIELD=VALUE …"
    head, *rest = words
    if "=" in head:
        name, _, dsn = head.partition("=")
        rest = [f"url={dsn}", *rest]
    else:
        name = head
    fields: dict[str, str] = {}
    for word in rest:
        field, sign, value = word.partition("=")
        if not sign or not field.isidentifier() or not value:
            raise InvalidConfig("A field is not of the form FIELD=VALUE.", fix=fix)
        if field in fields:
            raise InvalidConfig(f"The field '{field}' is given twice.", fix=fix)
        fields[field] = value
    if not fields:
        raise InvalidConfig("A name alone does not define a connection.", fix=fix)
    return name, fields


def _shown(item: ListedConnection) -> str:
    return f"{item.shown}  ({scrub(item.problem)})" if item.problem else item.shown


def _origin(item: ListedConnection) -> str:
    return f"{item.origin}: {item.place}"


def _as_json(item: ListedConnection) -> dict[str, Any]:
    return {
        "name": item.name,
        "kind": item.kind,
        "connection": item.shown,
        "origin": item.origin,
        "place": item.place,
        "problem": scrub(item.problem) if item.problem else None,
    }


def _add_module(parser: CommandParser) -> None:
    add_module(parser, required=False, what="also know the connections that this module declares")
