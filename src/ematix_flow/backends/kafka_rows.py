"""Rows as messages, and how they go out: JSON made by Spark, one producer and one transaction for each part of a load.

Which part a row belongs to is decided by its content alone. So a load that was cut off and is repeated has the same
parts, and those that are in the topic already are recognised by their digest; sent again, they are aborted. In a batch
of a stream it is decided by where in the source a row comes from, so that a part which is there is known by its number,
whatever the SQL would say now. A batch whose rows do not say where they come from is one part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ematix_flow.backends.kafka_books import books_topic, messages, read_books, transactional_id
from ematix_flow.backends.kafka_client import WAIT_S, Cluster, Heard
from ematix_flow.backends.transport import INSTANT_PATTERN, WALL_CLOCK_PATTERN, mark_column, quoted
from ematix_flow.contracts import refusals
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.plans import BatchPlan, SettleReport
from ematix_flow.contracts.streams import POSITION
from ematix_flow.declare.columns import JSON, JSONB, Bytes
from ematix_flow.errors import TakenOver

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

PayloadFormat = Literal["json", "raw_bytes", "avro", "protobuf"]

PART_BYTES = 64 * 1024 * 1024
"""How many bytes of messages one transaction takes before a load is cut into several."""

_BUFFER_KILOBYTES = 32 * 1024


# ── rows as messages ─────────────────────────────────────────────────────────────────────────────────────────────────


def plain_value(frame: DataFrame, plan: BatchPlan, payload: PayloadFormat) -> Column:
    """The bytes of a row's message without a schema: a JSON object, or the one column of bytes."""
    from pyspark.sql import functions as F

    if payload == "json":
        return json_object(frame, plan).cast("binary")
    key_column = plan.target.broker.message_key_column
    return F.col(quoted(next(c.name for c in plan.columns if isinstance(c.type, Bytes) and c.name != key_column)))


def to_messages(frame: DataFrame, plan: BatchPlan, payload: PayloadFormat, value: Column | None = None) -> DataFrame:
    """One line per message: `key`, `value`, the `digest` of what was loaded, and the `mark` it carries.

    `value` is what the message says, where that is no plain payload.
    """
    from pyspark.sql import functions as F

    key_column = plan.target.broker.message_key_column
    if value is None:
        value = plain_value(frame.drop(POSITION), plan, payload)
    # The stamps are left out: they differ each time a load is repeated.
    content = F.xxhash64(*(F.col(quoted(c.name)) for c in plan.columns))
    digest = F.col(POSITION) if POSITION in frame.columns else content
    found = [value.alias("value"), digest.alias("digest")]
    if key_column is not None:
        found.append(F.coalesce(F.col(quoted(key_column)).cast("binary"), F.lit("").cast("binary")).alias("key"))
    if plan.watermark is not None:
        found.append(F.col(quoted(plan.watermark.column)).alias("mark"))
    return frame.select(*found)


def json_object(frame: DataFrame, plan: BatchPlan) -> Column:
    """A row as a JSON object, with every column in its place and NULL as null.

    Numbers keep all their digits, bytes are base64, instants ISO 8601 in UTC to the microsecond. A JSON document is
    part of the object, not a text in it, and stays as it was written.
    """
    from pyspark.sql import functions as F

    documents = {c.name for c in plan.columns if isinstance(c.type, JSON | JSONB)}
    pieces: list[Column] = []
    plain: list[Column] = []

    def close_group() -> None:
        if plain:
            # No value of these begins or ends with a brace: texts are quoted.
            pieces.append(F.btrim(F.to_json(F.struct(*plain), {"ignoreNullFields": "false"}), F.lit("{}")))
            plain.clear()

    for field in frame.schema.fields:
        column = F.col(quoted(field.name))
        as_written = column if field.name in documents else _digits(column, field.dataType)
        if as_written is None:
            plain.append(_plain(column, field.name, field.dataType).alias(field.name))
            continue
        close_group()
        name = json.dumps(field.name, ensure_ascii=False)
        pieces.append(F.concat(F.lit(f"{name}:"), F.coalesce(as_written, F.lit("null"))))
    close_group()
    return F.concat(F.lit("{"), F.concat_ws(",", *pieces), F.lit("}"))


