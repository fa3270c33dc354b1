"""An Amazon Kinesis stream as its client library sees it: shards and their children, positions, and its errors as ours.

A `Stream` is plain data, so that it travels to Spark's workers as it is. Positions are `{shard: sequence number}`, with
words of their own for the beginning and the end of a shard, and for a moment. A shard that was split or merged is read
to its end before its children are begun, so records of one key keep their order. Every wait has an end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ematix_flow.contracts.runtime import instant_text
from ematix_flow.declare.connection import KinesisConnection
from ematix_flow.declare.instants import instant_of
from ematix_flow.errors import (
    BrokerRefused,
    ConnectionFailed,
    FlowError,
    LostMessages,
    MissingDriver,
    UnfitValue,
    counted,
)

WAIT_S = 10.0
"""How long the service may take to answer before it counts as unreachable."""

BEGINNING = "TRIM_HORIZON"
SHARD_END = "SHARD_END"
_AT = "AT_TIMESTAMP "

PUT_ROWS = 500
PUT_BYTES = 5 * 1024 * 1024
RECORD_BYTES = 1024 * 1024
"""What one request, and one record with its key, may have; some streams allow more."""

PUT_ATTEMPTS = 10

LOST_FIX = (
    "on_gap='continue' goes on with what is there; "
    "`flow rewind NAME --to earliest` begins at the oldest record that is left"
)
"""What to do about records that are gone."""

_BUSY = ("ProvisionedThroughputExceededException", "LimitExceededException", "KMSThrottlingException")
_LOGIN = (
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "SignatureDoesNotMatch",
    "ExpiredTokenException",
    "IncompleteSignature",
    "MissingAuthenticationTokenException",
)


# ── where a stream is ────────────────────────────────────────────────────────────────────────────────────────────────


def stream_of(connection: KinesisConnection) -> Stream:
    """The stream behind a connection. Nothing connects.

    Raises:
        InvalidConnection: of the two keys only one is given.
    """
    if bool(connection.access_key_id) != bool(connection.secret_access_key):
        connection.refuse("access_key_id and secret_access_key go together", fix="give both or none")
    login = (connection.access_key_id, connection.secret_access_key) if connection.access_key_id else None
    return Stream(
        connection.name,
        connection.stream_name,
        connection.region,
        connection.endpoint,
        (str(login[0]), str(login[1])) if login else None,
    )


@dataclass(frozen=True)
class Stream:
    """One stream. `login` is a pair of keys, never shown; without it the usual AWS chain is asked."""

    name: str
    stream_name: str
    region: str | None
    endpoint: str | None
    login: tuple[str, str] | None = field(repr=False)

    def client(self) -> Any:
        """The library's client; it may be used by several threads."""
        import boto3
        from botocore.config import Config

        key, secret = self.login or (None, None)
        with self.explaining():
            return boto3.session.Session().client(
                "kinesis",
                region_name=self.region,
                endpoint_url=self.endpoint,
                aws_access_key_id=key,
                aws_secret_access_key=secret,
                config=Config(connect_timeout=WAIT_S, read_timeout=WAIT_S, retries={"max_attempts": 2}),
            )

    def ping(self) -> None:
        """Ask for the stream."""
        self.summary(self.client())

    def summary(self, client: Any) -> Mapping[str, Any]:
        """What the service says of the stream as a whole."""
        with self.explaining():
            answer = client.describe_stream_summary(StreamName=self.stream_name)
        told: Mapping[str, Any] = answer["StreamDescriptionSummary"]
        return told

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """The library's errors as ours; everything else passes."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as exc:
            raise self.explained(exc) from exc

    def explained(self, error: Exception) -> FlowError:
        """One error of the library, as what a user can act on."""
        from botocore import exceptions as E

        where, place = (
            f"connection '{self.name}' (kinesis)",
            f"at {self.endpoint}" if self.endpoint else f"in {self.region or 'its region'}",
        )
        if isinstance(error, E.NoRegionError):
            return ConnectionFailed("Kinesis needs a region.", where=where, fix="set region, or AWS_REGION")
        if isinstance(error, (E.NoCredentialsError, E.PartialCredentialsError)):
            return ConnectionFailed(
                "There are no AWS credentials to open Kinesis with.",
                where=where,
                fix="set access_key_id and secret_access_key, or a profile or role of the usual AWS chain",
            )
        code = error.response["Error"]["Code"] if isinstance(error, E.ClientError) else ""
        if code == "ResourceNotFoundException":
            return BrokerRefused(
                f"Kinesis has no stream '{self.stream_name}' ({place}).",
                where=where,
                fix="create it, or check stream_name and region",
            )
        if code in _LOGIN:
            return ConnectionFailed("Kinesis refuses the login.", where=where, fix="check the keys, and the clock")
        if code.startswith("AccessDenied") or code == "403":
            return BrokerRefused(
                f"Kinesis does not allow this on stream '{self.stream_name}'.",
                where=where,
                fix="check the keys; allow kinesis:ListShards, DescribeStreamSummary, GetShardIterator and GetRecords "
                "to read, kinesis:PutRecords to write",
            )
        if isinstance(error, E.ClientError):
            return BrokerRefused(f"Kinesis said no to stream '{self.stream_name}': {code}.", where=where)
        return ConnectionFailed(
            f"Kinesis cannot be reached {place}: {type(error).__name__}.",
            where=where,
            fix="check region, endpoint and the network",
        )


def require_driver() -> None:
    """Say how to install the client library, before anything else fails for its lack."""
    try:
        import boto3  # noqa: F401
    except ImportError as exc:
        raise MissingDriver("The kinesis backend needs 'boto3'.", fix='pip install "ematix-flow[kinesis]"') from exc


# ── shards ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: those it was made from by a split or a merge, and whether it takes no more records."""

    id: str
    parents: tuple[str, ...]
    is_closed: bool


