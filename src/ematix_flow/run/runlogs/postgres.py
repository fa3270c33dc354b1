"""The run log in PostgreSQL: for several hosts, with one clock for all of them."""

from __future__ import annotations

from typing import Any, ClassVar

from ematix_flow.declare.redaction import display_url, remember_secret, scrub, url_secrets
from ematix_flow.errors import MissingDriver
from ematix_flow.run.runlogs.sql import SqlRunLog
from ematix_flow.run.runlogs.store import Db
from ematix_flow.run.runlogs.words import POSTGRES

# A server that is gone without a word is noticed in seconds: a worker must not wait longer than its lease for it.
_PATIENCE = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
_SETTINGS = (
    "SELECT set_config('client_min_messages', 'warning', false),"
    # A claim or a slot that a crash of the server forgets would be given out twice.
    " set_config('synchronous_commit', 'on', false),"
    # A process that is frozen in the middle of a transaction must not keep its locks from everybody else.
    " set_config('idle_in_transaction_session_timeout', %s, false)"
)
# Shut down, crashed, starting up, idle for too long, in a transaction or not.
_GONE = ("57P01", "57P02", "57P03", "57P05", "25P03")
_CONFLICTS = ("40001", "40P01", "55P03")


class PostgresRunLog(SqlRunLog):
    """A run log in one schema of a PostgreSQL database.

    Args:
        dsn: A URL or a connection string of libpq.
        schema: Where its tables lie; made when it is missing.
        create_tables: Whether missing tables are made. Without that a login is enough that may read and write them.

    Raises:
        MissingDriver: psycopg is not installed; it is an ImportError.
        ConnectionFailed: The server cannot be reached or refuses the login.
        InvalidConfig: The tables are missing and may not be made, or a newer version made them.
    """

    frozen_s: ClassVar[int] = 10
    """So long a transaction in which nothing is said keeps its locks."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "public",
        create_tables: bool = True,
        max_age_days: float | None = None,
        max_records: int | None = None,
    ) -> None:
        try:
            import psycopg  # noqa: F401
        except ImportError as exc:
            raise MissingDriver(
                "A run log in PostgreSQL needs 'psycopg'.", fix='pip install "ematix-flow[runlog-postgres]"'
            ) from exc
        for secret in url_secrets(dsn):
            remember_secret(secret)
        self._dsn, self._schema = dsn, '"' + schema.replace('"', '""') + '"'
        super().__init__(
            where=scrub(display_url(dsn)),
            words=POSTGRES.with_prefix(f"{self._schema}."),
            create_tables=create_tables,
            max_age_days=max_age_days,
            max_records=max_records,
        )
        self.open()

    def connect(self) -> Any:
        """Log in."""
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        told = conninfo_to_dict(self._dsn)
        remember_secret(str(told["password"]) if told.get("password") else None)
        patience = {name: value for name, value in _PATIENCE.items() if name not in told}
        # No prepared statements: a pooler in between may give the next one to another session.
        raw = psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None, **patience)  # type: ignore[arg-type]
        raw.execute(_SETTINGS, (f"{self.frozen_s}s",))
        return raw

    def driver_errors(self) -> tuple[type[Exception], ...]:
        """psycopg's."""
        import psycopg

        return (psycopg.Error,)

    def is_lost(self, exc: Exception) -> bool:
        """The server went away, or closed the connection."""
        import psycopg

        state = getattr(exc, "sqlstate", None)
        if isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError) and state is None:
            return True
        return state is not None and (state in _GONE or state.startswith("08"))

    def must_give_way(self, exc: Exception) -> bool:
        """A deadlock, or a transaction that came too late."""
        return getattr(exc, "sqlstate", None) in _CONFLICTS

    def create_room(self, db: Db) -> None:
        """The schema. Asking first: whoever may not create one may still use the one that is there."""
        if db.rows("SELECT to_regnamespace(?::text) IS NULL", self._schema) == [(True,)]:
            db.say(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
