"""Record the archive that makes Spark start faster, unless it is there; later starts on this machine use it."""

from __future__ import annotations

from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.spark import appcds
from ematix_flow.spark.session import archive_of

needs, settings = SessionNeeds(), SparkSettings()
archive = archive_of(needs, settings)
if archive is not None and archive.is_worth_recording:
    print("recording Spark's start-up archive, once")
    appcds.build(needs, settings)
