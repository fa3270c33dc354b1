"""`flow secrets test`: whether references to secrets can be filled in, without showing what with."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.declared import add_module, load
from ematix_flow.config.project import project_file, user_file
from ematix_flow.config.secrets import expand
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import InvalidConfig, MissingSecret

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser

_REFERENCE = re.compile(r"\$\{[^{}]*\}")
_BARE = re.compile(r"[A-Z_][A-Z0-9_]*|[A-Za-z][A-Za-z0-9_+.\-]*:.+")
_MOST_STARS = 4


@dataclass(frozen=True)
class _Checked:
    """One reference of a file: where it stands, and why it cannot be filled in."""

    place: str
    reference: str
    problem: str | None


def configure(parser: CommandParser) -> None:
    """One sub-command."""
    example = (
        "flow secrets test '${vault:app#password}'\n"
        "flow secrets test aws:prod/warehouse#password\n"
        "flow secrets test connections.toml"
    )
    parser.say(example=example, then="flow connections check NAME   connects with them")
    commands = parser.add_subparsers(dest="action", metavar="test", required=True)
    test = commands.add_parser("test", help="look secrets up, and say whether they were found")
    test.add_argument(
        "what",
        nargs="?",
        metavar="REF|FILE",
        help="a reference, or a TOML file with connections; without it both settings files",
    )
    test.add_argument("--show", action="store_true", help="print the secret of a reference")
    add_module(test, required=False, what="also know the resolvers that this module registers")
    test.say(
        "Variables: VAULT_ADDR, VAULT_TOKEN · AWS_REGION and the usual login of AWS ·\n"
        "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_CLOUD_PROJECT · AZURE_KEY_VAULT_URL and the usual login of Azure",
        example=example,
        then="flow connections check NAME   connects with them",
    )


def run(args: Namespace, console: Console) -> int:
    """Look them up; exit code 1 when one is missing."""
    if args.module:
        load(args.module)
    files = _files(args.what)
    if files is None:
        return _one(args.what, args.show, console)
    if args.show:
        raise InvalidConfig(
            "--show is for one reference; the secrets of a file are never printed.", fix="leave out --show"
        )
    return _all(files, console)


def _files(what: str | None) -> Sequence[Path] | None:
    """The files that are meant, or None for a reference."""
    if what is None:
        return [path for path in (project_file(), user_file()) if path.exists()]
    path = Path(os.path.expanduser(what))
    if path.is_file():
        return [path]
    if "${" in what or (_BARE.fullmatch(what) and not what.endswith(".toml")):
        return None
    raise InvalidConfig(
        f"'{scrub(what)}' is neither a reference nor a file.", fix="write '${vault:path#key}', vault:path#key or a path"
    )


def _one(what: str, show: bool, console: Console) -> int:
    reference = what if "${" in what else f"${{{what}}}"
    try:
        secret = expand(reference)
    except MissingSecret as exc:
        console.error(exc)
        return 1
    if console.is_json:
        console.json({"reference": what, "ok": True, "chars": len(secret)} | ({"value": secret} if show else {}))
    else:
        console.line(secret if show and secret else _masked(secret))
    return 0


def _masked(secret: str) -> str:
    """Enough of a secret to tell it from another one.

    >>> _masked("abcdefghwxyz"), _masked("abc"), _masked("")
    ('ab...yz  (12 chars; pass --show to reveal)', '***  (3 chars; pass --show to reveal)', '<empty>')
    """
    if not secret:
        return "<empty>"
    shown = "*" * len(secret) if len(secret) <= _MOST_STARS else f"{secret[:2]}...{secret[-2:]}"
    return f"{shown}  ({len(secret)} chars; pass --show to reveal)"


def _all(files: Sequence[Path], console: Console) -> int:
    found = [checked for path in files for checked in _checked(path)]
    missing = [checked for checked in found if checked.problem]
    if console.is_json:
        console.json(
            [{"place": c.place, "reference": c.reference, "ok": c.problem is None, "reason": c.problem} for c in found]
        )
    elif not found:
        console.line("no references")
    else:
        rows = [("✗" if c.problem else "✓", c.place, c.reference, c.problem or "") for c in found]
        console.table(("", "PLACE", "REFERENCE", "PROBLEM"), rows)
    return 1 if missing else 0


def _checked(path: Path) -> Iterator[_Checked]:
    for place, text in _texts(_read(path)):
        for reference in dict.fromkeys(_REFERENCE.findall(text)):
            try:
                expand(reference)
                problem = None
            except MissingSecret as exc:
                problem = scrub(exc.message) + (f" ({scrub(exc.fix)})" if exc.fix else "")
            yield _Checked(f"{path.name} {place}", reference, problem)


def _texts(value: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a settings file, with the names that lead to it."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _texts(part, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part, place)


def _read(path: Path) -> dict[str, Any]:
    import sys
    from importlib import import_module

    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        content: dict[str, Any] = toml.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, toml.TOMLDecodeError) as exc:
        raise InvalidConfig(f"The file cannot be read as TOML: {exc}", where=str(path)) from exc
    return content
