"""Which types the texts of CSV files can have without a value being changed; asked once for all columns of a batch.

A column gets a type only when all of its texts are written as that type would write them, so that nothing is lost: a
number with leading zeros, or with more digits than a double holds, stays text.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F, types as t

from ematix_flow.backends.transport import quoted

_KINDS: tuple[tuple[str, t.DataType], ...] = (
    (r"\A(?:true|false)\z", t.BooleanType()),
    (r"\A-?(?:0|[1-9]\d{0,17})\z", t.LongType()),
    (r"\A-?(?=[\d.]{1,16}\z)(?:0|[1-9]\d*)(?:\.\d+)?\z", t.DoubleType()),
    (r"\A\d{4}-\d{2}-\d{2}\z", t.DateType()),
    (r"\A\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?\z", t.TimestampNTZType()),
    (r"\A\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?(?:Z|[+-]\d{2}:\d{2})\z", t.TimestampType()),
)


def kinds_of(texts: DataFrame) -> t.StructType:
    """The columns of a frame of texts, with the types that hold all of them; NULL where nothing was ever written."""
    asked: list[Column] = []
    for place, name in enumerate(texts.columns):
        column = F.col(quoted(name))
        asked.append(F.count(column).alias(f"{place}"))
        for number, (form, kind) in enumerate(_KINDS):
            fits = column.rlike(form) & column.try_cast(kind).isNotNull()
            asked.append(F.count_if(column.isNotNull() & fits).alias(f"{place}.{number}"))
    found = texts.agg(*asked).collect()[0].asDict()
    fields = []
    for place, name in enumerate(texts.columns):
        there = found[str(place)]
        fitting = [kind for number, (_, kind) in enumerate(_KINDS) if found[f"{place}.{number}"] == there]
        fields.append(t.StructField(name, t.NullType() if not there else fitting[0] if fitting else t.StringType()))
    return t.StructType(fields)
