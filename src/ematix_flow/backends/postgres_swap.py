"""Putting one PostgreSQL table in the place of another: keys, indexes and grants go over, nothing else may hang on it.

Readers see the old rows until the commit and the new ones after it. The exception is PostgreSQL's own: a transaction
that took its snapshot before the commit and looks at the table for the first time afterwards finds it empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ematix_flow.backends.books import Db
from ematix_flow.contracts.dialect import Dialect
from ematix_flow.contracts.shapes import TableRef

_PATIENCE_MS = 3000
_SCRATCH_NAME = "ematix_flow_swap_"

_BOUND = {
    "rules or views": "SELECT 1 FROM pg_depend d WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = {oid} "
    "AND d.classid = 'pg_rewrite'::regclass",
    "triggers": "SELECT 1 FROM pg_trigger WHERE tgrelid = {oid} AND NOT tgisinternal",
    "foreign keys or checks": "SELECT 1 FROM pg_constraint WHERE (conrelid = {oid} OR confrelid = {oid}) "
    "AND contype NOT IN ('p', 'u', 'n')",
    "row security": "SELECT 1 FROM pg_class WHERE oid = {oid} AND (relrowsecurity OR relforcerowsecurity)",
    "partitions or inheritance": "SELECT 1 FROM pg_class c WHERE c.oid = {oid} AND (c.relkind <> 'r' "
    "OR c.relispartition OR EXISTS (SELECT 1 FROM pg_inherits i WHERE {oid} IN (i.inhrelid, i.inhparent)))",
    "storage settings": "SELECT 1 FROM pg_class WHERE oid = {oid} AND (reloptions IS NOT NULL OR reltablespace <> 0 "
    "OR relpersistence <> 'p' OR relreplident <> 'd')",
    "publications": "SELECT 1 FROM pg_publication_rel WHERE prrelid = {oid}",
    "extended statistics": "SELECT 1 FROM pg_statistic_ext WHERE stxrelid = {oid}",
    "comments": "SELECT 1 FROM pg_description WHERE classoid = 'pg_class'::regclass AND objoid = {oid}",
    "grants on columns": "SELECT 1 FROM pg_attribute WHERE attrelid = {oid} AND attacl IS NOT NULL",
    "another owner": "SELECT 1 FROM pg_class WHERE oid = {oid} AND relowner <> current_user::regrole",
}


def bound_by(db: Db, oid: int) -> tuple[str, ...]:
    """What hangs on a table and could not be carried over to another."""
    questions = ", ".join(f"EXISTS ({sql.format(oid=oid)})" for sql in _BOUND.values())
    answers = db.execute(f"SELECT {questions}").fetchone()
    return tuple(name for name, holds in zip(_BOUND, answers, strict=True) if holds)


def take_place(
    db: Db, dialect: Dialect, staged: TableRef, target: TableRef, constants: Sequence[tuple[str, str, str]]
) -> bool:
    """Make `staged` the table that `target` names; False when the target is busy or has got something that binds it.

    Args:
        constants: columns to add with one value for all rows: name, type with its NOT NULL, value.
    """
    new, old = dialect.table(staged), dialect.table(target)
    for name, kind, value in constants:
        # The value is kept once, in the catalog, for the rows that are there; no row is written again.
        db.execute(f"ALTER TABLE {new} ADD COLUMN {dialect.quote(name)} {kind} DEFAULT {value}")
        db.execute(f"ALTER TABLE {new} ALTER COLUMN {dialect.quote(name)} DROP DEFAULT")
    oid = db.execute(f"SELECT {_regclass(dialect, target)}::oid").fetchone()[0]
    renames = _copy_keys_and_indexes(db, dialect, oid, new)
    db.execute(f"ANALYZE {new}")
    db.execute(f"SET LOCAL lock_timeout = {_PATIENCE_MS}")  # whoever waits for this lock lets others wait behind it
    db.execute(f"LOCK TABLE {old} IN ACCESS EXCLUSIVE MODE")
    db.execute("SET LOCAL lock_timeout = 0")
    if bound_by(db, oid):
        return False
    _copy_grants(db, oid, dialect, staged)
    db.execute(f"DROP TABLE {old}")
    if staged.schema != target.schema:
        db.execute(f"ALTER TABLE {new} SET SCHEMA {dialect.quote(target.schema or 'public')}")
    moved = TableRef(target.schema, staged.name)
    db.execute(f"ALTER TABLE {dialect.table(moved)} RENAME TO {dialect.quote(target.name)}")
    for kind, scratch, name in renames:
        if kind == "constraint":
            db.execute(f"ALTER TABLE {old} RENAME CONSTRAINT {scratch} TO {dialect.quote(name)}")
        else:
            place = f"{dialect.quote(target.schema or 'public')}.{scratch}"
            db.execute(f"ALTER INDEX {place} RENAME TO {dialect.quote(name)}")
    return True


def _copy_keys_and_indexes(db: Db, dialect: Dialect, oid: int, new: str) -> list[tuple[str, str, str]]:
    """Build the target's keys and indexes over the new rows, under names of their own: what to rename afterwards."""
    renames: list[tuple[str, str, str]] = []
    constraints = db.execute(
        f"SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = {oid} "
        "AND contype IN ('p', 'u') ORDER BY contype, conname"
    ).fetchall()
    for number, (name, definition) in enumerate(constraints):
        scratch = f"{_SCRATCH_NAME}k{number}"
        db.execute(f"ALTER TABLE {new} ADD CONSTRAINT {scratch} {definition}")
        renames.append(("constraint", scratch, name))
    indexes = db.execute(
        "SELECT c.relname, i.indisunique, pg_get_indexdef(i.indexrelid), 'CREATE ' || CASE WHEN i.indisunique "
        "THEN 'UNIQUE ' ELSE '' END || 'INDEX ' || quote_ident(c.relname) || ' ON ' || quote_ident(n.nspname) || '.' "
        "|| quote_ident(t.relname) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace "
        f"WHERE i.indrelid = {oid} AND NOT EXISTS "
        "(SELECT 1 FROM pg_constraint con WHERE con.conindid = i.indexrelid) ORDER BY 1"
    ).fetchall()
    for number, (name, unique, definition, head) in enumerate(indexes):
        scratch = f"{_SCRATCH_NAME}i{number}"
        # The server's own text behind the two names it begins with.
        tail = definition.removeprefix(head)
        db.execute(f"CREATE {'UNIQUE ' if unique else ''}INDEX {scratch} ON {new}{tail}")
        renames.append(("index", scratch, name))
    return renames


def _copy_grants(db: Db, oid: int, dialect: Dialect, staged: TableRef) -> None:
    """Give the staged table just the grants of the target."""
    new = dialect.table(staged)
    place = _regclass(dialect, staged)
    given = "SELECT a.grantee, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END"
    for _, grantee in db.execute(
        f"{given} FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = {place} GROUP BY 1, 2"
    ).fetchall():
        db.execute(f"REVOKE ALL ON {new} FROM {grantee}")
    for _, grantee, privilege, grantable in db.execute(
        f"{given}, a.privilege_type, a.is_grantable FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = {oid}"
    ).fetchall():
        db.execute(f"GRANT {privilege} ON {new} TO {grantee}{' WITH GRANT OPTION' if grantable else ''}")


def _regclass(dialect: Dialect, table: TableRef) -> str:
    text: Any = dialect.table(table).replace("'", "''")
    return f"'{text}'::regclass"
