"""Where the dead letters of a stream are kept, and how a running stream brings new ones there.

A topic beside the source when one is named and the source is Kafka; else the table `ematix_dlq_records`, in the
database of `state_store=`, or in a SQLite file beside the checkpoint. With `dlq_store="broker"` none are kept: their
messages are rejected, and go where the broker sends such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.dead_letters_kafka import KafkaDeadLetters
from ematix_flow.backends.dead_letters_sql import SqlDeadLetters
from ematix_flow.backends.kafka_client import cluster_of
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.config.resolve import resolve
from ematix_flow.config.secrets import expand_field
from ematix_flow.contracts.dead_letters import (
    COLUMNS,
    TABLE,
    KeepsDeadLetters,
    RejectsMessages,
    TakesDeadLetters,
)
from ematix_flow.contracts.streams import StreamBatch
from ematix_flow.declare.connection import Connection, KafkaConnection, PostgresConnection, SQLiteConnection
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.table import TableSpec
from ematix_flow.declare.target import Target, TargetSpec
from ematix_flow.errors import BadMessages, InvalidDeclaration, UnsupportedBackend, counted
from ematix_flow.run.loads import new_run_id
from ematix_flow.run.stream_targets import StreamTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.spark.checkpoints import CheckpointFolder

FILE = "dead_letters.db"


def keeps_letters(spec: StreamSpec) -> bool:
    """Whether a stream keeps what it cannot bring to its targets: any of the settings for it is enough."""
    late = any(one is not None and one.late_data == "dlq" for one in (spec.window, spec.join))
    return late or spec.transform_on_error == "dlq" or spec.dead_letter_topic is not None or spec.dlq_store != "auto"


def keeps_letters_here(spec: StreamSpec) -> bool:
    """Whether its letters lie in a file of this machine. Every connection of the spec is an instance."""
    if not keeps_letters(spec) or spec.dlq_store == "broker" or _topic(spec) is not None:
        return False
    return spec.state_store is None or spec.state_store.kind != "postgres"


def letter_keeper(spec: StreamSpec, folder: CheckpointFolder) -> KeepsDeadLetters:
    """The letters of a stream, for those who look at them. Every connection of the spec is an instance.

    Raises:
        InvalidDeclaration: they are to be in a topic, and cannot; or the broker has them.
    """
    if spec.dlq_store == "broker":
        raise InvalidDeclaration(
            f"Stream '{spec.name}' leaves its dead letters to the broker (dlq_store='broker'), and they are not here.",
            where=str(spec.where),
            fix="read them where the queue or subscription sends them; to replay one, send it to the source again",
        )
    table = table_letters(spec, folder)
    topic = _topic(spec)
    return (
        table if topic is None else KafkaDeadLetters(cluster_of(topic), str(spec.dead_letter_topic), spec.name, table)
    )


def letter_box(
    spec: StreamSpec,
    folder: CheckpointFolder,
    sources: Mapping[str, Any],
    noted: Callable[[StreamBatch], None] = lambda batch: None,
) -> LetterBox | KafkaDeadLetters | BrokerLetters | None:
    """Where a running stream puts its letters; None when it keeps none.

    Args:
        sources: The backends of its sources, by query.
        noted: Told when files beside the checkpoint say something new of a batch.
    """
    if not keeps_letters(spec):
        return None
    if spec.dlq_store == "broker":
        return BrokerLetters(rejecting(spec, sources), noted)
    keeper = letter_keeper(spec, folder)
    if isinstance(keeper, KafkaDeadLetters):
        keeper.check()
        return keeper
    assert isinstance(keeper, SqlDeadLetters)
    return LetterBox(spec, keeper)


def rejecting(spec: StreamSpec, sources: Mapping[str, Any]) -> dict[str, RejectsMessages]:
    """The sources of a stream, by query, each of which can reject a message.

    Raises:
        UnsupportedBackend: one cannot.
    """
    for query, backend in sources.items():
        if not isinstance(backend, RejectsMessages):
            raise UnsupportedBackend(
                f"Stream '{spec.name}': source '{query}' has no dead letters of its own.", fix="dlq_store='table'"
            )
    return dict(sources)


def table_letters(spec: StreamSpec, folder: CheckpointFolder) -> SqlDeadLetters:
    """The table of letters: in the database of the state store, or in a file beside the checkpoint."""
    current = folder.current()
    generation = current.name if current is not None else ""
    store = spec.state_store
    if store is not None and store.kind == "postgres":
        connection: Connection = PostgresConnection(name="state_store", url=expand_field(str(store.url)))
        schema = store.schema
    else:
        connection = SQLiteConnection(name="dead_letters", path=str(folder.path / FILE))
        schema = "main"
    backend = open_backend(resolve(connection, where=str(spec.where)).connection)
    assert isinstance(backend, SqlBackend)
    return SqlDeadLetters(backend, spec.name, schema, generation)


def _topic(spec: StreamSpec) -> KafkaConnection | None:
    """The connection of the topic; None when letters go to a table."""
    first = spec.sources[0].connection
    if spec.dlq_store == "table" or (spec.dlq_store == "auto" and spec.dead_letter_topic is None):
        return None
    if isinstance(first, KafkaConnection) and spec.dead_letter_topic is not None:
        return first
    if spec.dlq_store == "topic":
        raise InvalidDeclaration(
            f"Stream '{spec.name}': dlq_store='topic' needs dead_letter_topic= and a Kafka source.",
            fix="dlq_store='table'",
        )
    return None


class LetterBox(TakesDeadLetters):
    """The table of letters as a running stream sees it: one more table that is loaded, batch by batch."""

    def __init__(self, spec: StreamSpec, keeper: SqlDeadLetters) -> None:
        self._spec, self._keeper = spec, keeper
        self._target: _LetterTarget | None = None

    @property
    def label(self) -> str:
        """For people."""
        return self._keeper.label

    def begin(self, batch: StreamBatch) -> None:
        """Letters that are there already are known by their ids."""

    def write(self, letters: DataFrame, batch: StreamBatch) -> None:
        """Keep the letters of a batch. Ids that are there stay as they are, so doing it again changes nothing."""
        if self._target is None:
            self._keeper.generation = batch.generation
            self._keeper.ensure()
            self._keeper.forget_traces()
            target = _LetterTarget(self._spec, self._keeper)
            target.open()
            self._target = target
        # Not under the batch's own name: done again, a batch may have more letters than before, and none may be lost.
        name = StreamBatch(new_run_id(), batch.number, batch.digest)
        self._target.write(letters.dropDuplicates(["id"]), name)

    def close(self) -> None:
        """Give the lease back."""
        if self._target is not None:
            self._target.close()
            self._target = None


class BrokerLetters(TakesDeadLetters):
    """The dead letters of the brokers themselves: messages are noted, and rejected when their batch is applied."""

    label = "the broker"

    def __init__(self, sources: Mapping[str, RejectsMessages], noted: Callable[[StreamBatch], None]) -> None:
        self._sources, self._noted = sources, noted

    def begin(self, batch: StreamBatch) -> None:
        """What was noted when the batch was tried before counts no longer: a message may fit by now."""
        forgotten = [backend.forget_rejects(query) for query, backend in self._sources.items()]
        if any(forgotten):
            self._noted(batch)

    def write(self, letters: DataFrame, batch: StreamBatch) -> None:
        """Note the messages; nothing but their offsets comes to the driver."""
        from pyspark.sql import functions as F

        offset = F.get_json_object("offset_bytes", "$.offset").cast("bigint")
        by_source = letters.groupBy("source_id").agg(
            F.collect_set(offset).alias("offsets"), F.count(F.when(offset.isNull(), True)).alias("unplaced")
        )
        for source, offsets, unplaced in by_source.collect():
            if unplaced:  # acknowledged as if it were good, it would be gone
                raise BadMessages(f"{counted(unplaced, 'message')} of '{source}' cannot be rejected: it has no offset.")
            self._sources[source].reject(source, offsets)
        self._noted(batch)

    def close(self) -> None:
        """Nothing is held."""


class _LetterTarget(StreamTarget):
    """`ematix_dlq_records` as the target of a stream."""

    def __init__(self, spec: StreamSpec, keeper: SqlDeadLetters) -> None:
        self._letters = TableSpec(keeper.table.schema or "main", TABLE, COLUMNS)
        super().__init__(spec, Target(connection=keeper.backend.connection, table=(self._letters.schema, TABLE)))
        self.declared = self._letters

    @property
    def name(self) -> str:
        """Not the stream's own: its target may be in the same database."""
        return f"{self.stream.name}::dead_letters"

    def _spec(self, table: TableSpec) -> TargetSpec:
        return TargetSpec(
            table=self._letters,
            connection=self.target.connection,
            mode="merge",
            keys=("id",),
            update_columns=(),
            stamped=False,
        )
