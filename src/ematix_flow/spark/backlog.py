"""Rows that a target could not take, kept for it while the others go on: one folder of Parquet per batch, in order.

Folders are numbered as they come. A rewind or a reset counts batches anew, and what waited before it stays before it:
the target gets what the others got, in their order. A folder counts once its `_batch.json` is there, which is written
last. Batches keep their names, so one that reached the target before the process died is not applied again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from ematix_flow.contracts.streams import StreamBatch

_NOTE, _CHOSEN = "_batch.json", "is_chosen"


class Backlog:
    """What one target is behind with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def batches(self) -> list[StreamBatch]:
        """The batches that wait, oldest first."""
        return [_noted(place)[0] for place in self._places()]

    def holds(self, batch: StreamBatch) -> bool:
        """Whether the batch waits here already."""
        return (self._place(batch) / _NOTE).exists()

    def newest(self) -> StreamBatch | None:
        """The batch that was kept last; None when none waits."""
        return next(iter(reversed(self.batches())), None)

    def keep(self, rows: DataFrame, batch: StreamBatch, *, is_chosen: bool = True) -> None:
        """Keep a batch's rows, durably. `is_chosen` when they have only the columns that the target wants."""
        place = self._place(batch)
        rows.write.mode("overwrite").parquet(place.as_uri())
        partial = place / f"._{_NOTE}"
        with open(partial, "w") as file:
            json.dump({**batch.to_dict(), _CHOSEN: is_chosen}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, place / _NOTE)

    def apply(self, spark: SparkSession, write: Callable[[DataFrame, StreamBatch, bool], None]) -> int:
        """Hand the batches over, oldest first, each gone once it is taken; how many were. `write` also hears whether
        the columns of a batch were chosen for the target.

        Raises:
            FlowError: what `write` raised; that batch and later ones stay.
        """
        taken = 0
        for place in self._places():
            write(spark.read.parquet(place.as_uri()), *_noted(place))
            (place / _NOTE).unlink()  # first: without it the rest is rubbish of a dead run
            shutil.rmtree(place, ignore_errors=True)
            taken += 1
        return taken

    def _place(self, batch: StreamBatch) -> Path:
        """Where the batch is, or would come: behind all others."""
        name = f"{batch.generation}-{batch.number}"
        taken = sorted(self.folder.glob("*-*-*"))
        known = [place for place in taken if place.name.partition("-")[2] == name]
        number = int(taken[-1].name.partition("-")[0]) + 1 if taken else 0
        return known[0] if known else self.folder / f"{number:012d}-{name}"

    def _places(self) -> list[Path]:
        return sorted(note.parent for note in self.folder.glob(f"*/{_NOTE}"))


def _noted(place: Path) -> tuple[StreamBatch, bool]:
    known = json.loads((place / _NOTE).read_text())
    is_chosen = known.pop(_CHOSEN, True)
    return StreamBatch(**known), is_chosen
