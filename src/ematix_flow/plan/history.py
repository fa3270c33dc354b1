"""scd2, set-based: histories that are right whatever the order of arrival.

The versions of the affected keys are worked out anew from everything known about them, then compared with what is
stored, so that only rows that really change are touched:

1. *events*: the landed rows at their event time (or the load time), the stored versions at their `valid_from`, and the
   *closings*: a `valid_to` at which no version starts, that is, a key that was gone for a while;
2. one event per key and time, the landed one wins (a correction);
3. an event whose compared columns equal its predecessor's says nothing new and goes;
4. a version ends where the next event of its key begins;
5. stored rows without a version are deleted, those whose content or end differs are updated, new ones are inserted.

With `exact_history` the events themselves are kept in a companion table, so that nothing step 3 forgets is missing
when a change arrives late.
"""

from __future__ import annotations

from ematix_flow.contracts.dialect import SCRATCH
from ematix_flow.contracts.plans import Check, Statement
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.columns import Boolean, TimestampTZ
from ematix_flow.plan.change_history import completed, emptied_keys, ended_by_truncates, landed_changes, marks
from ematix_flow.plan.strategies import Load

# Names inside one statement: columns, then relations. A table may be called `events` and have a column `place`; no
# declared name begins like these. Every database takes them without quotes.
_AT = "__flow_at"
RANK = "__flow_rank"
_CLOSING = "__flow_closing"
_PLACE = "__flow_place"
_BEFORE_AT = "__flow_before_at"
_BEFORE_CLOSING = "__flow_before_closing"
_ENDS = "__flow_ends"
_EVENTS, _RANKED, _LAGGED, _KEPT = "__flow_events", "__flow_ranked", "__flow_lagged", "__flow_kept"
_RETURNED, _COMPLETE, _ENDED = "__flow_returned", "__flow_complete", "__flow_ended"


def events_table(table: TableRef) -> TableRef:
    """The companion table of `exact_history`."""
    return table.events


def event_checks(load: Load) -> tuple[Check, ...]:
    """What must hold for landed events: a time on every change, one truth per key and time; if asked, no late ones."""
    words = Words(load)
    landed, table = load.landed_sql, load.stored_sql
    column = load.target.event_timestamp_column or ""
    same_as_current = (
        f"SELECT 1 FROM {table} AS t WHERE {words.match('t', 's')} "
        f"AND t.{words.is_current} = {words.true} AND NOT {words.differs('t', 's')}"
    )
    checks = [
        Check(
            "null_event_time",
            f"SELECT count(*) FROM {landed} AS s WHERE {words.at('s')} IS NULL AND NOT EXISTS ({same_as_current})",
            (column,),
        ),
        Check(
            "duplicate_events",
            f"SELECT count(*) FROM (SELECT 1 AS n FROM {landed} AS s GROUP BY {words.keys('s')}, {words.at('s')} "
            f"HAVING count(*) > 1 AND count(DISTINCT {words.content_hash('s')}) > 1) AS d",
            (*words.key_names, column),
        ),
    ]
    if load.target.late_arrivals == "error":
        covered = (
            f"SELECT 1 FROM {table} AS c WHERE {words.match('c', 's')} AND NOT {words.differs('c', 's')} "
            f"AND c.{words.valid_from} <= {words.at('s')} "
            f"AND (c.{words.valid_to} IS NULL OR c.{words.valid_to} > {words.at('s')})"
        )
        checks.append(
            Check(
                "late",
                f"SELECT count(*) FROM {landed} AS s WHERE NOT EXISTS ({covered}) AND EXISTS "
                f"(SELECT 1 FROM {table} AS t WHERE {words.match('t', 's')} "
                f"AND t.{words.valid_from} >= {words.at('s')})",
                (column,),
            )
        )
    return tuple(checks)