def _digits(column: Column, kind: DataType) -> Column | None:
    """A decimal in full where Spark would write 1E-18: the same number, which not every reader takes. Else None."""
    from pyspark.sql.types import DecimalType

    return column.cast("string") if isinstance(kind, DecimalType) and kind.scale > 6 else None


def _plain(column: Column, name: str, kind: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, FloatType, TimestampNTZType, TimestampType

    if isinstance(kind, FloatType | DoubleType):
        unfit = refusals.unfit_because(
            f"Column '{name}' holds NaN or Infinity, which JSON has no number for.",
            column=name,
            fix="filter such rows, make them NULL in the source query, or declare the column Text",
        )
        is_unfit = F.isnan(column) | (F.abs(column) == F.lit(math.inf))
        return F.when(is_unfit, F.raise_error(F.lit(unfit)).cast(kind)).otherwise(column)
    if isinstance(kind, TimestampType):
        return F.date_format(F.to_utc_timestamp(column, F.current_timezone()), INSTANT_PATTERN)
    if isinstance(kind, TimestampNTZType):
        return F.date_format(column, WALL_CLOCK_PATTERN)
    return column


# ── looking at a load before it is sent ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Measured:
    """All that must be known before the first message goes out."""

    rows: int
    bytes: int
    largest: int
    mark: str | None

    def report(self) -> SettleReport:
        """What sending it will have done."""
        return SettleReport(rows=self.rows, inserted=self.rows, watermark=self.mark)

    def parts(self) -> int:
        """Into how many transactions it is cut."""
        return max(1, math.ceil(self.bytes / PART_BYTES))


def measured(rows: DataFrame, plan: BatchPlan) -> Measured:
    """Work every message out once; a value that cannot be sent fails here, before anything is."""
    from pyspark.sql import functions as F

    size = F.coalesce(F.octet_length("value"), F.lit(0))
    if "key" in rows.columns:
        size = size + F.octet_length("key")
    asked = [
        F.count(F.lit(1)).alias("rows"),
        F.coalesce(F.sum(size), F.lit(0)).alias("bytes"),
        F.coalesce(F.max(size), F.lit(0)).alias("largest"),
    ]
    if plan.watermark is not None:
        asked.append(mark_column(F.max("mark"), plan.watermark.type).alias("mark"))
    found = rows.agg(*asked).collect()[0]
    return Measured(found["rows"], found["bytes"], found["largest"], found["mark"] if plan.watermark else None)


# ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Sending:
    """What a task has to know. It travels to Spark's workers.

    Attributes:
        since: the offset in the books behind which this run's own lines are.
        known: digests and counts of parts that an interrupted run of the same load has sent.
        compares: whether such a part is looked at once more, because its rows may have changed.
    """

    cluster: Cluster
    topic: str
    pipeline: str
    logical_run: str
    run_id: str
    opening: int
    since: int
    largest_message: int | None
    known: Mapping[int, Mapping[str, Any]]
    compares: bool


def send(rows: DataFrame, sending: Sending, parts: int) -> int:
    """Send every part, each in a task of its own; how many rows are in the topic now."""
    from pyspark.sql import functions as F

    cut = rows.coalesce(1) if parts == 1 else rows.repartition(parts, "digest")
    wanted = [name for name in ("value", "digest", "key") if name in rows.columns]
    sent = cut.select(*wanted).mapInArrow(lambda batches: _send_part(sending, batches), "part int, rows bigint")
    return int(sent.agg(F.coalesce(F.sum("rows"), F.lit(0)).alias("rows")).collect()[0]["rows"])


def _send_part(sending: Sending, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send one part in one transaction, with its line in the books. Runs in a Spark worker."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    part = context.partitionId()
    rows = _Sender(sending, part, context.attemptNumber()).send(batches)
    yield pa.RecordBatch.from_pydict({"part": pa.array([part], pa.int32()), "rows": pa.array([rows], pa.int64())})


class _Sender:
    """One part of a load and the producer that sends it."""

    def __init__(self, sending: Sending, part: int, attempt: int) -> None:
        self.sending, self.part, self.attempt = sending, part, attempt
        self.heard = Heard()
        self.failures: list[Any] = []
        limit = {"message.max.bytes": max(sending.largest_message, 1000)} if sending.largest_message else {}
        self.producer = sending.cluster.producer(
            transactional_id(sending.pipeline, part),
            self.heard,
            **{
                "on_delivery": self._failed,
                "delivery.report.only.error": True,
                "queue.buffering.max.messages": 200_000,
                "queue.buffering.max.kbytes": _BUFFER_KILOBYTES,
                "linger.ms": 20,
                "compression.type": "lz4",
                **limit,
            },
        )

    def send(self, batches: Iterable[pa.RecordBatch]) -> int:
        import pyarrow.compute as pc
        from confluent_kafka import KafkaException

        cluster, topic = self.sending.cluster, self.sending.topic
        try:
            # From here on no other producer of this part can commit; what it has committed can be read.
            self.producer.init_transactions(WAIT_S * 3)
            done = self._sent_before()
            if done is not None:
                return done
            self.producer.begin_transaction()
            known = self.sending.known.get(self.part)
            is_known = known is not None and not self.sending.compares
            rows = digest = 0
            for batch in batches if not is_known else ():
                digest = (digest + (pc.sum(batch.column("digest")).as_py() or 0)) % 2**64
                rows += batch.num_rows
                self._produce(batch)
            line = {"run_id": self.sending.run_id, "rows": rows, "digest": str(digest)}
            if known is not None and is_known:
                line.update(rows=known["rows"], digest=known["digest"])
                rows = int(known["rows"])
            elif known is not None and (known["rows"], known["digest"]) == (rows, line["digest"]):
                # An interrupted run has sent just these rows. Readers of committed messages never see this copy.
                self.producer.abort_transaction(WAIT_S * 3)
                self.producer.begin_transaction()
            self._deliver()
            for key, value in messages({("part", self.sending.logical_run, self.part): line}):
                self.producer.produce(books_topic(self.sending.pipeline), value=value, key=key, partition=0)
            self._deliver()
            reached("part-sent", attempt=self.attempt)
            self.producer.commit_transaction(WAIT_S * 3)
            reached("part-committed", attempt=self.attempt)
            return rows
        except KafkaException as exc:
            first = self.failures[0] if self.failures else exc.args[0]
            raise cluster.explained(first, self.heard, topic) from exc

    def _sent_before(self) -> int | None:
        """The rows of this part if an earlier attempt of this task has sent it; stops if a newer run has begun."""
        since = read_books(self.sending.cluster, self.sending.pipeline, since=self.sending.since)
        if since.ledger["opening"] > self.sending.opening:
            raise TakenOver(
                f"Another run of '{self.sending.pipeline}' has begun and ended this one.",
                fix="look at `flow runs list`; it goes on where this one stopped",
            )
        line = since.parts(self.sending.logical_run).get(self.part)
        return int(line["rows"]) if line is not None and line["run_id"] == self.sending.run_id else None

    def _produce(self, batch: pa.RecordBatch) -> None:
        """Hand over a batch; the library groups messages by partition and compresses them."""
        values: Sequence[bytes | None] = batch.column("value").to_pylist()
        names = batch.schema.names
        keys: Sequence[bytes | None] = batch.column("key").to_pylist() if "key" in names else [None] * len(values)
        produce, topic = self.producer.produce, self.sending.topic
        for value, key in zip(values, keys, strict=True):
            while True:
                try:
                    produce(topic, value, key)
                    break
                except BufferError:
                    self.producer.poll(0.1)  # the buffers are full: wait until the brokers have taken some
                    self._stop_on_failure()
        self.producer.poll(0)
        self._stop_on_failure()

    def _deliver(self) -> None:
        """Wait until the brokers have every message."""
        self.producer.flush()
        self._stop_on_failure()

    def _failed(self, error: Any, _: Any) -> None:
        from confluent_kafka import KafkaError as E

        if error is not None and error.code() not in (E._PURGE_QUEUE, E._PURGE_INFLIGHT):  # those were aborted
            self.failures.append(error)

    def _stop_on_failure(self) -> None:
        if self.failures:
            raise self.sending.cluster.explained(self.failures[0], self.heard, self.sending.topic)
