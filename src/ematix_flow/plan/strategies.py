"""The modes, written once: statements over the landed relation, spelled by a `Dialect`. History is in `history.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ematix_flow.contracts.dialect import LANDED, Dialect
from ematix_flow.contracts.plans import Check, Profile, Stamp, Statement, WatermarkRule
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.contracts.table_writes import TableWrite
from ematix_flow.declare.columns import UUID, String, TimestampTZ
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.declare.target import TargetSpec
from ematix_flow.plan.change_history import FeedEvents
from ematix_flow.plan.physical import stamps


@dataclass(frozen=True)
class Load:
    """What a mode needs to know to write its statements. `columns` are the declared ones that the live table has.

    `stored_as` is the relation of the run's own that takes the stored rows' place. `feed` says what landed rows are
    that are changes. Of a merge, `retracts` is the landed column that has 1 where the row of a key is to go, and 0
    elsewhere, and `null_keys` are the columns of the key in which NULL is a value like any other.
    """

    dialect: Dialect
    target: TargetSpec
    table: TableRef
    columns: tuple[ColumnSpec, ...]
    stamp: Stamp
    stored_as: str | None = None
    feed: FeedEvents | None = None
    retracts: str | None = None
    null_keys: tuple[str, ...] = ()

    @property
    def table_sql(self) -> str:
        """The target, qualified and quoted."""
        return self.dialect.table(self.table)

    @property
    def stored_sql(self) -> str:
        """The rows that the target holds, as this load reads them."""
        if self.stored_as is not None:
            return self.dialect.relation(self.stored_as, self.stamp.run_id)
        return self.dialect.stored(self.table, self.stamp.run_id)

    @property
    def landed_sql(self) -> str:
        """The landed relation, quoted."""
        return self.dialect.relation(LANDED, self.stamp.run_id)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are written."""
        return tuple(column.name for column in self.columns)

    @property
    def now_sql(self) -> str:
        """The run's one instant."""
        return self.dialect.literal(self.stamp.now, TimestampTZ())

    def is_retracted(self, flag: Literal[0, 1]) -> str | None:
        """Whether the row of a key goes (1) or is written (0), said of the alias `s`; None when none ever goes."""
        return None if self.retracts is None else f"s.{self.dialect.quote(self.retracts)} = {flag}"

    def stamp_values(self) -> list[tuple[str, str]]:
        """Stamp columns and the SQL of what goes into them."""
        values = {"_loaded_at": self.now_sql, "_batch_id": self.dialect.literal(self.stamp.run_id, UUID())}
        return [(column.name, values[column.name]) for column in stamps(self.target)]

    def keys_match(self, left: str, right: str, keys: tuple[str, ...]) -> str:
        """Equality of the keys of two aliases."""
        quote = self.dialect.quote
        parts = []
        for key in keys:
            one, other = f"{left}.{quote(key)}", f"{right}.{quote(key)}"
            kind = self.target.table.column(key).type if key in self.null_keys else None
            parts.append(f"{one} = {other}" if kind is None else self.dialect.is_same(one, other, kind))
        return " AND ".join(parts)

    def differs(self, left: str, right: str, names: tuple[str, ...]) -> str:
        """True when any of the columns differs between two aliases, NULL counted as a value; false for no columns."""
        quote = self.dialect.quote
        parts = [
            self.dialect.is_distinct(
                f"{left}.{quote(name)}", f"{right}.{quote(name)}", self.target.table.column(name).type
            )
            for name in names
        ]
        return f"({' OR '.join(parts)})" if parts else "(1 = 0)"


def mode_statements(load: Load) -> tuple[Statement, ...]:
    """The statements of the target's mode, to be run in order in one transaction."""
    if load.target.mode == "append":
        return (insert_all(load),)
    if load.target.mode == "truncate":
        if load.dialect.commits_each_statement:
            return (overwrite_all(load),)
        return (Statement(load.dialect.delete_all(load.table_sql), why="empty the target"), insert_all(load))
    if load.dialect.commits_each_statement:
        from ematix_flow.plan.changes import change_set

        changes = change_set(load)
        assert changes is not None
        return (*filter(None, [changes.touched]), changes.query, changes.apply)
    if load.target.is_merge:
        return _merge(load)
    from ematix_flow.plan.history import history_statements

    return history_statements(load)


def mode_checks(load: Load) -> tuple[Check, ...]:
    """What must hold for the landed rows before the mode is applied."""
    if not (load.target.is_merge or load.target.is_versioned):
        return ()
    keys, _ = load.target.resolved_keys()
    quoted = load.dialect.columns(keys)
    certain = tuple(key for key in keys if key not in load.null_keys)
    missing = " OR ".join(f"{load.dialect.quote(key)} IS NULL" for key in certain)
    null_key = Check("null_key", f"SELECT count(*) FROM {load.landed_sql} WHERE {missing}", certain)
    if load.target.event_timestamp_column is not None:
        from ematix_flow.plan.history import event_checks

        return (null_key, *event_checks(load))
    duplicates = (
        f"SELECT count(*) FROM (SELECT 1 AS n FROM {load.landed_sql} GROUP BY {quoted} HAVING count(*) > 1) AS d"
    )
    return (null_key, Check("duplicate_keys", duplicates, keys))