def list_shards(stream: Stream, client: Any | None = None) -> list[Shard]:
    """All shards whose records are still kept, closed ones included, in the order of their ids."""
    client = client or stream.client()
    found: list[Shard] = []
    request: dict[str, Any] = {"StreamName": stream.stream_name}
    while True:
        with stream.explaining():
            answer = client.list_shards(**request)
        for item in answer["Shards"]:
            parents = (item.get("ParentShardId"), item.get("AdjacentParentShardId"))
            is_closed = "EndingSequenceNumber" in item["SequenceNumberRange"]
            found.append(Shard(item["ShardId"], tuple(parent for parent in parents if parent), is_closed))
        if not answer.get("NextToken"):
            return sorted(found, key=lambda shard: shard.id)
        request = {"NextToken": answer["NextToken"]}


def readable(shards: Sequence[Shard], positions: Mapping[str, str]) -> list[Shard]:
    """The shards to read now: not at their end, and with no parent that still has records to give."""
    kept = {shard.id for shard in shards}
    ended = {shard for shard, position in positions.items() if position == SHARD_END}
    return [
        shard
        for shard in shards
        if shard.id not in ended and all(parent in ended or parent not in kept for parent in shard.parents)
    ]


def at_moment(when: datetime) -> str:
    """The position before the first record that arrived at a moment or later; Kinesis counts milliseconds.

    >>> at_moment(datetime.fromisoformat("2026-03-01T06:00:00+00:00"))
    'AT_TIMESTAMP 2026-03-01T06:00:00.000Z'
    """
    return f"{_AT}{instant_text(when)}"


def moment_of(position: str) -> datetime | None:
    """What `at_moment` was given, to the millisecond; None for any other position."""
    if position.startswith(_AT):
        with suppress(ValueError):
            return instant_of(position.removeprefix(_AT))
    return None


def is_sequence(position: str) -> bool:
    """Whether a position is behind a certain record."""
    return position.isascii() and position.isdigit()


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Record:
    """One record. Its sequence number is the position after it."""

    shard: str
    sequence: str
    partition_key: str
    body: bytes
    event_time_us: int


