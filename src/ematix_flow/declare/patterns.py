"""Regular expressions that mean the same to Java, PostgreSQL and Python.

The engines disagree on more than their escapes: where Java takes the first alternative and gives back greedily, POSIX
takes the longest match over all. They agree when a pattern is *deterministic*: at every point of a text at most one
place of the pattern can take the next character, so there is one way to match and only its length is open. `portable`
reads a pattern with Java's meaning (ASCII `\\d \\w \\s`, a dot that stops at line ends) and gives it back in words all
of them share; patterns it cannot read, or that are not deterministic, run on Spark only. `$` is the very end.
"""

from __future__ import annotations

import functools
import re
import warnings
from dataclasses import dataclass
from typing import Literal

from ematix_flow.errors import InvalidDeclaration

Engine = Literal["java", "postgres", "python"]
Ranges = tuple[tuple[int, int], ...]

_TOP = 0x10FFFF
_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32))
_LINE_END: Ranges = ((10, 10), (13, 13), (0x85, 0x85), (0x2028, 0x2029))
_ESCAPED_SETS = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_ESCAPED_CHARACTERS = {"t": 9, "n": 10, "r": 13, "f": 12}
_SPECIAL = set("\\.+*?()|[]{}^$")
_SPECIAL_IN_CLASS = set("\\[]^-&~")
_MOST_POSITIONS = 400
_MOST_REPEATS = 255  # PostgreSQL's limit

# Things Java knows and Python does not: a pattern with one of them cannot be checked before Spark sees it.
_JAVA_ONLY = re.compile(r"\\[pPQEhHvVRXGzZk]|&&|\(\?<[A-Za-z]|\(\?>|[*+?}]\+|\(\?[a-zA-Z]*-?[a-zA-Z]*[):]|\\x\{")


@dataclass(frozen=True)
class PortablePattern:
    """A pattern in common words. `starts` and `ends` say whether it is tied to the ends of the text."""

    body: str
    starts: bool
    ends: bool
    groups: int

    def text(self, engine: Engine) -> str:
        """The pattern as one engine spells it."""
        first, last = {"java": (r"\A", r"\z"), "python": (r"\A", r"\Z"), "postgres": ("^", "$")}[engine]
        return (first if self.starts else "") + self.body + (last if self.ends else "")


class _NotPortable(Exception):
    """The pattern leaves the common language."""


@dataclass(frozen=True)
class _Set:
    """One character out of a set."""

    ranges: Ranges
    negated: bool

    @property
    def taken(self) -> Ranges:
        return _complement(self.ranges) if self.negated else self.ranges

    def text(self) -> str:
        if not self.negated and len(self.ranges) == 1 and self.ranges[0][0] == self.ranges[0][1]:
            character = chr(self.ranges[0][0])
            return "\\" + character if character in _SPECIAL else character
        shown = "".join(
            _in_class(low) if low == high else f"{_in_class(low)}-{_in_class(high)}" for low, high in self.ranges
        )
        return f"[{'^' if self.negated else ''}{shown}]"


@dataclass(frozen=True)
class _Group:
    """Alternatives in parentheses; each is a sequence."""

    branches: tuple[tuple[_Node, ...], ...]
    captures: bool

    def text(self) -> str:
        inner = "|".join("".join(node.text() for node in branch) for branch in self.branches)
        return f"({'' if self.captures else '?:'}{inner})"


@dataclass(frozen=True)
class _Repeat:
    """A set or group, `least` to `most` times (None: any number)."""

    node: _Set | _Group
    least: int
    most: int | None

    def text(self) -> str:
        short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((self.least, self.most))
        if short is None:
            most = "" if self.most is None else str(self.most)
            short = f"{{{self.least}}}" if self.most == self.least else f"{{{self.least},{most}}}"
        return self.node.text() + short


_Node = _Set | _Group | _Repeat


@functools.lru_cache(maxsize=256)
def portable(pattern: str, ignore_case: bool = False) -> PortablePattern | None:
    """The pattern in common words, or None when the engines could disagree about it.

    >>> portable(r"(\\d+)-x$").text("postgres")
    '([0-9]+)-x$'
    >>> portable("a|ab") is None
    True
    """
    try:
        reader = _Reader(pattern, ignore_case)
        branches = reader.branches()
        if reader.position != len(reader.text):
            return None
        if (reader.starts or reader.ends) and len(branches) > 1:
            return None
        _Automaton(branches).check()
        body = "|".join("".join(node.text() for node in branch) for branch in branches)
        return PortablePattern(body, reader.starts, reader.ends, reader.groups)
    except _NotPortable:
        return None


