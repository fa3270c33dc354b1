"""Kinesis' client against moto and kinesalite: shards and their children, positions, and what goes wrong."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import KinesisConnection
from ematix_flow.backends.kinesis import KinesisBackend, ShardsGiver
from ematix_flow.backends.kinesis_client import (
    BEGINNING,
    PUT_ROWS,
    SHARD_END,
    Shard,
    ShardReader,
    Stream,
    list_shards,
    put,
    readable,
    stream_of,
)
from ematix_flow.backends.kinesis_gaps import ReadUpTo, without_lost
from ematix_flow.backends.queue_stream import BEHIND
from ematix_flow.errors import (
    BrokerRefused,
    ConnectionFailed,
    InvalidConnection,
    InvalidDeclaration,
    LostMessages,
    UnfitValue,
)
from tests.services.moto import REGION, S3Server
from tests.services.postgres import _free_port


def stream_at(server: S3Server, name: str, **changes: Any) -> Stream:
    fields = {
        "stream_name": name,
        "region": REGION,
        "endpoint": server.endpoint,
        "access_key_id": server.loader[0],
        "secret_access_key": server.loader[1],
    }
    return stream_of(KinesisConnection(name="events", **{**fields, **changes}))


@pytest.fixture
def stream(moto_server: S3Server) -> Stream:
    return stream_at(moto_server, moto_server.new_stream(shards=2))


def everything(stream: Stream, positions: dict[str, str]) -> list[tuple[str, bytes]]:
    """All records after positions, which go on; by what `readable` says, until nothing is left."""
    found: list[tuple[str, bytes]] = []
    client = stream.client()
    while True:
        before = (len(found), dict(positions))
        for shard in readable(list_shards(stream, client), positions):
            reader = ShardReader(stream, shard.id, positions.get(shard.id, BEGINNING), client)
            found += [(record.partition_key, record.body) for record in reader.read()]
            positions[shard.id] = reader.position
        if before == (len(found), positions):
            return found


def test_what_is_put_is_read_once_from_every_shard(stream: Stream) -> None:
    records = [(f"key-{number}", str(number).encode()) for number in range(2 * PUT_ROWS + 10)]
    assert put(stream, records) == len(records)
    positions: dict[str, str] = {}
    found = everything(stream, positions)
    assert sorted(found) == sorted(records)
    assert len(positions) == 2
    put(stream, [("key-x", b"later")])
    assert everything(stream, positions) == [("key-x", b"later")]


def test_a_receiver_takes_no_more_bytes_than_it_may_and_stands_behind_what_it_gave(stream: Stream) -> None:
    records = [(f"key-{number}", f"{number:03d}".encode() * 300) for number in range(100)]
    put(stream, records)
    first = ShardsGiver(stream, {})
    taken = [list(first.take(1000, 10_000, 0.0)) for _ in range(3)]
    assert all(0 < sum(len(message.body) for message in part) <= 10_000 for part in taken)
    again, rest = ShardsGiver(stream, first.position()), []
    while part := again.take(1000, 10_000, 0.0):
        rest += part
    assert sorted(message.body for message in [*taken[0], *taken[1], *taken[2], *rest]) == [body for _, body in records]
    assert first.take(1000, 1, 0.0)[0].body, "a message that is larger than allowed comes by itself"


def test_reading_goes_on_after_a_position(stream: Stream) -> None:
    put(stream, [("same", str(number).encode()) for number in range(5)])
    (shard,) = [s for s in list_shards(stream) if ShardReader(stream, s.id).read()]
    first = ShardReader(stream, shard.id).read(2)
    assert [record.body for record in first] == [b"0", b"1"]
    rest = ShardReader(stream, shard.id, first[-1].sequence).read()
    assert [record.body for record in rest] == [b"2", b"3", b"4"]
    assert all(record.event_time_us > 1_600_000_000_000_000 for record in first)


def test_an_iterator_that_is_no_longer_good_is_made_anew(stream: Stream, moto_server: S3Server) -> None:
    put(stream, [("same", b"0"), ("same", b"1")])
    (shard,) = [s for s in list_shards(stream) if ShardReader(stream, s.id).read()]

    class Expiring:
        """The real client, whose first iterator has expired, as they do after five minutes."""

        expired = 0

        def get_records(self, **request: Any) -> Any:
            from botocore.exceptions import ClientError

            if not Expiring.expired:
                Expiring.expired += 1
                raise ClientError({"Error": {"Code": "ExpiredIteratorException"}}, "GetRecords")
            return moto_server.kinesis().get_records(**request)

        def get_shard_iterator(self, **request: Any) -> Any:
            return moto_server.kinesis().get_shard_iterator(**request)

    assert [record.body for record in ShardReader(stream, shard.id, client=Expiring()).read()] == [b"0", b"1"]
    assert Expiring.expired == 1


def reshaped(server: S3Server, stream: str, **change: str) -> None:
    """Split or merge shards, and wait until it is done."""
    client = server.kinesis()
    (client.split_shard if "ShardToSplit" in change else client.merge_shards)(StreamName=stream, **change)
    deadline = time.monotonic() + 30
    while client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamStatus"] != "ACTIVE":
        assert time.monotonic() < deadline


def test_shards_that_were_split_or_merged_are_read_to_their_end_before_their_children(
    kinesalite_server: S3Server,
) -> None:
    stream = stream_at(kinesalite_server, kinesalite_server.new_stream(shards=1))
    (parent,) = list_shards(stream)
    put(stream, [(f"key-{number}", b"first") for number in range(10)])
    reshaped(kinesalite_server, stream.stream_name, ShardToSplit=parent.id, NewStartingHashKey=str(2**127))
    one, other = [shard for shard in list_shards(stream) if shard.id != parent.id]
    assert one.parents == other.parents == (parent.id,)
    assert [shard.is_closed for shard in list_shards(stream)] == [True, False, False]
    assert [shard.id for shard in readable(list_shards(stream), {})] == [parent.id]
    put(stream, [(f"key-{number}", b"second") for number in range(10)])
    reshaped(kinesalite_server, stream.stream_name, ShardToMerge=one.id, AdjacentShardToMerge=other.id)
    put(stream, [(f"key-{number}", b"third") for number in range(10)])

    positions: dict[str, str] = {}
    bodies = [body for _, body in everything(stream, positions)]
    assert bodies == [b"first"] * 10 + [b"second"] * 10 + [b"third"] * 10
    assert [positions[shard.id] for shard in (parent, one, other)] == [SHARD_END] * 3
    assert len(positions) == 4
    assert everything(stream, positions) == []


def test_children_of_shards_that_are_no_longer_kept_are_read_at_once() -> None:
    shards = [Shard("s-3", ("s-1",), False), Shard("s-4", ("s-2", "s-3"), False)]
    assert readable(shards, {}) == [shards[0]]
    assert readable(shards, {"s-3": SHARD_END}) == [shards[1]]
    assert readable(shards, {"s-3": "49590338271490256608559692538361571095921575989136588898"}) == [shards[0]]


@pytest.mark.parametrize(
    ("changes", "error", "complaint"),
    [
        ({"stream_name": "nowhere"}, BrokerRefused, "no stream 'nowhere'"),
        # Kinesis itself would say which of the two it is; moto says 403.
        ({"secret_access_key": "wrong-secret"}, BrokerRefused, "does not allow"),
        ({"access_key_id": "AKIAWRONG"}, BrokerRefused, "does not allow"),
        ({"endpoint": "closed"}, ConnectionFailed, "cannot be reached"),
    ],
)
def test_what_the_service_refuses_is_one_clear_error(
    moto_server: S3Server, stream: Stream, changes: dict[str, str], error: type[Exception], complaint: str
) -> None:
    if changes.get("endpoint") == "closed":
        changes = {"endpoint": f"http://127.0.0.1:{_free_port()}"}
    other = stream_at(moto_server, changes.pop("stream_name", stream.stream_name), **changes)
    for act in (other.ping, lambda: list_shards(other), lambda: put(other, [("k", b"v")])):
        with pytest.raises(error, match=complaint) as failure:
            act()
        assert moto_server.loader[1] not in str(failure.value) and "wrong-secret" not in str(failure.value)


def test_a_user_who_may_not_is_told_what_to_grant(moto_server: S3Server, stream: Stream) -> None:
    key, secret = moto_server.reader
    other = stream_at(moto_server, stream.stream_name, access_key_id=key, secret_access_key=secret)
    with pytest.raises(BrokerRefused, match="does not allow this"):
        list_shards(other)


def test_keys_go_together_and_are_never_shown() -> None:
    with pytest.raises(InvalidConnection, match="go together"):
        stream_of(KinesisConnection(name="events", stream_name="s", access_key_id="a"))
    stream = stream_of(
        KinesisConnection(name="events", stream_name="s", access_key_id="a", secret_access_key="secret-4714")
    )
    assert "secret-4714" not in repr(stream)
    assert pickle.loads(pickle.dumps(stream)) == stream


def test_a_record_that_is_too_large_is_refused_before_it_is_put(stream: Stream) -> None:
    with pytest.raises(UnfitValue, match="1 MiB"):
        put(stream, [("k", bytes(1024 * 1024))])


# ── records that the service does not take at once ───────────────────────────────────────────────────────────────────


class Reluctant(BaseHTTPRequestHandler):
    """Kinesis' own answer when a shard is over its limit, which moto never gives: some records taken, others not."""

    refusals = 0
    taken: list[str] = []

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answers: list[dict[str, str]] = []
        for number, record in enumerate(asked["Records"]):
            if number % 2 and Reluctant.refusals > 0:
                answers.append({"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow down"})
            else:
                Reluctant.taken.append(record["PartitionKey"])
                answers.append({"SequenceNumber": "1", "ShardId": "shardId-000000000000"})
        Reluctant.refusals -= 1
        failed = sum("ErrorCode" in answer for answer in answers)
        body = json.dumps({"FailedRecordCount": failed, "Records": answers}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[Stream]:
    """A stream of a server that answers as a handler does."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    fields = {"region": REGION, "access_key_id": "a", "secret_access_key": "b"}
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    yield stream_of(KinesisConnection(name="events", stream_name="s", endpoint=endpoint, **fields))
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def reluctant() -> Iterator[Stream]:
    Reluctant.taken = []
    with serving(Reluctant) as stream:
        yield stream


def test_only_records_that_were_not_taken_are_put_again(reluctant: Stream) -> None:
    Reluctant.refusals = 2
    assert put(reluctant, [(f"k{number}", b"v") for number in range(8)]) == 8
    assert sorted(Reluctant.taken) == sorted(f"k{number}" for number in range(8))


def test_a_service_that_keeps_refusing_is_an_error(reluctant: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ematix_flow.backends.kinesis_client.PUT_ATTEMPTS", 3)
    Reluctant.refusals = 100
    with pytest.raises(BrokerRefused, match="did not take 1 record .*ProvisionedThroughputExceeded"):
        put(reluctant, [(f"k{number}", b"v") for number in range(8)])


# ── other positions, and records that are gone ───────────────────────────────────────────────────────────────────────


def backend_at(stream: Stream) -> KinesisBackend:
    assert stream.login is not None
    key, secret = stream.login
    fields = {"region": stream.region, "endpoint": stream.endpoint, "access_key_id": key, "secret_access_key": secret}
    return KinesisBackend(KinesisConnection(name="events", stream_name=stream.stream_name, **fields))


def test_positions_are_found_by_time_by_record_and_at_both_ends(stream: Stream) -> None:
    put(stream, [(f"key-{number}", b"before") for number in range(20)])
    time.sleep(0.01)  # Kinesis counts milliseconds
    middle = datetime.now(timezone.utc)
    time.sleep(0.01)
    put(stream, [(f"key-{number}", b"after") for number in range(20)])
    backend = backend_at(stream)

    def bodies(place: Any) -> list[bytes]:
        return [body for _, body in everything(stream, dict(place[BEHIND]))]

    earliest, latest, at = (backend.position_at("any", place) for place in ("earliest", "latest", middle))
    assert sorted(bodies(earliest)) == [b"after"] * 20 + [b"before"] * 20
    assert bodies(at) == [b"after"] * 20
    assert bodies(latest) == bodies(backend.position_at("any", middle + timedelta(days=400))) == []
    put(stream, [("key", b"later")])
    assert bodies(latest) == [b"later"], "what comes after it is read, however late that is"

    behind = {shard.id: ShardReader(stream, shard.id).read(1)[0].sequence for shard in list_shards(stream)}
    for given in (earliest, latest, at, behind):
        assert backend.position_given("any", given) == {BEHIND: given.get(BEHIND, given)}
    assert len(bodies({BEHIND: behind})) == 39
    first = next(iter(behind))
    for wrong in ({}, [], 7, {first: behind[first]}, {**behind, "shard-9": "1"}, {**behind, first: "soon"}):
        with pytest.raises(InvalidDeclaration):
            backend.position_given("any", wrong)


def test_a_stream_that_was_made_anew_is_another_one(stream: Stream, moto_server: S3Server) -> None:
    backend = backend_at(stream)
    before = backend.identity("any")
    assert before is not None and backend.identity("any") == before
    remade(moto_server, stream.stream_name)
    assert backend.identity("any") not in (before, None)
    moto_server.kinesis().delete_stream(StreamName=stream.stream_name)
    assert backend.identity("any") is None


def remade(server: S3Server, name: str) -> None:
    """Delete a stream, and make another one of its name a second later."""
    server.kinesis().delete_stream(StreamName=name)
    time.sleep(1.1)
    server.kinesis().create_stream(StreamName=name, ShardCount=2)


DAY_MS = 86_400_000
LAST, OLDEST, NEWEST = (f"49590338271490256608559692538361571095921575989136{n}" for n in (581000, 585000, 589000))


class Forgetful(BaseHTTPRequestHandler):
    """Kinesis when retention has removed records, which moto never does: what is left is given without a word."""

    kept: dict[str, list[str]] = {}  # by shard, the sequence numbers that are left
    unknown: set[str] = set()  # of which it says that they are of no record of the shard
    hours = 24
    asked: list[str] = []

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        what = str(self.headers["X-Amz-Target"]).partition(".")[2]
        Forgetful.asked.append(what)
        if asked.get("StartingSequenceNumber") in Forgetful.unknown:
            return self._answer(400, {"__type": "InvalidArgumentException", "message": "did not come from this shard"})
        self._answer(200, getattr(self, f"_{what}")(asked))

    def _DescribeStreamSummary(self, asked: Any) -> Any:
        return {"StreamDescriptionSummary": {"RetentionPeriodHours": Forgetful.hours}}

    def _ListShards(self, asked: Any) -> Any:
        started = {"SequenceNumberRange": {"StartingSequenceNumber": "1"}}
        return {"Shards": [{"ShardId": shard, **started} for shard in Forgetful.kept]}

    def _GetShardIterator(self, asked: Any) -> Any:
        return {"ShardIterator": f"{asked['ShardId']} {asked.get('StartingSequenceNumber', 0)}"}

    def _GetRecords(self, asked: Any) -> Any:
        shard, _, after = asked["ShardIterator"].partition(" ")
        numbers = [number for number in Forgetful.kept[shard] if int(number) > int(after)][: asked["Limit"]]
        record = {"PartitionKey": "k", "ApproximateArrivalTimestamp": 1_772_344_800.0}
        return {
            "Records": [{**record, "SequenceNumber": number, "Data": "YQ=="} for number in numbers],
            "NextShardIterator": f"{shard} {[after, *numbers][-1]}",
            "MillisBehindLatest": 0,
        }

    def _answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def forgetful() -> Iterator[Stream]:
    with serving(Forgetful) as stream:
        Forgetful.kept = {"shard-0": [OLDEST, NEWEST], "shard-1": [LAST, NEWEST]}
        Forgetful.unknown, Forgetful.hours, Forgetful.asked = set(), 24, []
        yield stream


def test_records_that_retention_removed_are_named_or_left_out(
    forgetful: Stream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    positions = {"shard-0": LAST, "shard-1": LAST, "shard-9": LAST, "shard-8": SHARD_END}
    now = 100 * DAY_MS
    with pytest.raises(LostMessages, match="until 24 hours ago: .*shard-0.*shard-9") as lost:
        without_lost(forgetful, positions, None, now, tolerates_gaps=False)
    assert "on_gap" in str(lost.value) and "shard-1" not in str(lost.value)
    found = without_lost(forgetful, positions, now - 2 * DAY_MS, now, tolerates_gaps=True)
    assert found == {"shard-0": BEGINNING, "shard-1": LAST, "shard-9": SHARD_END, "shard-8": SHARD_END}
    assert "nobody can say how many" in caplog.text
    giver = ShardsGiver(forgetful, found, up_to := ReadUpTo(tmp_path))
    assert sorted(str(message.held) for message in giver.take(100, 10_000, 0.0)) == sorted([OLDEST, NEWEST, NEWEST])
    assert up_to.ms() is None
    assert giver.take(100, 10_000, 0.0) == []
    assert up_to.ms() is not None, "everything has been read"


def test_a_stream_that_had_read_everything_has_lost_nothing(forgetful: Stream) -> None:
    now, gone = 100 * DAY_MS, {"shard-0": LAST}
    assert without_lost(forgetful, gone, now - DAY_MS + 1, now, tolerates_gaps=False) == gone
    assert without_lost(forgetful, {"shard-0": BEGINNING}, None, now, tolerates_gaps=False) == {"shard-0": BEGINNING}
    assert Forgetful.asked == [], "no question is asked for that"
    Forgetful.hours = 7 * 24
    assert without_lost(forgetful, gone, now - 6 * DAY_MS, now, tolerates_gaps=False) == gone
    with pytest.raises(LostMessages):
        without_lost(forgetful, gone, now - 8 * DAY_MS, now, tolerates_gaps=False)


def test_a_position_that_its_shard_does_not_know_stops_or_begins_anew(forgetful: Stream) -> None:
    Forgetful.unknown = {LAST}
    with pytest.raises(LostMessages, match="does not know the record that was read last") as lost:
        ShardsGiver(forgetful, {"shard-0": LAST}).take(100, 10_000, 0.0)
    assert "on_gap" in str(lost.value)
    taken = ShardsGiver(forgetful, {"shard-0": LAST, "shard-1": NEWEST}, tolerates_gaps=True).take(100, 10_000, 0.0)
    assert [message.held for message in taken] == [OLDEST, NEWEST]
    with pytest.raises(InvalidDeclaration, match="knows no record"):
        backend_at(forgetful).position_given("any", {"shard-0": LAST, "shard-1": BEGINNING})
