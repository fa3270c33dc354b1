"""The documented import path of the column types and `Column`; they live in `declare/`."""

from __future__ import annotations

from ematix_flow.declare.columns import (
    JSON,
    JSONB,
    UUID,
    BigInt,
    Boolean,
    Bytes,
    ColumnType,
    Date,
    Decimal,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
)
from ematix_flow.declare.table import Column

__all__ = [
    "BigInt",
    "Boolean",
    "Bytes",
    "Column",
    "ColumnType",
    "Date",
    "Decimal",
    "Double",
    "Float",
    "Integer",
    "JSON",
    "JSONB",
    "Numeric",
    "SmallInt",
    "String",
    "Text",
    "Timestamp",
    "TimestampTZ",
    "UUID",
]
