"""The run log in MySQL or MariaDB: for several hosts, with one clock for all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from ematix_flow.backends.mysql_session import login_of
from ematix_flow.declare.redaction import display_url, remember_secret
from ematix_flow.declare.server_address import server_address
from ematix_flow.errors import InvalidConfig, MissingDriver
from ematix_flow.run.runlogs.sql import SqlRunLog
from ematix_flow.run.runlogs.words import MYSQL, mysql_types

_SETTINGS = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00',"
    " default_storage_engine = InnoDB"
)
_LOST = (0, 1053, 1152, 1159, 1161, 1184, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 4031)
_CONFLICTS = (1205, 1213)
_THERE = (1050, 1060, 1061, 1091)  # the table, the column, the index; and an index that is gone already


class MySQLRunLog(SqlRunLog):
    """A run log in one database of a MySQL or MariaDB server.

    Args:
        url: `mysql://user:password@host/database`; or
        connect_kwargs: what PyMySQL's `connect` takes.
        table_prefix: What the names of its tables begin with, where the database has other tables too.
        create_tables: Whether missing tables are made.

    Raises:
        MissingDriver: PyMySQL is not installed; it is an ImportError.
        ConnectionFailed: The server cannot be reached or refuses the login.
        InvalidConfig: Neither or both of url and connect_kwargs, a prefix that is no name, or tables that do not fit.
    """

    frozen_s: ClassVar[int] = 10
    """So long a transaction in which nothing is said keeps its locks: on MariaDB; six times as long on MySQL."""

    def __init__(
        self,
        url: str | None = None,
        *,
        connect_kwargs: Mapping[str, Any] | None = None,
        table_prefix: str = "",
        create_tables: bool = True,
        max_age_days: float | None = None,
        max_records: int | None = None,
    ) -> None:
        try:
            import pymysql  # noqa: F401
        except ImportError as exc:
            raise MissingDriver(
                "A run log in MySQL needs 'pymysql'.", fix='pip install "ematix-flow[runlog-mysql]"'
            ) from exc
        if (url is None) == (connect_kwargs is None):
            raise InvalidConfig("A run log in MySQL takes either a URL or connect_kwargs.")
        if not re.fullmatch(r"\w*", table_prefix, re.ASCII):
            raise InvalidConfig("The run log's table_prefix may hold letters, digits and underscores only.")
        self._login = dict(connect_kwargs) if connect_kwargs is not None else _login(url or "")
        password = self._login.get("password") or self._login.get("passwd") or ""
        remember_secret(password.decode() if isinstance(password, bytes) else str(password))
        super().__init__(
            where=display_url(url) if url is not None else f"mysql://{self._login.get('host', 'localhost')}",
            words=MYSQL.with_prefix(table_prefix),
            create_tables=create_tables,
            max_age_days=max_age_days,
            max_records=max_records,
        )
        self.open()

    def connect(self) -> Any:
        """Log in."""
        import pymysql
        from pymysql.constants import CLIENT

        raw = pymysql.connect(
            **{
                "connect_timeout": 10,
                "read_timeout": 60,
                "write_timeout": 60,
                **self._login,
                "charset": "utf8mb4",
                "autocommit": True,
                # The number of rows that met a condition, also where an UPDATE changed nothing: as everywhere else.
                "client_flag": self._login.get("client_flag", 0) | CLIENT.FOUND_ROWS,
                "init_command": _SETTINGS,
            }
        )
        is_mariadb = "mariadb" in str(raw.server_version).lower()
        # MySQL cannot end only what is silent in a transaction. A connection that it ends too early is opened again.
        silence = f"idle_transaction_timeout = {self.frozen_s}" if is_mariadb else f"wait_timeout = {6 * self.frozen_s}"
        with raw.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute(f"SET SESSION {silence}")
        self.words = self.words.with_types(mysql_types("utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"))
        return raw

    def driver_errors(self) -> tuple[type[Exception], ...]:
        """PyMySQL's."""
        import pymysql

        return (pymysql.Error,)

    def is_lost(self, exc: Exception) -> bool:
        """The server went away, or closed the connection."""
        return _number(exc) in _LOST

    def must_give_way(self, exc: Exception) -> bool:
        """A deadlock, or a lock that was held for too long."""
        return _number(exc) in _CONFLICTS

    def is_there_already(self, exc: Exception) -> bool:
        """MySQL commits each table by itself, so one may be left from somebody who was interrupted."""
        return _number(exc) in _THERE


def _login(url: str) -> dict[str, Any]:
    try:
        database = server_address(url, default_port=3306).database
    except ValueError as exc:
        raise InvalidConfig(f"The run log's URL cannot be read: {exc}.") from exc
    if not database:
        raise InvalidConfig("The run log's URL names no database.", fix="mysql://user:password@host/database")
    return {**login_of(url, "run log"), "database": database}


def _number(exc: Exception) -> int | None:
    return exc.args[0] if exc.args and isinstance(exc.args[0], int) else None
