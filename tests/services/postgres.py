"""A private PostgreSQL for the tests.

First the server named by `EMATIX_TEST_POSTGRES_URL` (a superuser's URL), else a fresh one from the server programs on
this machine, on a free port of 127.0.0.1, with nothing kept after the run. Passwords are really checked.

    python -m tests.services.postgres find           where the server programs are; exit code 1 when nowhere
    python -m tests.services.postgres stop FOLDER    stop the server of a test run
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tests.services.run_folder import RunFolder

VARIABLE = "EMATIX_TEST_POSTGRES_URL"
USER = PASSWORD = "postgres"
SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 100
shared_buffers = 64MB
wal_level = logical
max_wal_senders = 8
max_replication_slots = 8
max_prepared_transactions = 8
fsync = off
synchronous_commit = off
full_page_writes = off
autovacuum = off
"""


class PostgresMissing(RuntimeError):
    """There is neither a server nor the programs to start one."""


@dataclass(frozen=True)
class PostgresServer:
    """A running server, reached as its superuser."""

    url: str

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 5432

    @property
    def user(self) -> str:
        return unquote(urlsplit(self.url).username or USER)

    @property
    def password(self) -> str:
        return unquote(urlsplit(self.url).password or "")

    def url_of(self, database: str, *, user: str | None = None, password: str | None = None) -> str:
        """The URL of one database, as the superuser or as somebody else."""
        whole = urlsplit(self.url)
        name = quote(self.user if user is None else user, safe="")
        secret = quote(self.password if password is None else password, safe="")
        return whole._replace(netloc=f"{name}:{secret}@{self.host}:{self.port}", path=f"/{quote(database)}").geturl()

    def run(self, statement: str) -> None:
        """One statement outside a transaction, in the server's own database."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            # Typed as text that the caller vouches for; tests write it, nobody else.
            text: Any = statement
            connection.execute(text)

    @contextlib.contextmanager
    def fresh_database(self) -> Iterator[str]:
        """The URL of a new, empty database that is gone afterwards, whoever is still connected."""
        name = f"t_{uuid.uuid4().hex[:16]}"
        self.run(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        try:
            yield self.url_of(name)
        finally:
            self._let_slots_go(name)
            self.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _let_slots_go(self, database: str) -> None:
        """End whoever still receives changes of a database: one with an active slot cannot be dropped, not even so."""
        import psycopg

        ended = (
            "SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots"
            " WHERE database = %s AND active_pid IS NOT NULL"
        )
        with psycopg.connect(self.url, autocommit=True) as connection:
            for _ in range(100):
                if connection.execute(ended, (database,)).fetchone() == (0,):
                    return
                time.sleep(0.05)


def shared_server(folder: RunFolder) -> PostgresServer:
    """The one server of this test run; the first caller starts it."""
    if outside := os.environ.get(VARIABLE):
        return PostgresServer(outside)
    address = folder.path / "postgres.url"
    with folder.locked("postgres"):
        if not address.exists():
            folder.guard(__name__)
            started = start(folder.path / "postgres")
            address.write_text(started.url)
        return PostgresServer(address.read_text())


def programs() -> Path:
    """The folder of `initdb` and `pg_ctl`: on the path, else the newest of the usual places."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    places = [
        *Path("/usr/lib/postgresql").glob("*/bin"),
        *Path("/usr").glob("pgsql-*/bin"),
        *Path("/opt/homebrew/opt").glob("postgresql*/bin"),
        *Path("/usr/local/opt").glob("postgresql*/bin"),
    ]
    places = [place for place in places if (place / "initdb").exists() and (place / "pg_ctl").exists()]
    if not places:
        raise PostgresMissing(
            f"The tests need PostgreSQL: set {VARIABLE} to a superuser's URL, or install the server programs"
            " (Debian, Ubuntu: apt-get install postgresql; macOS: brew install postgresql)"
        )
    return max(places, key=_version)


def start(home: Path, environment: Mapping[str, str] | None = None) -> PostgresServer:
    """Make a cluster in `home` and start it on a free port, with these variables. Whoever calls it sees to `stop`."""
    home.mkdir()
    owner = _owner()
    if owner is not None:
        os.chown(home, owner.pw_uid, owner.pw_gid)
        _let_pass(home)
    secret = home / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    data = home / "data"
    _call(
        ["initdb", "-D", str(data), "-U", USER, f"--pwfile={secret}", "-A", "scram-sha-256"]
        + ["-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"],
        home,
    )
    with (data / "postgresql.conf").open("a") as settings:
        settings.write(SETTINGS)
    for attempt in (1, 2, 3):  # between finding a free port and taking it, somebody else may
        port = _free_port()
        try:
            options = f"-p {port}"
            started = ["pg_ctl", "-D", str(data), "-o", options, "-l", str(home / "log"), "-w", "-t", "60", "start"]
            _call(started, home, environment=environment)
        except RuntimeError:
            if attempt == 3:
                raise
        else:
            return PostgresServer(f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres")
    raise AssertionError("unreachable")


def _let_pass(home: Path) -> None:
    """Folders of tests are their owner's alone, and the database's user must get to its own below them."""
    for folder in home.parents:
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode & 0o777 | 0o011)


def stop(home: Path) -> None:
    """Stop the server in `home`; nothing to do when none was started or it is gone."""
    if (home / "data" / "postmaster.pid").exists():
        if _owner() is not None:
            _let_pass(home)  # another run of tests may have closed the folder above
        # Immediate: nothing of it is kept, and a test that died may have left connections open.
        _call(["pg_ctl", "-D", str(home / "data"), "-m", "immediate", "-w", "stop"], home, may_fail=True)


def restart(home: Path) -> None:
    """Let the server in `home` crash and come back on its port, with its data."""
    if _owner() is not None:
        _let_pass(home)  # another run of tests may have closed the folder above
    _call(["pg_ctl", "-D", str(home / "data"), "-m", "immediate", "-w", "-t", "60", "restart"], home)


def _call(
    command: Sequence[str], home: Path, *, may_fail: bool = False, environment: Mapping[str, str] | None = None
) -> None:
    owner = _owner()
    log = home / "calls.log"
    # A file and not a pipe: the server inherits it and would keep a pipe open for ever.
    with log.open("a") as out:
        done = subprocess.run(
            [str(programs() / command[0]), *command[1:]],
            cwd="/",
            env={
                "PATH": os.environ.get("PATH", ""),
                "HOME": str(home),
                "LC_ALL": "C",
                "TZ": "UTC",
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
            # PostgreSQL refuses to run as root.
            user=None if owner is None else owner.pw_uid,
            group=None if owner is None else owner.pw_gid,
            extra_groups=None if owner is None else [],
        )
    if done.returncode and not may_fail:
        said = log.read_text() + ((home / "log").read_text() if (home / "log").exists() else "")
        raise RuntimeError(f"`{command[0]}` ended with code {done.returncode}:\n{said[-2000:]}")


def _owner() -> pwd.struct_passwd | None:
    """The user the server runs as: this one, unless that is root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresMissing("PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody' to run it as")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _version(place: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", place.parent.name)) or (0,)


if __name__ == "__main__":
    if sys.argv[1:2] == ["stop"]:
        stop(Path(sys.argv[2]) / "postgres")
    else:
        try:
            print(programs())
        except PostgresMissing as missing:
            sys.exit(str(missing))
