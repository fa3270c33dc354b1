"""Regular expressions: RE2's and PostgreSQL's in Java's words, as far as they match the same texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow.backends.translation.rules import Rule, Task, call, constant, number, string, text_constant
from ematix_flow.declare.patterns import group_count, portable

if TYPE_CHECKING:
    from sqlglot import exp

_CLASSES = {
    "alpha": r"\p{Alpha}",
    "digit": "0-9",
    "alnum": r"\p{Alnum}",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\t\n\x0B\f\r ",
    "punct": r"\p{Punct}",
    "xdigit": "0-9A-Fa-f",
    "word": r"\w",
}
_PIECE = re.compile(r"\\(?:x\{[0-9A-Fa-f]+\}|p\{\^?\w+\}|.)|\[\[:|\(\?P<|\(\?[imsU-]*[:)]|\(\?|.", re.DOTALL)
_ONE_CLASS = re.compile(r"\[(\^?)((?:\]|(?:\[:\^?\w+:\]|\\.|[^\]\\])(?:\[:\^?\w+:\]|\\.|[^\]\\])*)?)\]", re.DOTALL)


def java_of_re2(pattern: str) -> str | None:
    r"""A pattern of RE2's in Java's words; None when it says something that Java says differently.

    >>> print(java_of_re2(r"^a.b$"), java_of_re2(r"(?P<y>\d+)[[:alpha:]]"), java_of_re2(r"\C"))
    ^a[^\n]b\z (?<y>\d+)[\p{Alpha}] None
    """
    found: list[str] = []
    position = 0
    while position < len(pattern):
        if pattern[position] == "[":
            match = _ONE_CLASS.match(pattern, position)
            inside = None if match is None else _java_class(match[2])
            if match is None or inside is None:
                return None
            found.append(f"[{match[1]}{inside}]")
            position = match.end()
            continue
        piece = _PIECE.match(pattern, position)
        assert piece is not None
        word = _java_piece(piece.group())
        if word is None:
            return None
        found.append(word)
        position = piece.end()
    return "".join(found)


def _java_piece(piece: str) -> str | None:
    if piece == ".":
        return r"[^\n]"
    if piece == "$":
        return r"\z"
    if piece == "(?P<":
        return "(?<"
    if piece.startswith("(?"):
        return piece if re.fullmatch(r"\(\?i?:|\(\?i\)", piece) else None
    if piece.startswith("\\"):
        known = len(piece) == 2 and (piece[1] in "dDwWsSbBAztnrf" or not piece[1].isalnum())
        return piece if known else None
    return piece


def _java_class(inside: str) -> str | None:
    """The inside of brackets: names of classes, and signs that Java would take for operators."""
    parts = []
    for piece in re.findall(r"\[:\^?\w+:\]|\\.|.", inside, flags=re.DOTALL):
        if len(piece) > 2:
            if piece[2:-2] not in _CLASSES:
                return None
            parts.append(_CLASSES[piece[2:-2]])
        elif piece in "[]&~":
            parts.append("\\" + piece)
        elif piece.startswith("\\") and not (piece[1] in "dDwWsStnrf" or not piece[1].isalnum()):
            return None
        else:
            parts.append(piece)
    return "".join(parts)


def java_replacement(replacement: str, *, postgres: bool, shift: int) -> str | None:
    r"""A replacement in Java's words, group numbers moved by `shift`; None for what has no counterpart.

    >>> print(java_replacement(r"<\1> $", postgres=False, shift=1))
    <$2> \$
    """
    parts = []
    for piece in re.findall(r"\\.|\\$|.", replacement, flags=re.DOTALL):
        if piece == "$":
            parts.append(r"\$")
        elif not piece.startswith("\\"):
            parts.append(piece)
        elif len(piece) == 2 and (piece[1].isdigit() or (postgres and piece[1] == "&")):
            group = int(piece[1]) if piece[1].isdigit() else 0
            parts.append(f"${{g{shift}}}" if group == 0 and shift else f"${group + shift if group else 0}")
        elif piece == "\\\\":
            parts.append(r"\\")
        else:
            return None
    # A digit after a group number would be read as part of it.
    joined = "".join(parts)
    return None if re.search(r"\$\d\d", joined) or "${g" in joined else joined


def _java_pattern(node: exp.Expr, pattern: exp.Expr | None, task: Task, *, ignore_case: bool = False) -> str:
    written = text_constant(pattern)
    if written is None:
        raise task.refused(
            pattern or node,
            "a pattern that is not written out cannot be checked for differences.",
            "write it as a text",
        )
    if task.family == "postgres":
        found = portable(written, ignore_case)
        java = found.text("java") if found is not None else None
    else:
        java = java_of_re2(written)
    if java is None:
        raise task.refused(
            pattern, "Spark's regular expressions read this pattern differently.", "write it in simpler words"
        )
    return f"(?i){java}" if ignore_case else java


def _flags(node: exp.Expr, given: exp.Expr | None, task: Task, allowed: str) -> str:
    flags = "" if given is None else text_constant(given)
    if flags is None or set(flags) - set(allowed):
        raise task.refused(given, f"of the options of a pattern only {', '.join(allowed)} can be taken over.")
    return flags


def _matching(node: exp.Expr, task: Task) -> exp.Expr | None:
    """A part of the text is enough, except for `regexp_full_match`."""
    from sqlglot import exp

    flags = _flags(node, node.args.get("flag") or node.args.get("options"), task, "ic")
    name = type(node).__name__
    java = _java_pattern(node, node.expression, task, ignore_case="i" in flags or name == "RegexpILike")
    if name == "RegexpFullMatch":
        java = rf"\A(?:{java})\z" if not java.startswith("(?i)") else rf"(?i)\A(?:{java[4:]})\z"
    return exp.Paren(this=exp.RegexpLike(this=node.this.copy(), expression=string(java)))


def _replacing(node: exp.Expr, task: Task) -> exp.Expr | None:
    """Without `g` only the first match is replaced there; Spark replaces all."""
    flags = _flags(node, node.args.get("modifiers"), task, "gic")
    java = _java_pattern(node, node.expression, task, ignore_case="i" in flags)
    is_first = "g" not in flags
    replacement = text_constant(node.args.get("replacement"))
    words = None
    if replacement is not None and not (is_first and re.search(r"\\[1-9]", text_constant(node.expression) or "")):
        words = java_replacement(replacement, postgres=task.family == "postgres", shift=1 if is_first else 0)
    if words is None:
        raise task.refused(
            node, "the replacement cannot be said in Spark's words.", "write it out, with \\1 to \\9 for groups"
        )
    if not is_first:
        return call("regexp_replace", node.this, string(java), string(words))
    lead, body = ("(?i)", java[4:]) if java.startswith("(?i)") else ("", java)
    return call("regexp_replace", node.this, string(rf"{lead}\A((?s:.*?))(?:{body})"), string(f"$1{_apart(words)}"))


def _apart(words: str) -> str:
    """A replacement that stands behind `$1`: a leading digit must not become part of the number."""
    return f"\\{words}" if words[:1].isdigit() else words


def _extracting(node: exp.Expr, task: Task) -> exp.Expr | None:
    if task.family == "postgres":
        raise task.refused(node, "it has no counterpart in Spark.", "use regexp_replace, or split_part")
    flags = _flags(node, node.args.get("parameters"), task, "ic")
    java = _java_pattern(node, node.expression, task, ignore_case="i" in flags)
    group = node.args.get("group")
    wanted = 0 if group is None else constant(group)
    known = group_count(text_constant(node.expression) or "")
    if wanted is None or (known is not None and wanted > known):
        raise task.refused(node, "the group must be a number that the pattern has.")
    name = "regexp_extract_all" if type(node).__name__ == "RegexpExtractAll" else "regexp_extract"
    return call(name, node.this, string(java), number(wanted))


RULES: Mapping[str, Rule] = {
    "RegexpLike": _matching,
    "RegexpILike": _matching,
    "RegexpFullMatch": _matching,
    "RegexpReplace": _replacing,
    "RegexpExtract": _extracting,
    "RegexpExtractAll": _extracting,
}
