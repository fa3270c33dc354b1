"""Files as DataFrames and back: Spark does the work, this module says exactly how each format is to be understood.

CSV is text until the declared columns say otherwise, so nothing is guessed. JSON lines have types of their own, which
are inferred over all records; a declared text, decimal or JSON column takes the value's exact text instead. Parquet and
ORC are what they say they are. Values of partition folders (`day=2026-03-01/`) are text, like CSV.
Bytes travel as base64 in both text formats.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import IO, TYPE_CHECKING, Any, cast

from ematix_flow.backends.files_damage import parted
from ematix_flow.backends.files_native import NULL_FOLDER, as_spark_names_it, is_native, rows_in_folders
from ematix_flow.backends.files_options import (
    EMPTY_TEXT,
    SPARK_FORMAT,
    TEXT_TIMES,
    CsvLayout,
    read_layout,
    written_layout,
)
from ematix_flow.backends.files_shape import disagreement
from ematix_flow.backends.files_store import Store
from ematix_flow.backends.files_table import DataFile
from ematix_flow.backends.transport import quoted
from ematix_flow.contracts import refusals
from ematix_flow.contracts.left_out import left_out_words
from ematix_flow.contracts.plans import Reading
from ematix_flow.declare.columns import JSON, JSONB, Bytes, Numeric, String, Text
from ematix_flow.declare.fileformats import FileFormat
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.declare.target import FileOptions
from ematix_flow.errors import InvalidSource, listed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import DataType, StructType

_CORRUPT = "_ematix_flow_corrupt"
_EXACT_TEXT = (Text, String, Numeric, JSON, JSONB)
_UNREADABLE = (".zst", ".zstd")
_GAP_DAYS = (-141_437, -141_427)
"""5 and 15 October 1582, as days before 1970."""
_MARKS = {b"PAR1": "Parquet", b"ORC": "ORC", b"PK\x03\x04": "a zip archive or a workbook", b"\x1f\x8b": "gzip"}
"""How files that are not text begin."""
_DAY_MICROS = 86_400_000_000


@dataclass(frozen=True)
class Expected:
    """What the load declares about a source's columns, by their names there; empty for SQL, whose names are its own."""

    columns: Mapping[str, ColumnSpec] = field(default_factory=dict)
    untouched: frozenset[str] = frozenset()

    @staticmethod
    def of(reading: Reading) -> Expected:
        """`untouched` are the columns that no normalizer changes before they are cast."""
        columns = [c for c in reading.columns if not any(n.kind == "derive" for n in c.normalizers)]
        names = {column.name: reading.renamed.get(column.name, column.name) for column in columns}
        return Expected(
            columns={names[column.name]: column for column in columns},
            untouched=frozenset(
                names[column.name]
                for column in columns
                if not reading.pending.get(column.name) and not column.normalizers
            ),
        )


