"""When a change counts, and what a table holds afterwards: the rules, and the SQL that says them, against a model."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from datetime import datetime, timezone
from random import Random

import duckdb
import pytest
from hypothesis import given, settings, strategies as st

from ematix_flow.backends.books import Books
from ematix_flow.backends.duckdb_dialect import DuckdbDialect
from ematix_flow.backends.sqlite import SqliteDialect
from ematix_flow.contracts.change_feeds import ChangeCounts, bit_of
from ematix_flow.contracts.dialect import LANDED, Dialect
from ematix_flow.contracts.plans import BatchPlan, Stamp
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.columns import BigInt
from ematix_flow.declare.table import ColumnSpec, TableSpec
from ematix_flow.declare.target import TargetSpec
from ematix_flow.plan.batch import TargetSide
from ematix_flow.plan.change_apply import Feed, plan_changes
from ematix_flow.plan.change_feed import Gate, Moment, MomentSql, is_newer, newer_sql, passed
from tests.plan.change_model import COLUMNS, Event, Landing, Mirror, Source, cuts, feeds, landed

PROVES = bool(os.environ.get("EMATIX_PROVE"))
NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
TABLE = TableSpec(
    "main",
    "shop",
    (
        ColumnSpec("id", BigInt(), nullable=False, primary_key=True),
        *(ColumnSpec(name, BigInt(), nullable=True) for name in COLUMNS),
    ),
)
_positions = st.one_of(
    st.none(), st.sampled_from([f"{log}{n}" for log in ("lsn:00000000", "off:00000000", "bin:0a1b2c3d") for n in "123"])
)
LSN = "lsn:00000000"
_times = st.one_of(st.none(), st.integers(1, 4))


def test_the_second_change_of_a_millisecond_counts_and_a_redelivery_does_not() -> None:
    gate = passed(Gate(), Moment(5, f"{LSN}1"))
    assert is_newer(Moment(5, f"{LSN}2"), gate)
    assert not is_newer(Moment(5, f"{LSN}1"), gate)


def test_a_later_place_in_the_log_counts_whatever_the_clock_says() -> None:
    gate = passed(passed(Gate(), Moment(9, f"{LSN}1")), Moment(5, f"{LSN}2"))
    assert gate == Gate(9, f"{LSN}2")
    assert is_newer(Moment(4, f"{LSN}3"), gate)
    assert not is_newer(Moment(10, f"{LSN}1"), gate)
    other = Moment(8, "bin:0a1b2c3d9")  # the places of another log say nothing
    assert not is_newer(other, gate)
    assert is_newer(replace(other, ts_ms=10), gate)


def test_the_gate_remembers_the_newest_whatever_the_order_of_arrival() -> None:
    gate = Gate()
    for ts in (1, 9, 5):
        gate = passed(gate, Moment(ts))
    assert gate.ts_ms == 9
    assert not is_newer(Moment(7), gate)


def test_a_change_made_while_a_snapshot_ran_counts_although_its_time_is_earlier() -> None:
    gate = passed(Gate(), Moment(5_700, "bin:0a1b2c3d:3:0100", is_snapshot=True))
    assert is_newer(Moment(5_000, "bin:0a1b2c3d:3:0200"), gate)
    assert is_newer(Moment(5_000, "bin:0a1b2c3d:3:0100"), gate)  # where the snapshot was read, it begins
    assert not is_newer(Moment(9_000, "bin:0a1b2c3d:3:0050"), gate)
    assert not is_newer(Moment(5_000, "off:9"), gate)
    assert not is_newer(Moment(5_700, "bin:0a1b2c3d:3:0100", is_snapshot=True), gate)


@given(_times, _positions, st.booleans(), _times, _positions, _times, _positions)
@settings(max_examples=400, deadline=None)
def test_sql_says_the_same_as_the_rules(
    ts: int | None,
    position: str | None,
    is_snapshot: bool,
    gate_ts: int | None,
    gate_position: str | None,
    read_ts: int | None,
    read_position: str | None,
) -> None:
    gate = Gate(
        gate_ts,
        gate_position if gate_ts is not None else None,
        read_ts,
        read_position if read_ts is not None else None,
    )
    words = newer_sql(MomentSql("s.ts", "s.p", "s.r"), MomentSql("s.gt", "s.gp"), MomentSql("s.rt", "s.rp"))
    values = (ts, position, int(is_snapshot), gate.ts_ms, gate.position, gate.snapshot_ts_ms, gate.snapshot_position)
    query = f"SELECT CASE WHEN {words} THEN 1 ELSE 0 END FROM (SELECT ? ts, ? p, ? r, ? gt, ? gp, ? rt, ? rp) s"
    found = sqlite3.connect(":memory:").execute(query, values).fetchone()[0]
    assert bool(found) == is_newer(Moment(ts, position, is_snapshot), gate)


def plan_for(dialect: Dialect, place: TableRef, *, exists: bool) -> BatchPlan:
    columns = tuple(ColumnShape(c.name, c.type, dialect.type_sql(c.type), c.nullable) for c in TABLE.columns)
    live = TableShape(place, columns, ("id",)) if exists else None
    target = TargetSpec(table=TABLE, connection="x", mode="merge", keys=("id",), stamped=False)
    side = TargetSide(table=place, modes=frozenset({"merge"}), kind=dialect.name, dialect=dialect, live=live)
    return plan_changes(target, side, Feed("feed", COLUMNS), Stamp("run", NOW))


class Database:
    """A database in memory that applies plans, the way `SqlBackend` does."""

    def __init__(self, kind: str) -> None:
        self.is_sqlite = kind == "sqlite"
        self.dialect: Dialect = SqliteDialect() if self.is_sqlite else DuckdbDialect("memory")
        self.place = TableRef(None if self.is_sqlite else "main", "shop")
        self.db = sqlite3.connect(":memory:", isolation_level=None) if self.is_sqlite else duckdb.connect(":memory:")
        if not self.is_sqlite:
            self.db.execute("CREATE SCHEMA ematix_flow")
        self.db.execute(Books(self.dialect).gate_statement())
        for statement in plan_for(self.dialect, self.place, exists=False).ddl.statements:
            self.db.execute(statement.sql)

    def settle(self, rows: list[Landing]) -> ChangeCounts:
        plan = plan_for(self.dialect, self.place, exists=True)
        assert plan.feed is not None
        self.db.execute("BEGIN")
        parts = ", ".join(f"{self.dialect.quote(c.name)} {self.dialect.type_sql(c.type)}" for c in plan.columns)
        self.db.execute(f"CREATE TEMPORARY TABLE {LANDED} ({parts})")
        marks = ", ".join("?" for _ in plan.columns)
        self.db.executemany(f"INSERT INTO {LANDED} VALUES ({marks})", [self._values(row) for row in rows])
        for statement in plan.statements:
            self.db.execute(statement.sql)
        counts = ChangeCounts.of(self.db.execute(plan.feed.tally).fetchall())
        for turn in range(1, (self.db.execute(plan.feed.rounds).fetchone()[0] or 0) + 1):
            for statement in plan.feed.turn(turn):
                self.db.execute(statement.sql)
        for statement in plan.feed.passed:
            self.db.execute(statement.sql)
        self.db.execute("DROP TABLE ematix_flow_landed")
        self.db.execute("DROP TABLE ematix_flow_versions")
        self.db.execute("COMMIT")
        return counts

    def _values(self, row: Landing) -> list[object]:
        moment = row.event.moment
        shown = row.turn > 0 and row.event.key is not None
        image = [row.event.image.get(name) if shown else None for name in COLUMNS]
        return [
            *(row.event.key, *image, row.op, row.counts_as, row.pk, moment.ts_ms, moment.position),
            *(int(moment.is_snapshot), row.seq, row.turn, row.tip, row.place, row.mask),
        ]

    def table(self) -> list[tuple[object, ...]]:
        return [tuple(row) for row in self.db.execute("SELECT id, a, b, c FROM shop ORDER BY id").fetchall()]


def counts_of(model: Mirror) -> ChangeCounts:
    told = model.counts
    return ChangeCounts(
        told.get("create", 0) + told.get("read", 0),
        told.get("update", 0),
        told.get("delete", 0) + told.get("truncate", 0),
        0,
        told.get("stale", 0),
    )


def check(kind: str, feed: list[Event], places: list[int]) -> None:
    model, database = Mirror(), Database(kind)
    seen = ChangeCounts()
    for batch in cuts(feed, places):
        for event in batch:
            model.apply(event)
        one = database.settle(landed(batch))
        seen = ChangeCounts(
            *(getattr(seen, n) + getattr(one, n) for n in ("creates", "updates", "deletes", "skipped")),
            seen.idempotent_skipped + one.idempotent_skipped,
        )
    assert database.table() == model.table()
    if not any(event.op == "truncate" for event in feed):  # what a truncate makes void may count either way
        assert seen == counts_of(model)


@given(feeds(), st.lists(st.integers(1, 14), max_size=4))
@settings(max_examples=1000 if PROVES else 100, deadline=None)
def test_any_feed_in_any_batches_leaves_what_the_model_has(feed: list[Event], places: list[int]) -> None:
    check("sqlite", feed, places)


@given(feeds(), st.lists(st.integers(1, 14), max_size=4))
@settings(max_examples=200 if PROVES else 15, deadline=None)
def test_the_same_on_duckdb(feed: list[Event], places: list[int]) -> None:
    check("duckdb", feed, places)


@given(feeds(), st.lists(st.integers(1, 14), max_size=3))
@settings(max_examples=500 if PROVES else 50, deadline=None)
def test_a_feed_that_is_delivered_twice_leaves_the_same_table(feed: list[Event], places: list[int]) -> None:
    timed = [event for event in feed if event.moment.ts_ms is not None and event.moment.position is not None]
    once, twice = Mirror(), Database("sqlite")
    for event in timed:
        once.apply(event)
    for batch in [*cuts(timed, places), *cuts(timed, places[1:])]:
        twice.settle(landed(batch))
    assert twice.table() == once.table()


@pytest.mark.parametrize(
    ("kind", "marks", "tick_ms"),
    [("sqlite", "both", 1), ("sqlite", "both", 1000), ("sqlite", "tombstones", 1), ("duckdb", "both", 1)],
)
@pytest.mark.parametrize("seed", range(20 if PROVES else 1))
def test_whatever_is_delivered_again_the_mirror_ends_as_the_source(
    kind: str, marks: str, tick_ms: int, seed: int
) -> None:
    source, database = Source(Random(seed), 120, marks, tick_ms), Database(kind)
    for batch in source.deliveries(1_500, 150):
        database.settle(landed(batch))
    assert database.table() == source.table()


@pytest.mark.parametrize(("place", "mask", "bit"), [(0, "__flow_mask_0", 1), (61, "__flow_mask_0", 1 << 61)])
def test_every_column_has_a_bit_that_fits_a_whole_number(place: int, mask: str, bit: int) -> None:
    assert bit_of(place) == (mask, bit)
    assert bit < 2**63
