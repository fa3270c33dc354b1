"""The Spark session of a test process: the one that loads use, small and quiet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.contracts.session import SessionNeeds, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def local_spark(needs: SessionNeeds | None = None) -> SparkSession:
    """The session of this process, opened when it is not there yet. It ends with the process."""
    from ematix_flow.spark.session import open_session

    return open_session(needs or SessionNeeds(), SparkSettings())
