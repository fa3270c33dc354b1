"""What Spark's Kafka source says when it cannot go on, as one clear error."""

from __future__ import annotations

import pytest

from ematix_flow.errors import BrokerRefused, ConnectionFailed, FlowError, LostMessages
from ematix_flow.spark.kafka_failures import kafka_failure

LOSS = "[KAFKA_DATA_LOSS.{}] Some data may have been lost because they are not available in Kafka any more; Reason: {}"
JAVA = "org.apache.kafka.common.errors"


@pytest.mark.parametrize(
    ("name", "reason", "words"),
    [
        (
            "START_OFFSET_RESET",
            "Starting offset for my-topic.v2-11 was 5 but consumer reset to 8.",
            "partition 11 of 'my-topic.v2' was to be read from offset 5, and begins at 8 now",
        ),
        (
            "PARTITION_OFFSET_CHANGED",
            "Partition orders-0 offset was changed from 90 to 3.",
            "partition 0 of 'orders' was read up to offset 90, and ends at 3 now: it was made anew",
        ),
        (
            "COULD_NOT_READ_OFFSET_RANGE",
            "Could not read records in offset [5, 10) for topic partition orders-1\nwith consumer group g.",
            "between offsets 5 and 10 of partition 1 of 'orders' some are gone",
        ),
        ("PARTITIONS_DELETED", "Partitions Set(orders-3) have been deleted.", "partition 3 of 'orders' was deleted"),
        ("SOMETHING_NEW", "Who knows.", "some are gone"),
    ],
)
def test_lost_messages_are_named_by_topic_partition_and_offsets(name: str, reason: str, words: str) -> None:
    error = kafka_failure(f"KAFKA_DATA_LOSS.{name}", LOSS.format(name, reason))
    assert isinstance(error, LostMessages)
    assert words in error.message
    assert "on_gap='continue'" in (error.fix or "")


@pytest.mark.parametrize(
    ("text", "kind", "word"),
    [
        (
            f"{JAVA}.TimeoutException: Timed out waiting for a node assignment. Call: listOffsets",
            ConnectionFailed,
            "answer",
        ),
        (f"{JAVA}.SaslAuthenticationException: Authentication failed: bad credentials", ConnectionFailed, "login"),
        (f"{JAVA}.TopicAuthorizationException: Not authorized to access topics: [orders]", BrokerRefused, "'orders'"),
        (f"{JAVA}.UnknownTopicOrPartitionException: This server does not host this topic", BrokerRefused, "no longer"),
    ],
)
def test_a_broker_that_refuses_or_is_away_is_one_error(text: str, kind: type[FlowError], word: str) -> None:
    error = kafka_failure("", f"{text}-partition.\n\tat org.apache.spark.sql.kafka010.Something(X.scala:1)")
    assert isinstance(error, kind)
    assert word in error.message


def test_other_failures_are_none_of_its_business() -> None:
    assert kafka_failure("CAST_INVALID_INPUT", "[CAST_INVALID_INPUT] The value cannot be cast") is None
