"""Files that cannot be read, found before Spark reads any: Parquet and ORC keep what a reader needs first at their end.

A file that was cut off, is empty or is of another format has no such end, or one that speaks of bytes which are not
there. That is asked of every file, and only of its end. Damage inside of the rows shows when they are read, and stops
the load: by then rows of the file may be on their way, and half a file is never loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any

from ematix_flow.backends.files_store import Store
from ematix_flow.backends.files_table import DataFile
from ematix_flow.contracts.left_out import LeftOutFile
from ematix_flow.declare.fileformats import FileFormat
from ematix_flow.errors import MissingDriver

if TYPE_CHECKING:
    import pyarrow as pa

_AT_ONCE = 16


class DamagedFile(Exception):
    """A file has no end that a reader could begin with; the message says what is wrong, without any of its bytes."""


def parted(
    store: Store, folder: str, files: Sequence[DataFile], file_format: FileFormat
) -> tuple[tuple[DataFile, ...], tuple[LeftOutFile, ...]]:
    """The files that can be read, and those that cannot. A place that does not answer is an error, not damage."""

    def reason(file: DataFile) -> str | None:
        if not file.size:
            return "it is empty"
        try:
            with store.open(f"{folder}/{file.path}") as opened:
                footer(file_format, opened, file.size)
        except DamagedFile as exc:
            return str(exc)
        return None

    with ThreadPoolExecutor(min(_AT_ONCE, max(len(files), 1))) as pool:
        reasons = list(pool.map(reason, files))
    sound = tuple(file for file, why in zip(files, reasons, strict=True) if why is None)
    damaged = tuple(
        LeftOutFile(store.shown_path(f"{folder}/{file.path}"), why)
        for file, why in zip(files, reasons, strict=True)
        if why is not None
    )
    return sound, damaged


def footer(file_format: FileFormat, opened: IO[bytes], size: int | None = None) -> tuple[pa.Schema, int]:
    """The columns and the number of rows that the end of a file tells; with its size, whether its rows can be there.

    Raises:
        DamagedFile: there is no such end. An error of the place that holds the file passes as it is.
    """
    try:
        import pyarrow as pa
        from pyarrow import orc, parquet
    except ImportError:
        raise MissingDriver("Describing files needs 'pyarrow'.", fix='pip install "ematix-flow[spark]"') from None
    watched = _Watched(opened)
    try:
        if file_format == "parquet":
            with parquet.ParquetFile(watched) as file:
                schema, rows, needed = file.schema_arrow, file.metadata.num_rows, _parquet_bytes(file.metadata)
        else:
            stripes = orc.ORCFile(watched)
            schema, rows = stripes.schema, stripes.nrows
            needed = stripes.content_length + stripes.file_footer_length + stripes.file_postscript_length
    except (pa.ArrowInvalid, OSError) as exc:
        if watched.refusal is not None:
            raise watched.refusal from None
        if isinstance(exc, OSError) and exc.errno is not None:
            raise
        raise DamagedFile(f"it is cut off, or not {file_format}") from exc
    if size is not None and needed > size:
        raise DamagedFile("a part of it is missing")
    return schema, rows


def _parquet_bytes(metadata: Any) -> int:
    """How long a file must at least be to hold what its footer speaks of."""
    end = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            chunk = group.column(place)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            end = max(end, start + chunk.total_compressed_size)
    return end + int(metadata.serialized_size)


class _Watched:
    """A file that remembers the refusal of its place: ORC's reader would make it look like damage."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.refusal: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except OSError as exc:
            self.refusal = exc
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Whoever opened the file closes it."""
