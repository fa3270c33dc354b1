"""Changes into a lake table, where every statement is a commit: the net of a batch, worked out first, is one of them.

The gate is a table of its own beside the target, and is committed just before it. Between the two commits a process may
die. So a row of the gate also keeps what it knew before the batch that wrote it, and the batch, when it comes again,
goes by that: it is judged as it was the first time. Should other batches come instead, because the stream was sent
elsewhere, the gate takes back what the table never got.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from ematix_flow.contracts.change_feeds import (
    COUNTS_AS,
    DELETE,
    EVERY_KEY,
    FRESH,
    FURTHEST,
    KEY,
    LAST_GONE,
    LAST_ROW,
    NEWEST,
    OP,
    PK,
    PLACE,
    POSITION,
    TIP,
    TRUNCATE,
    TS,
    TURN,
    UPSERT,
    FeedPlan,
    bit_of,
    control_columns,
)
from ematix_flow.contracts.dialect import TOUCHED
from ematix_flow.contracts.plans import BatchPlan, Statement
from ematix_flow.contracts.shapes import TableRef, TableShape
from ematix_flow.contracts.table_writes import MergeClause
from ematix_flow.declare.columns import BigInt, ColumnType, SmallInt, Text, TimestampTZ
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.plan.change_apply import ARRIVED, IS_ROW, MORE, TIPS, Feed, Words, gate_columns
from ematix_flow.plan.change_feed import MomentSql, after_sql, behind_sql, newest_sql
from ematix_flow.plan.changes import ACTION, flags, one_if, one_statement
from ematix_flow.plan.ddl import create_statements
from ematix_flow.plan.strategies import Load

_BEFORE = "before_"
_KNOWN = (*gate_columns(), ARRIVED, IS_ROW)
_EMPTIED, _MARKED = "__flow_emptied", "__flow_marked"
_SET_BACK, _IS_FURTHEST = "__flow_set_back", "__flow_is_furthest"
_NEWS = ("pk_json", *gate_columns(), "last_ts", "last_position", ARRIVED, IS_ROW, _SET_BACK, _IS_FURTHEST)
"""What is to be remembered of a batch, in order."""


def gate_of(table: TableRef) -> TableRef:
    """The table beside a lake table that remembers what was applied to it."""
    return TableRef(table.schema, f"{table.name}__cdc")


def merged_changes(plan: BatchPlan, load: Load, feed: Feed, live: TableShape | None) -> BatchPlan:
    """The plan of a batch for a lake table."""
    words = LakeWords(load, feed, live)
    change = one_statement(
        load, words.net(), words.keys, words.clauses(), words.inserted(), touched=words.judged_changes()
    )
    quote, touched = load.dialect.quote, words.touched
    told = words.remembering(
        FeedPlan(
            tally=(
                f"SELECT {quote(COUNTS_AS)}, {quote(FRESH)}, count(*) FROM {touched} "
                f"GROUP BY {quote(COUNTS_AS)}, {quote(FRESH)}"
            ),
            prepares=words.forgotten() if plan.ddl.action == "create" else words.taken_back() if feed.begins else (),
        )
    )
    return replace(plan, statements=(change.query, change.apply), changes=replace(change, fill=None), feed=told)


class LakeWords(Words):
    """The same phrases, for one merge."""

    def __init__(self, load: Load, feed: Feed, live: TableShape | None) -> None:
        super().__init__(load, feed, live)
        self.gate = load.dialect.table(gate_of(load.table))
        self.touched = self.scratch = load.dialect.relation(TOUCHED, load.stamp.run_id)
        self.batch = load.dialect.literal(feed.batch, Text())

    def remembering(self, feed: FeedPlan) -> FeedPlan:
        """The plan with what remembers the landed changes, and makes the table for it."""
        dialect, gate = self.dialect, gate_of(self.load.table)
        fields: list[tuple[str, ColumnType]] = [("pipeline_name", Text()), ("pk_json", Text())]
        for prefix in ("", _BEFORE):
            kinds = (BigInt(), Text(), BigInt(), Text(), Text(), SmallInt())
            fields += [(prefix + name, kind) for name, kind in zip(_KNOWN, kinds, strict=True)]
        fields += [("batch", Text()), ("updated_at", TimestampTZ())]
        columns = [ColumnSpec(name, kind, nullable=True) for name, kind in fields]
        storage = dialect.storage([name for name, _ in fields], (), changes_rows=True)
        made = create_statements(dialect, gate, columns, (), (), storage)
        added = tuple((name, self._added(name, kind)) for name, kind in fields)
        return replace(feed, passed=(self._remembered(),), gate=gate, make_gate=made, mend_gate=added)

    def _added(self, name: str, kind: ColumnType) -> Statement:
        sql = self.dialect.add_column(self.gate, name, self.dialect.type_sql(kind), None)
        assert sql is not None, "nullable columns can be added to any lake table"
        return Statement(sql, why="bring a gate of an older version up to date")

    def before(self, name: str, alias: str) -> str:
        """What the gate knew of a key before this batch."""
        known, earlier = (f"{alias}.{self.dialect.quote(one)}" for one in (name, _BEFORE + name))
        return f"CASE WHEN {alias}.batch = {self.batch} THEN {earlier} ELSE {known} END"

    def known(self) -> str:
        known = ", ".join(f"{self.before(name, 'b')} AS {self.dialect.quote(name)}" for name in _KNOWN)
        return f"(SELECT b.pipeline_name, b.pk_json, {known} FROM {self.gate} AS b)"

    def taken_back(self) -> tuple[Statement, ...]:
        """A batch that the gate has and the table has not, and that is not the one which comes now, never was."""
        quote, applied_at = self.dialect.quote, self.feed.applied_at
        since = ""
        if applied_at is not None:  # of which only the milliseconds are known
            held_until = self.dialect.literal(applied_at + timedelta(milliseconds=1), TimestampTZ())
            since = f" AND updated_at >= {held_until}"
        values = ", ".join(f"{quote(name)} = {quote(_BEFORE + name)}" for name in _KNOWN)
        return (
            Statement(
                f"UPDATE {self.gate} SET {values}, batch = '' WHERE pipeline_name = {self.pipeline} "
                f"AND batch <> '' AND batch <> {self.batch}{since}",
                why="take back what was remembered of a batch that was never applied",
            ),
        )

    def judged_changes(self) -> Statement:
        """The landed changes, judged by what the gate knew before this batch."""
        quote, landed = self.dialect.quote, self.load.landed_sql
        gate = f"SELECT b.* FROM {self.known()} AS b WHERE b.pipeline_name = {self.pipeline}"
        every = self.dialect.literal(EVERY_KEY, Text())
        fresh = self.fresh(self.gated("g"), self.gated("h"))
        turn = f"CASE WHEN {self.outlived()} THEN s.{quote(TURN)} ELSE 0 END"
        names = [*self.load.names, *(c.name for c in control_columns(len(self.feed.columns)) if c.name != TURN)]
        return Statement(
            f"SELECT {self.dialect.columns(names, 's')}, {turn} AS {quote(TURN)}, {fresh} AS {quote(FRESH)} "
            f"FROM {landed} AS s {self.truncates()} LEFT JOIN ({gate}) AS g ON g.pk_json = s.{quote(PK)} "
            f"LEFT JOIN ({gate} AND b.pk_json = {every}) AS h ON 1 = 1",
            why="find the changes that are newer than what was applied",
        )

    def net(self) -> str:
        """One row a key: what it should be now, and what is to be done about it."""
        quote, dialect = self.dialect.quote, self.dialect
        op, turn = quote(OP), quote(TURN)
        parts = [f"max_by({quote(key)}, {turn}) AS {quote(key)}" for key in self.keys]
        is_soft = self.feed.soft_delete is not None
        wiped = "NULL" if is_soft else f"CASE WHEN {op} = {DELETE} THEN {turn} END"
        parts += [
            f"max_by({op}, {turn}) AS {op}",
            f"max(CAST({wiped} AS BIGINT)) AS wiped",
            f"max(CASE WHEN {op} = {UPSERT} THEN 1 ELSE 0 END) AS upserted",
            f"(SELECT count(*) FROM {self.touched} WHERE {op} = {TRUNCATE} AND {quote(FRESH)} = 1) AS {_EMPTIED}",
        ]
        for place, name in enumerate(self.feed.columns):
            mask, bit = bit_of(place)
            has = f"{op} = {UPSERT} AND ({quote(mask)} & {bit}) <> 0"
            value = f"named_struct('value', {quote(name)}, 'turn', {turn})"
            parts.append(f"max_by({value}, {turn}) FILTER (WHERE {has}) AS {quote(f'__flow_c{place}')}")
        net = (
            f"SELECT {', '.join(parts)} FROM {self.touched} WHERE {quote(FRESH)} = 1 AND {turn} > 0 "
            f"AND {op} IN ({UPSERT}, {DELETE}) GROUP BY {quote(PK)}"
        )
        match_landed = self.load.keys_match("r", "l", self.keys)
        landed_keys = f"SELECT 1 FROM {self.touched} AS l WHERE {match_landed}"
        stored = f"SELECT r.* FROM {self.load.stored_sql} AS r WHERE EXISTS ({landed_keys})"
        is_there = f"t.{quote(self.keys[0])} IS NOT NULL"
        stays = is_there if is_soft else f"({is_there} AND n.wiped IS NULL AND n.{_EMPTIED} = 0)"
        columns = [f"n.{quote(key)} AS {quote(key)}" for key in self.keys]
        for place, name in enumerate(self.feed.columns):
            found = f"n.{quote(f'__flow_c{place}')}"
            has = f"{found} IS NOT NULL AND (n.wiped IS NULL OR {found}.turn > n.wiped)"
            kept = f"CASE WHEN {has} THEN {found}.value WHEN {stays} THEN t.{quote(name)} END"
            columns.append(f"{kept} AS {quote(name)}")
        gone = "soft" if is_soft else "delete"
        goes = "1 = 0" if is_soft else f"n.{op} = {DELETE}"
        action = f"CASE WHEN {goes} THEN 'delete' WHEN {is_there} THEN 'correct' ELSE 'insert' END AS {ACTION}"
        marked = f"{one_if(f'n.{op} = {DELETE}')} AS {_MARKED}"
        counted = flags(
            inserted=one_if(f"NOT ({goes}) AND NOT ({is_there})"),
            updated=one_if(f"NOT ({goes}) AND {is_there}"),
            deleted=one_if(goes),
        )
        match = self.load.keys_match("n", "t", self.keys)
        query = (
            f"SELECT {', '.join(columns)}, {marked}, {action}, {counted} FROM ({net}) AS n "
            f"LEFT JOIN ({stored}) AS t ON {match} WHERE {is_there} OR n.{op} = {UPSERT}"
            + (" OR n.upserted = 1" if is_soft else "")
        )
        left = [f"r.{quote(key)}" for key in self.keys]
        left += [
            f"CAST(NULL AS {dialect.type_sql(self.load.target.table.column(name).type)})" for name in self.feed.columns
        ]
        emptied = f"(SELECT count(*) FROM {self.touched} WHERE {op} = {TRUNCATE} AND {quote(FRESH)} = 1) > 0"
        applied = (
            f"SELECT 1 FROM {self.touched} AS l WHERE {match_landed} AND l.{quote(FRESH)} = 1 AND l.{turn} > 0 "
            f"AND l.{op} IN ({UPSERT}, {DELETE})"
        )
        emptied_flags = flags(updated="1") if is_soft else flags(deleted="1")
        return (
            f"{query} UNION ALL SELECT {', '.join(left)}, 1, '{gone}', {emptied_flags} "
            f"FROM {self.load.stored_sql} AS r WHERE {emptied} AND NOT EXISTS ({applied})"
        )

    def clauses(self) -> list[MergeClause]:
        """What the merge does about stored rows."""
        stamped = tuple(name for name, _ in self.load.stamp_values())
        soft = self.feed.soft_delete
        if soft is None:
            found = [MergeClause("delete", "delete")]
        else:
            found = [MergeClause("update", "soft", (soft.name, *stamped))]
        mark = (soft.name,) if soft is not None and soft.name not in self.feed.columns else ()
        written = (*self.feed.columns, *mark, *stamped)
        return [*found, MergeClause("update", "correct", written)] if written else found

    def inserted(self) -> list[tuple[str, str]]:
        """Every column of the table, and what is written into it."""
        quote = self.dialect.quote
        values = {name: f"s.{quote(name)}" for name in self.load.names}
        soft = self.feed.soft_delete
        if soft is not None:
            marked, empty = self.soft_values()[0][1], dict(self.revived()).get(soft.name, values.get(soft.name, "NULL"))
            values[soft.name] = f"CASE WHEN s.{_MARKED} = 1 THEN {marked} ELSE {empty} END"
        for column in self.load.target.table.columns:
            values.setdefault(column.name, self.dialect.literal(None, column.type))
        return [*values.items(), *self.load.stamp_values()]

    def _remembered(self) -> Statement:
        """The gate with the newest of every key, and what it knew before; the same, however often it is done."""
        quote = self.dialect.quote
        tips = [f"l.{quote(PK)} AS pk_json"]
        for tip, names in TIPS:
            for name, column in zip(names, (TS, POSITION), strict=True):
                tips.append(f"max(CASE WHEN {self.tip(tip, 'l')} THEN l.{quote(column)} END) AS {quote(name)}")
        is_last = self.tip(LAST_ROW | LAST_GONE, "l")
        for name, column in (("last_ts", TS), ("last_position", POSITION), (ARRIVED, PLACE)):
            tips.append(f"max(CASE WHEN {is_last} THEN l.{quote(column)} END) AS {quote(name)}")
        tips.append(f"max(CASE WHEN {self.tip(LAST_ROW, 'l')} THEN 1 WHEN {is_last} THEN 0 END) AS {IS_ROW}")
        is_versioned = self.load.target.is_versioned
        if is_versioned:
            set_back = f"{self.tip(NEWEST, 'l')} AND {self.is_set_back('l')}"
            tips += [f"max(CASE WHEN {set_back} THEN 1 END) AS {_SET_BACK}", f"0 AS {_IS_FURTHEST}"]
        landed = f"{self.scratch} AS l {self.beside('l') if is_versioned else ''}"
        news = f"SELECT {', '.join(tips)} FROM {landed} WHERE l.{quote(TIP)} > 0 GROUP BY l.{quote(PK)}"
        if is_versioned:
            news += f" UNION ALL {self._furthest()}"
        before = {name: self.before(name, "t") for name in _KNOWN}
        changes = [f"t.{quote(_BEFORE + name)} = {value}" for name, value in before.items()]
        for _, (ts, position) in TIPS:
            event = MomentSql(f"s.{quote(ts)}", f"s.{quote(position)}")
            is_new, keeps_ts, keeps_position = newest_sql(event, f"({before[ts]})", f"({before[position]})")
            for name, keeps in ((ts, keeps_ts), (position, keeps_position)):
                kept = f"NOT coalesce({is_new}, FALSE) OR coalesce({keeps}, FALSE)"
                own = f"WHEN s.{_SET_BACK} = 1 THEN 1" if name == MORE else ""
                own = f"WHEN s.{_IS_FURTHEST} = 1 THEN s.{quote(name)} {own}" if is_versioned else ""
                changes.append(f"t.{quote(name)} = CASE {own} WHEN {kept} THEN {before[name]} ELSE s.{quote(name)} END")
        last = MomentSql("s.last_ts", "s.last_position")
        (ts, position), (_, news_of) = gate_columns()[:2], TIPS[0]
        newest = (
            MomentSql(f"({before[ts]})", f"({before[position]})"),
            MomentSql(*(f"s.{quote(name)}" for name in news_of)),
        )
        is_row = " OR ".join(f"coalesce({behind_sql(last, gate)}, FALSE)" for gate in newest)
        is_row = f"CASE WHEN s.{IS_ROW} = 0 OR {is_row} THEN 0 ELSE s.{IS_ROW} END"
        changes += [
            f"t.{ARRIVED} = CASE WHEN s.{IS_ROW} IS NULL THEN {before[ARRIVED]} ELSE s.{ARRIVED} END",
            f"t.{IS_ROW} = CASE WHEN s.{IS_ROW} IS NULL THEN {before[IS_ROW]} ELSE {is_row} END",
        ]
        changes += [f"t.batch = {self.batch}", f"t.updated_at = {self.load.now_sql}"]
        values = {
            "pipeline_name": self.pipeline,
            "pk_json": "s.pk_json",
            **{name: f"s.{quote(name)}" for name in gate_columns()},
            **({MORE: f"coalesce(s.{_SET_BACK}, s.{MORE})"} if is_versioned else {}),
            ARRIVED: f"s.{ARRIVED}",
            IS_ROW: f"CASE WHEN coalesce({behind_sql(last, newest[1])}, FALSE) THEN 0 ELSE s.{IS_ROW} END",
            "batch": self.batch,
            "updated_at": self.load.now_sql,
        }
        is_known = " OR ".join(f"s.{quote(ts)} IS NOT NULL" for _, (ts, _) in TIPS)
        return Statement(
            f"MERGE INTO {self.gate} AS t USING ({news}) AS s "
            f"ON t.pipeline_name = {self.pipeline} AND t.pk_json = s.pk_json "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(changes)} "
            f"WHEN NOT MATCHED AND ({is_known}) THEN INSERT ({self.dialect.columns(list(values))}) "
            f"VALUES ({', '.join(values.values())})",
            why="remember what was seen",
        )

    def _furthest(self) -> str:
        """What the gate gets to know of keys by themselves, in the columns of what else it does."""
        values = {name: f"s.{self.dialect.quote(KEY)}" if name == "pk_json" else "NULL" for name in _NEWS}
        values |= {**dict(self.further("k")), _IS_FURTHEST: "1"}
        event, known = self.moment("s"), self.gated("k")[0]
        columns = ", ".join(f"{value} AS {self.dialect.quote(name)}" for name, value in values.items())
        return (
            f"SELECT {columns} FROM {self.scratch} AS s {self.beside('s')} "
            f"WHERE {self.tip(FURTHEST)} AND {after_sql(event, known.ts, known.position)}"
        )