class FrameFiles:
    """Reads and writes the files of one format in one session."""

    def __init__(self, spark: SparkSession, store: Store, file_format: FileFormat, options: FileOptions) -> None:
        self.spark, self.store, self.file_format, self.options = spark, store, file_format, options
        self.is_native = is_native(spark)
        store.prepare(spark)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def read(
        self, folder: str, files: Sequence[DataFile], expected: Expected, known: Mapping[str, Any] | None = None
    ) -> DataFrame:
        """The rows of some files of a folder, with the columns of its partition folders.

        Args:
            folder: Where they are.
            files: Which ones.
            expected: What the load declares about them.
            known: The schema of all of them, when somebody kept it; columns that a file lacks are NULL in it, and
                narrower numbers are widened.
        """
        from pyspark.sql.types import StructType

        self._refuse_unreadable(files)
        if self.file_format == "csv":
            return self._csv(folder, files, expected)
        partitions = partition_names(files, folder)
        paths = [self.store.spark_path(f"{folder}/{file.path}") for file in files]
        reader = self.spark.read.format(SPARK_FORMAT[self.file_format])
        if self.file_format == "json_lines":
            schema = self._json_schema(paths, expected)
            reader = reader.options(mode="FAILFAST", **TEXT_TIMES)
        elif known is not None:
            schema = StructType.fromJson(dict(known))
        else:
            reader = reader.option("mergeSchema", str(len(paths) > 1).lower())
            with self._mended(folder, files):
                found = reader.load(paths)
                schema = found.schema  # Spark Connect and the native engine look at files only when asked
            if not partitions:
                return found
        return self._loaded(reader, _with_text(schema, partitions), folder, files)

    def read_typed(self, folder: str, files: Sequence[DataFile], schema: StructType) -> DataFrame:
        """Files this process has just written, in the types they were written with (CSV: as text)."""
        if self.file_format == "csv":
            return self._csv(folder, files, Expected())
        reader = self.spark.read.format(SPARK_FORMAT[self.file_format]).options(mode="FAILFAST", **TEXT_TIMES)
        return self._loaded(reader, schema, folder, files)

    def _loaded(self, reader: DataFrameReader, schema: StructType, folder: str, files: Sequence[DataFile]) -> DataFrame:
        paths = [self.store.spark_path(f"{folder}/{file.path}") for file in files]
        if partition_names(files, folder):
            if self.is_native:
                return rows_in_folders(
                    reader, schema, [(file.path, path) for file, path in zip(files, paths, strict=True)]
                )
            reader = reader.option("basePath", self.store.spark_uri(folder))
        return reader.schema(schema).load(paths)

    @contextmanager
    def _mended(self, folder: str, files: Sequence[DataFile]) -> Iterator[None]:
        """Say which file cannot be read, or that files disagree; Spark says it at the end of a long report."""
        try:
            yield
        except Exception as exc:
            text = str(exc)
            where = self.store.shown_path(folder)
            if "CANNOT_MERGE_SCHEMAS" in text:
                found = disagreement(self.file_format, self._opened(folder, files))
                raise InvalidSource(
                    f"The files of '{folder}' disagree about their columns{f': {found}' if found else ''}.",
                    where=where,
                    fix="give each kind of file a folder of its own, or mend those that are wrong",
                ) from exc
            damaged = re.search(r"(?:footer for file: |while reading file |FileStatus\{path=)(\S+?\.\w+)[\s;.]", text)
            if "CANNOT_READ_FILE_FOOTER" in text or "is not a Parquet file" in text or "FAILED_READ_FILE" in text:
                raise InvalidSource(
                    f"A file of '{folder}' is not {self.file_format}, or is damaged.",
                    where=damaged[1] if damaged else where,
                    fix="mend or remove it",
                ) from exc
            _, unreadable = parted(self.store, folder, files, self.file_format)  # other engines name no file
            if unreadable:
                raise InvalidSource(f"{left_out_words(unreadable)}.", where=where, fix="mend or remove it") from exc
            raise

    def _opened(self, folder: str, files: Sequence[DataFile]) -> Iterator[tuple[str, IO[bytes]]]:
        return ((file.path, self.store.open(f"{folder}/{file.path}")) for file in files)

    def empty(self, schema: Mapping[str, Any]) -> DataFrame:
        """No rows, in the columns a manifest remembers."""
        from pyspark.sql.types import StructType

        return self.spark.createDataFrame([], StructType.fromJson(dict(schema)))

    def decode_bytes(self, frame: DataFrame, expected: Expected) -> DataFrame:
        """Turn base64 into bytes where the load declares bytes and the file could only hold text."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType

        if self.file_format not in ("csv", "json_lines"):
            return frame
        texts = {f.name for f in frame.schema.fields if isinstance(f.dataType, StringType)}
        wanted = [
            name
            for name, column in expected.columns.items()
            if isinstance(column.type, Bytes) and name in texts and name in expected.untouched
        ]
        if not wanted:
            return frame
        return frame.withColumns({name: F.to_binary(F.col(quoted(name)), F.lit("base64")) for name in wanted})

    def _refuse_unreadable(self, files: Sequence[DataFile]) -> None:
        for file in files:
            if ":" in file.path:
                raise InvalidSource(
                    f"The file name '{file.path}' holds ':', which Spark cannot read.", fix="rename the file"
                )
            if self.file_format in ("csv", "json_lines") and file.path.lower().endswith(_UNREADABLE):
                raise InvalidSource(
                    f"'{file.path}' is compressed with Zstandard, which Spark reads only with Hadoop's native library.",
                    fix="compress text files with gzip or bzip2, or leave them plain",
                )

    # ── JSON lines ───────────────────────────────────────────────────────────────────────────────────────────────────

    def lines(self, folder: str, files: Sequence[DataFile]) -> DataFrame:
        """Every line of some files as text in `value`, with the columns of their partition folders."""
        from pyspark.sql.types import StringType, StructField, StructType

        self._refuse_unreadable(files)
        partitions = partition_names(files, folder)
        reader = self.spark.read.format("text")
        reader = reader.schema(_with_text(StructType([StructField("value", StringType())]), partitions))
        if partitions:
            reader = reader.option("basePath", self.store.spark_uri(folder))
        return reader.load([self.store.spark_path(f"{folder}/{file.path}") for file in files])

    def _json_schema(self, paths: Sequence[str], expected: Expected) -> StructType:
        """Inferred types, except where the declared type wants the value's exact text."""
        from pyspark.sql.types import DecimalType, DoubleType, StringType, StructField, StructType

        limit = (self.options.json_read_options or {}).get("schema_infer_max_records")
        inferred = self._sampled_json_schema(paths, limit) if limit else self._whole_json_schema(paths)
        exact = {
            name
            for name, column in expected.columns.items()
            if isinstance(column.type, _EXACT_TEXT) and name in expected.untouched
        }
        fields = [StructField(f.name, StringType()) if f.name in exact else f for f in inferred.fields]
        # Digits that a double would lose are kept for a marker that changes a decimal.
        decimals = {name for name, column in expected.columns.items() if isinstance(column.type, Numeric)}
        fields = [
            StructField(f.name, DecimalType(38, 18)) if f.name in decimals and f.dataType == DoubleType() else f
            for f in fields
        ]
        if limit or not fields:  # what was not sampled may still be there: declared columns are always looked for
            known = {f.name for f in fields}
            fields += [StructField(name, StringType()) for name in expected.columns if name not in known]
        return StructType(fields)

    def _whole_json_schema(self, paths: Sequence[str]) -> StructType:
        reader = self.spark.read.options(mode="FAILFAST")
        try:
            return reader.option("prefersDecimal", "true").json(list(paths)).schema
        except Exception as exc:
            if re.search(r"MALFORMED_RECORD|Malformed records", str(exc)):
                raise self._unreadable_json(paths) from exc
            if "NEGATIVE_SCALE_DISALLOWED" not in str(exc):
                raise
            # A number such as 1E22: Spark has no decimal for it, and stops instead of taking a double.
            return reader.option("prefersDecimal", "false").json(list(paths)).schema

    def _unreadable_json(self, paths: Sequence[str]) -> InvalidSource:
        """Which file holds a record that is no JSON; Spark does not say when it looks for types."""
        from pyspark.sql import functions as F

        # Spark refuses to look at the broken record alone, so a column that nobody has is looked at, too.
        reader = self.spark.read.schema(f"{_CORRUPT} string, {_CORRUPT}_not string").options(mode="PERMISSIVE")
        frame = reader.option("columnNameOfCorruptRecord", _CORRUPT).json(list(paths))
        broken = frame.where(F.col(_CORRUPT).isNotNull()).select("_metadata.file_path", f"{_CORRUPT}_not").head(1)
        return InvalidSource(
            "A file of the source holds a record that is not JSON.",
            where=str(broken[0][0]) if broken else None,
            fix="mend or remove it",
        )

    def _sampled_json_schema(self, paths: Sequence[str], limit: int) -> StructType:
        """The types of the first records. Only those are looked at: `samplingRatio` would still read every file."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        lines = self.spark.read.text(list(paths)).where(F.length(F.trim("value")) > 0).limit(limit).collect()
        if not lines:
            return StructType([])
        sample = "[" + ",".join(line[0] for line in lines) + "]"
        ddl = self.spark.range(1).select(F.schema_of_json(F.lit(sample), {"prefersDecimal": "true"})).collect()[0][0]
        frame = self.spark.range(1).select(F.from_json(F.lit("[]"), ddl).alias("a")).select(F.explode("a").alias("r"))
        return frame.select("r.*").schema

    # ── CSV ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _csv(self, folder: str, files: Sequence[DataFile], expected: Expected) -> DataFrame:
        """Every file by its own header: Spark would take the first one's names for all, whatever their order."""
        groups: dict[tuple[CsvLayout, tuple[str, ...]], list[DataFile]] = {}
        for file in files:
            layout = file.layout or read_layout(self.options, tab_separated=".tsv" in file.path.lower()[-8:])
            columns = file.columns or self._csv_columns(f"{folder}/{file.path}", layout, expected)
            if columns:  # an empty file has no header and no rows
                groups.setdefault((layout, columns), []).append(file)
        partitions = partition_names(files, folder)
        _refuse_ambiguous([name for _, columns in groups for name in columns] + partitions, folder)
        frames = [
            self._csv_group(folder, members, layout, columns, partitions)
            for (layout, columns), members in groups.items()
        ]
        if not frames:
            from pyspark.sql.types import StringType, StructField, StructType

            return self.spark.createDataFrame([], StructType([StructField(n, StringType()) for n in expected.columns]))
        return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)

    def _csv_group(
        self, folder: str, files: Sequence[DataFile], layout: CsvLayout, columns: Sequence[str], partitions: list[str]
    ) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructField, StructType

        names = [*columns, *([_CORRUPT] if layout.truncated_rows_ok else [])]
        schema = StructType([StructField(name, StringType()) for name in names])
        reader = self.spark.read.schema(_with_text(schema, partitions)).options(**layout.read_options())
        reader = reader.option("columnNameOfCorruptRecord", _CORRUPT)
        if partitions:
            reader = reader.option("basePath", self.store.spark_uri(folder))
        frame = reader.csv([self.store.spark_path(f"{folder}/{file.path}") for file in files])
        if layout.truncated_rows_ok:
            # A short row has no last value. One that is "corrupt" and has it is too long: never cut that off silently.
            too_long = F.col(_CORRUPT).isNotNull() & F.col(quoted(columns[-1])).isNotNull()
            message = "A CSV record has more fields than the header; truncated_rows_ok only allows fewer."
            refuse = F.raise_error(F.lit(refusals.unfit_because(message))).cast("boolean")
            frame = frame.where(F.when(too_long, refuse).otherwise(F.lit(True)))
        return frame.select(
            [self._csv_value(name, layout) for name in columns] + [F.col(quoted(p)) for p in partitions]
        )

    def _csv_value(self, name: str, layout: CsvLayout) -> Column:
        from pyspark.sql import functions as F

        column = F.col(quoted(name))
        value = F.when(column == EMPTY_TEXT, F.lit("")).otherwise(column)
        if layout.null_regex is not None:
            value = F.when(value.rlike(rf"\A(?:{layout.null_regex})\z"), F.lit(None)).otherwise(value)
        return value.alias(name)

    def _csv_columns(self, path: str, layout: CsvLayout, expected: Expected) -> tuple[str, ...]:
        """The columns of one file: its header, or without one the declared columns in order, or `column_1` …"""
        record = self._first_record(path, layout)
        if layout.header:
            names = tuple(name if name else f"_c{place}" for place, name in enumerate(record))
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise InvalidSource(
                    f"The header of '{path}' names {listed(twice)} more than once.", fix="mend the header"
                )
            return names
        if len(record) == len(expected.columns):
            return tuple(expected.columns)
        return tuple(f"column_{place}" for place in range(1, len(record) + 1))

    @contextmanager
    def _unpacked(self, path: str) -> Iterator[None]:
        try:
            yield
        except (gzip.BadGzipFile, EOFError, zlib.error) as exc:
            raise InvalidSource(
                f"'{path}' cannot be unpacked; it is damaged, or its name promises what it is not.",
                where=self.store.shown_path(path),
                fix="mend or remove it",
            ) from exc

    def _refuse_binary(self, path: str, file: IO[bytes]) -> None:
        """Any bytes would pass for text, and come out as a header that nobody declared."""
        start = file.read(1024)
        file.seek(0)
        found = next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)
        is_text = b"\0" not in start  # a header may begin with such letters, too
        if found is not None and not is_text and not (found == "gzip" and path.lower().endswith(".gz")):
            raise InvalidSource(
                f"'{path}' holds {found}, not {self.file_format}.",
                where=self.store.shown_path(path),
                fix="use a connection with the file's own format, or give it its right name",
            )

    def _first_record(self, path: str, layout: CsvLayout) -> list[str]:
        if not path.lower().endswith((".snappy", ".lz4")):
            with self._unpacked(path), self.store.open(path) as file, _as_text(path, file) as text:
                self._refuse_binary(path, file)
                lines: Iterator[str] = text
                if layout.comment is not None:
                    mark = layout.comment
                    lines = (line for line in text if not line.startswith(mark))
                doubled = layout.escape == layout.quote
                reader = csv.reader(
                    lines,
                    delimiter=layout.delimiter,
                    quotechar=layout.quote,
                    doublequote=doubled,
                    escapechar=None if doubled else layout.escape,
                )
                if layout.terminator in (None, "\n", "\r"):
                    return next((record for record in reader if record), [])
        # Compressed in a way only Spark knows, or with a line ending of its own.
        names = self.spark.read.options(**layout.read_options()).csv(self.store.spark_path(path)).columns
        return list(names)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, frame: DataFrame, place: str) -> None:
        """Write a frame's rows into a folder; Spark drops what killed and repeated tasks left."""
        from pyspark.sql import functions as F

        options: dict[str, str] = {}
        if self.file_format == "csv":
            options = written_layout(self.options).write_options()
        elif self.file_format == "json_lines":
            options = {"ignoreNullFields": "false", "encoding": "UTF-8", **TEXT_TIMES}
        elif self.file_format == "parquet":
            options = dict(_PARQUET_OPTIONS)
            if self.options.parquet_compression is not None:
                options["compression"] = self.options.parquet_compression
        partitions = self.options.partition_by or ()
        if self.is_native and partitions:
            # It names the folder of a NULL date as that of 1 January 1970, and knows no folders of decimals and times.
            frame = frame.withColumns({name: F.col(quoted(name)).cast("string") for name in partitions})
        writer = frame.write.format(SPARK_FORMAT[self.file_format]).mode("overwrite").options(**options)
        if partitions:
            writer = writer.partitionBy(*partitions)
        self.store.save(self.spark, writer, place)

    def published(self, file: DataFile) -> DataFile:
        """A file that was written, by the path at which readers find it below the table's folder."""
        return replace(file, path=as_spark_names_it(file.path)) if self.is_native else file

    def as_writable(self, frame: DataFrame, names: Sequence[str]) -> DataFrame:
        """The columns in order, in a form the format can hold; a value that would come back changed stops the load."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType, StringType

        types = {f.name: f.dataType for f in frame.schema.fields}
        frame = held_by_folders(frame, self.options.partition_by or ())
        if self.file_format == "orc":
            return frame.select([_held_by_orc(name, types[name]).alias(name) for name in names])
        if self.file_format != "csv":
            return frame.select([F.col(quoted(name)) for name in names])
        null_value = written_layout(self.options).null_value
        values: list[Column] = []
        for name in names:
            value = F.col(quoted(name))
            if isinstance(types[name], BinaryType):
                value = F.base64(value)
            if null_value and isinstance(types[name], StringType):
                clash = refusals.unfit_because(
                    f"A text in column '{name}' equals csv_null_value and could not be told from NULL.",
                    column=name,
                    fix="choose another csv_null_value",
                )
                value = F.when(value == null_value, F.raise_error(F.lit(clash)).cast("string")).otherwise(value)
            values.append(value.alias(name))
        return frame.select(values)


_PARQUET_OPTIONS = {
    # Figures that no reader asks for cost a tenth of the writing: lowest and highest of a column with one value in a
    # file, and histograms of sizes.
    "parquet.column.statistics.enabled#_batch_id": "false",
    "parquet.size.statistics.enabled": "false",
}


def held_by_folders(frame: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Rows of which some columns become names of folders: an empty text would come back as NULL, so it is refused."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    texts = {field.name for field in frame.schema.fields if isinstance(field.dataType, StringType)}
    checked = {}
    for name in texts.intersection(partition_by):
        column = F.col(quoted(name))
        message = refusals.unfit_because(
            f"Column '{name}' has an empty text, and folders are named by its values: it would become NULL.",
            column=name,
            fix="give it a value, make it NULL, or partition by another column",
        )
        lost = column.isin("", NULL_FOLDER)
        checked[name] = F.when(lost, F.raise_error(F.lit(message)).cast("string")).otherwise(column)
    return frame.withColumns(checked) if checked else frame


def _held_by_orc(name: str, data_type: DataType) -> Column:
    """A column whose times Spark's ORC writer would change: such a value fails the load.

    It knows only days of the calendar of their time, in which 4 October 1582 is followed by the 15th, and puts an
    instant in the last second before 1970 one second later.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import DateType, TimestampType

    column = F.col(quoted(name))
    if isinstance(data_type, DateType):
        lost, what = F.unix_date(column).between(_GAP_DAYS[0], _GAP_DAYS[1] - 1), "a day"
    elif isinstance(data_type, TimestampType):
        micros = F.unix_micros(column)
        in_gap = micros.between(_GAP_DAYS[0] * _DAY_MICROS, _GAP_DAYS[1] * _DAY_MICROS - 1)
        lost, what = in_gap | micros.between(-999_000, -1), "an instant"
    else:
        return column
    message = refusals.unfit_because(
        f"Column '{name}' has {what} that ORC files cannot keep: 5 to 14 October 1582, or the second before 1970.",
        column=name,
        fix="write Parquet, or declare Text",
    )
    return F.when(lost, F.raise_error(F.lit(message)).cast(data_type)).otherwise(column)


