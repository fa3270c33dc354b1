"""What differs between the databases a run log can lie in, as data; statements are written once, in these words.

In a statement `?` is a value, `@` stands before the name of a table, `{moment}` is the database's own now, and
`{later}` the instant that lies so many microseconds (one value) after it, by the clock that leases are measured by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Words:
    """One database's spelling.

    Attributes:
        later: The clock of leases: an instant as stored, so many microseconds (one value) from now.
        moment: The time of day, where that is another clock.
        types: What `{name}`, `{word}`, `{instant}`, `{text}`, `{number}` and `{real}` are in its tables.
        begin: Begins a transaction that will write.
        lock: Ends a query whose rows nobody else may change until the transaction ends.
        alone: Said before tables are made, so that two processes do not make them at once; and afterwards.
        drop_index: Removes an index.
        has_indexes: Whether looking things up by other columns than the key is worth an index.
        formats: The driver writes `%s` for a value.
        has_on_conflict: It knows ON CONFLICT; else ON DUPLICATE KEY.
    """

    later: str
    types: Mapping[str, str]
    moment: str = ""
    begin: str = "BEGIN"
    lock: str = ""
    alone: tuple[str | None, str | None] = (None, None)
    drop_index: str = "DROP INDEX IF EXISTS @{index}"
    has_indexes: bool = True
    formats: bool = False
    has_on_conflict: bool = True
    prefix: str = ""
    _spelled: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def with_prefix(self, prefix: str) -> Words:
        """The same for tables whose names begin so: a schema with its dot, or a few letters."""
        return replace(self, prefix=prefix, _spelled={})

    def with_types(self, types: Mapping[str, str]) -> Words:
        """The same with other types."""
        return replace(self, types=types, _spelled={})

    def spelled(self, statement: str) -> str:
        """A statement as the driver takes it."""
        found = self._spelled.get(statement)
        if found is None:
            found = statement.replace("{moment}", self.moment or self.later.replace("?", "0"))
            found = found.replace("{later}", self.later)
            if self.formats:
                found = found.replace("%", "%%").replace("?", "%s")
            found = self._spelled[statement] = found.replace(
                "@", self.prefix.replace("%", "%%") if self.formats else self.prefix
            )
        return found

    def insert(
        self,
        table: str,
        columns: Sequence[str],
        *,
        key: str,
        replacing: Sequence[str] = (),
        rules: Mapping[str, str] | None = None,
        values: Mapping[str, str] | None = None,
        rows: int = 1,
    ) -> str:
        """A row that is new, or changes those columns of the one with the same key; without columns it changes nothing.

        Args:
            table: Its name.
            columns: In the order of the values.
            key: The column or columns of its primary key.
            replacing: Columns that are changed in a row that is there.
            rules: By column, what they become: `{new}` and `{old}` are the two values; without a rule the new one.
            values: By column, what is inserted in place of a value.
            rows: How many rows are inserted by one statement.
        """
        given = ", ".join((values or {}).get(column, "?") for column in columns)
        said = f"INSERT INTO @{table} ({', '.join(columns)}) VALUES {', '.join([f'({given})'] * rows)}"
        changes = []
        for column in replacing:
            new = f"excluded.{column}" if self.has_on_conflict else f"VALUES({column})"
            old = f"{table}.{column}" if self.has_on_conflict else column
            rule = (rules or {}).get(column, "{new}").replace("{new}", new).replace("{old}", old)
            changes.append(f"{column} = {rule}")
        if self.has_on_conflict:
            return f"{said} ON CONFLICT ({key}) DO " + (f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING")
        # Not INSERT IGNORE: that would also cut a name that is too long, without a word.
        first = key.partition(",")[0]
        return f"{said} ON DUPLICATE KEY UPDATE {', '.join(changes) or f'{first} = {first}'}"


_TEXT = {"name": "TEXT", "word": "TEXT", "instant": "TEXT", "text": "TEXT", "number": "INTEGER", "real": "REAL"}

SQLITE = Words(
    # Functions of the connection's own: SQLite's clock knows no microseconds, and is set like any other.
    later="flow_later(?)",
    moment="flow_moment()",
    types=_TEXT,
    begin="BEGIN IMMEDIATE",
)
POSTGRES = Words(
    # Not now(), which stands still in a transaction.
    later="to_char((clock_timestamp() + ? * interval '1 microsecond') AT TIME ZONE 'UTC',"
    """ 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')""",
    # Text order is time order, and the order of names the same everywhere, only without a language.
    types={
        "name": 'TEXT COLLATE "C"',
        "word": 'TEXT COLLATE "C"',
        "instant": 'TEXT COLLATE "C"',
        "text": "TEXT",
        "number": "BIGINT",
        "real": "DOUBLE PRECISION",
    },
    lock=" FOR UPDATE",
    alone=("SELECT pg_advisory_xact_lock(hashtext('ematix_flow run log'))", None),
    formats=True,
)
MYSQL = Words(
    later="DATE_FORMAT(UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, '%Y-%m-%dT%H:%i:%s.%fZ')",
    types={},  # the name of a collation that compares byte by byte depends on the server
    lock=" FOR UPDATE",
    alone=("SELECT GET_LOCK('ematix_flow run log', 60)", "SELECT RELEASE_LOCK('ematix_flow run log')"),
    drop_index="ALTER TABLE @{table} DROP INDEX {index}",
    formats=True,
    has_on_conflict=False,
)
DUCKDB = Words(
    later="strftime(make_timestamp(epoch_us(now()) + CAST(? AS BIGINT)), '%Y-%m-%dT%H:%M:%S.%fZ')",
    types={
        "name": "VARCHAR",
        "word": "VARCHAR",
        "instant": "VARCHAR",
        "text": "VARCHAR",
        "number": "BIGINT",
        "real": "DOUBLE",
    },
    begin="BEGIN TRANSACTION",
    has_indexes=False,  # it reads its columns whole, and an index refuses a row that is changed twice
)


def mysql_types(collation: str) -> Mapping[str, str]:
    """MySQL's types: names that can be keys, compared byte by byte, so that 'A', 'a' and 'a ' are three."""
    return {
        "name": f"VARCHAR(512) CHARACTER SET utf8mb4 COLLATE {collation}",
        "word": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
        "instant": "VARCHAR(27) CHARACTER SET ascii COLLATE ascii_bin",
        "text": f"LONGTEXT CHARACTER SET utf8mb4 COLLATE {collation}",
        "number": "BIGINT",
        "real": "DOUBLE",
    }