def group_count(pattern: str) -> int | None:
    """How many groups a pattern captures; None when only Spark can tell.

    Raises:
        InvalidDeclaration: it is certainly not a regular expression.
    """
    common = portable(pattern)
    if common is not None:
        return common.groups
    if _JAVA_ONLY.search(pattern):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # sets in sets, which Java knows
            return re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as exc:
        raise InvalidDeclaration(f"{pattern!r} is not a regular expression: {exc}.") from None


@functools.lru_cache(maxsize=256)
def replacement_parts(replacement: str) -> tuple[str | int, ...]:
    r"""A replacement taken apart: literal texts, and numbers for `\1` to `\9` (0 for `\&`, the whole match).

    >>> replacement_parts(r"<\1>\\")
    ('<', 1, '>\\')

    Raises:
        InvalidDeclaration: a backslash stands before anything else.
    """
    parts: list[str | int] = []
    literal, position = "", 0
    while position < len(replacement):
        character = replacement[position]
        position += 1
        if character != "\\":
            literal += character
            continue
        following = replacement[position : position + 1]
        position += 1
        if following == "\\":
            literal += "\\"
        elif following == "&" or (following and following in "123456789"):
            if literal:
                parts.append(literal)
                literal = ""
            parts.append(0 if following == "&" else int(following))
        else:
            raise InvalidDeclaration(
                f"Replacement {replacement!r}: a backslash stands before '{following}'.",
                fix=r"write \1 to \9 for a group, \& for the whole match, \\ for a backslash",
            )
    if literal:
        parts.append(literal)
    return tuple(parts)


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str, ignore_case: bool) -> None:
        self.starts = pattern.startswith("^")
        body = pattern[1:] if self.starts else pattern
        backslashes = len(body[:-1]) - len(body[:-1].rstrip("\\"))
        self.ends = body.endswith("$") and backslashes % 2 == 0
        self.text = body[:-1] if self.ends else body
        self.ignore_case = ignore_case
        self.position = 0
        self.groups = 0
        if "\x00" in pattern:
            raise _NotPortable

    def branches(self) -> tuple[tuple[_Node, ...], ...]:
        found = [self._sequence()]
        while self._peek() == "|":
            self.position += 1
            found.append(self._sequence())
        if not all(found):
            raise _NotPortable
        return tuple(found)

    def _peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise _NotPortable
        self.position += 1
        return character

    def _sequence(self) -> tuple[_Node, ...]:
        nodes: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            nodes.append(self._repeated(self._atom()))
        return tuple(nodes)

    def _atom(self) -> _Set | _Group:
        character = self._take()
        if character == "(":
            captures = self._peek() != "?"
            if not captures and self.text[self.position : self.position + 2] != "?:":
                raise _NotPortable
            self.position += 0 if captures else 2
            self.groups += captures
            group = _Group(self.branches(), captures)
            if self._take() != ")":
                raise _NotPortable
            return group
        if character == "[":
            return self._class()
        if character == ".":
            return _Set(_LINE_END, True)
        if character == "\\":
            ranges, negated = self._escape()
            return self._folded(ranges, negated)
        if character in "*+?{}])^$":
            raise _NotPortable
        return self._folded(((ord(character), ord(character)),), False)

    def _repeated(self, atom: _Set | _Group) -> _Node:
        character = self._peek()
        if not character or character not in "*+?{":
            return atom
        if character == "{":
            match = re.compile(r"\{([0-9]{1,3})(,?)([0-9]{0,3})\}").match(self.text, self.position)
            if match is None:
                raise _NotPortable
            self.position = match.end()
            least = int(match.group(1))
            most = int(match.group(3)) if match.group(3) else (None if match.group(2) else least)
            if least > _MOST_REPEATS or (most is not None and not max(1, least) <= most <= _MOST_REPEATS):
                raise _NotPortable
        else:
            self.position += 1
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        following = self._peek()
        if following and following in "*+?{":  # lazy, possessive, doubled
            raise _NotPortable
        if isinstance(atom, _Group) and most != 1 and _captures_within(atom):
            raise _NotPortable  # engines differ on what such a group holds after the last round
        return _Repeat(atom, least, most)

    def _class(self) -> _Set:
        negated = self._peek() == "^"
        self.position += negated
        ranges: list[tuple[int, int]] = []
        while (character := self._take()) != "]":
            if character in "[&":  # nested and intersected classes are Java's alone
                raise _NotPortable
            if character == "-" and not (not ranges or self._peek() == "]"):
                raise _NotPortable
            low = ord(character)
            if character == "\\":
                escaped, inverted = self._escape()
                if inverted or len(escaped) > 1 or escaped[0][0] != escaped[0][1]:
                    ranges.extend(_complement(escaped) if inverted else escaped)
                    if self._peek() == "-" and self.text[self.position + 1 : self.position + 2] != "]":
                        raise _NotPortable
                    continue
                low = escaped[0][0]
            high = low
            if self._peek() == "-" and self.text[self.position + 1 : self.position + 2] != "]":
                self.position += 1
                character = self._take()
                if character in "[&-":
                    raise _NotPortable
                high = ord(character)
                if character == "\\":
                    escaped, inverted = self._escape()
                    if inverted or len(escaped) > 1 or escaped[0][0] != escaped[0][1]:
                        raise _NotPortable
                    high = escaped[0][0]
                if high < low:
                    raise _NotPortable
            ranges.append((low, high))
        if not ranges:
            raise _NotPortable
        return self._folded(_merged(ranges), negated)

    def _escape(self) -> tuple[Ranges, bool]:
        character = self._take()
        if character.lower() in _ESCAPED_SETS:
            return _ESCAPED_SETS[character.lower()], character.isupper()
        if character in _ESCAPED_CHARACTERS:
            code = _ESCAPED_CHARACTERS[character]
        elif ord(character) < 128 and not character.isalnum() and character.isprintable() and character not in "<>":
            code = ord(character)
        else:
            raise _NotPortable
        return ((code, code),), False

    def _folded(self, ranges: Ranges, negated: bool) -> _Set:
        """Ignoring case is spelled out for ASCII letters, as Java does it, so that no engine needs a flag."""
        if self.ignore_case:
            both = list(ranges)
            for low, high in ranges:
                for first, away in ((65, 32), (97, -32)):
                    start, end = max(low, first), min(high, first + 25)
                    if start <= end:
                        both.append((start + away, end + away))
            ranges = _merged(both)
        return _Set(ranges, negated)


