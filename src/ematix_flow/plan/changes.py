"""Modes for tables whose every statement is a commit of its own (lake tables): one statement per load.

What a database does in several statements of one transaction is worked out here first, as rows that each say what is
to be done (insert, correct, end, delete) and how it counts; then one MERGE does it. Histories use the very same
versions as `history.py`.
"""

from __future__ import annotations

from ematix_flow.contracts.dialect import SCRATCH
from ematix_flow.contracts.plans import ChangeSet, Statement
from ematix_flow.declare.columns import TimestampTZ
from ematix_flow.errors import InvalidPlan
from ematix_flow.plan.history import RANK, Words, resolved_versions
from ematix_flow.plan.strategies import Load, changed_condition, written_columns

# Columns of a change beside the declared ones; no declared name begins like these.
_ACTION = "__flow_action"
_INSERTED, _UPDATED, _CLOSED, _DELETED = "__flow_inserted", "__flow_updated", "__flow_closed", "__flow_deleted"
_EXPIRED = "__flow_expired"


def change_set(load: Load) -> ChangeSet | None:
    """What the target's mode changes, and the one statement that applies it; None for modes that only add rows.

    Raises:
        InvalidPlan: the mode needs a second table, which cannot be committed together with the first.
    """
    if load.target.is_merge:
        return _merge(load)
    if not load.target.is_versioned:
        return None
    if load.target.exact_history:
        raise InvalidPlan(
            f"exact_history= needs a database: {load.dialect.name} commits one table at a time, and it keeps two.",
            fix="leave it out, or load into PostgreSQL, MySQL, SQLite or DuckDB",
        )
    return _history(load)


def _counts(load: Load) -> str:
    sums = ", ".join(f"coalesce(sum({flag}), 0)" for flag in (_INSERTED, _UPDATED, _CLOSED, _DELETED))
    return f"SELECT count(*), {sums} FROM {_changes_sql(load)}"


def _changes_sql(load: Load) -> str:
    return load.dialect.relation(SCRATCH, load.stamp.run_id)


def _flags(*, inserted: str = "0", updated: str = "0", closed: str = "0", deleted: str = "0") -> str:
    return f"{inserted} AS {_INSERTED}, {updated} AS {_UPDATED}, {closed} AS {_CLOSED}, {deleted} AS {_DELETED}"


def _one_if(condition: str) -> str:
    return f"CASE WHEN {condition} THEN 1 ELSE 0 END"


# ── merge ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _merge(load: Load) -> ChangeSet:
    dialect, target = load.dialect, load.target
    keys, _ = target.resolved_keys()
    match = load.keys_match("t", "s", keys)
    is_new = f"t.{dialect.quote(keys[0])} IS NULL"  # keys are never NULL, so no row was found
    changed = changed_condition(load)
    wanted = is_new if changed is None else f"{is_new} OR ({changed})"
    # A lake table may hold a key twice, and both rows are to be updated by one change, which counts for each.
    action = f"CASE WHEN {is_new} THEN 'insert' ELSE 'correct' END"
    counts = _flags(inserted=f"sum({_one_if(is_new)})", updated=f"sum({_one_if(f'NOT ({is_new})')})")
    columns = dialect.columns(load.names, "s")
    query = (
        f"SELECT {columns}, {action} AS {_ACTION}, {counts} "
        f"FROM {load.landed_sql} AS s LEFT JOIN {load.stored_sql} AS t ON {match} WHERE {wanted} "
        f"GROUP BY {columns}, {action}"
    )
    if target.handle_deletes == "hard":
        gone = ", ".join(f"t.{dialect.quote(n)}" if n in keys else "NULL" for n in load.names)
        query += (
            f" UNION ALL SELECT {gone}, 'delete', {_flags(deleted='1')} FROM {load.stored_sql} AS t "
            f"WHERE NOT EXISTS (SELECT 1 FROM {load.landed_sql} AS s WHERE {match})"
        )
    written = [(name, f"s.{dialect.quote(name)}") for name in written_columns(load)]
    clauses = [f"WHEN MATCHED AND s.{_ACTION} = 'delete' THEN DELETE"] if target.handle_deletes == "hard" else []
    if changed is not None:
        clauses.append(f"WHEN MATCHED THEN UPDATE SET {_assignments(load, [*written, *load.stamp_values()])}")
    inserted = [(name, f"s.{dialect.quote(name)}") for name in load.names] + load.stamp_values()
    clauses.append(_insert_clause(load, inserted))
    return _set(load, query, match, clauses, inserted)


# ── history ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _history(load: Load) -> ChangeSet:
    words = Words(load)
    quote = load.dialect.quote
    same_version = f"{words.match('t', 's')} AND t.{words.valid_from} = s.{words.valid_from}"
    query = " UNION ALL ".join(filter(None, [_touched(words, same_version), _untouched(words)]))
    is_current = f"CASE WHEN s.{words.valid_to} IS NULL THEN {words.true} ELSE {words.false} END"
    ends = [("valid_to", f"s.{words.valid_to}"), ("is_current", is_current)]
    contents = [(name, f"s.{quote(name)}") for name in load.names]
    hashed = ("row_hash", words.hash_of("s"))
    stamped = load.stamp_values()
    corrected = [*(pair for pair in contents if pair[0] not in words.key_names), *ends, hashed, *stamped]
    inserted = [*contents, ("valid_from", f"s.{words.valid_from}"), *ends, hashed, *stamped]
    clauses = [
        f"WHEN MATCHED AND s.{_ACTION} = 'delete' THEN DELETE",
        f"WHEN MATCHED AND s.{_ACTION} = 'correct' THEN UPDATE SET {_assignments(load, corrected)}",
        f"WHEN MATCHED AND s.{_ACTION} = 'end' THEN UPDATE SET {_assignments(load, [*ends, *stamped])}",
        _insert_clause(load, inserted),
    ]
    return _set(load, query, same_version, clauses, inserted)


