"""How large a cluster or a Spark Connect server is, by what every session can be asked: its settings and DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ematix_flow.spark.sizes import SHUFFLE_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_TASKS = 4096


def tasks_at_once(session: SparkSession, *, is_connect: bool) -> int | None:
    """How many tasks run at the same time; None where parts of a shuffle are not ours to choose."""
    told = cast(Mapping[str, str], session.conf.getAll)
    return None if is_chosen(told) else max(tasks_told(told), _tasks_there(session, is_connect))


def is_chosen(conf: Mapping[str, str]) -> bool:
    """Whether parts of a shuffle are not ours to choose.

    They are not where somebody has set them, in the project or among the cluster's defaults, and where executors come
    and go with the work: how many there will be is not known beforehand.
    """
    return SHUFFLE_PARTITIONS in conf or conf.get("spark.dynamicAllocation.enabled") == "true"


def tasks_told(conf: Mapping[str, str]) -> int:
    """The tasks that the settings ask room for; executors may not all be there yet when the first load begins."""
    executors = int(conf.get("spark.executor.instances", 0)) * int(conf.get("spark.executor.cores", 1))
    return max(executors, int(conf.get("spark.cores.max", 0)))


def _tasks_there(session: SparkSession, is_connect: bool) -> int:
    if not is_connect:
        session.range(1).count()  # a cluster counts executors that have come; the first task waits for one
        return session.sparkContext.defaultParallelism
    from pyspark.sql import functions as F

    # A client sees no more of its server than rows: numbers are spread over as many tasks as run at once.
    parts = session.range(_MOST_TASKS).select(F.spark_partition_id().alias("part"))
    return 1 + int(parts.agg(F.max("part")).collect()[0][0])
