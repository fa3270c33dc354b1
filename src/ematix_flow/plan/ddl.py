"""The declared table against the live one: what to create, what to change, what to refuse. Nothing is ever dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ematix_flow.contracts.dialect import Dialect
from ematix_flow.contracts.plans import DdlPlan, Statement
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.contracts.table_writes import TableChange
from ematix_flow.declare.columns import (
    BigInt,
    ColumnType,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
)
from ematix_flow.declare.pipeline import OnDrift
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.declare.target import STAMP_COLUMNS, TargetSpec
from ematix_flow.errors import IncompatibleSchema, InvalidPlan, listed
from ematix_flow.plan.physical import (
    HISTORY_COLUMNS,
    events_columns,
    physical_columns,
    physical_primary_key,
    physical_unique,
)

_WHOLE = (SmallInt, Integer, BigInt)


@dataclass(frozen=True)
class Difference:
    """One way in which the live table is not the declared one. `mend` holds what `evolve` would do about it."""

    text: str
    mend: tuple[str, ...] = ()
    harmless: bool = False
    missing_column: str | None = None
    change: TableChange | None = None

    @property
    def can_evolve(self) -> bool:
        """Whether `on_drift="evolve"` may go on."""
        return self.harmless or bool(self.mend)


def plan_ddl(
    dialect: Dialect, target: TargetSpec, table: TableRef, live: TableShape | None, on_drift: OnDrift
) -> DdlPlan:
    """What must happen to the target's table before rows arrive.

    Raises:
        IncompatibleSchema: the live table differs in a way that `on_drift` does not allow.
        InvalidPlan: two of its columns are one to this kind of table.
    """
    if dialect.ignores_case:
        _require_apart(dialect, target, table)
    if live is None:
        columns, primary_key = physical_columns(target), physical_primary_key(target)
        changes_rows = target.is_merge or target.is_versioned
        names = [column.name for column in columns]
        partition_by = tuple(target.files.partition_by or ())
        storage = dialect.storage(names, partition_by, changes_rows=changes_rows)
        created = create_statements(dialect, table, columns, primary_key, physical_unique(target), storage)
        return DdlPlan("create", created, changes=(TableChange("create", columns),), partition_by=partition_by)
    _require_same_partitions(target, table, live)
    plan = _plan_changes(dialect, target, table, live, on_drift)
    return replace(plan, partition_by=live.partition_by)


def _require_apart(dialect: Dialect, target: TargetSpec, table: TableRef) -> None:
    seen: dict[str, str] = {}
    for column in physical_columns(target):
        other = seen.setdefault(column.name.lower(), column.name)
        if other != column.name:
            raise InvalidPlan(
                f"Columns '{other}' and '{column.name}' of {table} differ only in case, and are one column to "
                f"{dialect.name} tables.",
                fix="rename one of them; column_map= says what it is called in the source",
            )


def _require_same_partitions(target: TargetSpec, table: TableRef, live: TableShape) -> None:
    """Refuse a `partition_by=` that the table does not have: it would be taken for granted, and mean nothing."""
    wanted = target.files.partition_by
    if wanted is not None and set(wanted) != set(live.partition_by):
        there, here = (listed(names) if names else "no column" for names in (live.partition_by, wanted))
        raise IncompatibleSchema(
            f"{table} is partitioned by {there}, and this load says partition_by= {here}.",
            fix="leave partition_by= out, or say what the table has; only a new table takes another one",
        )


def _plan_changes(
    dialect: Dialect, target: TargetSpec, table: TableRef, live: TableShape, on_drift: OnDrift
) -> DdlPlan:
    columns, primary_key = physical_columns(target), physical_primary_key(target)
    unique = physical_unique(target)
    if target.mode == "truncate" and not dialect.fills_added_columns:
        live = replace(live, has_rows=False)  # none stays that a new column would have to be filled in
    found = differences(dialect, table, columns, primary_key, unique, live)
    texts = tuple(difference.text for difference in found)
    if not found:
        return DdlPlan("match")
    if on_drift == "evolve" and all(difference.can_evolve for difference in found):
        mends = tuple(Statement(sql, why="schema change") for difference in found for sql in difference.mend)
        changes = tuple(difference.change for difference in found if difference.mend and difference.change)
        return DdlPlan("evolve" if mends else "match", mends, texts, changes=changes)
    if on_drift == "warn":
        missing = tuple(difference.missing_column for difference in found if difference.missing_column is not None)
        return DdlPlan("warn", (), texts, missing)
    raise schema_drift(table, [d.text for d in found if on_drift == "error" or not d.can_evolve], on_drift)


def companion_statements(
    dialect: Dialect, target: TargetSpec, table: TableRef, live: TableShape | None, missing: Sequence[str]
) -> tuple[Statement, ...]:
    """What the companion table of `exact_history` needs; it is the framework's own, and follows the target's table.

    `missing` are declared columns that the target's table goes without.

    Raises:
        IncompatibleSchema: somebody changed the companion in a way that cannot be mended.
    """
    columns = tuple(column for column in events_columns(target) if column.name not in missing)
    primary_key = (*target.resolved_keys()[0], "event_at")
    if live is None:
        return create_statements(dialect, table, columns, primary_key, ())
    found = differences(dialect, table, columns, primary_key, (), live)
    beyond = [difference.text for difference in found if not difference.can_evolve]
    if beyond:
        raise schema_drift(table, beyond, "evolve")
    return tuple(Statement(sql, why="schema change") for difference in found for sql in difference.mend)


def schema_drift(table: TableRef, texts: Sequence[str], on_drift: OnDrift) -> IncompatibleSchema:
    """The error that lists differences, one a line."""
    lines = "\n".join(f"  - {text}" for text in texts)
    fix = (
        "on_drift='evolve' (the default) applies additive changes by itself"
        if on_drift == "error"
        else "change the declaration or the table; only additive changes are applied by themselves"
    )
    return IncompatibleSchema(f"{table}: schema drift detected:\n{lines}", fix=fix)


def create_statements(
    dialect: Dialect,
    table: TableRef,
    columns: Sequence[ColumnSpec],
    primary_key: Sequence[str],
    unique: Sequence[Sequence[str]],
    storage: str = "",
) -> tuple[Statement, ...]:
    """CREATE SCHEMA where there are schemas, then CREATE TABLE."""
    parts = [f"{dialect.quote(c.name)} {dialect.type_sql(c.type)}{'' if c.nullable else ' NOT NULL'}" for c in columns]
    if dialect.keeps_keys:
        parts += [f"PRIMARY KEY ({dialect.columns(primary_key)})"] if primary_key else []
        parts += [f"UNIQUE ({dialect.columns(constraint)})" for constraint in unique]
    make_schema = dialect.create_schema(table.schema) if table.schema else None
    make_table = f"CREATE TABLE {dialect.table(table)} (\n  " + ",\n  ".join(parts) + "\n)" + storage
    statements = [Statement(make_schema, why="create the schema")] if make_schema else []
    notes = dialect.column_notes(dialect.table(table), [(c.name, c.type) for c in columns])
    return (
        *statements,
        Statement(make_table, why="create the table"),
        *(Statement(note, why="keep what the type forgets") for note in notes),
    )


def differences(
    dialect: Dialect,
    table: TableRef,
    columns: Sequence[ColumnSpec],
    primary_key: Sequence[str],
    unique: Sequence[Sequence[str]],
    live: TableShape,
) -> list[Difference]:
    """Everything in which the live table differs from the stored form of the declared one."""
    found: list[Difference] = []
    for column in columns:
        there = live.column(column.name)
        if there is None:
            found.append(_missing(dialect, table, column, live))
        else:
            found += _column_differences(dialect, table, column, there, column.name in primary_key)
    declared = {column.name for column in columns}
    for extra in live.columns:
        if extra.name not in declared:
            optional = extra.nullable or extra.has_default
            found.append(
                Difference(
                    f"column '{extra.name}' is in the table and not declared"
                    + ("" if optional else ", and is NOT NULL without a default"),
                    harmless=optional,
                )
            )
    if not dialect.keeps_keys:
        return found
    if tuple(primary_key) != live.primary_key:
        stored, wanted = ", ".join(live.primary_key) or "none", ", ".join(primary_key) or "none"
        # Rows are matched by the declared keys, so a key that only one side has does no harm.
        one_sided = not live.primary_key or not primary_key
        found.append(Difference(f"primary key is ({stored}), declared ({wanted})", harmless=one_sided))
    for constraint in unique:
        if tuple(constraint) not in live.unique and tuple(constraint) != live.primary_key:
            found.append(
                Difference(f"unique constraint ({', '.join(constraint)}) is missing in the table", harmless=True)
            )
    for constraint in live.unique:
        if constraint not in [tuple(c) for c in unique]:
            found.append(Difference(f"unique constraint ({', '.join(constraint)}) is not declared", harmless=True))
    return found


def _missing(dialect: Dialect, table: TableRef, column: ColumnSpec, live: TableShape) -> Difference:
    text = f"column '{column.name}' ({column.type}) is declared and not in the table"
    alike = [there.name for there in live.columns if there.name.lower() == column.name.lower()]
    if dialect.ignores_case and alike:
        return Difference(f"{text}, which has '{alike[0]}': one column to {dialect.name}", missing_column=column.name)
    type_sql, name = dialect.type_sql(column.type), dialect.table(table)
    default = _declared_default(dialect, column)
    if column.nullable or column.name in STAMP_COLUMNS or not dialect.fills_added_columns:
        default = None  # rows that were there before the framework came have no load to name
    if column.nullable or column.name in STAMP_COLUMNS or default is not None or not live.has_rows:
        added = dialect.add_column(name, column.name, type_sql, default)
        notes = dialect.column_notes(name, [(column.name, column.type)])
        change = TableChange("add", (column,))
        return Difference(text, (added, *notes), missing_column=column.name, change=change)
    mend = "declare it nullable or give default(...)"
    if column in HISTORY_COLUMNS:
        mend = "it belongs to mode='scd2', and rows that are there have no history, so load into a new table"
    elif not dialect.fills_added_columns:
        mend = f"{dialect.name} cannot give them a default(...), so declare it nullable"
    return Difference(f"{text}; it is NOT NULL and the table has rows: {mend}", missing_column=column.name)


def _declared_default(dialect: Dialect, column: ColumnSpec) -> str | None:
    for marker in column.normalizers:
        if marker.kind in ("default", "not_null_or"):
            return dialect.literal(getattr(marker, "value", None), column.type)
    return None


def _column_differences(
    dialect: Dialect, table: TableRef, column: ColumnSpec, live: ColumnShape, in_key: bool
) -> list[Difference]:
    found: list[Difference] = []
    name = dialect.table(table)
    widened_to = None
    if not dialect.same_type(column.type, live.native):
        text = f"column '{column.name}' is {live.native}, declared {column.type}"
        if live.type is not None and is_wider(column.type, live.type) and dialect.can_become(live.type, column.type):
            widened_to = dialect.type_sql(column.type)
            widen = dialect.widened(name, live, widened_to)
            change = TableChange("widen", (column,))
            found.append(Difference(text, (widen,) if widen else (), harmless=widen is None, change=change))
        else:
            found.append(Difference(text, harmless=live.type is not None and is_wider(live.type, column.type)))
    if column.nullable and not live.nullable and not in_key:
        relax = dialect.relaxed(name, live, widened_to)
        text = f"column '{column.name}' is NOT NULL, declared nullable"
        found.append(Difference(text, (relax,) if relax else (), change=TableChange("relax", (column,))))
    if not column.nullable and live.nullable and not in_key:
        found.append(Difference(f"column '{column.name}' is nullable, declared NOT NULL", harmless=True))
    return found


def is_wider(wide: ColumnType, narrow: ColumnType) -> bool:
    """Whether every value of one type fits the other.

    >>> is_wider(BigInt(), Integer()), is_wider(Numeric(12, 2), Numeric(10, 2)), is_wider(String(5), Text())
    (True, True, False)
    """
    if isinstance(wide, _WHOLE) and isinstance(narrow, _WHOLE):
        return _WHOLE.index(type(wide)) > _WHOLE.index(type(narrow))
    if isinstance(wide, Double):
        return isinstance(narrow, Float)
    if isinstance(wide, Text):
        return isinstance(narrow, String)
    if isinstance(wide, String) and isinstance(narrow, String):
        return wide.length > narrow.length
    if isinstance(wide, Numeric) and isinstance(narrow, Numeric):
        return wide.scale >= narrow.scale and wide.precision - wide.scale >= narrow.precision - narrow.scale
    return False