def history_statements(load: Load) -> tuple[Statement, ...]:
    """The statements of `mode="scd2"`, in the order they must run."""
    words = Words(load)
    statements: list[Statement] = []
    if load.target.exact_history:
        statements += _remember_events(words)
    keys = [(name, load.target.table.column(name).type) for name in words.key_names]
    made = words.dialect.create_scratch(SCRATCH, resolved_versions(words), keys)
    statements.append(Statement(made, why="work out the versions"))
    statements += _apply(words)
    if load.target.exact_history:
        statements.append(_remember_reopenings(words))
    if load.target.handle_deletes == "soft":
        statements += _close_absent(words)
    if load.target.ttl is not None:
        statements += _close_expired(words)
    if load.feed is not None:
        statements.append(ended_by_truncates(words))
    return tuple(statements)


class Words:
    """The recurring phrases of these statements."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.dialect = load.dialect
        self.target = load.target
        self.key_names, _ = load.target.resolved_keys()
        self.compared = tuple(n for n in load.target.resolved_compare_columns()[0] if n in load.names)
        quote = load.dialect.quote
        self.valid_from, self.valid_to = quote("valid_from"), quote("valid_to")
        self.is_current, self.row_hash = quote("is_current"), quote("row_hash")
        self.event_at, self.is_closing = quote("event_at"), quote("is_closing")
        self.true = load.dialect.literal(True, Boolean())
        self.false = load.dialect.literal(False, Boolean())
        self.scratch = load.dialect.relation(SCRATCH, load.stamp.run_id)
        # Only asked for with exact_history: the longer name need not fit the database otherwise.
        self.events = load.dialect.table(events_table(load.table)) if load.target.exact_history else ""

    def keys(self, alias: str) -> str:
        return self.dialect.columns(self.key_names, alias)

    def all_columns(self, alias: str) -> str:
        return self.dialect.columns(self.load.names, alias)

    def match(self, left: str, right: str) -> str:
        return self.load.keys_match(left, right, self.key_names)

    def differs(self, left: str, right: str) -> str:
        return self.load.differs(left, right, self.compared)

    def at(self, alias: str) -> str:
        """The time from which a landed row holds."""
        if self.load.feed is not None:
            return f"{alias}.{self.dialect.quote(self.load.feed.at)}"
        column = self.target.event_timestamp_column
        if column is None:
            return self.load.now_sql
        expression = f"{alias}.{self.dialect.quote(column)}"
        return self.dialect.as_instant(expression, self.target.table.column(column).type)

    def hash_of(self, alias: str) -> str:
        table = self.target.table
        return self.dialect.row_hash(
            [(f"{alias}.{self.dialect.quote(n)}", table.column(n).type) for n in self.compared]
        )

    def content_hash(self, alias: str) -> str:
        table = self.target.table
        others = [name for name in self.load.names if name not in self.key_names]
        return self.dialect.row_hash([(f"{alias}.{self.dialect.quote(n)}", table.column(n).type) for n in others])

    def closing_columns(self, alias: str) -> str:
        """Keys as they are, everything else NULL."""
        quote = self.dialect.quote
        return ", ".join(f"{alias}.{quote(n)}" if n in self.key_names else "NULL" for n in self.load.names)


def resolved_versions(words: Words) -> str:
    """The query for the versions of all affected keys."""
    table, landed = words.load.stored_sql, words.load.landed_sql
    names = words.dialect.columns(words.load.names)
    keys = words.dialect.columns(words.key_names)
    touched = f"EXISTS (SELECT 1 FROM {landed} AS s WHERE {words.match('t', 's')})"
    feed = words.load.feed
    timed = f" WHERE {words.at('s')} IS NOT NULL" if words.target.event_timestamp_column else ""
    begins, rank = (words.at("s"), "0") if feed is None else (feed.moved_at, feed.rank)
    at, whole = f"{words.all_columns('s')}, {begins} AS {_AT}, {rank} AS {RANK}", ""
    if feed is None:
        incoming = f"SELECT {at}, 0 AS {_CLOSING} FROM {landed} AS s{timed}"
    else:
        whole = marks(words, known=True)
        incoming = (
            f"SELECT {at}, CASE WHEN {feed.closes} THEN 1 ELSE 0 END AS {_CLOSING}{marks(words, known=False)} "
            f"{landed_changes(words)} UNION ALL {emptied_keys(words)}"
        )
    if words.target.exact_history:
        known = (
            f"SELECT {words.all_columns('t')}, t.{words.event_at}, 1, "
            f"CASE WHEN t.{words.is_closing} = {words.true} THEN 1 ELSE 0 END FROM {words.events} AS t WHERE {touched}"
        )
    else:
        known = (
            f"SELECT {words.all_columns('t')}, t.{words.valid_from}, 1, 0{whole} FROM {table} AS t WHERE {touched} "
            f"UNION ALL SELECT {words.closing_columns('t')}, t.{words.valid_to}, 2, 1{whole} FROM {table} AS t "
            f"WHERE {_is_closing(words, 't')} AND {touched}"
        )
    lagged = ", ".join(
        f"lag({words.dialect.quote(name)}) OVER w AS {words.dialect.quote(_previous(index))}"
        for index, name in enumerate(words.compared)
    )
    changed = " OR ".join(
        words.dialect.is_distinct(
            words.dialect.quote(name), words.dialect.quote(_previous(index)), words.target.table.column(name).type
        )
        for index, name in enumerate(words.compared)
    )
    kept = (
        f"SELECT {names}, {_AT}, {RANK}, {_CLOSING} FROM {_LAGGED} WHERE "
        f"({_CLOSING} = 1 AND {_BEFORE_CLOSING} = 0) OR "
        f"({_CLOSING} = 0 AND ({_BEFORE_AT} IS NULL OR {_BEFORE_CLOSING} = 1 OR {changed}))"
    )
    parts, events = [f"{_EVENTS} AS ({incoming} UNION ALL {known})"], _EVENTS
    if feed is not None:
        more, events = completed(words, _EVENTS, _AT, RANK, _CLOSING)
        parts += more
    parts += [
        f"{_RANKED} AS (SELECT {names}, {_AT}, {RANK}, {_CLOSING}, row_number() OVER "
        f"(PARTITION BY {keys}, {_AT} ORDER BY {RANK}) AS {_PLACE} FROM {events})",
        f"{_LAGGED} AS (SELECT {names}, {_AT}, {RANK}, {_CLOSING}, lag({_AT}) OVER w AS {_BEFORE_AT}, "
        f"lag({_CLOSING}) OVER w AS {_BEFORE_CLOSING}, {lagged} FROM {_RANKED} WHERE {_PLACE} = 1 "
        f"WINDOW w AS (PARTITION BY {keys} ORDER BY {_AT}))",
        f"{_KEPT} AS ({kept})",
    ]
    last = _KEPT
    if words.target.handle_deletes == "soft" and words.target.event_timestamp_column:
        parts += [f"{_RETURNED} AS ({_returned(words)})"]
        columns = f"{names}, {_AT}, {RANK}, {_CLOSING}"
        parts += [f"{_COMPLETE} AS (SELECT {columns} FROM {_KEPT} UNION ALL SELECT {columns} FROM {_RETURNED})"]
        last = _COMPLETE
    parts.append(
        f"{_ENDED} AS (SELECT {names}, {_AT}, {RANK}, {_CLOSING}, "
        f"lead({_AT}) OVER (PARTITION BY {keys} ORDER BY {_AT}) AS {_ENDS} FROM {last})"
    )
    return (
        f"WITH {', '.join(parts)} SELECT {names}, {_AT} AS {words.valid_from}, {_ENDS} AS {words.valid_to}, {RANK} "
        f"FROM {_ENDED} WHERE {_CLOSING} = 0"
    )


def _returned(words: Words) -> str:
    """Keys that the snapshot holds although their last word is a closing: they are open again from now on."""
    names = words.dialect.columns(words.load.names)
    keys = words.dialect.columns(words.key_names)
    latest = (
        f"SELECT {words.all_columns('s')}, row_number() OVER (PARTITION BY {words.keys('s')} "
        f"ORDER BY {words.at('s')} DESC) AS {_PLACE} FROM {words.load.landed_sql} AS s"
    )
    closed = (
        f"SELECT {words.keys('k')} FROM (SELECT {keys}, {_CLOSING}, row_number() OVER "
        f"(PARTITION BY {keys} ORDER BY {_AT} DESC) AS {_PLACE} FROM {_KEPT}) AS k "
        f"WHERE k.{_PLACE} = 1 AND k.{_CLOSING} = 1"
    )
    return (
        f"SELECT {names}, {words.load.now_sql} AS {_AT}, 0 AS {RANK}, 0 AS {_CLOSING} FROM ({latest}) AS s "
        f"WHERE {_PLACE} = 1 AND EXISTS (SELECT 1 FROM ({closed}) AS c WHERE {words.match('c', 's')})"
    )


def _apply(words: Words) -> list[Statement]:
    """Make the stored rows of the affected keys equal to the worked-out versions, touching only what differs."""
    load, dialect = words.load, words.dialect
    quote = dialect.quote
    same_version = f"{words.match('t', 's')} AND t.{words.valid_from} = s.{words.valid_from}"
    ends = [
        ("valid_to", f"s.{words.valid_to}"),
        ("is_current", f"CASE WHEN s.{words.valid_to} IS NULL THEN {words.true} ELSE {words.false} END"),
    ]
    contents = [(n, f"s.{quote(n)}") for n in load.names if n not in words.key_names]
    other_end = dialect.is_distinct(f"t.{words.valid_to}", f"s.{words.valid_to}", TimestampTZ())
    into = [*load.names, "valid_from", "valid_to", "is_current", "row_hash", *(name for name, _ in load.stamp_values())]
    values = [
        words.all_columns("s"),
        f"s.{words.valid_from}",
        *(value for _, value in ends),
        words.hash_of("s"),
        *(value for _, value in load.stamp_values()),
    ]
    touched = f"EXISTS (SELECT 1 FROM {load.landed_sql} AS s WHERE {words.match('t', 's')})"
    return [
        Statement(
            dialect.delete_where(
                load.table_sql,
                "t",
                f"{touched} AND NOT EXISTS (SELECT 1 FROM {words.scratch} AS s WHERE {same_version})",
            ),
            why="remove versions that a late event made part of another",
        ),
        # Before the corrections, so that a version that is both closed and corrected counts as both.
        Statement(
            dialect.update_from(
                load.table_sql,
                words.scratch,
                [*ends, *load.stamp_values()],
                f"{same_version} AND t.{words.valid_to} IS NULL AND s.{words.valid_to} IS NOT NULL",
            ),
            counts="closed",
            why="close versions that a newer one ends",
        ),
        Statement(
            dialect.update_from(
                load.table_sql,
                words.scratch,
                [*contents, *ends, ("row_hash", words.hash_of("s")), *load.stamp_values()],
                f"{same_version} AND s.{RANK} <= 0 AND {words.differs('t', 's')}",
            ),
            counts="updated",
            why="correct versions whose content arrived again, changed, for the same time",
        ),
        Statement(
            dialect.update_from(
                load.table_sql, words.scratch, [*ends, *load.stamp_values()], f"{same_version} AND {other_end}"
            ),
            counts="updated",
            why="move the end of versions next to a late event",
        ),
        Statement(
            f"INSERT INTO {load.table_sql} ({dialect.columns(into)}) SELECT {', '.join(values)} "
            f"FROM {words.scratch} AS s WHERE NOT EXISTS (SELECT 1 FROM {load.table_sql} AS t WHERE {same_version})",
            counts="inserted",
            why="insert new versions",
        ),
    ]


def _close_absent(words: Words) -> list[Statement]:
    """`handle_deletes="soft"`: open versions of keys that the snapshot no longer holds end now."""
    load = words.load
    absent = f"NOT EXISTS (SELECT 1 FROM {load.landed_sql} AS s WHERE {words.match('t', 's')})"
    # A version that begins later than now (event times ahead of the clock) must not end before it begins.
    end = f"CASE WHEN t.{words.valid_from} > {load.now_sql} THEN t.{words.valid_from} ELSE {load.now_sql} END"
    return _close(words, absent, end, "close the keys that the source no longer has")


def _close_expired(words: Words) -> list[Statement]:
    """`ttl`: current versions that began longer ago than that end now."""
    assert words.target.ttl is not None
    oldest = words.dialect.literal(words.load.stamp.now - words.target.ttl, TimestampTZ())
    return _close(words, f"t.{words.valid_from} < {oldest}", words.load.now_sql, "close versions older than the ttl")


def _close(words: Words, condition: str, end: str, why: str) -> list[Statement]:
    load = words.load
    statements = []
    which = f"t.{words.is_current} = {words.true} AND {condition}"
    if words.target.exact_history:
        stamped = load.stamp_values()
        into = words.dialect.columns([*load.names, "event_at", "is_closing", *(name for name, _ in stamped)])
        values = ", ".join([words.closing_columns("t"), end, words.true, *(value for _, value in stamped)])
        # A version that ends as it begins is its own last word; a closing beside it would erase its event.
        ended = f"{which} AND t.{words.valid_from} < {end}"
        statements += [
            Statement(
                words.dialect.delete_where(
                    words.events,
                    "e",
                    f"EXISTS (SELECT 1 FROM {load.table_sql} AS t "
                    f"WHERE {words.match('t', 'e')} AND e.{words.event_at} = {end} AND {ended})",
                ),
                why="forget events that said nothing new at the moment of the closing",
            ),
            Statement(
                f"INSERT INTO {words.events} ({into}) SELECT {values} FROM {load.table_sql} AS t WHERE {ended}",
                why="remember the closings as events",
            ),
        ]
    changes = [("valid_to", end), ("is_current", words.false), *load.stamp_values()]
    listed = ", ".join(f"{words.dialect.quote(column)} = {value}" for column, value in changes)
    statements.append(Statement(f"UPDATE {load.table_sql} AS t SET {listed} WHERE {which}", counts="closed", why=why))
    return statements


def _is_closing(words: Words, alias: str) -> str:
    """True of a stored version whose end is the end of its key; asked only of keys that landed."""
    closing = (
        f"{alias}.{words.valid_to} IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {words.load.stored_sql} AS n "
        f"WHERE {words.match('n', alias)} AND n.{words.valid_from} = {alias}.{words.valid_to})"
    )
    if not _is_snapshot(words):
        return closing
    # The key is there now: that it was gone now or later was said by a clock ahead of this one.
    return f"{closing} AND {alias}.{words.valid_to} < {words.load.now_sql}"


def _is_snapshot(words: Words) -> bool:
    """Whether a landed row says that its key is there at the moment of the load."""
    if words.load.feed is not None:
        return False
    return words.target.event_timestamp_column is None or words.target.handle_deletes == "soft"


def _remember_events(words: Words) -> list[Statement]:
    """Put what is known of the affected keys, then the landed events, into the companion table."""
    load, dialect = words.load, words.dialect
    stamped = load.stamp_values()
    stamp_sql = ", ".join(value for _, value in stamped)
    stamp_tail = f", {stamp_sql}" if stamp_sql else ""
    into = dialect.columns([*load.names, "event_at", "is_closing", *(name for name, _ in stamped)])
    touched = f"EXISTS (SELECT 1 FROM {load.landed_sql} AS s WHERE {words.match('t', 's')})"
    unknown = f"NOT EXISTS (SELECT 1 FROM {words.events} AS e WHERE {words.match('e', 't')} AND e.{words.event_at} = "
    same_event = f"{words.match('t', 's')} AND t.{words.event_at} = {words.at('s')}"
    contents = [(n, f"s.{dialect.quote(n)}") for n in load.names if n not in words.key_names]
    quote = dialect.quote
    everything = tuple(n for n in load.names if n not in words.key_names)
    distinct_rows = (
        f"SELECT {words.all_columns('s')}, {words.at('s')} AS {_AT}, row_number() OVER "
        f"(PARTITION BY {words.keys('s')}, {words.at('s')} ORDER BY {words.keys('s')}) AS {_PLACE} "
        f"FROM {load.landed_sql} AS s WHERE {words.at('s')} IS NOT NULL"
    )
    taken_back = Statement(
        dialect.delete_where(
            words.events,
            "t",
            f"t.{words.is_closing} = {words.true} AND t.{words.event_at} >= {load.now_sql} AND {touched}",
        ),
        why="take back closings that a clock ahead of this one made",
    )
    return [
        *([taken_back] if _is_snapshot(words) else []),
        Statement(
            f"INSERT INTO {words.events} ({into}) "
            f"SELECT {words.all_columns('t')}, t.{words.valid_from}, {words.false}{stamp_tail} "
            f"FROM {load.table_sql} AS t WHERE {touched} AND {unknown}t.{words.valid_from}) "
            f"UNION ALL SELECT {words.closing_columns('t')}, t.{words.valid_to}, {words.true}{stamp_tail} "
            f"FROM {load.table_sql} AS t WHERE {touched} AND {_is_closing(words, 't')} "
            f"AND {unknown}t.{words.valid_to})",
            why="adopt stored history that came in while nothing was remembered",
        ),
        Statement(
            dialect.update_from(
                words.events,
                load.table_sql,
                [*contents, ("is_closing", words.false), *stamped],
                f"{words.match('t', 's')} AND t.{words.event_at} = s.{words.valid_from} AND EXISTS "
                f"(SELECT 1 FROM {load.landed_sql} AS l WHERE {words.match('l', 's')}) "
                f"AND (t.{words.is_closing} = {words.true} OR {words.differs('t', 's')})",
            ),
            why="adopt corrections that came in while nothing was remembered",
        ),
        Statement(
            dialect.update_from(
                words.events,
                load.landed_sql,
                [*contents, ("is_closing", words.false), *stamped],
                f"{same_event} AND (t.{words.is_closing} = {words.true} OR {load.differs('t', 's', everything)})",
            ),
            why="correct remembered events",
        ),
        Statement(
            f"INSERT INTO {words.events} ({into}) SELECT "
            + ", ".join([*(f"s.{quote(n)}" for n in load.names), f"s.{_AT}", words.false])
            + f"{stamp_tail} FROM ({distinct_rows}) AS s WHERE s.{_PLACE} = 1 AND NOT EXISTS "
            f"(SELECT 1 FROM {words.events} AS t WHERE {words.match('t', 's')} AND t.{words.event_at} = s.{_AT})",
            why="remember new events",
        ),
    ]


def _remember_reopenings(words: Words) -> Statement:
    """A returned key's new version is an event of its own."""
    load = words.load
    stamped = load.stamp_values()
    into = words.dialect.columns([*load.names, "event_at", "is_closing", *(name for name, _ in stamped)])
    values = ", ".join([words.all_columns("s"), f"s.{words.valid_from}", words.false, *(value for _, value in stamped)])
    return Statement(
        f"INSERT INTO {words.events} ({into}) SELECT {values} FROM {words.scratch} AS s WHERE NOT EXISTS "
        f"(SELECT 1 FROM {words.events} AS t WHERE {words.match('t', 's')} "
        f"AND t.{words.event_at} = s.{words.valid_from})",
        why="remember returned keys as events",
    )


def _previous(index: int) -> str:
    return f"__flow_before_{index}"
