"""The file formats that folders and buckets may hold, and how a path tells its own."""

from __future__ import annotations

import os
from typing import Literal, get_args

FileFormat = Literal["parquet", "csv", "json_lines", "orc"]
FILE_FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)

TYPED_FORMATS: tuple[FileFormat, ...] = ("parquet", "orc")
"""The formats whose files say at their end what they hold."""

OnCorruptFile = Literal["fail", "quarantine"]
ON_CORRUPT_FILE: tuple[OnCorruptFile, ...] = get_args(OnCorruptFile)
"""What becomes of a load when a file of its source cannot be read: it stops, or goes on without that file."""

EXTENSIONS: dict[str, FileFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json_lines",
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".orc": "orc",
}
COMPRESSIONS = (".gz", ".bz2", ".zst", ".zstd", ".snappy", ".lz4")


def format_from_path(path: str | os.PathLike[str]) -> FileFormat | None:
    """The format a file name promises, or None. One compression ending is looked through; query strings are not.

    >>> format_from_path("raw/Events.CSV.gz"), format_from_path("s3://lake/day.pq"), format_from_path("notes.txt")
    ('csv', 'parquet', None)
    """
    name = os.fspath(path).lower()
    for ending in COMPRESSIONS:
        if name.endswith(ending):
            name = name.removesuffix(ending)
            break
    return next((file_format for ending, file_format in EXTENSIONS.items() if name.endswith(ending)), None)
