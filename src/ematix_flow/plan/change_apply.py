"""Changes into a table of a database: landed events are judged by the gate, applied in turns, and remembered there.

All of it is set-based and runs in the one transaction that settles the batch. Most keys have a single turn: Spark has
marked the events that a later one of the same batch makes superfluous. Only images with other columns need more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from ematix_flow.contracts.change_feeds import (
    ALONE,
    AT,
    COUNTS_AS,
    DELETE,
    ECHOES,
    EVERY_KEY,
    FRESH,
    FURTHEST,
    GATE,
    KEY,
    LAST_GONE,
    LAST_ROW,
    LONGEST_KEY,
    NEWEST,
    NEWEST_READ,
    NTH,
    OP,
    PARTITION_LETTERS,
    PK,
    PLACE,
    POSITION,
    SEQ,
    SNAPSHOT,
    TIP,
    TRUNCATE,
    TS,
    TURN,
    UPSERT,
    FeedPlan,
    bit_of,
    control_columns,
)
from ematix_flow.contracts.dialect import SCRATCH
from ematix_flow.contracts.plans import BatchPlan, Route, Stamp, Statement
from ematix_flow.contracts.shapes import TableShape
from ematix_flow.declare.columns import BigInt, Boolean, String, Text, TimestampTZ
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.declare.target import TargetSpec
from ematix_flow.plan.batch import TargetSide
from ematix_flow.plan.change_feed import MomentSql, after_sql, behind_sql, newer_sql, newest_sql, same_log_sql
from ematix_flow.plan.change_history import FeedEvents
from ematix_flow.plan.ddl import plan_ddl
from ematix_flow.plan.strategies import Load, mode_statements

_ROUTE = Route("spark", "changes are read by Spark")


@dataclass(frozen=True)
class Feed:
    """What is applied to one table.

    Attributes:
        pipeline: The name under which its gate is kept.
        columns: What images may hold, without the key; a change says by its mask which of them it has.
        soft_delete: The column that says when a row was deleted; None when deleted rows go.
        tolerance_ms: By how much an event may be too late without a word.
        batch: What names the batch, for targets that cannot remember it in the same transaction.
        begins: Whether it is the first since the target was opened.
        applied_at: The instant of the last batch that the target then held; None for none.
    """

    pipeline: str
    columns: tuple[str, ...]
    soft_delete: ColumnSpec | None = None
    tolerance_ms: int = 5_000
    batch: str = ""
    begins: bool = False
    applied_at: datetime | None = None


def plan_changes(target: TargetSpec, sink: TargetSide, feed: Feed, stamp: Stamp) -> BatchPlan:
    """Decide how the landed changes of a batch are applied."""
    assert sink.dialect is not None
    ddl = plan_ddl(sink.dialect, target, sink.table, sink.live, "evolve")
    keys, _ = target.resolved_keys()
    names = (*keys, *feed.columns)
    columns = tuple(target.table.column(name) for name in names)
    landed = (*(ColumnSpec(c.name, c.type, nullable=True) for c in columns), *control_columns(len(feed.columns)))
    load = Load(sink.dialect, target, sink.table, columns, stamp)
    plan = BatchPlan(
        pipeline=feed.pipeline,
        target=target,
        table=sink.table,
        columns=landed,
        route=_ROUTE,
        ddl=ddl,
        landing_sql=None,
        reading=None,
        profile=None,
        checks=(),
        statements=(),
        watermark=None,
        keys=keys,
        run_id=stamp.run_id,
    )
    if target.is_versioned:
        return _history(plan, load, feed, sink.live)
    if sink.dialect.commits_each_statement:
        from ematix_flow.plan.change_merge import merged_changes

        return merged_changes(plan, load, feed, sink.live)
    words = Words(load, feed, sink.live)
    feed_plan = replace(words.feed_plan(), prepares=words.forgotten() if ddl.action == "create" else ())
    return replace(plan, statements=(words.judged(), *words.counted()), feed=feed_plan)


def _history(plan: BatchPlan, load: Load, feed: Feed, live: TableShape | None) -> BatchPlan:
    """Every change is a version from its own time on, and a delete ends one. What comes again falls on itself."""
    kinds = {AT: TimestampTZ(), KEY: String(LONGEST_KEY), NTH: BigInt()}
    more = tuple(ColumnSpec(name, kind, nullable=True) for name, kind in kinds.items())
    in_lake = load.dialect.commits_each_statement
    if in_lake:
        from ematix_flow.plan.change_merge import LakeWords

        words: Words = LakeWords(load, feed, live)
    else:
        words = Words(load, feed, live)
    words.scratch = load.landed_sql
    events = FeedEvents.of(
        load.dialect, feed.columns, words.beside("s"), words.moved_at(), words.is_again(), words.is_past()
    )
    load = replace(load, feed=events)
    quote = load.dialect.quote
    tally = f"SELECT {quote(COUNTS_AS)}, 1, count(*) FROM {load.landed_sql} GROUP BY {quote(COUNTS_AS)}"
    changes = None
    if in_lake:
        from ematix_flow.plan.changes import change_set

        changes = change_set(load)
    prepares = words.forgotten() if plan.ddl.action == "create" else ()
    return replace(
        plan,
        columns=(*plan.columns, *more),
        statements=mode_statements(load),
        changes=changes,
        feed=replace(words.remembering(FeedPlan(tally)), prepares=prepares),
    )


def gate_columns() -> tuple[str, ...]:
    """What a gate knows of a key, in order: the newest change, and the newest row of a snapshot."""
    return ("last_seen_ts_ms", "position", "snapshot_ts_ms", "snapshot_position")


ARRIVED, IS_ROW = "arrived", "is_row"
"""And what a tombstone is judged by: where the key's last message stands, and whether it was its newest, and a row."""