def landed_profile(load: Load, watermark: WatermarkRule | None) -> Profile:
    """The one pass over landed rows that have not been verified on their way."""
    dialect = load.dialect
    checks: list[Check] = []
    for column in load.columns:
        name = dialect.quote(column.name)
        if not column.nullable:
            checks.append(Check("null", f"sum(CASE WHEN {name} IS NULL THEN 1 ELSE 0 END)", (column.name,)))
        if isinstance(column.type, String):
            too_long = f"{dialect.text_length(name)} > {column.type.length}"
            counted = f"sum(CASE WHEN {too_long} THEN 1 ELSE 0 END)"
            checks.append(Check("too_long", counted, (column.name,), limit=column.type.length))
    mark = "NULL"
    if watermark is not None:
        highest = f"max({dialect.ordered(dialect.quote(watermark.column), watermark.type)})"
        mark = dialect.as_watermark_text(highest, watermark.type)
    parts = ["count(*)", mark, *(check.sql for check in checks)]
    return Profile(f"SELECT {', '.join(parts)} FROM {load.landed_sql}", tuple(checks))


def insert_all(load: Load, rows: str | None = None) -> Statement:
    """Insert all landed rows, or those of another relation, with their stamps."""
    values = [*((name, f"s.{load.dialect.quote(name)}") for name in load.names), *load.stamp_values()]
    return replace(insert_rows(load, values, rows or load.landed_sql, why="insert the landed rows"), counts="inserted")


def insert_rows(
    load: Load, values: Sequence[tuple[str, str]], rows: str, *, why: str, only_while: str | None = None
) -> Statement:
    """Insert the rows of a relation: every column, and its value as it is said of the alias `s`."""
    into = load.dialect.columns([name for name, _ in values])
    given = ", ".join(value for _, value in values)
    return Statement(
        f"INSERT INTO {load.table_sql} ({into}) SELECT {given} FROM {rows} AS s"
        + (f" WHERE {only_while}" if only_while else ""),
        why=why,
        write=TableWrite("append", rows_to_write(load, values, rows)),
    )


def rows_to_write(load: Load, values: Sequence[tuple[str, str]], rows: str) -> str:
    """A query for what goes into a table's columns, by their names; the values are said of the alias `s`."""
    named = ", ".join(f"{value} AS {load.dialect.quote(name)}" for name, value in values)
    return f"SELECT {named} FROM {rows} AS s"


def overwrite_all(load: Load) -> Statement:
    """Put the landed rows in the place of all that is there, in one statement."""
    insert = insert_all(load)
    assert insert.write is not None
    sql = insert.sql.replace("INSERT INTO", "INSERT OVERWRITE", 1)
    return Statement(sql, "inserted", "replace the rows", replace(insert.write, kind="replace"))


def written_columns(load: Load) -> tuple[str, ...]:
    """The columns that a merge writes when it updates a row."""
    written = load.target.update_columns
    if written is None:
        keys, _ = load.target.resolved_keys()
        written = tuple(name for name in load.names if name not in keys)
    return tuple(name for name in written if name in load.names)


def changed_condition(load: Load) -> str | None:
    """Whether a stored row (alias t) must be updated from a landed one (alias s); None when a merge updates nothing."""
    written = written_columns(load)
    compared = tuple(name for name in load.target.resolved_compare_columns()[0] if name in load.names)
    if not written or not compared:
        return None
    changed = load.differs("t", "s", compared)
    if not set(compared) <= set(written):
        # A compared column that is never written would differ for ever, and every load count an update.
        changed += f" AND {load.differs('t', 's', written)}"
    return changed


def _merge(load: Load) -> tuple[Statement, ...]:
    target = load.target
    keys, _ = target.resolved_keys()
    match = load.keys_match("t", "s", keys)
    statements: list[Statement] = []
    if target.handle_deletes == "hard":
        statements.append(
            Statement(
                load.dialect.delete_unmatched(load.table_sql, load.landed_sql, match),
                counts="deleted",
                why="delete the keys that the source no longer has",
            )
        )
    goes, written = load.is_retracted(1), load.is_retracted(0)
    if goes is not None:
        statements.append(
            Statement(
                load.dialect.delete_matching(load.table_sql, load.landed_sql, f"{match} AND {goes}"),
                counts="deleted",
                why="delete the rows that are taken back",
            )
        )
    only_written = "" if written is None else f" AND {written}"
    changed = changed_condition(load)
    if changed is not None:
        quote = load.dialect.quote
        changes = [(name, f"s.{quote(name)}") for name in written_columns(load)] + load.stamp_values()
        statements.append(
            Statement(
                load.dialect.update_from(
                    load.table_sql, load.landed_sql, changes, f"{match} AND {changed}{only_written}"
                ),
                counts="updated",
                why="update the rows whose compared columns differ",
            )
        )
    insert = insert_all(load)
    fresh = f"{insert.sql} WHERE NOT EXISTS (SELECT 1 FROM {load.table_sql} AS t WHERE {match}){only_written}"
    statements.append(Statement(fresh, counts="inserted", why="insert the keys that are new"))
    return tuple(statements)
