"""The documented import path of everything about warehouses; it lives in `declare/` and `run/`."""

from __future__ import annotations

from ematix_flow.declare.connection import BigQueryConnection, RedshiftConnection, SnowflakeConnection
from ematix_flow.declare.warehouse import WarehouseSource, WarehouseTarget, warehouse_pipeline
from ematix_flow.errors import WarehouseSyncError
from ematix_flow.run.warehouse_pipelines import (
    WarehouseRunResult,
    bigquery_query_to_arrow,
    bigquery_write_arrow,
    redshift_query_to_arrow,
    redshift_write_arrow,
    run_warehouse_pipeline,
    snowflake_query_to_arrow,
    snowflake_write_arrow,
)
from ematix_flow.run.watermark_stores import FileWatermarkStore, InMemoryWatermarkStore

__all__ = [
    "BigQueryConnection",
    "FileWatermarkStore",
    "InMemoryWatermarkStore",
    "RedshiftConnection",
    "SnowflakeConnection",
    "WarehouseRunResult",
    "WarehouseSource",
    "WarehouseSyncError",
    "WarehouseTarget",
    "bigquery_query_to_arrow",
    "bigquery_write_arrow",
    "redshift_query_to_arrow",
    "redshift_write_arrow",
    "run_warehouse_pipeline",
    "snowflake_query_to_arrow",
    "snowflake_write_arrow",
    "warehouse_pipeline",
]
