"""Which messages of a spool are to be rejected, noted beside its files until the broker has been told.

A target may hold the rest of a batch when the process dies, and the batch is then not looked at again. Without the note
nobody would know which of its messages were bad, and all of them would be acknowledged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

_BEGINNING = "_rejected-"  # Spark reads the folder, and leaves out what begins so


def note_rejects(folder: Path, number: int, rows: Collection[int]) -> None:
    """Keep the rows of one file that are to be rejected, in the place of what was noted for it before."""
    place = _place(folder, number)
    partial = place.with_name(f".{place.name}")
    with open(partial, "w") as file:
        json.dump(sorted(rows), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, place)


def noted_rejects(folder: Path) -> dict[int, frozenset[int]]:
    """What is noted, by file."""
    return {
        int(place.stem.removeprefix(_BEGINNING)): frozenset(json.loads(place.read_text()))
        for place in folder.glob(f"{_BEGINNING}*.json")
    }


def forget_rejects(folder: Path, number: int) -> None:
    """Remove what is noted for a file, if anything is."""
    _place(folder, number).unlink(missing_ok=True)


def _place(folder: Path, number: int) -> Path:
    return folder / f"{_BEGINNING}{number:012d}.json"
