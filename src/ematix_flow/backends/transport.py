"""How columns travel between a system and Spark: under which name, in which type, and how the greatest mark is kept."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ematix_flow.declare.columns import ColumnType, Numeric, Timestamp, TimestampTZ
from ematix_flow.errors import FlowError, UnfitValue

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

MOST_DIGITS = 38
"""The longest decimal that Spark and Arrow hold; a longer one travels as text."""

INSTANT_PATTERN = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
WALL_CLOCK_PATTERN = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"

_SPARK_TYPES = {
    "small_int": "smallint",
    "integer": "int",
    "big_int": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamp_tz": "timestamp",
    "bytes": "binary",
}


def quoted(name: str) -> str:
    """A column name for Spark, whatever characters it holds."""
    return "`" + name.replace("`", "``") + "`"


def is_decimal(kind: ColumnType | None) -> bool:
    """Whether values travel as exact decimals of their own precision and scale."""
    return isinstance(kind, Numeric) and kind.precision <= MOST_DIGITS


def spark_type(kind: ColumnType | None) -> str:
    """The type of a travelling column in Spark's words; text for what has no counterpart."""
    if isinstance(kind, Numeric) and is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return "string" if kind is None else _SPARK_TYPES.get(kind.kind, "string")


def arrow_type(kind: ColumnType | None) -> pa.DataType:
    """The same for Arrow batches: times to the microsecond, instants in UTC."""
    import pyarrow as pa

    if isinstance(kind, Numeric) and is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    known = {
        "small_int": pa.int16(),
        "integer": pa.int32(),
        "big_int": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us"),
        "timestamp_tz": pa.timestamp("us", tz="UTC"),
        "bytes": pa.binary(),
    }
    return pa.string() if kind is None else known.get(kind.kind, pa.string())


def task_attempt() -> tuple[int, int]:
    """Which attempt of which task this is, as (number of the attempt, id in the session).

    Outside of Spark nobody repeats a task, but several may run: the id is then one that no other will have.
    """
    if sys.modules.get("pyspark") is None:
        return 0, secrets.randbits(62)
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.attemptNumber(), context.taskAttemptId()) if context else (0, secrets.randbits(62))


@contextmanager
def in_a_task() -> Iterator[None]:
    """Around what a task does for a system: an error of ours goes out alone.

    What a task raises stands on Spark's pages and in its event log with its causes, and drivers quote values in theirs.
    """
    try:
        yield
    except FlowError as exc:
        raise exc from None


def exact_numbers(texts: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Numbers that came as text, as decimals with just the digits they need.

    Raises:
        UnfitValue: one has more digits than a decimal holds, or is NaN.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def longest(dropped: str) -> int:
        return pc.max(pc.utf8_length(pc.replace_substring_regex(texts, dropped, ""))).as_py() or 0

    behind, ahead = longest(r"^[^.]*\.?"), longest(r"\..*$|[^0-9.]")
    if behind + ahead > MOST_DIGITS:
        raise _no_decimal(name)
    try:
        return texts.cast(pa.decimal128(max(behind + ahead, 1), behind))
    except pa.ArrowInvalid as exc:  # its text holds the value
        raise _no_decimal(name) from exc


def _no_decimal(name: str) -> UnfitValue:
    return UnfitValue(
        f"Column '{name}' holds NaN, or numbers of more than {MOST_DIGITS} digits, which no decimal can be.",
        fix="leave such rows out, or read them as text: CAST(… AS text)",
    )


# ── marks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def mark_text(mark: Any, kind: ColumnType | None) -> str:
    """The canonical text of a watermark, the same for every target.

    >>> from datetime import datetime
    >>> mark_text(datetime(987, 3, 1, 9, tzinfo=timezone.utc), TimestampTZ()), mark_text(Decimal("1.50"), Numeric(5, 2))
    ('0987-03-01T09:00:00.000000Z', '1.50')
    """
    if isinstance(kind, TimestampTZ):
        return str(mark.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds")) + "Z"
    return str(mark.isoformat(timespec="microseconds")) if isinstance(kind, Timestamp) else str(mark)


def mark_column(value: Column, kind: ColumnType) -> Column:
    """The same, worked out by Spark."""
    from pyspark.sql import functions as F

    if isinstance(kind, TimestampTZ):
        return F.date_format(F.to_utc_timestamp(value, F.current_timezone()), INSTANT_PATTERN)
    return F.date_format(value, WALL_CLOCK_PATTERN) if isinstance(kind, Timestamp) else value.cast("string")


def highest_mark(texts: Iterable[str | None], kind: ColumnType | None) -> str | None:
    """The greatest of the marks that tasks report: numbers by value, everything else by its bytes.

    >>> from ematix_flow.declare.columns import BigInt
    >>> highest_mark(["9", None, "10"], BigInt())
    '10'
    """

    def comparable(text: str) -> Any:
        if kind is not None and kind.kind in ("small_int", "integer", "big_int", "numeric"):
            return Decimal(text)
        return float(text) if kind is not None and kind.kind in ("float", "double") else text.encode()

    return max((text for text in texts if text is not None), key=comparable, default=None)
