"""Batches without messages: a source that has nothing to say, and makes Spark plan a batch when time alone has passed.

It reads a folder of this machine. An empty file in it is a tick: Spark sees something new, writes it down among the
positions of a batch, as it does with messages, and plans that batch. What the batch comes to follows from the moment at
which it was planned, which Spark writes down too; so it comes to the same when it is done again.
"""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as F

from ematix_flow.spark.checkpoints import CheckpointFolder, Generation

_KEPT = 3
"""How many ticks stay; a batch that is done again does not miss those that are gone, since there is nothing in them."""
_REMEMBERED = "1d"
"""Spark remembers the names of files for so long, and overlooks those of a clock that was set back further."""


class Ticks:
    """The ticks of one generation of a stream."""

    def __init__(self, folder: CheckpointFolder, generation: Generation) -> None:
        self._place: Path = folder.path / f"gen-{generation.name}" / "ticks"

    def beside(self, messages: DataFrame, spark: SparkSession) -> DataFrame:
        """The messages, and ticks, which are none."""
        self._place.mkdir(parents=True, exist_ok=True)
        options = {"ignoreMissingFiles": "true", "maxFileAge": _REMEMBERED}
        reader = spark.readStream.schema("value string").options(**options)
        nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in messages.schema.fields]
        return messages.unionByName(reader.text(self._place.as_uri()).select(*nothing))

    def tick(self) -> None:
        """Let a batch be planned."""
        (self._place / f"{time.time_ns():020d}").touch()
        for old in sorted(self._place.iterdir())[:-_KEPT]:
            old.unlink(missing_ok=True)


def are_kept(folder: CheckpointFolder, generation: Generation, sources: int) -> bool | None:
    """Whether a checkpoint has a place for ticks, with which it must go on or without; None while it has no batch."""
    newest = folder.newest(generation, "offsets")
    return None if newest is None else len(folder.offsets(generation, newest)) > sources
