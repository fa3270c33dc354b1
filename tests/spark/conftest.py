"""One Spark session per test process."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from ematix_flow.testing.spark import local_spark


@pytest.fixture
def spark() -> SparkSession:
    """The session as our own runs get it; asked for by each test, because one that lacks jars is replaced."""
    return local_spark()
