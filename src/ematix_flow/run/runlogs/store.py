"""A database that a run log lies in: one connection, its transactions, what is repeated when it breaks, its tables."""

from __future__ import annotations

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import ConnectionFailed, FlowError, InvalidConfig, StatementFailed
from ematix_flow.run.runlogs.tables import MIGRATIONS, VERSION_TABLE
from ematix_flow.run.runlogs.words import Words

_Answer = TypeVar("_Answer")
_GIVES_WAY = 20
"""How often a transaction begins again that another one was in the way of."""

_inherited: list[Any] = []
"""Connections of a parent process. Collecting them here would say goodbye in its name."""


class Db:
    """An open connection, as the statements of a run log use it.

    Attributes:
        is_repeat: The connection was lost while the same was done before: it may have happened, or not.
    """

    def __init__(self, raw: Any, words: Words, *, is_repeat: bool = False) -> None:
        self.raw, self.words, self.is_repeat = raw, words, is_repeat

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The answer to a query."""
        cursor = self._executed(statement, values)
        return list(cursor.fetchall())

    def change(self, statement: str, *values: Any) -> int:
        """Change rows; how many met the condition."""
        return int(self._executed(statement, values).rowcount)

    def say(self, statement: str) -> None:
        """Run a statement that has neither values nor an answer."""
        self._executed(statement, ())

    def _executed(self, statement: str, values: Sequence[Any]) -> Any:
        cursor = self.raw.cursor()
        cursor.execute(self.words.spelled(statement), tuple(values))
        return cursor


class SqlStore(ABC):
    """One connection to a database, shared by the threads of this process and opened anew in a forked one.

    A store says how to connect and what its driver's errors mean; everything else is here.

    Args:
        where: The store in messages, without a password.
        words: Its spelling.
        create_tables: Whether missing tables are made.
    """

    db_type: ClassVar[type[Db]] = Db
    survives_fork: ClassVar[bool] = False

    def __init__(self, *, where: str, words: Words, create_tables: bool = True) -> None:
        self.where, self.words = where, words
        self._create_tables = create_tables
        self._lock = threading.RLock()
        self._raw: Any = None
        self._owner_pid = os.getpid()
        self._closed = False

    # ── what a store must say ──

    @abstractmethod
    def connect(self) -> Any:
        """A connection of the driver's that commits every statement by itself. Raises what the driver raises."""

    @abstractmethod
    def driver_errors(self) -> tuple[type[Exception], ...]:
        """What the driver raises."""

    def is_lost(self, exc: Exception) -> bool:
        """Whether the connection broke, so that nobody knows whether the statement was done."""
        return False

    def must_give_way(self, exc: Exception) -> bool:
        """Whether another transaction was in the way, so that nothing was done and may be tried again."""
        return False

    def is_there_already(self, exc: Exception) -> bool:
        """Whether a statement that makes a table found it made, where that is no part of a transaction."""
        return False

    # ── the connection ──

    def close(self) -> None:
        """Let go of the store; may be called twice. A closed log refuses further work."""
        with self._exclusive():
            self._closed = True
            self._drop()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Kept as a default: at the very end of the interpreter modules are gone, this module's names included.
        if hasattr(self, "_closed") and not is_finalizing():
            self.close()

    def _exclusive(self) -> threading.RLock:
        """The turn of one thread."""
        if self._owner_pid != os.getpid():
            # A child: a lock that another thread of the parent held would never be given back here.
            self._lock, self._owner_pid = threading.RLock(), os.getpid()
            if not self.survives_fork and self._raw is not None:
                _inherited.append(self._raw)
                self._raw = None
        return self._lock

    def _open(self) -> Any:
        if self._closed:
            raise ConnectionFailed(f"The run log '{self.where}' is closed.")
        if self._raw is None:
            self._raw = self.connect()
        return self._raw

    def _drop(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            with suppress(*self.driver_errors()):  # it may be broken already
                raw.close()

    # ── doing ──

    def _ask(self, work: Callable[[Db], _Answer]) -> _Answer:
        """Do something each of whose statements stands alone."""
        return self._repeated(work)

    def _together(self, work: Callable[[Db], _Answer]) -> _Answer:
        """Do something in one transaction."""

        def whole(db: Db) -> _Answer:
            try:
                db.say(self.words.begin)
                answer = work(db)
                db.say("COMMIT")
            except BaseException:
                with suppress(*self.driver_errors()):  # a broken connection, or a full disk, ended it by itself
                    db.say("ROLLBACK")
                raise
            return answer

        return self._repeated(whole)

    def _repeated(self, work: Callable[[Db], _Answer]) -> _Answer:
        """Do it, once more over a new connection if that broke, and again as long as others are in the way.

        So `work` must be something that may be done twice, or looks at `db.is_repeat`.
        """
        with self._exclusive():
            is_repeat, gave_way = False, 0
            while True:
                was_open = self._raw is not None
                try:
                    return work(self.db_type(self._open(), self.words, is_repeat=is_repeat))
                except self.driver_errors() as exc:
                    if self.is_lost(exc):
                        self._drop()
                        if was_open and not is_repeat:
                            is_repeat = True
                            continue
                    elif self.must_give_way(exc) and gave_way < _GIVES_WAY:
                        gave_way += 1
                        continue
                    raise self._explained(exc) from exc

    def _explained(self, exc: Exception) -> FlowError:
        if self.is_lost(exc):
            return ConnectionFailed(
                f"The run log '{self.where}' does not answer: {_said(exc)}.", fix="see whether its server is up"
            )
        return StatementFailed(f"The run log '{self.where}' refused: {_said(exc)}.")

    # ── the tables ──

    def _prepare(self) -> None:
        """Connect, and see to the tables.

        Raises:
            ConnectionFailed: The store cannot be reached, or is no run log.
            InvalidConfig: A newer program made its tables, or they are missing and may not be made.
        """
        try:
            version = self._version()
            if version > len(MIGRATIONS):
                raise InvalidConfig(
                    f"The run log '{self.where}' has version {version}; this program knows {len(MIGRATIONS)}.",
                    fix="update ematix-flow, or give another place with --run-log",
                )
            if version < len(MIGRATIONS):
                if not self._create_tables:
                    raise InvalidConfig(
                        f"The run log '{self.where}' has no tables of version {len(MIGRATIONS)}, and create_tables is"
                        " off.",
                        fix="open it once without create_tables=false, as somebody who may create tables",
                    )
                self._together(self._migrate)
        except BaseException as exc:
            self.close()
            if isinstance(exc, (OSError, StatementFailed, *self.driver_errors())):
                raise self.unopened(exc) from exc
            raise

    def unopened(self, exc: BaseException) -> ConnectionFailed:
        """The error of a store that cannot be opened."""
        return ConnectionFailed(
            f"The run log '{self.where}' cannot be opened: {_said(exc)}.",
            fix="give another place with --run-log, or none with --no-run-log",
        )

    def _version(self) -> int:
        """The version of the tables; 0 when there are none."""
        with self._exclusive():
            db = self.db_type(self._open(), self.words)
            try:
                ((version,),) = db.rows(f"SELECT max(version) FROM @{VERSION_TABLE}")
            except self.driver_errors() as exc:
                if self.is_lost(exc):
                    raise
                return 0  # whatever it is, making the tables will say it
            return int(version or 0)

    def _migrate(self, db: Db) -> None:
        """Bring the tables to this version; two processes may want that at the same moment."""
        before, after = self.words.alone
        if before:
            db.rows(before)
        try:
            self.create_room(db)
            db.say(f"CREATE TABLE IF NOT EXISTS @{VERSION_TABLE} (version {self.words.types['number']} NOT NULL)")
            ((version,),) = db.rows(f"SELECT max(version) FROM @{VERSION_TABLE}")
            for number in range(int(version or 0), len(MIGRATIONS)):
                for statement in MIGRATIONS[number]:
                    self._make(db, statement)
                db.change(f"INSERT INTO @{VERSION_TABLE} (version) VALUES (?)", number + 1)
        finally:
            if after:
                with suppress(*self.driver_errors()):
                    db.rows(after)

    def create_room(self, db: Db) -> None:
        """Make what the tables lie in, where that is something of its own."""
        return

    def _make(self, db: Db, statement: str) -> None:
        words = self.words
        if " INDEX " in statement and not words.has_indexes:
            return
        if statement.startswith("DROP INDEX"):
            _, _, index, _, table = statement.split()
            statement = words.drop_index.replace("{index}", index).replace("{table}", table)
        for name, spelled in words.types.items():
            statement = statement.replace(f"{{{name}}}", spelled)
        try:
            db.say(statement)
        except self.driver_errors() as exc:
            if not self.is_there_already(exc):
                raise


def _said(exc: BaseException) -> str:
    """The first line of what a driver said, without secrets and without its full stop."""
    words = exc.message if isinstance(exc, FlowError) else str(exc.args[-1] if exc.args else exc)
    return scrub((words.strip().splitlines() or [type(exc).__name__])[0]).rstrip(". ")
