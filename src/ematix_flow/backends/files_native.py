"""Files on the native engine, which reads and writes folders of partitions in ways of its own.

It takes a path for a pattern unless it is percent-encoded, and finds nothing then. Told which files to read, it has
NULL in the columns that their folders name. And it names folders otherwise than Spark, which would read other values.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from ematix_flow.backends.transport import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import DataType, StructType

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
NATIVE_SETTING = "spark.ematix_flow.native"
"""Set in sessions of the native engine by whoever opens them; their client cannot tell them from those of Spark."""

_LOOK_AT_STATISTICS = "SET datafusion.execution.collect_statistics = {}"
_users: set[int] = set()
"""Threads that have used a session of the engine: what one of them sets there holds for all."""

# What Spark escapes in names of folders, by one byte each. Anything else stands as it is.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")


def is_native(spark: SparkSession) -> bool:
    """Whether a session is one of the native engine."""
    if ".connect." not in type(spark).__module__ or "pysail" not in sys.modules:
        return False  # not asked: some servers refuse questions about settings that they do not know
    if spark.conf.get(NATIVE_SETTING, "false") != "true":
        return False
    _users.add(threading.get_ident())
    return True


def as_view(frame: DataFrame, view: str) -> None:
    """Give the rows of files, with their columns as they are in the files, a name for SQL.

    The native engine may then look at the statistics of these files. It knows how many rows they hold, and puts joins
    into a good order. It also takes a column of one value from them instead of reading it, which is wrong where
    statistics do not tell everything: of floating-point numbers they leave out NaN. What a view may look at is settled
    when it is made; everything else goes without (`spark/native.py`).
    """
    spark = frame.sparkSession
    if not is_native(spark) or _users != {threading.get_ident()} or _holds_floats(frame.schema):
        frame.createOrReplaceTempView(view)
        return
    spark.sql(_LOOK_AT_STATISTICS.format("true"))
    try:
        frame.createOrReplaceTempView(view)
    finally:
        spark.sql(_LOOK_AT_STATISTICS.format("false"))


def _holds_floats(kind: DataType) -> bool:
    """Whether a floating-point number is anywhere in a type."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return any(_holds_floats(field.dataType) for field in kind.fields)
    if isinstance(kind, t.MapType):
        return _holds_floats(kind.keyType) or _holds_floats(kind.valueType)
    return (
        _holds_floats(kind.elementType)
        if isinstance(kind, t.ArrayType)
        else isinstance(kind, t.FloatType | t.DoubleType)
    )


def encoded_uri(path: str) -> str:
    """A local path that the engine takes for nothing but itself.

    >>> encoded_uri("/data/in[box]/100%.parquet")
    'file:///data/in%5Bbox%5D/100%25.parquet'
    """
    return "file://" + quote(path)


def folder_values(path: str) -> tuple[tuple[str, str | None], ...]:
    """The columns that the folders of a file name, with their values.

    >>> folder_values("day=2026-03-01/zone=a%2Fb/part-0.parquet"), folder_values("zone=/part-0.parquet")
    ((('day', '2026-03-01'), ('zone', 'a/b')), (('zone', None),))
    """
    named = (part.partition("=") for part in path.split("/")[:-1] if "=" in part)
    return tuple((unquote(name), None if value in ("", NULL_FOLDER) else unquote(value)) for name, _, value in named)


def as_spark_names_it(path: str) -> str:
    """The path of a file in the folders that Spark would have put it into; the engine escapes more, and NULL is empty.

    >>> as_spark_names_it("zone=%C3%BCber a:b/part-0.parquet"), as_spark_names_it("zone=/part-0.parquet")
    ('zone=über a%3Ab/part-0.parquet', 'zone=__HIVE_DEFAULT_PARTITION__/part-0.parquet')
    """
    *folders, name = path.split("/")
    return "/".join([*map(_renamed, folders), name])


def rows_in_folders(reader: DataFrameReader, schema: StructType, files: Sequence[tuple[str, str]]) -> DataFrame:
    """The rows of files with the values of their folders, in the columns of a schema.

    Args:
        files: The path of each below the folder, and the path by which it is read.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    groups: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for path, full in files:
        groups.setdefault(folder_values(path), []).append(full)
    frames = []
    for group, paths in groups.items():
        values = dict(group)
        inside = StructType([field for field in schema.fields if field.name not in values])
        columns = [
            F.lit(values[field.name]).cast(field.dataType).alias(field.name)
            if field.name in values
            else F.col(quoted(field.name))
            for field in schema.fields
        ]
        frames.append(reader.schema(inside).load(paths).select(*columns))
    return put_together(frames)


def put_together(frames: list[DataFrame]) -> DataFrame:
    """The rows of some frames with the same columns, as a tree: a long chain is deeper than a query may be."""
    while len(frames) > 1:
        pairs = [frames[n : n + 2] for n in range(0, len(frames), 2)]
        frames = [pair[0].unionAll(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return frames[0]


def _renamed(folder: str) -> str:
    values = folder_values(f"{folder}/")
    return (
        "".join(f"{_escaped(name)}={NULL_FOLDER if value is None else _escaped(value)}" for name, value in values)
        or folder
    )


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
