"""A connection to MySQL or MariaDB through PyMySQL: how it is opened, and the little this package asks of it.

Used by the backend and by Spark's workers, which get the address as plain text. One thing goes below the driver's
public methods, because it has none for it: describing a query without running it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.server_address import ServerAddress, server_address
from ematix_flow.errors import ConnectionFailed, InvalidConfig, MissingDriver, closest, listed

_SETTINGS = (
    # Strict, and the same for everybody: what a server or a user has set must not change what a load means.
    "sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'",
    "time_zone = '+00:00'",
    "default_storage_engine = InnoDB",
    "wait_timeout = 2147483",  # a lease's connection is silent for as long as the load takes
    "net_write_timeout = 3600",  # a reader waits while Spark works on what it read
    "net_read_timeout = 3600",
    "lock_wait_timeout = 60",
)
_OPTIONS: dict[str, Callable[[str], Any] | None] = {
    "unix_socket": str,
    "connect_timeout": int,
    "ssl_ca": str,
    "ssl_cert": str,
    "ssl_key": str,
    "ssl_disabled": lambda text: _is_true(text),
    "ssl_verify_cert": lambda text: _is_true(text),
    "ssl_verify_identity": lambda text: _is_true(text),
    "charset": None,  # always utf8mb4; other programs want it in the same URL
}


class Described(NamedTuple):
    """A column of an answer, as the database handle shows it."""

    name: str
    type_display: str


@dataclass(frozen=True)
class Field:
    """A column of a query as the server describes it. `table` and `column` name where it comes from, if anywhere."""

    name: str
    native: str
    schema: str
    table: str
    column: str


class Answer:
    """What one statement gave."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.rowcount: int = cursor.rowcount

    @property
    def description(self) -> list[Described] | None:
        """Names and types of the columns; None when the statement has none."""
        result = self._cursor._result
        if self._cursor.description is None:
            return None
        return [Described(field.name, native_type(field)) for field in result.fields]

    @property
    def warnings(self) -> int:
        """How many values the server took with a remark."""
        return int(getattr(self._cursor._result, "warning_count", 0) or 0)

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchmany(self, size: int) -> list[Any]:
        return list(self._cursor.fetchmany(size))

    def fetchall(self) -> list[Any]:
        return list(self._cursor.fetchall())


class MysqlSession:
    """An open connection that commits each statement by itself, unless BEGIN was said."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB."""
        return "mariadb" in str(self.raw.server_version).lower()

    def execute(self, sql: str) -> Answer:
        """Run one statement."""
        cursor = self.raw.cursor()
        cursor.execute(sql)
        return Answer(cursor)

    def close(self) -> None:
        """Close it; one that broke is closed already."""
        if self.raw.open:
            self.raw.close()

    def fields(self, sql: str) -> list[Field]:
        """The columns of a query, which is prepared and not run."""
        from pymysql.constants import COMMAND
        from pymysql.protocol import FieldDescriptorPacket

        raw = self.raw
        raw._execute_command(COMMAND.COM_STMT_PREPARE, sql)
        _, number, columns, parameters = struct.unpack_from("<BIHH", raw._read_packet().get_all_data())
        for _ in range(parameters + 1 if parameters else 0):
            raw._read_packet()
        found = [raw._read_packet(FieldDescriptorPacket) for _ in range(columns)]
        if columns:
            raw._read_packet()  # the end of the list
        raw._execute_command(COMMAND.COM_STMT_CLOSE, struct.pack("<I", number))
        return [
            Field(
                name=field.name,
                native=native_type(field),
                schema=field.db.decode() if isinstance(field.db, bytes) else str(field.db or ""),
                table=field.org_table,
                column=field.org_name,
            )
            for field in found
        ]

    def streamed(self, sql: str) -> Iterator[Any]:
        """The rows of a query as they come; none is kept. Whoever does not take them all closes the session."""
        from pymysql.cursors import SSCursor

        cursor = self.raw.cursor(SSCursor)
        cursor.execute(sql)
        try:
            yield from cursor.fetchall_unbuffered()
        except BaseException:
            # Whoever stops early closes the connection; the driver would first wait for all the rows that are left.
            if cursor._result is not None:
                cursor._result.unbuffered_active = False
            cursor.connection = None
            raise


