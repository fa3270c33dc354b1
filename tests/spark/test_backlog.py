"""What is kept for a target that is away: in which order it comes, and what is known of it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from ematix_flow.contracts.streams import StreamBatch
from ematix_flow.spark.backlog import Backlog


def test_what_waited_before_a_rewind_comes_before_what_came_after_it(spark: SparkSession, tmp_path: Path) -> None:
    backlog = Backlog(tmp_path)
    batches = [StreamBatch("old", 11, "d"), StreamBatch("old", 12, "d"), StreamBatch("new", 0, "d")]
    for batch in (*batches, batches[-1]):  # the last one twice, as when its process died in between
        backlog.keep(spark.range(batch.number, batch.number + 1), batch, is_chosen=batch.generation == "old")
    assert backlog.batches() == batches and backlog.newest() == batches[-1]
    assert all(backlog.holds(batch) for batch in batches) and not backlog.holds(StreamBatch("new", 11, "d"))
    taken: list[tuple[StreamBatch, int, bool]] = []

    def take(rows: DataFrame, batch: StreamBatch, is_chosen: bool) -> None:
        taken.append((batch, rows.collect()[0][0], is_chosen))

    assert backlog.apply(spark, take) == 3
    assert taken == [(batches[0], 11, True), (batches[1], 12, True), (batches[2], 0, False)]
    assert backlog.batches() == []
