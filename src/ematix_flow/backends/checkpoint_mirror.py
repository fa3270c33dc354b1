"""A copy of a stream's checkpoint in PostgreSQL, so that the loss of a disk is not the loss of a stream.

Before a batch is worked on, everything that is new in the folder is copied: how far the batch will go, and what the one
before it came to. So it is when there is nothing left to do. A folder that is empty or damaged when the stream starts,
or is one that was put back from earlier, is filled from the copy. Spark may then do the last batch again, which the
targets recognise.

Files are kept in `<schema>.ematix_streaming_state`, by their path; `<schema>.ematix_streaming_offsets` says for people
how far each source is.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ematix_flow.backends.postgres import PostgresBackend
from ematix_flow.contracts.streams import Positions
from ematix_flow.declare.connection import PostgresConnection
from ematix_flow.errors import StateIncompatible

_TABLES = (
    "CREATE TABLE IF NOT EXISTS {schema}.ematix_streaming_state (pipeline_name text, group_key text, state_blob bytea "
    "NOT NULL, state_version bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now(), "
    "PRIMARY KEY (pipeline_name, group_key))",
    "CREATE TABLE IF NOT EXISTS {schema}.ematix_streaming_offsets (pipeline_name text, source_id text, offset_bytes "
    "bytea NOT NULL, state_version bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now(), "
    "PRIMARY KEY (pipeline_name, source_id))",
)
_LEFT_OUT = (".crc", ".lock", ".tmp")
_CURRENT = "current.json"


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
        self._copying = threading.Lock()  # between two batches somebody else copies than before one

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
        """Fill the folder from the copy, when it has no checkpoint or has an older one; whether that was done.

        Raises:
            StateIncompatible: the copy is of another beginning of the stream, which is later than the folder's.
        """
        with self._backend.session() as db:
            if not self._is_ahead(db):
                return False
            found = db.execute(
                f"SELECT group_key, state_blob FROM {self._table('state')} WHERE pipeline_name = %s ORDER BY group_key",
                (self._pipeline,),
            ).fetchall()
        # What says which generation counts goes first and comes last: a restore that dies is begun anew.
        (self._folder / _CURRENT).unlink(missing_ok=True)
        for path in self._files().keys() - {path for path, _ in found}:
            (self._folder / path).unlink(missing_ok=True)
        for path, content in sorted(found, key=lambda row: row[0] == _CURRENT):
            place = self._folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.with_name(f".{place.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of what was there
            place.write_bytes(bytes(content))
        return True

    def _is_ahead(self, db: Any) -> bool:
        """Whether the copy has come further than the folder."""
        asked = f"FROM {self._table('state')} WHERE pipeline_name = %s"
        kept = db.execute(f"SELECT state_blob {asked} AND group_key = %s", (self._pipeline, _CURRENT)).fetchone()
        if kept is None:
            return False
        here = self._begun_here()
        if here is None:
            return True
        there = json.loads(bytes(kept[0]))
        if here["generation"] == there["generation"]:
            paths = db.execute(f"SELECT group_key {asked}", (self._pipeline,)).fetchall()
            planned = f"gen-{there['generation']}/offsets/"
            return _newest(planned, (path for (path,) in paths)) > _newest(planned, self._files())
        if there["begun_at"] > here["begun_at"]:
            raise StateIncompatible(
                f"The checkpoint of '{self._pipeline}' on this disk was begun at {here['begun_at']}, and its copy in "
                f"the state store later, at {there['begun_at']}: an old folder was put back, or another machine has "
                "gone on.",
                where=str(self._folder),
                fix=f"move the folder away to go on with the copy; or begin anew: flow state reset {self._pipeline}",
            )
        return False

    def _begun_here(self) -> dict[str, str] | None:
        """What the folder says of its generation; None when it has none, or what says so is damaged."""
        try:
            known = json.loads((self._folder / _CURRENT).read_text())
        except (FileNotFoundError, ValueError):
            return None
        is_whole = isinstance(known, dict) and {"generation", "begun_at"} <= known.keys()
        return known if is_whole else None

    def copy(self, version: int, positions: Positions) -> None:
        """Bring the copy up to the folder, in one transaction."""
        with self._copying:
            self._copy(version, positions)

    def _copy(self, version: int, positions: Positions) -> None:
        now = self._files()
        changed = {path: seen for path, seen in now.items() if self._known.get(path) != seen}
        gone = [path for path in self._known if path not in now] if self._known else None
        with self._backend.transaction() as db:
            if gone is None:  # the first copy of this process: what is there of an earlier one is older
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


def _newest(folder: str, paths: Iterable[str]) -> int:
    """The greatest number that is the name of a file in a folder; -1 without one.

    >>> _newest("offsets/", ["offsets/9", "offsets/10", "offsets/11.tmp", "commits/12"])
    10
    """
    names = (path.removeprefix(folder) for path in paths if path.startswith(folder))
    return max((int(name) for name in names if name.isdigit()), default=-1)
