"""Formats of times as text: strftime's and `to_char`'s letters as Spark's, every other letter kept as a letter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow.backends.translation.kinds import kind
from ematix_flow.backends.translation.rules import Rule, Task, call, cast, constant, string, text_constant

if TYPE_CHECKING:
    from sqlglot import exp

_WRITTEN = {
    "%Y": "yyyy",
    "%m": "MM",
    "%d": "dd",
    "%H": "HH",
    "%I": "hh",
    "%M": "mm",
    "%S": "ss",
    "%f": "SSSSSS",
    "%y": "yy",
    "%j": "DDD",
    "%-m": "M",
    "%-d": "d",
    "%-H": "H",
    "%-I": "h",
    "%-M": "m",
    "%-S": "s",
}
# PostgreSQL pads names of months and days with spaces, and writes them in the case of the format.
_OF_DUCKDB = {"%b": "MMM", "%B": "MMMM", "%a": "EEE", "%A": "EEEE", "%p": "a", "%g": "SSS", "%%": "'%'"}
# Systems read one digit where two are expected; Spark does so for single letters.
_READ = {**_WRITTEN, "%m": "M", "%d": "d", "%H": "H", "%M": "m", "%S": "s", "%I": "h"}


def spark_format(written: str, *, postgres: bool, reading: bool) -> str | None:
    """A format in strftime's letters as Spark's; None when it holds something that Spark writes differently.

    >>> spark_format("day %d", postgres=False, reading=False), spark_format("%W", postgres=False, reading=False)
    ("'day' dd", None)
    """
    known = {**(_READ if reading else _WRITTEN), **({} if postgres else _OF_DUCKDB)}
    parts = []
    for piece in re.findall(r"%-?.|[A-Za-z']+|[^%A-Za-z']+|%", written, flags=re.DOTALL):
        if piece.startswith("%"):
            if piece not in known:
                return None
            parts.append(known[piece])
        elif piece[0].isalpha() or piece[0] == "'":
            if postgres:
                return None  # letters that sqlglot left alone may still mean something to PostgreSQL
            parts.append("'" + piece.replace("'", "''") + "'")
        elif re.search(r'[\[\]{}#"]', piece):
            return None
        else:
            parts.append(piece)
    return "".join(parts)


def _format(node: exp.Expr, task: Task, *, reading: bool) -> exp.Expr:
    written = text_constant(node.args.get("format"))
    found = None if written is None else spark_format(written, postgres=task.family == "postgres", reading=reading)
    if found is None:
        raise task.refused(
            node.args.get("format") if written is not None and span_known(node.args["format"]) else node,
            "Spark cannot be told this format.",
            "write it out, in years, months, days, hours, minutes and seconds",
        )
    return string(found)


def span_known(node: exp.Expr) -> bool:
    """Whether a node knows its place in the text; formats that were converted do not."""
    return any("start" in part.meta for part in node.walk())


def _as_text(node: exp.Expr, task: Task) -> exp.Expr | None:
    if kind(node.this).name not in ("date", "timestamp"):
        raise task.refused(node, "only dates and timestamps without a zone are written alike.", "cast it first")
    return call("date_format", node.this, _format(node, task, reading=False))


def _as_time(node: exp.Expr, task: Task) -> exp.Expr | None:
    name = "to_timestamp_ntz" if task.family == "duckdb" else "to_timestamp"  # PostgreSQL gives a point in time
    return call(name, node.this, _format(node, task, reading=True))


def _as_date(node: exp.Expr, task: Task) -> exp.Expr | None:
    if task.sql.dialect == "datafusion" and node.args.get("format") is None:
        return cast(node.this, "date")
    return call("to_date", node.this, _format(node, task, reading=True))


def _letter(node: exp.Expr, task: Task) -> exp.Expr | None:
    """Spark's `chr` knows 256 letters, and counts round beyond them."""
    code = constant(node.expressions[0]) if len(node.expressions) == 1 else None
    if code is None or not 0 < code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise task.refused(node, "chr() of a number that is not written out differs beyond 127.", "write the letter")
    return string(chr(code))


RULES: Mapping[str, Rule] = {"TimeToStr": _as_text, "StrToTime": _as_time, "StrToDate": _as_date, "Chr": _letter}