@dataclass
class _Fragment:
    nullable: bool
    first: set[int]
    last: set[int]


class _Automaton:
    """The positions of a pattern and which may follow which (Glushkov's construction)."""

    def __init__(self, branches: tuple[tuple[_Node, ...], ...]) -> None:
        self.sets: list[Ranges] = []
        self.follow: list[set[int]] = []
        self.root = self._either(branches)

    def check(self) -> None:
        """Raise unless the pattern takes a character and every next step is decided by the next character."""
        if self.root.nullable:
            raise _NotPortable
        for choices in (self.root.first, *self.follow):
            spans = sorted(span for position in choices for span in self.sets[position])
            if any(left[1] >= right[0] for left, right in zip(spans, spans[1:], strict=False)):
                raise _NotPortable

    def _either(self, branches: tuple[tuple[_Node, ...], ...]) -> _Fragment:
        parts = [self._sequence(branch) for branch in branches]
        return _Fragment(
            any(part.nullable for part in parts),
            set().union(*(part.first for part in parts)),
            set().union(*(part.last for part in parts)),
        )

    def _sequence(self, nodes: tuple[_Node, ...]) -> _Fragment:
        joined = _Fragment(True, set(), set())
        for node in nodes:
            joined = self._joined(joined, self._node(node))
        return joined

    def _joined(self, left: _Fragment, right: _Fragment) -> _Fragment:
        for position in left.last:
            self.follow[position] |= right.first
        return _Fragment(
            left.nullable and right.nullable,
            left.first | right.first if left.nullable else left.first,
            left.last | right.last if right.nullable else right.last,
        )

    def _node(self, node: _Node) -> _Fragment:
        if isinstance(node, _Group):
            return self._either(node.branches)
        if isinstance(node, _Set):
            if len(self.sets) >= _MOST_POSITIONS:
                raise _NotPortable
            self.sets.append(node.taken)
            self.follow.append(set())
            place = len(self.sets) - 1
            return _Fragment(False, {place}, {place})
        return self._repeat(node)

    def _repeat(self, repeat: _Repeat) -> _Fragment:
        joined = _Fragment(True, set(), set())
        copies = max(repeat.least, 1) if repeat.most is None else repeat.most
        for number in range(copies):
            part = self._node(repeat.node)
            if part.nullable:
                raise _NotPortable
            if repeat.most is None and number == copies - 1:
                for position in part.last:
                    self.follow[position] |= part.first
            if number >= repeat.least:  # an optional copy only follows the one before it
                part = _Fragment(True, part.first, part.last)
                before = joined.last
                joined = self._joined(joined, part)
                joined.last |= before
            else:
                joined = self._joined(joined, part)
        return joined


def _captures_within(group: _Group) -> bool:
    for branch in group.branches:
        for node in branch:
            inner = node.node if isinstance(node, _Repeat) else node
            if isinstance(inner, _Group) and (inner.captures or _captures_within(inner)):
                return True
    return False


def _in_class(code: int) -> str:
    character = chr(code)
    return "\\" + character if character in _SPECIAL_IN_CLASS else character


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(ranges: Ranges) -> Ranges:
    found, start = list[tuple[int, int]](), 0
    for low, high in ranges:
        if start < low:
            found.append((start, low - 1))
        start = high + 1
    if start <= _TOP:
        found.append((start, _TOP))
    return tuple(found)
