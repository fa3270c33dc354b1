"""How many files a load into a lake table makes: as few as hold its rows well, whatever number of tasks brings them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.files import FILE_BYTES
from ematix_flow.backends.transport import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LEAST_BYTES = FILE_BYTES // 4
"""Files may be smaller than they should become one day, so that several tasks can share the writing; not by much."""

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_SPARKS_OWN = "200"
"""What holds in a session that nobody told; Spark takes no other word than a number for it, also as a default."""


def well_packed(rows: DataFrame, size: int | None, partitions: Sequence[str]) -> DataFrame:
    """The rows, spread over as many tasks as should write files.

    Args:
        size: Their bytes in files, when that is known; it is not where rows go straight into the table. They are then
            brought by no more tasks than a shuffle of them would have: every core has work, and a source of many small
            parts makes few files, without a further pass over the rows.
        partitions: The columns that say into which folder a row goes. Every task would write to every folder; so the
            rows of a folder are brought together first, in parts when they are many.
    """
    if partitions:
        return rows.hint("rebalance", *map(quoted, partitions))
    if size is not None:
        return rows.coalesce(max(1, size // _LEAST_BYTES))
    parts = str(rows.sparkSession.conf.get(_SHUFFLE_PARTITIONS, _SPARKS_OWN))
    return rows.coalesce(int(parts)) if parts.isdigit() else rows  # some platforms have "auto" there