def _touched(words: Words, same_version: str) -> str:
    """The stored versions of the landed keys against those they should have."""
    load, dialect = words.load, words.dialect
    quote = dialect.quote
    landed = f"EXISTS (SELECT 1 FROM {load.landed_sql} AS l WHERE {words.match('l', 'r')})"
    stored = f"SELECT r.* FROM {load.stored_sql} AS r WHERE {landed}"
    expired = "0"
    if words.target.ttl is not None:
        expired = _one_if(f"v.{words.valid_to} IS NULL AND v.{words.valid_from} < {_oldest(words)}")
    resolved = f"SELECT v.*, {expired} AS {_EXPIRED} FROM ({resolved_versions(words)}) AS v"
    is_new, is_gone = f"t.{words.valid_from} IS NULL", f"s.{words.valid_from} IS NULL"
    in_both = f"NOT ({is_new}) AND NOT ({is_gone})"
    is_corrected = f"{in_both} AND s.{RANK} = 0 AND {words.differs('t', 's')}"
    is_closed = f"{in_both} AND t.{words.valid_to} IS NULL AND s.{words.valid_to} IS NOT NULL"
    other_end = dialect.is_distinct(f"t.{words.valid_to}", f"s.{words.valid_to}", TimestampTZ())
    is_moved = f"{in_both} AND {other_end} AND NOT ({is_closed})"
    is_expired = f"coalesce(s.{_EXPIRED}, 0) = 1"
    columns = ", ".join(
        f"coalesce(s.{quote(n)}, t.{quote(n)}) AS {quote(n)}" if n in words.key_names else f"s.{quote(n)}"
        for n in load.names
    )
    action = (
        f"CASE WHEN {is_new} THEN 'insert' WHEN {is_gone} THEN 'delete' "
        f"WHEN {is_corrected} THEN 'correct' ELSE 'end' END"
    )
    flags = _flags(
        inserted=_one_if(is_new),
        updated=_one_if(f"({is_corrected}) OR ({is_moved})"),
        closed=_one_if(f"({is_closed}) OR ({is_expired})"),
    )
    return (
        f"SELECT {columns}, coalesce(s.{words.valid_from}, t.{words.valid_from}) AS {words.valid_from}, "
        f"CASE WHEN {is_expired} THEN {load.now_sql} ELSE s.{words.valid_to} END AS {words.valid_to}, "
        f"{action} AS {_ACTION}, {flags} FROM ({stored}) AS t FULL OUTER JOIN ({resolved}) AS s ON {same_version} "
        f"WHERE {is_new} OR {is_gone} OR ({is_corrected}) OR {other_end} OR {is_expired}"
    )


def _untouched(words: Words) -> str | None:
    """Open versions of keys that did not land and must end: gone from the snapshot, or too old."""
    load = words.load
    begins = f"t.{words.valid_from}"
    if words.target.handle_deletes == "soft":
        # A version that begins later than now (event times ahead of the clock) must not end before it begins.
        condition, end = "", f"CASE WHEN {begins} > {load.now_sql} THEN {begins} ELSE {load.now_sql} END"
    elif words.target.ttl is not None:
        condition, end = f" AND {begins} < {_oldest(words)}", load.now_sql
    else:
        return None
    return (
        f"SELECT {words.closing_columns('t')}, {begins}, {end}, 'end', {_flags(closed='1')} "
        f"FROM {load.stored_sql} AS t WHERE t.{words.is_current} = {words.true}{condition} "
        f"AND NOT EXISTS (SELECT 1 FROM {load.landed_sql} AS s WHERE {words.match('t', 's')})"
    )


def _oldest(words: Words) -> str:
    assert words.target.ttl is not None
    return words.dialect.literal(words.load.stamp.now - words.target.ttl, TimestampTZ())


# ── the one statement ────────────────────────────────────────────────────────────────────────────────────────────────


def _assignments(load: Load, changes: list[tuple[str, str]]) -> str:
    return ", ".join(f"{load.dialect.quote(column)} = {value}" for column, value in changes)


def _insert_clause(load: Load, inserted: list[tuple[str, str]]) -> str:
    into = load.dialect.columns([name for name, _ in inserted])
    values = ", ".join(value for _, value in inserted)
    return f"WHEN NOT MATCHED AND s.{_ACTION} = 'insert' THEN INSERT ({into}) VALUES ({values})"


def _set(load: Load, query: str, match: str, clauses: list[str], inserted: list[tuple[str, str]]) -> ChangeSet:
    changes = _changes_sql(load)
    into = load.dialect.columns([name for name, _ in inserted])
    values = ", ".join(value for _, value in inserted)
    return ChangeSet(
        query=Statement(query, why="work out what changes"),
        counts=_counts(load),
        apply=Statement(
            f"MERGE INTO {load.table_sql} AS t USING {changes} AS s ON {match} {' '.join(clauses)}",
            why="apply it in one commit",
        ),
        insert=Statement(
            f"INSERT INTO {load.table_sql} ({into}) SELECT {values} FROM {changes} AS s",
            why="insert the new rows",
        ),
    )
