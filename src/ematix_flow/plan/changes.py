"""Modes for tables whose every statement is a commit of its own (lake tables): one statement per load.

What a database does in several statements of one transaction is worked out here first, as rows that each say what is
to be done (insert, correct, end, delete) and how it counts; then one MERGE does it. Histories use the very same
versions as `history.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ematix_flow.contracts.dialect import SCRATCH, TOUCHED
from ematix_flow.contracts.plans import ChangeSet, Statement
from ematix_flow.contracts.table_writes import MergeClause, TableWrite
from ematix_flow.declare.columns import TimestampTZ
from ematix_flow.errors import InvalidPlan
from ematix_flow.plan.change_history import cut_by_truncates
from ematix_flow.plan.history import RANK, Words, resolved_versions
from ematix_flow.plan.strategies import (
    Load,
    changed_condition,
    insert_all,
    insert_rows,
    rows_to_write,
    written_columns,
)

# Columns of a change beside the declared ones; no declared name begins like these.
ACTION = "__flow_action"
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


def flags(*, inserted: str = "0", updated: str = "0", closed: str = "0", deleted: str = "0") -> str:
    """How a change counts, as columns."""
    return f"{inserted} AS {_INSERTED}, {updated} AS {_UPDATED}, {closed} AS {_CLOSED}, {deleted} AS {_DELETED}"


def one_if(condition: str) -> str:
    """1 where a condition holds, else 0."""
    return f"CASE WHEN {condition} THEN 1 ELSE 0 END"


# ── merge ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _merge(load: Load) -> ChangeSet:
    dialect, target = load.dialect, load.target
    keys, _ = target.resolved_keys()
    match = load.keys_match("t", "s", keys)
    certain = next(key for key in keys if key not in load.null_keys)
    is_new = f"t.{dialect.quote(certain)} IS NULL"  # it is never NULL in a row, so none was found
    changed = changed_condition(load)
    wanted = is_new if changed is None else f"{is_new} OR ({changed})"
    written, goes = load.is_retracted(0), load.is_retracted(1)
    if written is not None:
        wanted = f"({wanted}) AND {written}"
    # A lake table may hold a key twice, and both rows are to be updated by one change, which counts for each.
    action = f"CASE WHEN {is_new} THEN 'insert' ELSE 'correct' END"
    counts = flags(inserted=f"sum({one_if(is_new)})", updated=f"sum({one_if(f'NOT ({is_new})')})")
    columns = dialect.columns(load.names, "s")
    query = (
        f"SELECT {columns}, {action} AS {ACTION}, {counts} "
        f"FROM {load.landed_sql} AS s LEFT JOIN ({stored_of_landed_keys(load, keys)}) AS t ON {match} WHERE {wanted} "
        f"GROUP BY {columns}, {action}"
    )
    gone = ", ".join(f"t.{dialect.quote(n)}" if n in keys else "NULL" for n in load.names)
    if target.handle_deletes == "hard":
        query += (
            f" UNION ALL SELECT {gone}, 'delete', {flags(deleted='1')} FROM {load.stored_sql} AS t "
            f"WHERE NOT EXISTS (SELECT 1 FROM {load.landed_sql} AS s WHERE {match})"
        )
    if goes is not None:
        query += (
            f" UNION ALL SELECT DISTINCT {gone}, 'delete', {flags(deleted='1')} "
            f"FROM {load.landed_sql} AS s JOIN {load.stored_sql} AS t ON {match} WHERE {goes}"
        )
    stamped = load.stamp_values()
    deletes = target.handle_deletes == "hard" or goes is not None
    clauses = [MergeClause("delete", "delete")] if deletes else []
    if changed is not None:
        clauses.append(MergeClause("update", None, (*written_columns(load), *(name for name, _ in stamped))))
    inserted = [(name, f"s.{dialect.quote(name)}") for name in load.names] + stamped
    return one_statement(load, query, keys, clauses, inserted)


def stored_of_landed_keys(load: Load, keys: tuple[str, ...]) -> str:
    """The stored rows whose keys have landed.

    Said by itself, because few landed keys can then be sent to where the stored rows are; the outer join alone would
    send all stored rows through the network instead.
    """
    match = load.keys_match("l", "r", keys)
    if load.dialect.holds_left:
        landed_keys = f"SELECT DISTINCT {load.dialect.columns(keys)} FROM {load.landed_sql}"
        return f"SELECT r.* FROM ({landed_keys}) AS l JOIN {load.stored_sql} AS r ON {match}"
    return f"SELECT r.* FROM {load.stored_sql} AS r WHERE EXISTS (SELECT 1 FROM {load.landed_sql} AS l WHERE {match})"


# ── history ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _history(load: Load) -> ChangeSet:
    words = Words(load)
    quote = load.dialect.quote
    same_version = f"{words.match('t', 's')} AND t.{words.valid_from} = s.{words.valid_from}"
    touched = Words(replace(load, stored_as=TOUCHED))
    query = " UNION ALL ".join(filter(None, [_touched(touched, same_version), _untouched(words)]))
    is_current = f"CASE WHEN s.{words.valid_to} IS NULL THEN {words.true} ELSE {words.false} END"
    ends = [("valid_to", f"s.{words.valid_to}"), ("is_current", is_current)]
    contents = [(name, f"s.{quote(name)}") for name in load.names]
    hashed = ("row_hash", words.hash_of("s"))
    stamped = load.stamp_values()
    corrected = [*(pair for pair in contents if pair[0] not in words.key_names), *ends, hashed, *stamped]
    inserted = [*contents, ("valid_from", f"s.{words.valid_from}"), *ends, hashed, *stamped]
    clauses = [
        MergeClause("delete", "delete"),
        MergeClause("update", "correct", tuple(name for name, _ in corrected)),
        MergeClause("update", "end", tuple(name for name, _ in [*ends, *stamped])),
    ]
    known = Statement(stored_of_landed_keys(load, words.key_names), why="look up the stored versions of the keys")
    stored = _rows_of_keys(load, touched.load.stored_sql, words.key_names)
    match = (*words.key_names, "valid_from")
    return one_statement(load, query, match, clauses, inserted, touched=known, known_rows=(words.key_names, stored))


def _touched(words: Words, same_version: str) -> str:
    """The stored versions of the landed keys against those they should have."""
    load, dialect = words.load, words.dialect
    quote = dialect.quote
    expired = "0"
    if words.target.ttl is not None:
        expired = one_if(f"v.{words.valid_to} IS NULL AND v.{words.valid_from} < {_oldest(words)}")
    resolved = f"SELECT v.*, {expired} AS {_EXPIRED} FROM ({resolved_versions(words)}) AS v"
    is_new, is_gone = f"t.{words.valid_from} IS NULL", f"s.{words.valid_from} IS NULL"
    in_both = f"NOT ({is_new}) AND NOT ({is_gone})"
    is_corrected = f"{in_both} AND s.{RANK} <= 0 AND {words.differs('t', 's')}"
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
    counts = flags(
        inserted=one_if(is_new),
        updated=one_if(f"({is_corrected}) OR ({is_moved})"),
        closed=one_if(f"({is_closed}) OR ({is_expired})"),
    )
    return (
        f"SELECT {columns}, coalesce(s.{words.valid_from}, t.{words.valid_from}) AS {words.valid_from}, "
        f"CASE WHEN {is_expired} THEN {load.now_sql} ELSE s.{words.valid_to} END AS {words.valid_to}, "
        f"{action} AS {ACTION}, {counts} "
        f"FROM {load.stored_sql} AS t FULL OUTER JOIN ({resolved}) AS s ON {same_version} "
        f"WHERE {is_new} OR {is_gone} OR ({is_corrected}) OR {other_end} OR {is_expired}"
    )


def _untouched(words: Words) -> str | None:
    """Versions of keys that did not land and must end: cut by a truncate, gone from the snapshot, or too old."""
    load = words.load
    if load.feed is not None:
        closed = flags(closed=one_if(f"t.{words.valid_to} IS NULL"), updated=one_if(f"t.{words.valid_to} IS NOT NULL"))
        return (
            f"SELECT {words.closing_columns('t')}, t.{words.valid_from}, min({words.at('e')}), 'end', {closed} "
            f"FROM {cut_by_truncates(words)}"
        )
    begins = f"t.{words.valid_from}"
    if words.target.handle_deletes == "soft":
        # A version that begins later than now (event times ahead of the clock) must not end before it begins.
        condition, end = "", f"CASE WHEN {begins} > {load.now_sql} THEN {begins} ELSE {load.now_sql} END"
    elif words.target.ttl is not None:
        condition, end = f" AND {begins} < {_oldest(words)}", load.now_sql
    else:
        return None
    return (
        f"SELECT {words.closing_columns('t')}, {begins}, {end}, 'end', {flags(closed='1')} "
        f"FROM {load.stored_sql} AS t WHERE t.{words.is_current} = {words.true}{condition} "
        f"AND NOT EXISTS (SELECT 1 FROM {load.landed_sql} AS s WHERE {words.match('t', 's')})"
    )


def _oldest(words: Words) -> str:
    assert words.target.ttl is not None
    return words.dialect.literal(words.load.stamp.now - words.target.ttl, TimestampTZ())


# ── the one statement ────────────────────────────────────────────────────────────────────────────────────────────────


def one_statement(
    load: Load,
    query: str,
    match: tuple[str, ...],
    clauses: list[MergeClause],
    inserted: list[tuple[str, str]],
    touched: Statement | None = None,
    known_rows: tuple[tuple[str, ...], str] | None = None,
) -> ChangeSet:
    """The statements of a load.

    Args:
        match: The columns in which a change and the stored row that it is about are equal.
        clauses: What is done about stored rows; that new ones are inserted is added here.
        inserted: Every column that is ever written, and its value.
        touched: What is looked up first.
        known_rows: The keys, and how many stored rows of them there are when all changes are new rows: a number, said
            as SQL. Unless told, the keys are what is matched, and there are none.
    """
    changes, on = _changes_sql(load), load.keys_match("t", "s", match)
    insert = MergeClause("insert", "insert", tuple(name for name, _ in inserted))
    keys, known = known_rows or (match, "0")
    # A MERGE reads the table, so that no other program's rows come in between; an INSERT does it for this condition.
    only_while = load.dialect.only_while(f"{_rows_of_keys(load, load.table_sql, keys)} = {known}")

    def merge(clauses: list[MergeClause]) -> Statement:
        clauses_sql = " ".join(_clause_sql(load, clause, dict(inserted)) for clause in clauses)
        with_action = rows_to_write(load, [*inserted, (ACTION, f"s.{ACTION}")], changes)
        return Statement(
            f"MERGE INTO {load.table_sql} AS t USING {changes} AS s ON {on} {clauses_sql}",
            why="apply it in one commit",
            write=TableWrite("merge", with_action, match, tuple(clauses), ACTION),
        )

    return ChangeSet(
        touched=touched,
        query=Statement(query, why="work out what changes"),
        counts=_counts(load),
        apply=merge([*clauses, insert]),
        alter=merge(clauses) if clauses else None,
        insert=insert_rows(load, inserted, changes, why="insert the new rows", only_while=only_while),
        fill=None if load.target.is_versioned or load.retracts else insert_all(load),
    )


def _rows_of_keys(load: Load, rows: str, keys: tuple[str, ...]) -> str:
    """How many rows of a relation have the key of a change."""
    match = load.keys_match("t", "l", keys)
    return f"(SELECT count(*) FROM {rows} AS t WHERE EXISTS (SELECT 1 FROM {_changes_sql(load)} AS l WHERE {match}))"


def _clause_sql(load: Load, clause: MergeClause, values: Mapping[str, str]) -> str:
    found = "NOT MATCHED" if clause.kind == "insert" else "MATCHED"
    wanted = "" if clause.action is None else f" AND s.{ACTION} = '{clause.action}'"
    if clause.kind == "delete":
        done = "DELETE"
    elif clause.kind == "update":
        done = "UPDATE SET " + ", ".join(f"{load.dialect.quote(name)} = {values[name]}" for name in clause.columns)
    else:
        into = load.dialect.columns(clause.columns)
        done = f"INSERT ({into}) VALUES ({', '.join(values[name] for name in clause.columns)})"
    return f"WHEN {found}{wanted} THEN {done}"
