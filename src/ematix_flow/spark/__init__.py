"""The engine room: the only place with pyspark at the top of a file.

`ematix_flow.spark` is also an import path that the documentation promises: the functions that read and load Spark
DataFrames can be had from here. They are loaded when first asked for; connection handles have the same as methods.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.run.frames import (
        from_pyspark as from_pyspark,
        read_spark_df as read_spark_df,
        to_pyspark as to_pyspark,
        write_spark_df as write_spark_df,
    )

__all__ = ["from_pyspark", "read_spark_df", "to_pyspark", "write_spark_df"]

_OWNERS = dict.fromkeys(__all__, "ematix_flow.run.frames")


def __getattr__(name: str) -> object:
    if name not in _OWNERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_OWNERS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
