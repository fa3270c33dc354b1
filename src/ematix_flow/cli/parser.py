"""The parser every command uses: the options that all of them share, nearest names in errors, examples in the help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from ematix_flow.errors import closest, listed


class CommandParser(argparse.ArgumentParser):
    """An argument parser that takes the shared options anywhere: `flow --json runs list` is `flow runs list --json`.

    Parsers of sub-commands are of this class too. A command may declare a shared option again; its own wins.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(
            **{
                "formatter_class": argparse.RawDescriptionHelpFormatter,
                "allow_abbrev": False,
                "conflict_handler": "resolve",
                **options,
            }
        )
        # Suppressed defaults: a parser further in must not undo what was said further out.
        quiet = argparse.SUPPRESS
        self.add_argument("--json", action="store_true", help="answer as JSON", default=quiet)
        self.add_argument("--format", choices=("text", "json"), help="the same as --json, in two words", default=quiet)
        self.add_argument("--no-color", action="store_true", help="no colour (also NO_COLOR=1)", default=quiet)
        self.add_argument("--debug", action="store_true", help="log lines and tracebacks on stderr", default=quiet)

    def say(self, *paragraphs: str, example: str, then: str) -> None:
        """The end of the help: an example, and what to run next."""
        examples = "\n".join(f"  {line}" for line in example.splitlines())
        self.epilog = "\n\n".join([*paragraphs, f"example:\n{examples}", f"next:\n  {then}"])

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As always, but unknown options are answered with the nearest known one."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            first = unknown[0]
            if first.startswith("-"):
                near = closest(first.partition("=")[0], self.known_options())
                self.error(f"unknown option '{first.partition('=')[0]}'" + (f"; {near}" if near else ""))
            self.error(f"unexpected argument '{first}'")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Usage and one line, exit code 2."""
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {message}\n  help   {self.prog} --help\n")

    def known_options(self) -> set[str]:
        """Every option of this parser and of those inside it."""
        own = {option for action in self._actions for option in action.option_strings}
        return own.union(*(parser.known_options() for _, parser, _ in self.subcommands()))

    def subcommands(self) -> Iterator[tuple[str, CommandParser, str]]:
        """Name, parser and help of each sub-command."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                help_of = {choice.dest: choice.help or "" for choice in action._choices_actions}
                for name, parser in action.choices.items():
                    yield name, parser, help_of.get(name, "")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = "/".join(action.option_strings) or action.dest.replace("_", " ")
            raise argparse.ArgumentError(None, bad_choice(what, str(value), map(str, action.choices)))


def bad_choice(what: str, value: str, known: Iterable[str]) -> str:
    """The sentence for a word that is not one of the known ones."""
    names = list(known)
    near = closest(value, names)
    return f"unknown {what} '{value}'; {near or 'known: ' + listed(names)}"