def _as_text(path: str, file: IO[bytes]) -> IO[str]:
    """A text file, or a gzip or bzip2 one, by its name."""
    lowered = path.lower()
    plain: IO[bytes] = file
    if lowered.endswith(".gz"):
        plain = cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    elif lowered.endswith(".bz2"):
        plain = bz2.BZ2File(file)
    return io.TextIOWrapper(plain, encoding="utf-8-sig", errors="replace", newline="")


def partition_names(files: Sequence[DataFile], folder: str) -> list[str]:
    """The columns that folders such as `day=2026-03-01` name; the same for all files.

    Raises:
        InvalidSource: some files lie in such folders, and others do not. Spark would leave those out without a word.
    """
    from urllib.parse import unquote

    ways: dict[tuple[str, ...], str] = {}
    for file in files:
        parts = file.path.split("/")[:-1]
        ways.setdefault(tuple(unquote(part.split("=", 1)[0]) for part in parts if "=" in part), file.path)
    if len(ways) > 1:
        (names, one), (others, other), *_ = ways.items()
        missing = [name for name in (*names, *others) if name not in names or name not in others]
        raise InvalidSource(
            f"The files of '{folder}' are partitioned in different ways: '{one}' and '{other}'"
            + (f" do not both have a folder for {listed(missing)}." if missing else "."),
            fix="move them into folders of the same form, or apart",
        )
    return list(next(iter(ways), ()))


def _with_text(schema: StructType, names: Sequence[str]) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    kept = [f for f in schema.fields if f.name not in names]
    return StructType([*kept, *(StructField(name, StringType()) for name in names)])


def _refuse_ambiguous(names: Sequence[str], folder: str) -> None:
    spellings: dict[str, str] = {}
    for name in names:
        if spellings.setdefault(name.lower(), name) != name:
            raise InvalidSource(
                f"Headers below '{folder}' hold '{spellings[name.lower()]}' and '{name}', which differ only in case.",
                fix="give them one spelling",
            )