MORE = "snapshot_ts_ms"
"""What this says in a history, where a row that was read is a version like any other: of a key by itself, how many
microseconds behind its time the furthest version begins; of a key with a time, by 1, that its change was set back, and
made a version of another time."""

TIPS = ((NEWEST, gate_columns()[:2]), (NEWEST_READ, gate_columns()[2:]))


class Words:
    """The recurring phrases of these statements."""

    def __init__(self, load: Load, feed: Feed, live: TableShape | None) -> None:
        self.load, self.feed, self.dialect = load, feed, load.dialect
        self.keys, _ = load.target.resolved_keys()
        self.scratch = load.dialect.relation(SCRATCH, load.stamp.run_id)
        self.gate = load.dialect.table(load.dialect.bookkeeping(GATE))
        self.pipeline = load.dialect.literal(feed.pipeline, Text())
        self._natives = {
            column.name: column.native
            for column in (live.columns if live else ())
            if column.type is None and load.dialect.name in ("postgres", "duckdb")
        }

    def ordered(self, expression: str) -> str:
        return self.dialect.ordered(expression, Text())

    def tip(self, bits: int, alias: str = "s") -> str:
        """Whether a landed change is one of these among those of its key."""
        return f"({alias}.{self.dialect.quote(TIP)} & {bits}) <> 0"

    def forgotten(self) -> tuple[Statement, ...]:
        """A table made anew begins with nothing, whatever was applied to the one before it."""
        why = "forget what was applied to a table that is gone"
        return (Statement(f"DELETE FROM {self.gate} WHERE pipeline_name = {self.pipeline}", why=why),)

    def remembering(self, feed: FeedPlan) -> FeedPlan:
        """The plan with what remembers the landed changes."""
        gone_further = self._gone_further() if self.load.target.is_versioned else []
        return replace(feed, passed=(*self._passed(), *gone_further))

    # ── histories ────────────────────────────────────────────────────────────────────────────────────────────────────

    def known(self) -> str:
        """The gate as it was before this batch."""
        return self.gate

    def beside(self, alias: str) -> str:
        """What joins a landed change with what is known of its key: the furthest version (alias k)."""
        same = f"k.pipeline_name = {self.pipeline} AND k.pk_json = {alias}.{self.dialect.quote(KEY)}"
        return f"LEFT JOIN {self.known()} AS k ON {same}"

    def is_set_back(self, alias: str, known: str = "k") -> str:
        """Whether a landed change is behind the furthest version of its key in the log, and before it by the clock."""
        event, furthest = self.moment(alias), self.gated(known)[0]
        more = f"{known}.{MORE}"
        return (
            f"({same_log_sql(event.position, furthest.position)} AND {event.position} >= {furthest.position} "
            f"AND ({furthest.ts} > {event.ts} OR ({furthest.ts} = {event.ts} AND {more} > 0)))"
        )

    def moved_at(self) -> str:
        """The time from which the version of a landed change is (aliases s and k)."""
        quote, event, furthest = self.dialect.quote, self.moment("s"), self.gated("k")[0]
        at = f"s.{quote(AT)}"
        behind = f"CASE WHEN {event.position} = {furthest.position} THEN 0 ELSE s.{quote(NTH)} END"
        later = self.dialect.later(at, f"(({furthest.ts} - {event.ts}) * 1000 + k.{MORE} + {behind})")
        return f"CASE WHEN {self.is_set_back('s')} THEN {later} ELSE {at} END"

    def is_again(self) -> str:
        """Whether a landed change (aliases s and k) is the furthest version itself: others of its time are later."""
        return f"({self.is_set_back('s')} AND {self.moment('s').position} = {self.gated('k')[0].position})"

    def is_past(self) -> str:
        """Whether a landed change (aliases s and k) says nothing that is not known.

        So it is where the version of its time was made by a later one, and where it became a version of another time
        because the clock had been set back. Of what was applied the newest of a time comes again with it at the latest:
        it may well be written once more.
        """
        event, gate, furthest = self.moment("s"), self.gated("g")[0], self.gated("k")[0]
        same = f"g.pipeline_name = {self.pipeline} AND g.pk_json = s.{self.dialect.quote(PK)}"
        same_log = same_log_sql(event.position, gate.position)
        elsewhere = f"(g.{MORE} = 1 AND {same_log} AND {gate.position} >= {event.position})"
        is_behind = (
            f"{same_log_sql(event.position, furthest.position)} AND {event.position} < {furthest.position} "
            f"AND ({event.ts} > {furthest.ts} OR ({event.ts} = {furthest.ts} AND k.{MORE} > 0))"
        )
        return (
            f"(EXISTS (SELECT 1 FROM {self.known()} AS g WHERE {same} AND ({behind_sql(event, gate)} OR {elsewhere})) "
            f"OR CASE WHEN {is_behind} THEN 1 ELSE 0 END = 1)"
        )

    def further(self, known: str) -> list[tuple[str, str]]:
        """What the gate then knows of a key by itself, where a landed change (alias s) is further than `known`."""
        quote, set_back = self.dialect.quote, self.is_set_back("s", known)
        ts = f"s.{quote(TS)}"
        return [  # in this order: the first two are worked out from what was known
            (MORE, f"CASE WHEN {set_back} THEN {known}.{MORE} + s.{quote(NTH)} ELSE 0 END"),
            ("last_seen_ts_ms", f"CASE WHEN {set_back} THEN {known}.last_seen_ts_ms ELSE {ts} END"),
            ("position", f"s.{quote(POSITION)}"),
        ]

    def _gone_further(self) -> list[Statement]:
        """The gate takes note of what was set back, and of the furthest version of every key."""
        dialect, quote, now = self.dialect, self.dialect.quote, self.load.now_sql
        set_back = (
            f"(SELECT s.{quote(PK)} AS pk FROM {self.scratch} AS s {self.beside('s')} "
            f"WHERE {self.tip(NEWEST)} AND {self.is_set_back('s')})"
        )
        aside = dialect.update_from(
            self.gate, set_back, [(MORE, "1")], f"t.pipeline_name = {self.pipeline} AND t.pk_json = s.pk"
        )
        same = f"t.pipeline_name = {self.pipeline} AND t.pk_json = s.{quote(KEY)}"
        known, event = self.gated("t")[0], self.moment("s")
        further = dialect.update_from(
            self.gate,
            self.scratch,
            [*self.further("t"), ("updated_at", now)],
            f"{same} AND {self.tip(FURTHEST)} AND {after_sql(event, known.ts, known.position)}",
        )
        into = dialect.columns(["pipeline_name", "pk_json", MORE, "last_seen_ts_ms", "position", "updated_at"])
        first = (
            f"INSERT INTO {self.gate} ({into}) SELECT {self.pipeline}, s.{quote(KEY)}, 0, {event.ts}, "
            f"s.{quote(POSITION)}, {now} FROM {self.scratch} AS s WHERE {self.tip(FURTHEST)} "
            f"AND NOT EXISTS (SELECT 1 FROM {self.gate} AS t WHERE {same})"
        )
        return [
            Statement(aside, why="remember the changes that a clock set back"),
            Statement(further, why="remember the furthest version of every key"),
            Statement(first, why="remember the keys that are new"),
        ]

    # ── what counts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def moment(self, alias: str) -> MomentSql:
        """When a landed change was made."""
        quote = self.dialect.quote
        return MomentSql(
            f"{alias}.{quote(TS)}", self.ordered(f"{alias}.{quote(POSITION)}"), f"{alias}.{quote(SNAPSHOT)}"
        )

    def gated(self, alias: str) -> tuple[MomentSql, MomentSql]:
        """What a row of the gate knows."""
        ts, position, snapshot_ts, snapshot_position = (f"{alias}.{self.dialect.quote(n)}" for n in gate_columns())
        return MomentSql(ts, self.ordered(position)), MomentSql(snapshot_ts, self.ordered(snapshot_position))

    def fresh(self, gate: tuple[MomentSql, MomentSql], emptied: tuple[MomentSql, MomentSql]) -> str:
        """Whether a landed change (alias s) counts, in the numbers of `FRESH`."""
        event = self.moment("s")
        counts = (
            f"{newer_sql(event, *gate)} AND ({event.ts} IS NULL OR s.{self.dialect.quote(OP)} = {TRUNCATE} "
            f"OR {after_sql(event, emptied[0].ts, emptied[0].position)})"
        )
        lateness, usual = f"{gate[0].ts} - {event.ts}", self.feed.tolerance_ms
        return (
            f"CASE WHEN {self.tip(ALONE)} THEN CASE WHEN {self.echoes()} THEN {ECHOES} ELSE 1 END "
            f"WHEN {counts} THEN 1 WHEN {lateness} > {usual} THEN -1 WHEN {lateness} < -{usual} THEN -2 ELSE 0 END"
        )

    def echoes(self) -> str:
        """Whether a tombstone (alias s) that nothing of its batch comes before says what was applied long ago.

        So it is behind a delete, behind a change that was itself no news, and where the topic is read once more.
        """
        place, arrived = self.ordered(f"s.{self.dialect.quote(PLACE)}"), self.ordered(f"g.{ARRIVED}")
        partition, other = (f"substr({one}, 1, {PARTITION_LETTERS})" for one in (place, arrived))
        return f"g.{IS_ROW} = 0 OR ({partition} = {other} AND {place} <= {arrived})"

    def outlived(self) -> str:
        """Whether no truncate of the batch (aliases r and q) is behind a landed change (alias s)."""
        quote = self.dialect.quote
        arrived = f"s.{quote(SEQ)}"
        in_time = after_sql(self.moment("s"), "r.ts", "q.place")
        return (
            f"(s.{quote(OP)} = {TRUNCATE} OR CASE WHEN s.{quote(TS)} IS NULL "
            f"THEN (r.any_seq IS NULL OR {arrived} > r.any_seq) "
            f"ELSE ((r.untimed_seq IS NULL OR {arrived} > r.untimed_seq) AND {in_time}) END)"
        )

    def truncates(self) -> str:
        """The newest truncate of the batch, as two relations of one row each; a look at every landed row would last."""
        quote, landed = self.dialect.quote, self.load.landed_sql
        ts, seq, found = quote(TS), quote(SEQ), f"FROM {landed} WHERE {quote(OP)} = {TRUNCATE}"
        truncate = MomentSql(ts, self.ordered(quote(POSITION)))
        is_new = f"{quote(TURN)} = 1 AND ({ts} IS NULL OR {after_sql(truncate, 'k.known_ts', 'k.known_place')})"
        sums = (
            f"max({ts}) AS ts, max(CASE WHEN {is_new} THEN {seq} END) AS any_seq, "
            f"max(CASE WHEN {ts} IS NULL THEN {seq} END) AS untimed_seq"
        )
        known = (
            f"SELECT max(last_seen_ts_ms) AS known_ts, max({self.ordered('position')}) AS known_place "
            f"FROM {self.known()} AS b "
            f"WHERE pipeline_name = {self.pipeline} AND pk_json = {self.dialect.literal(EVERY_KEY, Text())}"
        )
        with_known = found.replace(" WHERE", f" CROSS JOIN ({known}) AS k WHERE", 1)
        place = f"max({self.ordered(quote(POSITION))}) AS place"
        return (
            f"CROSS JOIN (SELECT {sums} {with_known}) AS r "
            f"CROSS JOIN (SELECT {place} {found} AND {ts} = (SELECT max({ts}) {found})) AS q"
        )

    # ── databases ────────────────────────────────────────────────────────────────────────────────────────────────────

    def judged(self) -> Statement:
        """The landed changes, each with what the gate says of it."""
        quote, landed = self.dialect.quote, self.load.landed_sql
        names = [column.name for column in control_columns(len(self.feed.columns)) if column.name != TURN]
        fresh = self.fresh(self.gated("g"), self.gated("h"))
        turn = f"CASE WHEN {self.outlived()} THEN s.{quote(TURN)} ELSE 0 END"
        every = self.dialect.literal(EVERY_KEY, Text())
        query = (
            f"SELECT {self.dialect.columns([*self.load.names, *names], 's')}, {turn} AS {quote(TURN)}, "
            f"{fresh} AS {quote(FRESH)} FROM {landed} AS s {self.truncates()} "
            f"LEFT JOIN {self.gate} AS g ON g.pipeline_name = {self.pipeline} AND g.pk_json = s.{quote(PK)} "
            f"LEFT JOIN {self.gate} AS h ON h.pipeline_name = {self.pipeline} AND h.pk_json = {every}"
        )
        keys = [(name, self.load.target.table.column(name).type) for name in self.keys]
        made = self.dialect.create_scratch(SCRATCH, query, keys)
        return Statement(made, why="find the changes that are newer than what was applied")

    def counted(self) -> tuple[Statement, ...]:
        counting = self.dialect.count_scratch(SCRATCH)
        return (Statement(counting, why="let the planner know how many they are"),) if counting else ()

    def feed_plan(self) -> FeedPlan:
        quote = self.dialect.quote
        fresh = f"{quote(FRESH)} = 1"
        return FeedPlan(
            tally=(
                f"SELECT {quote(COUNTS_AS)}, {quote(FRESH)}, count(*) FROM {self.scratch} "
                f"GROUP BY {quote(COUNTS_AS)}, {quote(FRESH)}"
            ),
            rounds=f"SELECT max({quote(TURN)}) FROM {self.scratch} WHERE {fresh}",
            turns=tuple(self._turns()),
            passed=tuple(self._passed()),
        )

    def _turns(self) -> list[Statement]:
        """What one turn does. The first also empties the table, when a truncate is in the batch."""
        dialect, load, quote = self.dialect, self.load, self.dialect.quote
        match = load.keys_match("t", "s", self.keys)
        now = f"s.{quote(TURN)} = $turn AND s.{quote(FRESH)} = 1"
        emptied = f"s.{quote(OP)} = {TRUNCATE} AND {now}"
        upserted, deleted = (f"s.{quote(OP)} = {op} AND {now}" for op in (UPSERT, DELETE))
        gone = self.soft_values()
        if gone:
            exists = f"(SELECT 1 FROM {self.scratch} AS s WHERE {emptied})"
            statements = [
                Statement(self._update_all(gone, f"EXISTS {exists}"), "updated", "mark all rows as deleted"),
                Statement(
                    dialect.update_from(load.table_sql, self.scratch, gone, f"{match} AND {deleted}"),
                    "updated",
                    "mark the deleted rows",
                ),
            ]
        else:
            statements = [
                Statement(dialect.delete_matching(load.table_sql, self.scratch, emptied), "deleted", "empty the table"),
                Statement(
                    dialect.delete_matching(load.table_sql, self.scratch, f"{match} AND {deleted}"),
                    "deleted",
                    "delete rows",
                ),
            ]
        changes = [*self._assignments(), *self.revived(), *load.stamp_values()]
        if changes:
            updated = dialect.update_from(load.table_sql, self.scratch, changes, f"{match} AND {upserted}")
            statements.append(Statement(updated, "updated", "update the columns that the changes have"))
        values = [(name, self._value(name)) for name in load.names] + load.stamp_values()
        into, given = dialect.columns([name for name, _ in values]), ", ".join(value for _, value in values)
        statements.append(
            Statement(
                f"INSERT INTO {load.table_sql} ({into}) SELECT {given} FROM {self.scratch} AS s WHERE {upserted} "
                f"AND NOT EXISTS (SELECT 1 FROM {load.table_sql} AS t WHERE {match})",
                "inserted",
                "insert the keys that are new",
            )
        )
        return statements

    def _update_all(self, values: Sequence[tuple[str, str]], condition: str) -> str:
        changes = ", ".join(f"{self.dialect.quote(name)} = {value}" for name, value in values)
        return f"UPDATE {self.load.table_sql} SET {changes} WHERE {condition}"

    def _assignments(self) -> list[tuple[str, str]]:
        quote = self.dialect.quote
        found = []
        for place, name in enumerate(self.feed.columns):
            mask, bit = bit_of(place)
            kept = f"CASE WHEN (s.{quote(mask)} & {bit}) <> 0 THEN {self._value(name)} ELSE t.{quote(name)} END"
            found.append((name, kept))
        return found

    def _value(self, name: str) -> str:
        value = f"s.{self.dialect.quote(name)}"
        return f"CAST({value} AS {self._natives[name]})" if name in self._natives else value

    def soft_values(self) -> list[tuple[str, str]]:
        """What is written into a row that is deleted and stays; nothing where it goes."""
        column = self.feed.soft_delete
        if column is None:
            return []
        if isinstance(column.type, Boolean):
            said: object = True
        elif isinstance(column.type, TimestampTZ):
            said = self.load.stamp.now
        else:
            moment: datetime = self.load.stamp.now.astimezone(timezone.utc).replace(tzinfo=None)
            said = moment.date() if column.type.kind == "date" else moment
            said = moment.isoformat(sep=" ") if column.type.kind in ("text", "string") else said
        return [(column.name, self.dialect.literal(said, column.type)), *self.load.stamp_values()]

    def revived(self) -> list[tuple[str, str]]:
        """What is written into a row that is there again."""
        column = self.feed.soft_delete
        if column is None or column.name in self.feed.columns:
            return []
        empty = self.dialect.literal(False, column.type) if isinstance(column.type, Boolean) else "NULL"
        return [(column.name, empty)]

    def _passed(self) -> list[Statement]:
        """The gate takes note of the newest change of every key, of the newest row of a snapshot, and of the last."""
        dialect, quote = self.dialect, self.dialect.quote
        found = []
        event, now = self.moment("s"), self.load.now_sql
        place, same = f"s.{quote(PLACE)}", f"t.pipeline_name = {self.pipeline} AND t.pk_json = s.{quote(PK)}"
        # Mostly the newest is the last as well, and one look at the gate is enough.
        is_row = f"CASE WHEN {self.tip(LAST_ROW)} THEN 1 WHEN {self.tip(LAST_GONE)} THEN 0 END"
        for tip, names in TIPS:
            ts, position = f"t.{quote(names[0])}", self.ordered(f"t.{quote(names[1])}")
            is_new, keeps_ts, keeps_position = newest_sql(event, ts, position)
            values = [
                (names[0], f"CASE WHEN {keeps_ts} THEN {ts} ELSE {event.ts} END"),
                (names[1], f"CASE WHEN {keeps_position} THEN t.{quote(names[1])} ELSE s.{quote(POSITION)} END"),
                ("updated_at", now),
            ]
            updated = dialect.update_from(self.gate, self.scratch, values, f"{same} AND {self.tip(tip)} AND {is_new}")
            found.append(Statement(updated, why="remember what was seen"))
            into = dialect.columns(["pipeline_name", "pk_json", *names, ARRIVED, IS_ROW, "updated_at"])
            found.append(
                Statement(
                    f"INSERT INTO {self.gate} ({into}) SELECT {self.pipeline}, s.{quote(PK)}, {event.ts}, "
                    f"s.{quote(POSITION)}, {place}, {is_row}, {now} FROM {self.scratch} AS s WHERE {self.tip(tip)} "
                    f"AND NOT EXISTS (SELECT 1 FROM {self.gate} AS t WHERE {same})",
                    why="remember the keys that are new",
                )
            )
        is_behind = behind_sql(event, self.gated("t")[0])
        is_row = f"CASE WHEN {self.tip(LAST_GONE)} OR {is_behind} THEN 0 ELSE 1 END"
        differs = f"coalesce(t.{ARRIVED}, '') <> coalesce({place}, '') OR coalesce(t.{IS_ROW}, -1) <> {is_row}"
        last = dialect.update_from(
            self.gate,
            self.scratch,
            [(ARRIVED, place), (IS_ROW, is_row), ("updated_at", now)],
            f"{same} AND {self.tip(LAST_ROW | LAST_GONE)} AND ({differs})",
        )
        return [*found, Statement(last, why="remember the last message of every key")]
