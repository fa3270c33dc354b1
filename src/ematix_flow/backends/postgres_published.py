"""What must be true in a PostgreSQL database before its changes can be captured: settings, tables, keys, a publication.

Everything is asked for before anything is made. A table that cannot name its rows must not be published: the server
would refuse every later UPDATE and DELETE of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ematix_flow.errors import ConnectionFailed, InvalidDeclaration, MissingKeys, StatementFailed, listed

OLDEST_SERVER = 130_000


@dataclass(frozen=True)
class CapturedTable:
    """A table as it is now: the columns that are published, with their types, and those that tell rows apart."""

    schema: str
    name: str
    columns: tuple[tuple[str, int], ...]
    key: tuple[str, ...]
    row_filter: str | None = None

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class SlotFacts:
    """A replication slot. `held_bytes` is how much of the log the server keeps for it."""

    is_active: bool
    is_lost: bool
    confirmed_lsn: int
    held_bytes: int


def check_server(db: Any, connection_name: str) -> None:
    """Refuse a server that does not write down what logical decoding needs.

    Raises:
        ConnectionFailed: (a ValueError) says what to set.
    """
    version, level, is_copy = db.execute(
        "SELECT current_setting('server_version_num')::int, current_setting('wal_level'), pg_is_in_recovery()"
    ).fetchone()
    if version < OLDEST_SERVER:
        raise ConnectionFailed(
            f"PostgreSQL connection '{connection_name}' is a server of version {version // 10_000}, and changes are "
            "captured from version 13 on.",
            fix="upgrade it, or load its tables in batches with @ematix.pipeline(...)",
        )
    if is_copy:
        raise ConnectionFailed(
            f"PostgreSQL connection '{connection_name}' is a standby, and changes are captured from the primary.",
            fix="connect to the primary server",
        )
    if level != "logical":
        raise ConnectionFailed(
            f"PostgreSQL connection '{connection_name}' has wal_level '{level}', and changes can be captured with "
            "'logical' only.",
            fix="ALTER SYSTEM SET wal_level = 'logical', then restart the server "
            "(on Amazon RDS: rds.logical_replication = 1)",
        )


def captured(db: Any, tables: Sequence[tuple[str, str]]) -> list[CapturedTable]:
    """The tables with their columns and keys.

    Raises:
        InvalidDeclaration: (a ValueError) one is not there, or is no table.
        MissingKeys: (a ValueError) one has rows that nobody could name.
    """
    found = []
    for schema, name in tables:
        row = db.execute(
            "SELECT c.oid, c.relkind::text, c.relpersistence::text FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
            (schema, name),
        ).fetchone()
        if row is None or row[1] not in ("r", "p") or row[2] != "p":
            what = "is not there" if row is None else "is no ordinary table"
            raise InvalidDeclaration(
                f"'{schema}.{name}' {what}, so its changes cannot be captured.",
                fix="name a table as schema.table; views, foreign, temporary and unlogged tables have no changes",
            )
        found.append(_captured(db, schema, name, row[0]))
    return found


def _captured(db: Any, schema: str, name: str, oid: int) -> CapturedTable:
    nameless = db.execute(
        # Changes of a partitioned table are those of its parts, so each of them has to name its rows.
        "SELECT n.nspname, c.relname, c.relreplident::text FROM pg_class c JOIN pg_namespace n "
        "ON n.oid = c.relnamespace WHERE (c.oid = %(oid)s OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s))) "
        "AND NOT (c.relreplident = 'f' "
        "OR (c.relreplident = 'd' AND EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)) "
        "OR (c.relreplident = 'i' AND EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)))"
        " ORDER BY 1, 2 LIMIT 1",
        {"oid": oid},
    ).fetchone()
    if nameless is not None:
        table = f"{nameless[0]}.{nameless[1]}"
        said = "replica identity NOTHING" if nameless[2] == "n" else "no primary key"
        raise MissingKeys(
            f"The table '{table}' has {said}: the server could not say which row was changed or deleted.",
            fix=f"add a primary key; or ALTER TABLE {table} REPLICA IDENTITY USING INDEX …; "
            f"or ALTER TABLE {table} REPLICA IDENTITY FULL",
        )
    columns = db.execute(
        "SELECT attname, atttypid::bigint FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped "
        "AND attgenerated = '' ORDER BY attnum",
        (oid,),
    ).fetchall()
    key = db.execute(
        "SELECT array_agg(a.attname ORDER BY k.place) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
        "CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, place) "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
        "WHERE i.indrelid = %s AND k.place <= i.indnkeyatts "
        "AND CASE WHEN c.relreplident = 'i' THEN i.indisreplident ELSE i.indisprimary END",
        (oid,),
    ).fetchone()[0]
    return CapturedTable(schema, name, tuple((str(n), int(t)) for n, t in columns), tuple(map(str, key or ())))


def publish(
    db: Any, publication: str, tables: Sequence[CapturedTable], *, is_own: bool, begins: bool
) -> list[CapturedTable]:
    """Make sure that a publication has the tables; one of our own is made, or made right before a capture begins.

    Returns:
        The tables, with the columns and rows that the publication lets through.

    Raises:
        InvalidDeclaration: (a ValueError) a publication that was named is not there, or lacks something.
        StatementFailed: we may not make one.
    """
    import psycopg

    names = ", ".join(f"{_quoted(table.schema)}.{_quoted(table.name)}" for table in tables)
    making = f"CREATE PUBLICATION {_quoted(publication)} FOR TABLE {names} WITH (publish_via_partition_root = true)"
    setting = f"ALTER PUBLICATION {_quoted(publication)} SET TABLE {names}"
    known = db.execute(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s",
        (publication,),
    ).fetchone()
    if known is None and not (is_own and begins):
        raise InvalidDeclaration(
            f"There is no publication '{publication}'{', or no longer' if is_own else ''}.", fix=making
        )
    if is_own and begins:
        try:
            db.execute(making if known is None else setting)
        except psycopg.errors.InsufficientPrivilege as exc:
            raise StatementFailed(
                f"The publication '{publication}' cannot be made: {exc.diag.message_primary}.",
                fix=f"let the tables' owner do it, and name it on the connection (publication=…): {making}",
            ) from exc
    elif known is not None and not known[0]:
        raise InvalidDeclaration(
            f"The publication '{publication}' leaves out a kind of change.",
            fix=f"ALTER PUBLICATION {_quoted(publication)} SET (publish = 'insert, update, delete, truncate')",
        )
    return [_as_published(db, publication, table, making) for table in tables]


def unpublish(db: Any, publication: str) -> bool:
    """Remove a publication; whether it was there."""
    is_there = db.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (publication,)).fetchone() is not None
    if is_there:
        db.execute(f"DROP PUBLICATION {_quoted(publication)}")
    return is_there


def _as_published(db: Any, publication: str, table: CapturedTable, making: str) -> CapturedTable:
    knows_parts = db.info.server_version >= 150_000
    found = db.execute(
        f"SELECT {'attnames, rowfilter' if knows_parts else 'NULL, NULL'} FROM pg_publication_tables "
        "WHERE pubname = %s AND schemaname = %s AND tablename = %s",
        (publication, table.schema, table.name),
    ).fetchone()
    if found is None:
        raise InvalidDeclaration(
            f"The publication '{publication}' does not have the table '{table.label}', or no longer: a table that was "
            "made anew is another one.",
            fix=f"ALTER PUBLICATION {_quoted(publication)} ADD TABLE {_quoted(table.schema)}.{_quoted(table.name)}; "
            f"a partitioned table needs publish_via_partition_root. A new one: {making}",
        )
    names, row_filter = found
    columns = tuple(column for column in table.columns if names is None or column[0] in names)
    lacking = [name for name in table.key if name not in dict(columns)]
    if lacking:
        raise InvalidDeclaration(f"The publication '{publication}' leaves out the key {listed(lacking)} of its table.")
    return CapturedTable(table.schema, table.name, columns, table.key, row_filter)


def slot_facts(db: Any, slot: str) -> SlotFacts | None:
    """A slot, or None when it is not there.

    Raises:
        InvalidDeclaration: (a ValueError) it is there, and belongs to another database or decoder.
    """
    row = db.execute(
        "SELECT plugin, database = current_database(), active, coalesce(wal_status = 'lost', false), "
        "coalesce(pg_wal_lsn_diff(confirmed_flush_lsn, '0/0'), 0)::bigint, "
        "coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint "
        "FROM pg_replication_slots WHERE slot_name = %s",
        (slot,),
    ).fetchone()
    if row is None:
        return None
    plugin, is_here, is_active, is_lost, confirmed, held = row
    if plugin != "pgoutput" or not is_here:
        raise InvalidDeclaration(
            f"The replication slot '{slot}' is there, and is not one for changes of this database in pgoutput's words.",
            fix="choose another slot=… on the connection",
        )
    return SlotFacts(bool(is_active), bool(is_lost), int(confirmed), int(held))


def drop_slot(db: Any, slot: str) -> None:
    """Remove a slot that nobody receives from, if it is there."""
    db.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (slot,))


def end_and_drop_slot(db: Any, slot: str) -> None:
    """Remove a slot though somebody receives from it: they find their connection closed."""
    deadline = time.monotonic() + 10.0
    while True:
        row = db.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (slot,)).fetchone()
        if row is None or row[0] is None or time.monotonic() > deadline:
            break
        db.execute("SELECT pg_terminate_backend(%s)", (row[0],))
        time.sleep(0.05)
    drop_slot(db, slot)


def written_mark(db: Any) -> int:
    """Where the log is now: everything that was committed before lies before it, and is on disk."""
    with db.transaction():
        db.execute("SET LOCAL synchronous_commit = on")
        row = db.execute(
            "SELECT pg_wal_lsn_diff(pg_logical_emit_message(true, 'ematix_flow', 'mark'), '0/0')::bigint"
        ).fetchone()
    return int(row[0])


def open_transactions(db: Any) -> int:
    """How many others have a transaction open that writes."""
    return int(
        db.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
        ).fetchone()[0]
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
