"""A copy of a stream's checkpoint in PostgreSQL, so that the loss of a disk is not the loss of a stream.

Before a batch is worked on, everything that is new in the folder is copied: how far the batch will go, and that the one
before it is done. A folder that is empty when the stream starts is filled from the copy. Spark then does the last batch
again, which the targets recognise.

Files are kept in `<schema>.ematix_streaming_state`, by their path; `<schema>.ematix_streaming_offsets` says for people
how far each source is.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ematix_flow.backends.postgres import PostgresBackend
from ematix_flow.contracts.streams import Positions
from ematix_flow.declare.connection import PostgresConnection

_TABLES = (
    "CREATE TABLE IF NOT EXISTS {schema}.ematix_streaming_state (pipeline_name text, group_key text, state_blob bytea "
    "NOT NULL, state_version bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now(), "
    "PRIMARY KEY (pipeline_name, group_key))",
    "CREATE TABLE IF NOT EXISTS {schema}.ematix_streaming_offsets (pipeline_name text, source_id text, offset_bytes "
    "bytea NOT NULL, state_version bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now(), "
    "PRIMARY KEY (pipeline_name, source_id))",
)
_LEFT_OUT = (".crc", ".lock", ".tmp")


class CheckpointMirror:
    """The copy of one pipeline's checkpoint folder.

    Args:
        url: The database; its user may create tables in the schema.
        folder: What is copied.
    """

    def __init__(self, url: str, schema: str, pipeline: str, folder: Path) -> None:
        self._backend = PostgresBackend(PostgresConnection(name="state_store", url=url))
        self._schema, self._pipeline, self._folder = schema, pipeline, folder
        self._known: dict[str, tuple[int, int]] = {}

    def open(self) -> None:
        """Make the tables when they are not there.

        Raises:
            ConnectionFailed: the database cannot be reached.
        """
        quoted = self._backend.dialect.quote(self._schema)
        with self._backend.transaction() as db:
            db.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted}")
            for statement in _TABLES:
                db.execute(statement.format(schema=quoted))

    def restore(self) -> bool:
        """Fill a folder that has no checkpoint from the copy; whether there was one."""
        if (self._folder / "current.json").exists():
            return False
        with self._backend.session() as db:
            found = db.execute(
                f"SELECT group_key, state_blob FROM {self._table('state')} WHERE pipeline_name = %s ORDER BY group_key",
                (self._pipeline,),
            ).fetchall()
        # What says which generation counts comes last: a restore that dies is begun anew.
        for path, content in sorted(found, key=lambda row: row[0] == "current.json"):
            place = self._folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(bytes(content))
        return bool(found)

    def copy(self, version: int, positions: Positions) -> None:
        """Bring the copy up to the folder, in one transaction."""
        now = self._files()
        changed = {path: seen for path, seen in now.items() if self._known.get(path) != seen}
        gone = [path for path in self._known if path not in now] if self._known else None
        with self._backend.transaction() as db:
            if gone is None:  # the first copy of this process: what is there of an earlier one may be older
                db.execute(
                    f"DELETE FROM {self._table('state')} WHERE pipeline_name = %s AND NOT group_key = ANY(%s)",
                    (self._pipeline, list(now)),
                )
            elif gone:
                db.execute(
                    f"DELETE FROM {self._table('state')} WHERE pipeline_name = %s AND group_key = ANY(%s)",
                    (self._pipeline, gone),
                )
            for path in changed:
                try:
                    content = (self._folder / path).read_bytes()
                except FileNotFoundError:  # since it was listed; the next copy removes what there is of it
                    continue
                self._put(db, "state", ("group_key", "state_blob"), path, content, version)
            for source, end in positions.items():
                told = json.dumps(end).encode()
                self._put(db, "offsets", ("source_id", "offset_bytes"), source, told, version)
        self._known = now

    def forget(self) -> None:
        """Remove the copy: the stream begins anew."""
        with self._backend.transaction() as db:
            for table in ("state", "offsets"):
                db.execute(f"DELETE FROM {self._table(table)} WHERE pipeline_name = %s", (self._pipeline,))

    def _put(self, db: Any, table: str, columns: tuple[str, str], key: str, content: bytes, version: int) -> None:
        name, value = columns
        db.execute(
            f"INSERT INTO {self._table(table)} (pipeline_name, {name}, {value}, state_version) VALUES (%s, %s, %s, %s) "
            f"ON CONFLICT (pipeline_name, {name}) DO UPDATE SET {value} = EXCLUDED.{value}, "
            "state_version = EXCLUDED.state_version, updated_at = now()",
            (self._pipeline, key, content, version),
        )

    def _table(self, name: str) -> str:
        return f"{self._backend.dialect.quote(self._schema)}.ematix_streaming_{name}"

    def _files(self) -> dict[str, tuple[int, int]]:
        """Every file that counts, with its size and time: Spark's files are written once and never changed."""
        found = {}
        for folder, _, names in os.walk(self._folder):
            for name in names:
                if name.startswith(".") or name.endswith(_LEFT_OUT):
                    continue
                place = Path(folder, name)
                with suppress(FileNotFoundError):  # Spark and receivers of messages remove files when they like
                    seen = place.stat()
                    found[place.relative_to(self._folder).as_posix()] = (seen.st_size, seen.st_mtime_ns)
        return found
