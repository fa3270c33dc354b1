"""The Spark session of a test process: the one that loads use, small and quiet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ematix_flow.contracts.session import SessionNeeds, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def local_spark(needs: SessionNeeds | None = None) -> SparkSession:
    """The session of this process, opened when it is not there yet. It ends with the process."""
    from ematix_flow.spark.session import open_session

    return open_session(needs or SessionNeeds(), settings())


def settings() -> SparkSettings:
    """Where tests move rows: here, on the server that SPARK_REMOTE names, or with EMATIX_TEST_ENGINE=native on Sail."""
    native = os.environ.get("EMATIX_TEST_ENGINE") == "native"
    return SparkSettings(remote=os.environ.get("SPARK_REMOTE"), engine="native" if native else "spark")
