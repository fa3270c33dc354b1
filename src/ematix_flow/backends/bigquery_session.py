"""BigQuery's client in the form the books use: statements one after the other, a transaction where one is begun.

Statements are jobs. Those of a transaction run in one session, which ends with it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ematix_flow.declare.connection import BigQueryConnection
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import ConnectionFailed, MissingDriver

if TYPE_CHECKING:
    from collections.abc import Sequence

EMULATOR = "BIGQUERY_EMULATOR_HOST"
"""The variable by which Google's own client is sent to another address: a stand-in, which knows no logins."""

BEGIN = "BEGIN TRANSACTION"
_ENDS = ("COMMIT", "ROLLBACK")


class BigqueryCursor:
    """The outcome of one job."""

    def __init__(self, job: Any, rows: Sequence[tuple[Any, ...]], fields: Sequence[Any] = ()) -> None:
        self.job, self._rows, self._fields, self._place = job, rows, fields, 0

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        """The columns as drivers describe them: the name and the type first; None when there are no rows to be had."""
        described = [(field.name, field.field_type, None, None, None, None, None) for field in self._fields]
        return described or None

    @property
    def rowcount(self) -> int:
        """Rows that a changing statement touched; of others, the rows it gave."""
        touched = self.job.num_dml_affected_rows
        return len(self._rows) if touched is None else int(touched)

    def fetchone(self) -> Any:
        """The next row, or None."""
        found = self._rows[self._place : self._place + 1]
        self._place += 1
        return found[0] if found else None

    def fetchmany(self, size: int) -> list[Any]:
        """The next rows, at most so many."""
        found = list(self._rows[self._place : self._place + size])
        self._place += len(found)
        return found

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        found = list(self._rows[self._place :])
        self._place = len(self._rows)
        return found


class BigquerySession:
    """One client and, while a transaction lasts, its session."""

    def __init__(self, client: Any, connection: BigQueryConnection) -> None:
        self.client, self.connection = client, connection
        self._session_id: str | None = None

    def config(self, *, dry_run: bool = False, begins: bool = False) -> Any:
        """How a statement is run: in the connection's dataset, inside the transaction if there is one."""
        from google.cloud import bigquery

        config = bigquery.QueryJobConfig(
            default_dataset=f"{self.connection.project}.{self.connection.dataset}",
            use_legacy_sql=False,
            use_query_cache=False,
        )
        if dry_run:
            config.dry_run = True
        if begins:
            config.create_session = True
        elif self._session_id is not None:
            config.connection_properties = [bigquery.ConnectionProperty("session_id", self._session_id)]
        return config

    def job(self, sql: str, *, dry_run: bool = False) -> Any:
        """Start a statement."""
        begins = sql == BEGIN
        job = self.client.query(sql, job_config=self.config(dry_run=dry_run, begins=begins))
        return job

    def execute(self, sql: str, /) -> BigqueryCursor:
        """Run one statement and wait for it."""
        job = self.job(sql)
        found = job.result()
        rows = [tuple(row.values()) for row in found]
        if sql == BEGIN:
            self._session_id = str(job.session_info.session_id)
        elif sql in _ENDS:
            self._end_session()
        return BigqueryCursor(job, rows, found.schema)

    def _end_session(self) -> None:
        if self._session_id is None:
            return
        from google.api_core.exceptions import GoogleAPICallError

        with suppress(GoogleAPICallError):  # it ends by itself, later
            self.job("CALL BQ.ABORT_SESSION()").result()
        self._session_id = None

    def close(self) -> None:
        """End the session, and with it a transaction that nobody committed."""
        self._end_session()
        self.client.close()


def session(connection: BigQueryConnection) -> BigquerySession:
    """A new client.

    Raises:
        MissingDriver: (an ImportError) the extra is not installed.
        ConnectionFailed: there is no login to be had.
    """
    try:
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import bigquery
    except ImportError as exc:
        raise MissingDriver(
            "The bigquery backend needs 'google-cloud-bigquery'.", fix='pip install "ematix-flow[bigquery]"'
        ) from exc
    try:
        if connection.credentials_path:
            client = bigquery.Client.from_service_account_json(
                connection.credentials_path, project=connection.project, location=connection.location
            )
        else:
            nobody = AnonymousCredentials() if os.environ.get(EMULATOR) else None
            client = bigquery.Client(project=connection.project, credentials=nobody, location=connection.location)
    except (GoogleAuthError, OSError, ValueError) as exc:
        said = scrub(str(exc).strip().splitlines()[0])
        raise ConnectionFailed(
            f"BigQuery connection '{connection.name}' has no login: {said}",
            fix="give credentials_path=, or set GOOGLE_APPLICATION_CREDENTIALS",
        ) from exc
    return BigquerySession(client, connection)
