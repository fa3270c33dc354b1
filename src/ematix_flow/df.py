"""Window: DataFrames in and out of connections, as documented under this path. Handles have the same as methods."""

from __future__ import annotations

from ematix_flow.run.frames import from_pyspark, read_df, to_pandas, to_polars, to_pyspark, write_df

__all__ = ["from_pyspark", "read_df", "to_pandas", "to_polars", "to_pyspark", "write_df"]
