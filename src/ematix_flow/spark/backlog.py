"""Rows that a target could not take, kept for it while the others go on: one folder of Parquet per batch, in order.

A folder counts once its `_batch.json` is there, which is written last. Batches keep their names, so one that reached
the target before the process died is not applied again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from ematix_flow.contracts.streams import StreamBatch

_NOTE = "_batch.json"


class Backlog:
    """What one target is behind with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def batches(self) -> list[StreamBatch]:
        """The batches that wait, oldest first."""
        return [StreamBatch(**json.loads((place / _NOTE).read_text())) for place in self._places()]

    def holds(self, batch: StreamBatch) -> bool:
        """Whether the batch waits here already."""
        return (self._place(batch) / _NOTE).exists()

    def keep(self, rows: DataFrame, batch: StreamBatch) -> None:
        """Keep a batch's rows, durably."""
        place = self._place(batch)
        rows.write.mode("overwrite").parquet(place.as_uri())
        partial = place / f"._{_NOTE}"
        with open(partial, "w") as file:
            json.dump(batch.to_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, place / _NOTE)

    def apply(self, spark: SparkSession, write: Callable[[DataFrame, StreamBatch], None]) -> int:
        """Hand the batches over, oldest first, each gone once it is taken; how many were.

        Raises:
            FlowError: what `write` raised; that batch and later ones stay.
        """
        taken = 0
        for place in self._places():
            batch = StreamBatch(**json.loads((place / _NOTE).read_text()))
            write(spark.read.parquet(place.as_uri()), batch)
            (place / _NOTE).unlink()  # first: without it the rest is rubbish of a dead run
            shutil.rmtree(place, ignore_errors=True)
            taken += 1
        return taken

    def _place(self, batch: StreamBatch) -> Path:
        return self.folder / f"{batch.number:012d}-{batch.generation}"

    def _places(self) -> list[Path]:
        return sorted(note.parent for note in self.folder.glob(f"*/{_NOTE}"))