def open_session(url: str, name: str, *, sends_files: bool = False) -> MysqlSession:
    """Connect.

    Args:
        url: The connection's URL.
        name: The connection's name, for messages.
        sends_files: Whether LOAD DATA LOCAL is wanted. A server could then ask for any file of this machine, so only
            the connections that stage rows say so.

    Raises:
        ConnectionFailed: there is no such server, it refuses this user, or it is too old.
        MissingDriver: PyMySQL is not installed.
    """
    try:
        import pymysql
        from pymysql.constants import CLIENT
    except ImportError as exc:
        raise MissingDriver("The mysql backend needs 'pymysql'.", fix='pip install "ematix-flow[mysql]"') from exc
    try:
        raw = pymysql.connect(
            **login_of(url, name),
            database=server_address(url, default_port=3306).database,
            charset="utf8mb4",
            autocommit=True,
            local_infile=sends_files,
            # The number of rows that met a condition, also where an UPDATE changed nothing: as everywhere else.
            client_flag=CLIENT.FOUND_ROWS,
            init_command="SET SESSION " + ", ".join(_SETTINGS),
        )
        session = MysqlSession(raw)
        _require_version(session, name)
        session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    except (pymysql.Error, OSError, RuntimeError) as exc:
        raise ConnectionFailed(
            f"MySQL connection '{name}' failed: {_reason(exc)}",
            fix=f"check host, user and password; then `flow connections check {name}`",
        ) from exc
    return session


def login_of(url: str, name: str) -> dict[str, Any]:
    """Where the server is, who logs in and how, in the driver's words."""
    address = server_address(url, default_port=3306)
    return {
        "host": address.host or "localhost",
        "port": address.port,
        "user": address.user,
        "password": (address.password or "").encode(),
        **_options(address, name),
    }


def _options(address: ServerAddress, name: str) -> Mapping[str, Any]:
    """The URL's parameters as the driver takes them."""
    found: dict[str, Any] = {"connect_timeout": 10}
    for key, text in address.parameters:
        if key not in _OPTIONS:
            raise InvalidConfig(
                f"Connection '{name}': MySQL URLs take no parameter '{key}'.",
                fix=closest(key, list(_OPTIONS)) or f"known are {listed(_OPTIONS)}",
            )
        read = _OPTIONS[key]
        if read is not None:
            found[key] = read(text)
    return found


def _is_true(text: str) -> bool:
    return text.lower() in ("1", "true", "yes", "on")


def _require_version(session: MysqlSession, name: str) -> None:
    least = (10, 3, 0) if session.is_mariadb else (8, 0, 17)
    text = str(session.raw.server_version).removeprefix("5.5.5-")  # what MariaDB says first, for old replicas
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    if numbers is not None and tuple(int(part) for part in numbers.groups()) < least:
        session.close()
        raise ConnectionFailed(
            f"The server of connection '{name}' is {text}; MySQL 8.0.17 or MariaDB 10.3 is the oldest that works.",
            fix="use a newer server",
        )


def _reason(exc: Exception) -> str:
    """The driver's words, in one line and without secrets."""
    words = exc.args[1] if len(exc.args) > 1 else (exc.args[0] if exc.args else exc)
    text = scrub(str(words).strip().splitlines()[0])
    if "cryptography" in text:
        text += '; pip install "ematix-flow[mysql]"'
    return text


# ── the server's words for a column ──────────────────────────────────────────────────────────────────────────────────

_BINARY = 63  # the character set of bytes
_UNSIGNED, _ENUM, _SET = 0x20, 0x100, 0x800
_NAMES = {2: "smallint", 3: "int", 8: "bigint", 9: "mediumint", 4: "float", 5: "double", 10: "date", 14: "date"}
_NAMES |= {13: "year", 11: "time", 6: "null", 245: "json", 255: "geometry", 19: "time"}


def native_type(field: Any) -> str:
    """The type of an answer's column in the words of SHOW COLUMNS."""
    code, unsigned = field.type_code, " unsigned" if field.flags & _UNSIGNED else ""
    if field.flags & _ENUM:
        return "enum"
    if field.flags & _SET:
        return "set"
    if code == 1:
        return "tinyint(1)" if field.length == 1 and not unsigned else f"tinyint{unsigned}"
    if code in _NAMES:
        return _NAMES[code] + (unsigned if code in (2, 3, 4, 5, 8, 9) else "")
    if code in (0, 246):
        digits = field.length - (1 if field.scale else 0) - (0 if unsigned else 1)
        return f"decimal({digits},{field.scale}){unsigned}"
    if code in (7, 12, 17, 18):
        places = f"({field.scale})" if 0 < field.scale <= 6 else ""
        return ("timestamp" if code in (7, 17) else "datetime") + places
    if code == 16:
        return f"bit({field.length})"
    is_binary = field.charsetnr == _BINARY
    if code in (249, 250, 251, 252):
        return "longblob" if is_binary else "longtext"
    length = field.length if is_binary else field.length // 4
    if length == 0:
        return "null" if code == 254 and is_binary else "varchar(1)"
    if length > 16_383:
        return "longblob" if is_binary else "longtext"
    kind = "char" if code == 254 and not is_binary else "varchar"
    return f"varbinary({length})" if is_binary else f"{kind}({length})"
