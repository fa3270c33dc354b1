"""Change events in Spark: envelopes become changes, texts become values, and a batch gets its order."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from hashlib import md5
from typing import Any

import pytest
from hypothesis.errors import NonInteractiveExampleWarning
from pyspark.sql import DataFrame, Row, SparkSession

from ematix_flow import CDC, SQLiteConnection
from ematix_flow.contracts.change_feeds import (
    COUNTS_AS,
    LATE,
    OP,
    PK,
    PLACE,
    POSITION,
    STALE,
    TIP,
    TRUNCATE,
    TS,
    TURN,
    UPSERT,
)
from ematix_flow.declare import columns as c
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.plan.change_feed import log_of
from ematix_flow.spark.change_events import CHANGE, ChangeCodec
from ematix_flow.spark.change_order import FeedColumns, landed_changes, landed_history, met_columns, misfit_of
from ematix_flow.spark.payloads import BAD, UNKNOWN
from tests.plan.change_history_model import COLUMNS as HISTORY, Change, History, history_spec, settle, stored_versions
from tests.plan.change_model import COLUMNS, Event, Source, feeds, landed, place_in
from tests.plan.loading import database, minute

MESSAGES = "value binary, _key binary, _partition int, _offset bigint"
ID = ColumnSpec("id", c.BigInt(), nullable=False, primary_key=True)


def messages(spark: SparkSession, values: Sequence[Any], keys: Sequence[bytes | None] | None = None) -> DataFrame:
    rows = []
    for number, value in enumerate(values):
        written = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        rows.append((written, keys[number] if keys else None, 0, number))
    return spark.createDataFrame(rows, MESSAGES)


def decoded(spark: SparkSession, cdc: CDC, values: Sequence[Any], **options: Any) -> DataFrame:
    """Read messages as a stream does: look at some, and again until nothing is new."""
    given = messages(spark, values, options.pop("keys", None))
    codec = ChangeCodec(cdc, None, lambda schema: None, refuses=options.get("refuses", False))
    codec.prepare(given)
    while codec.decoded(given).where(UNKNOWN).count():
        assert codec.widen(given)
    return codec.decoded(given)


def changes(frame: DataFrame) -> list[Row]:
    return [row[0] for row in frame.select(CHANGE).collect()]


def applied(frame: DataFrame, *columns: ColumnSpec, cdc: CDC | None = None) -> list[Row]:
    """What would be written: the rows of the last turn of every key."""
    feed = FeedColumns((ID,), columns, cdc or CDC())
    rows = landed_changes(frame, feed, tolerance_ms=5_000).collect()
    return sorted((row for row in rows if row[TURN]), key=lambda row: (row["id"] or 0, row[TURN]))


def test_random_feeds_land_as_the_model_says(spark: SparkSession) -> None:
    strategy = feeds(keys=1, most=8)
    batch: list[Event] = []
    with pytest.warns(NonInteractiveExampleWarning):
        histories = [strategy.example() for _ in range(150)]
    for key, history in enumerate(histories):
        batch += [replace(event, key=key) for event in history if event.key is not None]
    source = Source(random.Random(7), 50, "both", 1)
    again = [event for part in source.deliveries(500, 100) for event in part]
    batch += [replace(event, key=1_000 + event.key) for event in again if event.key is not None]
    values: list[Any] = []
    for event in batch:
        if event.op == "tombstone":
            values.append(None)
            continue
        # The position is given as it will be compared: as a log of the source's own.
        moment = event.moment
        log = {"lsn": int(moment.position[4:])} if moment.position and moment.position.startswith("lsn:") else {}
        values.append(
            {
                "op": {"create": "c", "read": "r", "update": "u", "delete": "d"}[event.op],
                "after": {"id": event.key, **event.image} if event.op != "delete" else None,
                "before": {"id": event.key} if event.op == "delete" else None,
                "source": {"ts_ms": None if moment.ts_ms is None else moment.ts_ms + 10**12, **log},
            }
        )
    placed = [replace(event, moment=_as_read(event, number), offset=number) for number, event in enumerate(batch)]
    keys = [json.dumps({"id": event.key}).encode() for event in batch]
    columns = tuple(ColumnSpec(name, c.BigInt(), nullable=True) for name in COLUMNS)
    rows = landed_changes(
        decoded(spark, CDC(), values, keys=keys), FeedColumns((ID,), columns, CDC()), tolerance_ms=10**9
    )
    found = {row["__flow_seq"]: row for row in rows.collect()}
    assert len(found) == len(batch)
    by_place = sorted(found)
    for row in landed(placed):
        there = found[by_place[row.seq]]
        moment = row.event.moment
        told = (row.op, row.counts_as, row.pk, row.turn, row.tip, row.mask, row.place, moment.ts_ms)
        names = (OP, COUNTS_AS, PK, TURN, TIP, "__flow_mask_0", PLACE, TS)
        assert tuple(there[name] for name in names) == told
        assert moment.ts_ms is None or there[POSITION] == moment.position
        image = tuple(row.event.image.get(name) if row.turn and row.op == UPSERT else None for name in COLUMNS)
        assert tuple(there[name] for name in COLUMNS) == image


def _as_read(event: Event, number: int) -> Any:
    """The moment as it is read back: without a log of the source's the broker's own counts."""
    moment = event.moment
    position = moment.position if log_of(moment.position) is not None else place_in("off:", number)
    return replace(moment, ts_ms=None if moment.ts_ms is None else moment.ts_ms + 10**12, position=position)


def test_positions_sort_within_their_log_and_tell_logs_apart(spark: SparkSession) -> None:
    def redo(scn: int, rs_id: str, ssn: int) -> dict[str, Any]:
        return {"scn": str(scn), "rs_id": f" {rs_id} ", "ssn": ssn}

    logs: list[list[dict[str, Any]]] = [
        [{"lsn": 9}, {"lsn": 10}, {"lsn": 2**63}],
        [
            {"file": "bin.999999", "pos": 4, "row": 0},
            {"file": "bin.1000000", "pos": 4},
            {"file": "bin.1000000", "pos": 70},
        ],
        [{"file": "relay.000001", "pos": 4, "row": 0}, {"file": "relay.000001", "pos": 4, "row": 1}],
        [
            redo(99, "0x01.02.0010", 0),
            redo(100, "0x01.02.0010", 0),
            redo(100, "0x01.02.0010", 1),
            redo(100, "0x01.03.0010", 0),
        ],
        [{"change_lsn": "0000002c:00000bf8:0003", "event_serial_no": 1}, {"change_lsn": "0000002c:00000bf8:0004"}],
    ]
    values = [{"op": "u", "after": {"id": 1}, "source": place} for log in logs for place in log]
    found = iter(row["position"] for row in changes(decoded(spark, CDC(), values)))
    read = [[next(found) for _ in log] for log in logs]
    assert all(sorted(set(places)) == places for places in read)
    assert [len({log_of(place) for place in places}) for places in read] == [1] * len(logs)
    assert len({log_of(places[0]) for places in read}) == len(logs)


def test_numbers_keep_every_digit_and_a_missing_column_is_missing(spark: SparkSession) -> None:
    raw = b'{"op":"c","after":{"id":1,"price":12345678901234567890.123456789,"note":null},"source":{"ts_ms":1}}'
    (change,) = changes(decoded(spark, CDC(), [raw]))
    assert change["after"] == {"id": "1", "price": "12345678901234567890.123456789", "note": None}
    assert (change["op"], change["ts"], change["position"]) == ("create", 1000, f"off:{0:028d}")


def test_a_schema_beside_the_payload_says_what_values_mean(spark: SparkSession) -> None:
    def field(name: str, kind: str, logical: str | None = None, **parameters: str) -> dict[str, Any]:
        more = {"name": logical} if logical else {}
        return {
            "field": name,
            "type": kind,
            "optional": True,
            **more,
            **({"parameters": parameters} if parameters else {}),
        }

    fields = [
        field("id", "int64"),
        field("day", "int32", "io.debezium.time.Date"),
        field("at", "int64", "io.debezium.time.MicroTimestamp"),
        field("at_ms", "int64", "io.debezium.time.Timestamp"),
        field("at_ns", "int64", "io.debezium.time.NanoTimestamp"),
        field("seen", "string", "io.debezium.time.ZonedTimestamp"),
        field("clock", "int64", "io.debezium.time.MicroTime"),
        field(
            "price", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2", **{"connect.decimal.precision": "9"}
        ),
        field("any", "struct", "io.debezium.data.VariableScaleDecimal"),
        field("raw", "bytes"),
        field("key", "string", "io.debezium.data.Uuid"),
        field("doc", "string", "io.debezium.data.Json"),
        field("flag", "boolean"),
        field("small", "int16"),
    ]
    micros = 1_772_344_800_123_456
    after = {
        **{"id": 1, "day": 20513, "at": micros, "at_ms": micros // 1000, "at_ns": micros * 1000 + 789},
        **{"seen": "2026-03-01T06:00:00.5+02:00", "clock": 3_661_000_001, "price": _unscaled(-123456)},
        **{"any": {"scale": 3, "value": _unscaled(-5)}, "raw": base64.b64encode(b"\x00\xff").decode()},
        **{"key": "0b3d6a52-71c5-4c3b-9d1e-6f0f3ac4e1b2", "doc": '{"a": 1}', "flag": True, "small": 7},
    }
    value = {
        "schema": {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]},
        "payload": {"op": "c", "after": after, "source": {"ts_ms": 1_772_344_800_000, "lsn": 5}},
    }
    frame = decoded(spark, CDC(), [value])
    met = met_columns(frame)
    assert met == {
        **{"id": c.BigInt(), "day": c.Date(), "at": c.Timestamp(), "at_ms": c.Timestamp(), "at_ns": c.Timestamp()},
        **{"seen": c.TimestampTZ(), "clock": c.Text(), "price": c.Numeric(9, 2), "any": c.Text(), "raw": c.Bytes()},
        **{"key": c.UUID(), "doc": c.JSON(), "flag": c.Boolean(), "small": c.SmallInt()},
    }
    columns = [ColumnSpec(name, kind, nullable=True) for name, kind in met.items() if name != "id"]
    (row,) = applied(frame, *columns)
    at = datetime(2026, 3, 1, 6, 0, 0, 123456)
    assert (
        row.asDict()
        | {
            **{"day": date(2026, 3, 1), "at": at, "at_ms": at.replace(microsecond=123000), "at_ns": at},
            **{"seen": row["seen"], "clock": "01:01:01.000001", "price": Decimal("-1234.56"), "any": "-0.005"},
            **{"raw": bytearray(b"\x00\xff"), "key": after["key"], "doc": '{"a": 1}', "flag": True, "small": 7},
        }
        == row.asDict()
    )
    assert row["seen"].astimezone(timezone.utc) == datetime(2026, 3, 1, 4, 0, 0, 500000, tzinfo=timezone.utc)


def _unscaled(number: int) -> str:
    size = (number.bit_length() + 8) // 8
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


@pytest.mark.parametrize("number", [0, 1, -1, 127, 128, -128, -129, 2**63, -(2**63) - 1, 10**37 + 5, -(10**38) + 1])
def test_a_decimal_in_bytes_is_exact(spark: SparkSession, number: int) -> None:
    from pyspark.sql import functions as F

    from ematix_flow.spark.change_types import decimal_text

    size = (number.bit_length() + 8) // 8
    given = spark.createDataFrame([(number.to_bytes(size, "big", signed=True), 3)], "b binary, s int")
    text = given.select(decimal_text(F.col("b"), F.col("s"))).collect()[0][0]
    assert Decimal(text) == Decimal(Decimal(number).as_tuple()._replace(exponent=-3))


def test_without_a_schema_columns_say_what_numbers_mean(spark: SparkSession) -> None:
    after = {"id": 1, "day": 20513, "at": 1_772_344_800_123_456, "ms": 1_772_344_800_123, "text": "2026-03-01 06:00:00"}
    frame = decoded(spark, CDC(), [{"op": "c", "after": {**after, "price": "12.50"}, "source": {}}])
    (row,) = applied(
        frame,
        ColumnSpec("day", c.Date()),
        ColumnSpec("at", c.Timestamp()),
        ColumnSpec("ms", c.Timestamp()),
        ColumnSpec("text", c.Timestamp()),
        ColumnSpec("price", c.Numeric(9, 2)),
    )
    at = datetime(2026, 3, 1, 6, 0, 0, 123456)
    assert (row["day"], row["at"], row["ms"]) == (date(2026, 3, 1), at, at.replace(microsecond=123000))
    assert (row["text"], row["price"]) == (at.replace(microsecond=0), Decimal("12.50"))


def test_a_large_value_that_a_change_did_not_touch_is_left_alone(spark: SparkSession) -> None:
    after = {"id": 1, "name": "Ann", "story": "__debezium_unavailable_value"}
    (change,) = changes(decoded(spark, CDC(), [{"op": "u", "after": after, "source": {"ts_ms": 5}}]))
    assert change["after"] == {"id": "1", "name": "Ann"}


def test_maxwell_events_are_changes_too(spark: SparkSession) -> None:
    base = {"database": "shop", "table": "customers", "ts": 1_700_000_000, "position": "bin.000002:77"}
    values = [
        {**base, "type": "insert", "data": {"id": 1, "name": "Ann"}},
        {**base, "type": "update", "data": {"id": 2, "name": "Ann"}, "old": {"id": 1}, "xoffset": 3},
        {**base, "type": "delete", "data": {"id": 2, "name": "Ann"}},
        {**base, "type": "bootstrap-insert", "data": {"id": 3, "name": "Cid"}},
        {**base, "type": "bootstrap-complete", "data": {}},
        {**base, "type": "table-alter"},
    ]
    found = changes(decoded(spark, CDC(envelope="maxwell"), values))
    assert [change["op"] for change in found] == ["create", "update", "delete", "read", "ignored", "skipped"]
    assert found[0]["ts"] == 1_700_000_000_000
    assert found[0]["position"] == f"bin:{md5(b'bin').hexdigest()[:8]}:{2:012d}:{77:020d}:{0:010d}"
    assert found[1]["position"].endswith(f":{3:010d}")
    assert found[1]["before"] == {"id": "1", "name": "Ann"}
    assert found[2]["before"] == {"id": "2", "name": "Ann"}


def test_an_envelope_of_ones_own_is_read_at_its_paths(spark: SparkSession) -> None:
    cdc = CDC(
        envelope="custom",
        op_field="meta.kind",
        after_field="body.new",
        before_field="body.old",
        key_field="body.new.no",
        ts_field="meta.when",
        op_map={"I": "create", "D": "delete", "T": "truncate"},
    )
    values = [
        {"meta": {"kind": "I", "when": "1700000000000"}, "body": {"new": {"no": 7, "price": 1.10}}},
        {"meta": {"kind": "D", "when": "soon"}, "body": {"old": {"no": 7}}},
        {"meta": {"kind": "X"}, "body": {"new": {"no": 7}}},
        {"meta": {"kind": 5}, "body": {}},
        {"meta": {"kind": "T", "when": "1700000000001"}},
    ]
    frame = decoded(spark, cdc, values)
    found = changes(frame)
    assert [(change["op"], change["ts"]) for change in found][:2] == [("create", 1_700_000_000_000), ("delete", None)]
    assert found[0]["after"] == {"no": "7", "price": "1.1"}
    assert [change["op"] for change in found[2:]] == ["skipped", "skipped", "truncate"]
    rows = landed_changes(frame, FeedColumns((ID,), (), cdc), tolerance_ms=0).collect()
    assert sorted(row["id"] or 0 for row in rows) == [0, 0, 7, 7, 7]
    assert [row[TURN] for row in rows if row[OP] == TRUNCATE] == [1]


def test_flattened_rows_carry_their_own_delete_marker(spark: SparkSession) -> None:
    values = [
        {"id": 1, "name": "Ann", "__deleted": "false", "__source_ts_ms": 1_700_000_000_000, "__lsn": 5},
        {"id": 1, "name": "Ann", "__deleted": "true", "__source_ts_ms": 1_700_000_000_001, "__lsn": 6},
    ]
    frame = decoded(spark, CDC(), values)
    found = changes(frame)
    assert [(change["op"], change["ts"], change["position"]) for change in found] == [
        ("update", 1_700_000_000_000, f"lsn:{5:028d}"),
        ("delete", 1_700_000_000_001, f"lsn:{6:028d}"),
    ]
    assert set(met_columns(frame)) == {"id", "name"}
    (row,) = applied(frame, ColumnSpec("name", c.Text()))
    assert (row["id"], row[OP], row[TURN]) == (1, 2, 1)


def test_a_tombstone_that_comes_alone_deletes_and_an_echo_does_not_count(spark: SparkSession) -> None:
    gone = {"op": "d", "before": {"id": 1}, "source": {"ts_ms": 5}}
    keys = [b'{"id":1}', b'{"schema":{},"payload":{"id":1}}', b'{"id":2}', b"3", None]
    frame = decoded(spark, CDC(), [gone, None, None, None, None], keys=keys)
    rows = landed_changes(frame, FeedColumns((ID,), (), CDC()), tolerance_ms=0).collect()
    counted = sorted((row["id"], row[OP], row[COUNTS_AS]) for row in rows)
    assert counted == [(1, 0, 0), (1, 2, 3), (2, 2, 3), (3, 2, 3)]


def test_what_is_no_event_is_skipped_or_refused_with_the_reason(spark: SparkSession) -> None:
    values = [b"{", b"[1]", {"op": "x", "after": {"id": 1}}, {"after": {"id": 1}}, {"op": "c"}, {}]
    lenient = [row[BAD] for row in decoded(spark, CDC(), values).collect()]
    assert lenient == ["not a JSON object", "not a JSON object", None, None, None, None]
    strict = [row[BAD] for row in decoded(spark, CDC(), values, refuses=True).collect()]
    assert strict[2:] == ["its 'op' is none that is known", "it has no 'op'", "it has no 'after'", None]


def test_a_value_that_does_not_fit_is_named_without_the_value(spark: SparkSession) -> None:
    values = [
        {"op": "c", "after": {"id": 1, "n": "many"}, "source": {}},
        {"op": "c", "after": {"n": 1}, "source": {}},
        {"op": "c", "after": {"id": 3, "n": 1}, "source": {}},
    ]
    frame = decoded(spark, CDC(), values)
    reasons = [
        row[0]
        for row in frame.select(misfit_of(frame, FeedColumns((ID,), (ColumnSpec("n", c.Integer()),), CDC()))).collect()
    ]
    assert reasons == ["column 'n' does not fit Integer", "it has no value for the key 'id'", None]


def test_events_that_are_far_too_late_are_counted_as_such(spark: SparkSession) -> None:
    def at(ts: int) -> dict[str, Any]:
        return {"op": "u", "after": {"id": 1, "n": ts}, "source": {"ts_ms": ts + 10**12}}

    frame = decoded(spark, CDC(), [at(9_000), at(8_000), at(1_000)])
    rows = landed_changes(frame, FeedColumns((ID,), (), CDC()), tolerance_ms=5_000).collect()
    assert sorted(row[COUNTS_AS] for row in rows) == [2, STALE, LATE]


def test_a_history_gets_every_version_with_what_its_images_have(spark: SparkSession) -> None:
    def change(op: str, ts: int, **after: Any) -> dict[str, Any]:
        image = {"id": 1, **after}
        return {"op": op, ("before" if op == "d" else "after"): image, "source": {"ts_ms": ts * 10**12, "lsn": ts}}

    values = [change("c", 1, a=1, b=1), change("u", 2, a=2), change("d", 3), change("c", 4, a=4), change("u", 4, b=5)]
    frame = decoded(spark, CDC(), values)
    columns = (ColumnSpec("a", c.BigInt()), ColumnSpec("b", c.BigInt()))
    now = datetime(2026, 3, 1, tzinfo=timezone.utc)
    rows = landed_history(frame, FeedColumns((ID,), columns, CDC()), now=now).collect()
    versions = sorted(
        (row["__flow_ts"], row[OP], row["a"], row["b"], row["__flow_mask_0"]) for row in rows if row["__flow_event_at"]
    )
    unit = 10**12
    assert versions == [
        (unit, 1, 1, 1, 3),
        (2 * unit, 1, 2, None, 1),
        (3 * unit, 2, None, None, 3),
        (4 * unit, 1, 4, 5, 3),
    ]


def test_random_feeds_make_the_histories_of_the_model(spark: SparkSession) -> None:
    chosen, model, now = random.Random(7), History(), 100
    told = {key: [Told.chosen(chosen) for _ in range(chosen.randint(1, 7))] for key in range(200)}
    batch = [(key, one) for key, events in told.items() for one in events]
    keys = [json.dumps({"id": key}).encode() for key, _ in batch]
    frame = decoded(spark, CDC(), [one.message(key) for key, one in batch], keys=keys)
    rows = landed_history(frame, FeedColumns((ID,), HISTORY[1:], CDC()), now=minute(now)).collect()
    offsets = iter(range(len(batch)))
    model.take([change for key, events in told.items() for change in changes_of(key, events, offsets, now)])
    with database(SQLiteConnection(name="store", path=":memory:"), schema="main") as db:
        spec = history_spec(db)
        settle(db, spec, [with_instants(row) for row in rows], now=now)
        assert stored_versions(db, spec) == model.versions()


@dataclass(frozen=True)
class Told:
    """An event of a feed; of a tombstone only the kind."""

    op: str
    at: int | None = None
    lsn: int | None = None
    image: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def chosen(chosen: random.Random) -> Told:
        op = chosen.choice(["c", "u", "u", "u", "d", "d", "tombstone", "tombstone"])
        if op == "tombstone":
            return Told(op)
        values = {"v": chosen.choice([None, "p", "q"]), "w": chosen.choice([None, 1, 2])}
        image = {name: value for name, value in values.items() if op == "c" or chosen.random() < 0.5}
        at = chosen.choice([None, *range(6)])
        return Told(op, at, chosen.choice([None, 1, 2, 3]), {} if op == "d" else image)

    def message(self, key: int) -> dict[str, Any] | None:
        if self.op == "tombstone":
            return None
        ts = None if self.at is None else int(minute(self.at).timestamp() * 1000)
        side = "before" if self.op == "d" else "after"
        return {"op": self.op, side: {"id": key, **self.image}, "source": {"ts_ms": ts, "lsn": self.lsn}}


def changes_of(key: int, events: Sequence[Told], offsets: Iterator[int], now: int) -> list[Change]:
    """What lands of the events of a key: one change a moment, with what those of the moment have together."""
    moments: dict[int | None, list[tuple[str, int, Told]]] = {}
    for number, one in enumerate(events):
        offset = next(offsets)
        if one.op == "tombstone":
            is_echo = number > 0 and events[number - 1].op in ("d", "tombstone")
            if is_echo or any(later.op != "tombstone" for later in events[number + 1 :]):
                continue
        place = place_in("off:", offset) if one.lsn is None else place_in("lsn:", one.lsn)
        # A later place never has an earlier time than the ones before it.
        known = [e.at for e in events if e.at is not None and None not in (e.lsn, one.lsn) and e.lsn <= one.lsn]  # type: ignore[operator]
        at = one.at if one.at is None else max([one.at, *known])
        moments.setdefault(at, []).append((place, number, one))
    found = []
    for at, of_moment in moments.items():
        image: dict[str, Any] | None = {}
        for _, _, one in sorted(of_moment, key=lambda placed: placed[:2]):
            gone = one.op in ("d", "tombstone")
            image = None if gone else {**(dict.fromkeys(("v", "w")) if image is None else image), **one.image}
        found.append(Change(key, now if at is None else at, image))
    return found


def with_instants(row: Row) -> dict[str, Any]:
    """A landed row; Spark gives instants without a zone, in that of this machine."""
    values: dict[str, Any] = row.asDict()
    at = values["__flow_event_at"]
    return {**values, "__flow_event_at": None if at is None else at.astimezone(timezone.utc)}
