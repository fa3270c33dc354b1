"""One Spark session per test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.spark.session import open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session as our own runs get it."""
    yield open_session(SessionNeeds(), SparkSettings())
