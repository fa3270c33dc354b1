"""Running the user's SQL, and Spark's complaints about it as errors that point into the user's text.

The native engine has no names for what it complains about; two of its sentences say which word is meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.translation.text import UserSql
from ematix_flow.errors import InvalidSource, listed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run_translated(
    spark: SparkSession,
    translated: str,
    written: UserSql,
    run: Callable[[SparkSession, str], DataFrame] | None = None,
) -> DataFrame:
    """The rows of a query that was translated, or is Spark SQL as it was written.

    Args:
        run: Who runs it, when it is not Spark alone.

    Raises:
        InvalidSource: Spark does not understand it; the message points at the words of the user's that it means.
    """
    with complained(written):
        frame = spark.sql(translated) if run is None else run(spark, translated)
        _ = frame.schema  # Spark Connect understands a query only when it is asked about it
    return frame


@contextmanager
def complained(written: UserSql) -> Iterator[None]:
    """Spark's complaints about SQL, before any row is looked at, as errors that point into it.

    Raises:
        InvalidSource: Spark does not understand it.
    """
    from pyspark.errors import (
        AnalysisException,
        IllegalArgumentException,
        ParseException,
        UnsupportedOperationException,
    )

    try:
        yield
    except (AnalysisException, ParseException, IllegalArgumentException, UnsupportedOperationException) as exc:
        raise complaint(exc, written) from exc


def complaint(exc: Any, written: UserSql) -> InvalidSource:
    """Spark's error about a translated text, with the place in the text that was translated."""
    condition = str(exc.getCondition() or "")
    known: dict[str, str] = exc.getMessageParameters() or {}
    if not condition and (meant := _NATIVE.search(str(exc))):
        if meant["function"]:
            span = place_of_word(written.text, meant["function"])
            return written.refused_at(span, f"the native engine has no function '{meant['function'].lower()}'.")
        name = re.findall(r'Identifier\("((?:[^"\\]|\\.)*)"\)', meant["column"])[-1]
        return written.refused_at(
            place_of_word(written.text, name), f"there is no column '{name}'.", "check its spelling"
        )
    if condition.startswith(("UNRESOLVED_COLUMN", "FIELD_NOT_FOUND")):
        name = _last_name(known.get("objectName") or known.get("fieldName") or "")
        near = [_last_name(one) for one in known.get("proposal", "").split(", ") if one]
        return written.refused_at(
            place_of_word(written.text, name),
            f"there is no column '{name}'.",
            f"did you mean one of {listed(dict.fromkeys(near))}?" if near else "check its spelling",
        )
    if condition.startswith("UNRESOLVED_ROUTINE"):
        name = _last_name(known.get("routineName") or "")
        return written.refused_at(
            place_of_word(written.text, name), f"Spark has no function '{name.lower()}'.", "write it in other words"
        )
    words = re.findall(r"`([^`]+)`|\b([A-Za-z_]\w*)\b", " ".join(known.get("sqlExpr", "").split()))
    span = next((found for pair in words if (found := place_of_word(written.text, pair[0] or pair[1]))), None)
    what = "it cannot be run" if written.dialect == "spark" else "Spark cannot run its translation"
    return written.refused_at(span, f"{what}: {_first_sentence(str(exc))}")


_NATIVE = re.compile(
    r"attribute ObjectName\(\[(?P<column>[^\]]+)\]\) is missing from the schema|unknown function: (?P<function>\w+)"
)


def place_of_word(text: str, word: str) -> tuple[int, int] | None:
    """Where a name first stands in a text, outside of texts and comments.

    >>> place_of_word("SELECT 'amount', amount FROM t", "AMOUNT")
    (17, 22)
    """
    if not word:
        return None
    pattern = re.compile(
        rf"(?P<skip>'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/)|(?<![\w$])(?P<word>{re.escape(word)})(?![\w$])",
        re.DOTALL | re.IGNORECASE,
    )
    for match in pattern.finditer(text):
        if match["word"] is not None:
            return match.start(), match.end() - 1
    return None


def _last_name(quoted: str) -> str:
    """`` `t`.`a` `` → `a`."""
    parts = re.findall(r"`((?:[^`]|``)+)`", quoted)
    return parts[-1].replace("``", "`") if parts else quoted.strip()


def _first_sentence(message: str) -> str:
    line = message.strip().splitlines()[0]
    return re.sub(r"`?ematix_flow_[0-9a-f]{32}`?", "the table", line).partition(" SQLSTATE")[0]
