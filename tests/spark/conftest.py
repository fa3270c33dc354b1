"""One Spark session per test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ematix_flow.testing.spark import local_spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session as our own runs get it."""
    yield local_spark()