class ShardReader:
    """Records of one shard, in order, after a position. Keeps its place by an iterator, which it renews.

    `is_level` tells whether there was nothing more to read when it was asked last.
    """

    def __init__(self, stream: Stream, shard: str, position: str = BEGINNING, client: Any | None = None) -> None:
        self.stream, self.shard, self.position = stream, shard, position
        self._client = client or stream.client()
        self._iterator: str | None = None
        self.is_level = False

    @property
    def is_at_end(self) -> bool:
        """A closed shard whose every record was read."""
        return self.position == SHARD_END

    def read(self, most_rows: int = 10_000) -> list[Record]:
        """What comes next; empty when nothing is there at this moment, or the service wants a pause.

        Raises:
            LostMessages: (a ValueError) the position is of no record that the shard ever had.
        """
        from botocore.exceptions import ClientError

        if self.is_at_end:
            return []
        self.is_level = False
        for is_last_try in (False, True):
            with self.stream.explaining():
                try:
                    self._iterator = self._iterator or self._new_iterator()
                    answer = self._client.get_records(ShardIterator=self._iterator, Limit=min(most_rows, 10_000))
                    return self._received(answer)
                except ClientError as exc:
                    code = exc.response["Error"]["Code"]
                    if code in _BUSY:
                        return []
                    if code == "InvalidArgumentException" and self._iterator is None and is_sequence(self.position):
                        raise self._unknown_position() from exc
                    if code != "ExpiredIteratorException" or is_last_try:
                        raise
                    self._iterator = None  # they last five minutes
        return []

    def _received(self, answer: Mapping[str, Any]) -> list[Record]:
        found = [
            Record(
                self.shard,
                item["SequenceNumber"],
                item["PartitionKey"],
                item["Data"],
                int(item["ApproximateArrivalTimestamp"].timestamp() * 1_000_000),
            )
            for item in answer["Records"]
        ]
        self._iterator = answer.get("NextShardIterator")
        self.is_level = answer.get("MillisBehindLatest") == 0
        moment = moment_of(self.position)
        if moment is not None:  # the service may be asked for whole seconds only, depending on the library
            found = [record for record in found if record.event_time_us >= round(moment.timestamp() * 1000) * 1000]
        if self._iterator is None:
            self.position = SHARD_END
        elif found:
            self.position = found[-1].sequence
        return found

    def _unknown_position(self) -> LostMessages:
        return LostMessages(
            f"Shard '{self.shard}' of stream '{self.stream.stream_name}' does not know the record that was read last; "
            "the stream was made anew, or the record was of another shard.",
            where=f"connection '{self.stream.name}' (kinesis)",
            fix=LOST_FIX,
        )

    def _new_iterator(self) -> str:
        request: dict[str, Any] = {"StreamName": self.stream.stream_name, "ShardId": self.shard}
        moment = moment_of(self.position)
        if self.position == BEGINNING:
            request["ShardIteratorType"] = BEGINNING
        elif moment is not None:
            request |= {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": moment}
        else:
            request |= {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": self.position}
        return str(self._client.get_shard_iterator(**request)["ShardIterator"])


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def put(stream: Stream, records: Iterable[tuple[str, bytes]], client: Any | None = None) -> int:
    """Put records, each with its partition key; how many. All of them are in the stream when this returns.

    Records that the service did not take are put again, after a pause, so they may come behind later ones.

    Raises:
        FlowError: the stream is not there, a record is too large, or the service keeps refusing. Some may be put then.
    """
    client = client or stream.client()
    done = 0
    for part in _puttable(records, stream.stream_name):
        done += len(part)
        left = part
        for attempt in range(PUT_ATTEMPTS):
            with stream.explaining():
                answer = client.put_records(StreamName=stream.stream_name, Records=left)
            results = answer["Records"]
            left = [record for record, result in zip(left, results, strict=True) if result.get("ErrorCode")]
            if not left:
                break
            time.sleep(min(0.1 * 2**attempt, 5.0))
        else:
            codes = sorted({result["ErrorCode"] for result in results if result.get("ErrorCode")})
            raise BrokerRefused(
                f"Kinesis did not take {counted(len(left), 'record')} for stream '{stream.stream_name}' in "
                f"{PUT_ATTEMPTS} attempts: {', '.join(codes)}.",
                fix="the stream needs more shards, or on-demand capacity",
            )
    return done


def _puttable(records: Iterable[tuple[str, bytes]], stream: str) -> Iterator[list[dict[str, Any]]]:
    part: list[dict[str, Any]] = []
    size = 0
    for key, body in records:
        weight = len(body) + len(key.encode())
        if weight > RECORD_BYTES:
            raise UnfitValue(
                f"A row makes a record that is larger than stream '{stream}' takes: Kinesis allows 1 MiB.",
                fix="leave out or shorten long columns",
            )
        if part and (len(part) >= PUT_ROWS or size + weight > PUT_BYTES):
            yield part
            part, size = [], 0
        part.append({"Data": body, "PartitionKey": key})
        size += weight
    if part:
        yield part
