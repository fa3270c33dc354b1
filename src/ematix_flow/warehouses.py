"""The documented import path of the warehouse connections; they live in `declare/connection.py`."""

from __future__ import annotations

from ematix_flow.declare.connection import BigQueryConnection, RedshiftConnection, SnowflakeConnection

__all__ = ["BigQueryConnection", "RedshiftConnection", "SnowflakeConnection"]
