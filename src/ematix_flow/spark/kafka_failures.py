"""What Spark's Kafka source says when it cannot go on, as errors of ours: topics and offsets, never a value."""

from __future__ import annotations

import re

from ematix_flow.errors import BrokerRefused, ConnectionFailed, FlowError, LostMessages

_PARTITION = r"(?P<topic>[\w.-]+)-(?P<partition>\d+)"
_GONE = (
    (
        re.compile(rf"Starting offset for {_PARTITION} was (?P<before>\d+) but consumer reset to (?P<now>\d+)"),
        "partition {partition} of '{topic}' was to be read from offset {before}, and begins at {now} now",
    ),
    (
        re.compile(rf"Partition {_PARTITION} offset was changed from (?P<before>\d+) to (?P<now>\d+)"),
        "partition {partition} of '{topic}' was read up to offset {before}, and ends at {now} now: it was made anew",
    ),
    (
        re.compile(rf"in offset \[(?P<before>\d+), (?P<now>\d+)\) for topic partition {_PARTITION}"),
        "between offsets {before} and {now} of partition {partition} of '{topic}' some are gone",
    ),
    (
        re.compile(rf"Added partition {_PARTITION} starts from (?P<now>\d+)"),
        "partition {partition} of '{topic}' is new and begins at offset {now}",
    ),
    (
        re.compile(rf"[Pp]artitions \S*?{_PARTITION}\S* ?(?:have been deleted|\. They may have been deleted)"),
        "partition {partition} of '{topic}' was deleted",
    ),
)


def kafka_failure(condition: str, text: str) -> FlowError | None:
    """A rule of `spark/failures.py`."""
    # A task that finds a gap says so without the name of the condition.
    if condition.startswith("KAFKA_DATA_LOSS") or "kafka010.KafkaIllegalStateException: Some data may" in text:
        return _lost(text)
    if condition.startswith("KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
        return BrokerRefused(
            "The topic has other partitions than the positions that the stream was to begin at.",
            fix="begin anew: flow state reset NAME, or flow rewind NAME --to a time",
        )
    if "org.apache.kafka.common" not in text:
        return None
    return _refused(text)


def _lost(text: str) -> FlowError:
    for pattern, words in _GONE:
        found = pattern.search(text)
        if found:
            reason = words.format(**found.groupdict())
            break
    else:
        reason = "some are gone"
    return LostMessages(
        f"Kafka no longer has messages that the stream has not read: {reason}.",
        fix="on_gap='continue' goes on with what is there; "
        "`flow rewind NAME --to earliest` begins at the oldest message that is left",
    )


def _refused(text: str) -> FlowError | None:
    topic = re.search(
        r"(?:TopicAuthorizationException: Not authorized to access topics: \[|topic[s]? )'?([\w.-]+)", text
    )
    if re.search(r"errors\.(?:Sasl|Ssl)?AuthenticationException", text):
        return ConnectionFailed(
            "Kafka refuses the login of the stream.",
            fix="check user, password, mechanism and security_protocol of the connection",
        )
    if "TopicAuthorizationException" in text or "GroupAuthorizationException" in text:
        which = f" '{topic[1]}'" if topic else ""
        return BrokerRefused(
            f"Kafka does not allow the stream to read topic{which}.",
            fix="grant Read and Describe on the topic, and Read on groups that begin with the connection's group_id",
        )
    if "UnknownTopicOrPartitionException" in text or "UnknownTopicIdException" in text:
        return BrokerRefused(
            "Kafka no longer has the topic of the stream, or one of its partitions.",
            fix="create it again; `flow state reset NAME` then begins anew",
        )
    if re.search(r"errors\.(?:TimeoutException|DisconnectException|NetworkException)|No resolvable bootstrap", text):
        return ConnectionFailed(
            "Kafka does not answer any more.",
            fix="check that the brokers can be reached; started again, the stream goes on where it was",
        )
    return None
