"""Kafka to Kafka, exactly once, by its documented name: a stream whose both ends are topics.

Messages go out in transactions that also hold the batch they belong to. Readers of committed messages
(`isolation.level=read_committed`) see each one once, whatever dies in between.
"""

from __future__ import annotations

from typing import Any

from ematix_flow.declare.connection import Connection
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.stream_pipeline import StreamingPipeline
from ematix_flow.errors import InvalidDeclaration


class KafkaToKafkaEosPipeline:
    """One topic into another, exactly once for readers of committed messages.

    Args:
        source: A Kafka connection with a `group_id`, or its name.
        target: A Kafka connection, or its name; it is written to in transactions.
        source_topic: What is read.
        target_topic: What is written.
        name: Scope of checkpoint and transactions; two living pipelines of one name end each other.
        options: Anything else that `run_streaming_pipeline` takes, such as `transform_sql`.

    Raises:
        InvalidDeclaration: (a ValueError) an end is no Kafka cluster, or is told to go without transactions.
    """

    def __init__(
        self,
        source: Connection | str,
        target: Connection | str,
        *,
        source_topic: str,
        target_topic: str,
        name: str | None = None,
        message_key_column: str | None = None,
        **options: Any,
    ) -> None:
        for end, connection in (("source", source), ("target", target)):
            if isinstance(connection, Connection) and connection.kind != "kafka":
                raise InvalidDeclaration(
                    f"KafkaToKafkaEosPipeline: {end}= is a {connection.kind} connection.",
                    fix="both ends are Kafka clusters; for other targets use run_streaming_pipeline",
                )
        if options.get("delivery", "exactly_once") != "exactly_once":
            raise InvalidDeclaration(
                "KafkaToKafkaEosPipeline needs a transactional target: delivery= cannot be less than exactly_once.",
                fix="leave delivery= out, or use run_streaming_pipeline",
            )
        given = {
            **options,
            "name": name or f"{source_topic}-to-{target_topic}",
            "source": source,
            "source_query": source_topic,
            "target": target,
            "target_topic": target_topic,
            "target_message_key_column": message_key_column,
            "delivery": "exactly_once",
        }
        self._stream = StreamingPipeline(given, user_location("KafkaToKafkaEosPipeline"))
        _ = self._stream.spec  # what is wrong is said here

    def __repr__(self) -> str:
        return f"<Kafka to Kafka, exactly once: '{self._stream.name}'>"

    def run(self, **how: Any) -> dict[str, Any]:
        """Run it until it is stopped; `once=True` reads what is there, then ends."""
        return self._stream.run(**how)
