"""Rows of files and of tables on their way through a stream: what has columns already needs no decoding.

A row that becomes a dead letter is kept as JSON, and read back from it when the letter is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession, functions as F, types as t

from ematix_flow.backends.files_options import TEXT_TIMES
from ematix_flow.backends.transport import quoted
from ematix_flow.contracts.streams import FILE_NAME, FILE_SIZE, VALUE, StreamsFiles
from ematix_flow.spark.csv_kinds import kinds_of
from ematix_flow.spark.dead_letters import LETTER_ID, with_message
from ematix_flow.spark.payloads import BAD, MESSAGE, RAW, UNKNOWN, Codec, JsonCodec
from ematix_flow.spark.widening import fitted, widened

if TYPE_CHECKING:
    from ematix_flow.spark.change_events import ChangeCodec

Remember = Callable[[t.StructType], None]
_PARSED = "__parsed"
_NOTHING = t.StructType([])


class RowCodec(Codec):
    """Rows that come with their columns."""

    def __init__(self, schema: t.StructType | None, remember: Remember) -> None:
        self.schema = schema or _NOTHING
        self._remember = remember

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    def prepare(self, messages: DataFrame) -> None:
        found = t.StructType([field for field in messages.schema.fields if not field.name.startswith("__")])
        if found != self.schema:
            self.schema = found
            self._remember(found)

    def decoded(self, messages: DataFrame) -> DataFrame:
        rows = self._read_back(messages) if LETTER_ID in messages.columns else messages
        return self._with_reasons(rows, [MESSAGE] if MESSAGE in messages.columns else [])

    def _with_reasons(self, rows: DataFrame, passed: Sequence[str]) -> DataFrame:
        columns = [F.col(quoted(name)) for name in self.columns]
        kept = [_as_json(columns).alias(RAW)] if passed else []
        nothing = [F.lit(None).cast("string").alias(BAD), F.lit(False).alias(UNKNOWN)]
        return rows.select(*columns, *[F.col(name) for name in passed], *kept, *nothing)

    def _read_back(self, letters: DataFrame) -> DataFrame:
        parsed = F.from_json(F.col(VALUE).cast("string"), self.schema, {**TEXT_TIMES, "mode": "FAILFAST"})
        return letters.select("*", parsed.alias(_PARSED)).select(
            *[F.col(f"{_PARSED}.{quoted(name)}").alias(name) for name in self.columns],
            *[F.col(name) for name in letters.columns if name == MESSAGE],
        )


class FileCodec(RowCodec):
    """Names of files that become the rows in them. Columns are those of all files so far, and only ever grow.

    Args:
        tells_types: Whether the targets say which types texts are to have; asked when the first file is read.
    """

    def __init__(
        self,
        source: StreamsFiles,
        query: str,
        schema: t.StructType | None,
        remember: Remember,
        tells_types: Callable[[], bool],
    ) -> None:
        super().__init__(schema, remember)
        self._source, self._query, self._tells_types = source, query, tells_types
        self._rows: DataFrame | None = None
        self._keeps_texts: bool | None = None

    def prepare(self, messages: DataFrame) -> None:
        names = [(row[0], row[1]) for row in messages.select(FILE_NAME, FILE_SIZE).collect()]
        frames = self._source.file_frames(_session(messages), self._query, names) if names else []
        self._rows = self._in_one(frames) if frames else None

    def has_nothing(self) -> bool:
        return self._rows is None or not self.schema.fields

    def _in_one(self, frames: Sequence[DataFrame]) -> DataFrame:
        kinds = [frame.schema for frame in frames]
        if self._source.file_format == "csv" and not self._leaves_texts():
            kinds = [kinds_of(frame) for frame in frames]
        schema = reduce(lambda known, found: widened(known, found, self._query), kinds, self.schema)
        schema = _without_nulls(schema)
        if schema != self.schema:
            self.schema = schema
            self._remember(schema)
        parts = [fitted(frame, schema) for frame in frames]
        return reduce(lambda one, other: one.unionByName(other), parts)

    def _leaves_texts(self) -> bool:
        """Texts that were texts stay so; else they are only left alone for targets that know better."""
        if self._keeps_texts is None:
            known = self.schema.fields
            all_texts = all(isinstance(field.dataType, t.StringType) for field in known)
            self._keeps_texts = all_texts if known else self._tells_types()
        return self._keeps_texts

    def decoded(self, messages: DataFrame) -> DataFrame:
        if FILE_NAME not in messages.columns:
            return super().decoded(messages)
        rows = _no_rows(messages, self.schema) if self._rows is None else self._rows
        if MESSAGE not in messages.columns:
            return self._with_reasons(rows, [])
        return self._with_reasons(with_message(rows, self._query, "json"), [MESSAGE])


class LineCodec(Codec):
    """Names of files whose lines are JSON objects, each decoded like a message of a broker."""

    def __init__(
        self,
        source: StreamsFiles,
        query: str,
        schema: t.StructType | None,
        remember: Remember,
        reads: ChangeCodec | None = None,
    ) -> None:
        self._source, self._query = source, query
        self._json: JsonCodec | ChangeCodec = reads or JsonCodec(schema, remember)
        self._lines: DataFrame | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return self._json.columns

    def prepare(self, messages: DataFrame) -> None:
        names = [(row[0], row[1]) for row in messages.select(FILE_NAME, FILE_SIZE).collect()]
        frames = self._source.file_frames(_session(messages), self._query, names) if names else []
        self._lines = None
        for lines in frames:
            written = lines.where(F.length(F.trim(VALUE)) > 0)
            self._lines = written.withColumn(VALUE, F.col(VALUE).cast("binary"))
            self._json.passed = tuple(name for name in lines.columns if name != VALUE)
            self._json.prepare(self._lines)

    def has_nothing(self) -> bool:
        return self._lines is None or (not self.columns and self._lines.isEmpty())

    def widen(self, messages: DataFrame) -> bool:
        return self._json.widen(self._found(messages))

    def decoded(self, messages: DataFrame) -> DataFrame:
        found = self._found(messages)
        if MESSAGE in messages.columns and MESSAGE not in found.columns:
            found = with_message(found, self._query, "json")
        return self._json.decoded(found)

    def _found(self, messages: DataFrame) -> DataFrame:
        if FILE_NAME not in messages.columns:
            return messages  # letters, which are lines already
        none = t.StructType([t.StructField(VALUE, t.BinaryType())])
        return _no_rows(messages, none) if self._lines is None else self._lines


def _no_rows(messages: DataFrame, schema: t.StructType) -> DataFrame:
    """What a source gives whose batch has no files, while another source has some."""
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields]
    return messages.where(F.lit(False)).select(*nothing)


def _session(frame: DataFrame) -> SparkSession:
    return frame.sparkSession


def _as_json(columns: Sequence[Column]) -> Column:
    return F.to_json(F.struct(*columns), {**TEXT_TIMES, "ignoreNullFields": "false"}).cast("binary")


def _without_nulls(schema: t.StructType) -> t.StructType:
    """Nothing was ever written there: text holds whatever comes."""
    return t.StructType(
        [
            t.StructField(field.name, t.StringType() if isinstance(field.dataType, t.NullType) else field.dataType)
            for field in schema.fields
        ]
    )
