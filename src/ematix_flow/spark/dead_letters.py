"""Dead letters as rows: made from what could not be read or written, and made into messages again for a replay."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, functions as F, types as t

from ematix_flow.contracts.dead_letters import ERROR_BYTES, NAMESPACE, DeadLetter
from ematix_flow.contracts.streams import EVENT_TIME, HIDDEN_COLUMNS, VALUE
from ematix_flow.spark.payloads import BAD, MESSAGE, RAW
from ematix_flow.spark.stream import SOURCE_ID

STAGE = "__stage"
"""At which stage a row of a decoded frame failed."""

LETTER_ID = "__letter"
"""Which letter a message of a replay is made from."""

_HEADER = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
_HIDDEN_TYPES: dict[str, t.DataType] = {
    "_key": t.BinaryType(),
    "_topic": t.StringType(),
    "_partition": t.IntegerType(),
    "_offset": t.LongType(),
    "_timestamp": t.TimestampType(),
    "_headers": t.ArrayType(_HEADER),
    EVENT_TIME: t.TimestampType(),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def with_message(messages: DataFrame, source: str, payload_format: str) -> DataFrame:
    """The messages with all that a letter needs in one column, which no field of a payload can hide."""
    letter = F.col(LETTER_ID) if LETTER_ID in messages.columns else F.lit(None).cast("string")
    fields = [F.lit(source).alias("source"), F.lit(payload_format).alias("format"), letter.alias("letter")]
    for name in HIDDEN_COLUMNS:
        kind = _HIDDEN_TYPES[name]
        if name not in messages.columns:
            found = F.lit(None).cast(kind)
        elif isinstance(kind, t.ArrayType):
            found = F.col(name)
        else:
            found = F.col(name).cast(kind)
        fields.append(found.alias(name))
    return messages.withColumn(MESSAGE, F.struct(*fields))


def letters_of(failed: DataFrame, pipeline: str, *, failed_at_ms: int) -> DataFrame:
    """The letters of rows that failed, in the columns of `contracts.dead_letters.COLUMNS`.

    Args:
        failed: Decoded rows with the reason in `BAD`, the stage in `STAGE`, and what `with_message` added.
    """
    at = {name: F.col(f"{MESSAGE}.{name}") for name in HIDDEN_COLUMNS}
    place = F.to_json(
        F.struct(at["_topic"].alias("topic"), at["_partition"].alias("partition"), at["_offset"].alias("offset"))
    )
    # Without a place of its own a message is known by what it says.
    unplaced = F.to_json(F.struct(F.sha2(F.coalesce(F.col(RAW), F.lit(b"")), 256).alias("digest")))
    position = F.when(at["_offset"].isNotNull(), place).otherwise(unplaced)
    source = F.col(f"{MESSAGE}.source")
    stage = F.col(STAGE)
    values: dict[str, Column] = {
        "id": id_column(F.lit(pipeline), source, position, stage, F.lit("1")),
        "pipeline_name": F.lit(pipeline),
        "stage": stage,
        "error": F.substring(F.col(BAD), 1, ERROR_BYTES // 4),
        "source_id": source,
        "offset_bytes": position,
        "event_ts": F.unix_micros(F.coalesce(at[EVENT_TIME], at["_timestamp"])),
        "failed_at": F.lit(failed_at_ms).cast("bigint"),
        "attempt": F.lit(1).cast("bigint"),
        "payload_format": F.col(f"{MESSAGE}.format"),
        "payload": F.col(RAW),
        "message_key": at["_key"],
        "headers": F.when(F.size(at["_headers"]) > 0, F.to_json(at["_headers"])),
        "status": F.lit("pending"),
        "lease_id": F.lit(None).cast("string"),
        "leased_until": F.lit(None).cast("bigint"),
        "seq": F.coalesce(at["_offset"], F.lit(0)).cast("bigint"),
    }
    return failed.select(*[value.alias(name) for name, value in values.items()])


def id_column(*words: Column) -> Column:
    """The id of a failure, as `contracts.dead_letters.letter_id` makes it: a UUID of version 5 over its words."""
    said = F.concat_ws("\n", *words).cast("binary")
    digest = F.sha1(F.concat(F.lit(NAMESPACE.bytes), said))
    variant = F.translate(F.substring(digest, 17, 1), "0123456789abcdef", "89ab" * 4)
    return F.concat_ws(
        "-",
        F.substring(digest, 1, 8),
        F.substring(digest, 9, 4),
        F.concat(F.lit("5"), F.substring(digest, 14, 3)),
        F.concat(variant, F.substring(digest, 18, 3)),
        F.substring(digest, 21, 12),
    )


def messages_of(spark: SparkSession, letters: Sequence[DeadLetter], *, several_sources: bool) -> DataFrame:
    """Letters as the messages they once were. One step of a replay is small enough to be handed over like this."""
    schema = t.StructType(
        [
            t.StructField(VALUE, t.BinaryType()),
            *[t.StructField(name, _HIDDEN_TYPES[name]) for name in HIDDEN_COLUMNS],
            t.StructField(SOURCE_ID, t.StringType()),
            t.StructField(LETTER_ID, t.StringType()),
        ]
    )
    rows = [_message(letter) for letter in letters]
    frame = spark.createDataFrame(rows, schema)
    return frame if several_sources else frame.drop(SOURCE_ID)


def _message(letter: DeadLetter) -> tuple[Any, ...]:
    at = letter.position
    moment = None if letter.event_ts is None else _EPOCH + timedelta(microseconds=letter.event_ts)
    headers = [(key, value) for key, value in letter.headers] or None
    hidden = {
        "_key": letter.key,
        "_topic": at.get("topic"),
        "_partition": at.get("partition"),
        "_offset": at.get("offset"),
        "_timestamp": moment,
        "_headers": headers,
        EVENT_TIME: moment,
    }
    return (letter.payload, *(hidden[name] for name in HIDDEN_COLUMNS), letter.source_id, letter.id)
