"""`flow completion`: a script that teaches a shell the commands and options, written from the parsers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser


@dataclass(frozen=True)
class Option:
    """An option, the words it may be followed by, and whether anything follows it at all."""

    name: str
    help: str
    takes_value: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """What may be typed after some words: `()` is after `flow`, `("runs", "list")` after `flow runs list`."""

    words: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]


def configure(parser: CommandParser) -> None:
    """One argument: the shell."""
    parser.add_argument("shell", choices=tuple(_WRITERS), metavar="bash|zsh|fish")
    parser.say(
        example='eval "$(flow completion bash)"                 # in ~/.bashrc\n'
        'eval "$(flow completion zsh)"                  # in ~/.zshrc, after compinit\n'
        "flow completion fish > ~/.config/fish/completions/flow.fish",
        then="flow <Tab>",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the script."""
    console.line(_WRITERS[args.shell](list(places())))
    return 0


def places() -> Iterator[Place]:
    """Every place on the command line, read from the parsers of all commands."""
    from ematix_flow.cli.main import COMMANDS, command_parser, front_parser

    yield Place((), tuple((command.name, command.help) for command in COMMANDS), tuple(_options(front_parser())))
    for command in COMMANDS:
        yield from _places_below((command.name,), command_parser(command)[1])


def _places_below(words: tuple[str, ...], parser: CommandParser) -> Iterator[Place]:
    inner = list(parser.subcommands())
    # Words that an argument without a dash is chosen from are completed like sub-commands.
    chosen = [
        (str(choice), "")
        for action in parser._actions
        if not action.option_strings and action.choices and not inner
        for choice in action.choices
    ]
    yield Place(words, tuple((name, text) for name, _, text in inner) or tuple(chosen), tuple(_options(parser)))
    for name, below, _ in inner:
        yield from _places_below((*words, name), below)


def _options(parser: CommandParser) -> Iterator[Option]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        for name in action.option_strings:
            choices = tuple(str(choice) for choice in action.choices or ())
            yield Option(name, (action.help or "").replace("%%", "%"), action.nargs != 0, choices)


def _bash(found: list[Place]) -> str:
    moves = "\n".join(
        f'      {_quoted(" ".join(("", *place.words)))}) at="$at $word" ;;' for place in found if place.words
    )
    answers = "\n".join(
        f"    {_quoted(' '.join(('', *place.words)) if place.words else '')}) words={_quoted(_typed(place))} ;;"
        for place in found
    )
    values = "\n".join(f"    {name}) words={_quoted(' '.join(choices))} ;;" for name, choices in _chosen(found).items())
    return f"""\
# bash completion for flow; written by `flow completion bash`
_flow() {{
  local at="" word words="" cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}"
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$at $word" in
{moves}
    esac
  done
  case "$prev" in
{values}
    {_waiting(found)}) return ;;
    *) case "$at" in
{answers}
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _flow flow"""


def _zsh(found: list[Place]) -> str:
    moves = "\n".join(
        f'      {_quoted(" ".join(("", *place.words)))}) at="$at $word" ;;' for place in found if place.words
    )
    answers = []
    for place in found:
        entries = [*place.commands, *((option.name, option.help) for option in place.options)]
        shown = " ".join(
            _quoted(f"{name.replace(':', chr(92) + ':')}:{text}" if text else name) for name, text in entries
        )
        at = _quoted(" ".join(("", *place.words)) if place.words else "")
        answers.append(f"    {at}) answers=({shown}) ;;")
    values = "\n".join(
        f"    {name}) compadd -- {' '.join(choices)}; return ;;" for name, choices in _chosen(found).items()
    )
    joined = "\n".join(answers)
    return f"""\
#compdef flow
# zsh completion for flow; written by `flow completion zsh`
_flow() {{
  local at="" word prev="${{words[CURRENT-1]}}"
  local -a answers
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "$at $word" in
{moves}
    esac
  done
  case "$prev" in
{values}
    {_waiting(found)}) _files; return ;;
  esac
  case "$at" in
{joined}
  esac
  _describe -t commands 'flow' answers || _files
}}
compdef _flow flow"""


def _fish(found: list[Place]) -> str:
    lines = ["# fish completion for flow; written by `flow completion fish`", _FISH_AT, "complete -c flow -f"]
    for place in found:
        here = f"__flow_at {' '.join(place.words)}".rstrip()
        for name, text in place.commands:
            lines.append(f"complete -c flow -n {_quoted(here)} -a {_quoted(name)} -d {_quoted(text)}")
        for option in place.options:
            dashes, name = ("-l", option.name[2:]) if option.name.startswith("--") else ("-s", option.name[1:])
            value = (
                f" -x -a {_quoted(' '.join(option.choices))}" if option.choices else " -r" if option.takes_value else ""
            )
            lines.append(f"complete -c flow -n {_quoted(here)} {dashes} {name}{value} -d {_quoted(option.help)}")
    return "\n".join(lines)


# True when the words typed so far that are no options begin with exactly this place.
_FISH_AT = """\
function __flow_at
    set -l typed (string match -v -- '-*' (commandline -opc)[2..])
    set -l place $argv
    test (count $place) -eq 0; and test (count $typed) -eq 0; and return 0
    test (count $place) -eq 0; and return 1
    test (count $typed) -ge (count $place); and test "$typed[1..(count $place)]" = "$place"
end"""


def _typed(place: Place) -> str:
    return " ".join([*(name for name, _ in place.commands), *(option.name for option in place.options)])


def _chosen(found: list[Place]) -> dict[str, tuple[str, ...]]:
    """Options with a closed set of values; the same option means the same everywhere."""
    return {option.name: option.choices for place in found for option in place.options if option.choices}


def _waiting(found: list[Place]) -> str:
    """Options that are followed by something only the user knows."""
    names = {option.name for place in found for option in place.options if option.takes_value and not option.choices}
    return "|".join(sorted(names)) or "--"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


_WRITERS: dict[str, Callable[[list[Place]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
