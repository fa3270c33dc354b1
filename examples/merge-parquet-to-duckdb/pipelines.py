"""Stock counts of a supplier: one Parquet file a day, one row per article in DuckDB."""

from __future__ import annotations

from ematix_flow import Annotated, Integer, String, TimestampTZ, ematix, pk
from ematix_flow.normalize import deduplicate_by


@ematix.connection
class supplier:
    kind = "object_store_local"
    format = "parquet"
    path = "supplier"


@ematix.connection
class planning:
    kind = "duckdb"
    path = "planning.duckdb"


@ematix.table(schema="stock")
class Articles:
    article: Annotated[String[20], pk()]
    pieces: Integer
    counted_at: TimestampTZ


@ematix.pipeline(
    source_connection="supplier",
    target=Articles,
    target_connection="planning",
    mode="merge",
    compare_columns=("pieces",),
    transforms_pre=[deduplicate_by("article", order_by="counted_at desc")],
)
def take_counts(files):
    return "counts"
