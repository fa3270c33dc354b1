"""Private MariaDB servers for the tests, one for each worker process: books live in one database per server.

First the server named by `EMATIX_TEST_MYSQL_URL` (MySQL or MariaDB, a URL of somebody who may do everything; tests then
take turns), else a fresh one from the server programs on this machine, on a free port of 127.0.0.1, with nothing kept
after the run. Passwords are really checked.

    python -m tests.services.mariadb find           where the server program is; exit code 1 when nowhere
    python -m tests.services.mariadb stop FOLDER    stop the servers of a test run
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tests.services.postgres import _free_port
from tests.services.run_folder import RunFolder

VARIABLE = "EMATIX_TEST_MYSQL_URL"
USER, PASSWORD = "loader", "maria-pass-81"  # no word that other output holds: passwords are blotted out everywhere
BOOKS = "ematix_flow"
PATIENCE = 120.0
OPTIONS = (
    "--no-defaults",
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--character-set-server=utf8mb4",
    "--local-infile=1",
    "--max-connections=100",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=32M",
    # Nothing of it is kept: there is no need to wait for a disk.
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--innodb-flush-method=nosync",
    "--skip-log-bin",
)


WITH_LOG = ("--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--server-id=7")


class MariadbMissing(RuntimeError):
    """There is neither a server nor the programs to start one."""


@dataclass(frozen=True)
class MariadbServer:
    """A running server, reached as somebody who may do everything. `is_shared` when other processes use it too."""

    url: str
    is_shared: bool = False

    def url_of(self, database: str, *, user: str | None = None, password: str | None = None) -> str:
        """The URL of one database, as the all-powerful user or as somebody else."""
        whole = urlsplit(self.url)
        name = quote(unquote(whole.username or "") if user is None else user, safe="")
        secret = quote(unquote(whole.password or "") if password is None else password, safe="")
        return whole._replace(netloc=f"{name}:{secret}@{whole.hostname}:{whole.port}", path=f"/{database}").geturl()

    @contextlib.contextmanager
    def connected(self) -> Iterator[Any]:
        """A connection of the driver that commits every statement."""
        import pymysql

        whole = urlsplit(self.url)
        connection = pymysql.connect(
            host=whole.hostname,
            port=whole.port or 3306,
            user=unquote(whole.username or ""),
            password=unquote(whole.password or ""),
            autocommit=True,
        )
        try:
            yield connection
        finally:
            connection.close()

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; the rows of the last one."""
        with self.connected() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def databases(self) -> set[str]:
        """The names of all databases."""
        return {str(row[0]) for row in self.run("SHOW DATABASES")}

    @contextlib.contextmanager
    def fresh_database(self) -> Iterator[str]:
        """The URL of a new, empty database; afterwards it is gone, and so is every other one made meanwhile."""
        with RunFolder.joined().locked("mysql") if self.is_shared else contextlib.nullcontext():
            before = self.databases()
            if BOOKS in before:
                raise RuntimeError(f"The tests need database '{BOOKS}' of {VARIABLE} for themselves; drop it first.")
            name = f"t_{uuid.uuid4().hex[:16]}"
            self.run(f"CREATE DATABASE {name}")
            try:
                yield self.url_of(name)
            finally:
                self._end_connections()
                for made in self.databases() - before:
                    self.run("DROP DATABASE `{}`".format(made.replace("`", "``")))

    def _end_connections(self) -> None:
        """Nobody stays: a test that died in a transaction would keep its tables locked."""
        import pymysql

        if self.is_shared:
            return
        for number, user in self.run("SELECT id, user FROM information_schema.processlist WHERE id <> CONNECTION_ID()"):
            if user not in ("system user", "event_scheduler"):
                with contextlib.suppress(pymysql.Error):  # it may have ended by itself
                    self.run(f"KILL {number}")


def shared_server(folder: RunFolder, *, with_log: bool = False) -> MariadbServer:
    """The server of this process and those it starts; in a parallel test run each worker has one of its own.

    Args:
        with_log: One that keeps a binary log, always of our own.
    """
    outside = os.environ.get(VARIABLE)
    if outside and not with_log:
        return MariadbServer(outside, is_shared=True)
    name = f"mariadb{'-with-log' if with_log else ''}{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    address = folder.path / f"{name}.url"
    with folder.locked(name):
        if not address.exists():
            folder.guard(__name__)
            with folder.locked("template-of-mariadb"):
                template = folder.path / "template-of-mariadb"
                if not (template / "ready").exists():
                    _install(template)
            options = (*(o for o in OPTIONS if o != "--skip-log-bin"), *WITH_LOG) if with_log else OPTIONS
            address.write_text(start(folder.path / name, template, options).url)
        return MariadbServer(address.read_text())


def program() -> Path:
    """The server program: on the path, else in the usual places."""
    for place in (
        shutil.which("mariadbd"),
        "/usr/sbin/mariadbd",
        "/usr/local/sbin/mariadbd",
        "/opt/homebrew/bin/mariadbd",
    ):
        if place and Path(place).exists() and shutil.which("mariadb-install-db"):
            return Path(place)
    raise MariadbMissing(
        f"The tests need MariaDB: set {VARIABLE} to the URL of somebody who may do everything, or install the server"
        " (Debian, Ubuntu: apt-get install mariadb-server; macOS: brew install mariadb)"
    )


def start(home: Path, template: Path, options: Sequence[str] = OPTIONS) -> MariadbServer:
    """Start a server in `home` on a free port, from the empty data of a template. Whoever calls it sees to `stop`."""
    home.mkdir()
    shutil.copytree(template / "data", home / "data")
    owner = _owner()
    if owner is not None:
        for place in (home, *home.rglob("*")):
            os.chown(place, owner.pw_uid, owner.pw_gid)
    setup = home / "setup.sql"
    grants = f"CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'"
    setup.write_text(f"{grants};\nGRANT ALL ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;\n")
    setup.chmod(0o644)
    for _ in range(3):  # between finding a free port and taking it, somebody else may
        port = _free_port()
        done = subprocess.run(
            # The shell leaves the server behind as nobody's child, so no one has to wait for it.
            ["sh", "-c", 'log=$1; shift; "$@" >>"$log" 2>&1 & echo $!', "sh", str(home / "log"), str(program())]
            + [*options, f"--datadir={home / 'data'}", f"--port={port}", f"--init-file={setup}"]
            + [f"--socket={home / 's.sock'}", f"--pid-file={home / 'pid'}", f"--tmpdir={home / 'data'}"],
            cwd="/",
            # The server's own time zone must not matter.
            env={"PATH": os.environ.get("PATH", ""), "HOME": str(home), "LC_ALL": "C", "TZ": "Pacific/Auckland"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal is not for it
            user=None if owner is None else owner.pw_uid,
            group=None if owner is None else owner.pw_gid,
            extra_groups=None if owner is None else [],
            check=True,
        )
        server = MariadbServer(f"mysql://{USER}:{PASSWORD}@127.0.0.1:{port}/mysql")
        if _answers(server, int(done.stdout)):
            return server
    raise RuntimeError(f"`mariadbd` did not start:\n{(home / 'log').read_text()[-2000:]}")


def stop(home: Path) -> None:
    """Stop the server in `home` and those of workers beside it; nothing to do when there are none, or they are gone."""
    for pid in home.parent.glob(f"{home.name}*/pid"):
        with contextlib.suppress(ProcessLookupError, ValueError, FileNotFoundError):
            os.kill(int(pid.read_text()), signal.SIGKILL)  # nothing of it is kept


def _answers(server: MariadbServer, pid: int) -> bool:
    """Wait until the server takes connections; False when its process has ended."""
    import pymysql

    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(pymysql.Error):
            server.run("SELECT 1")
            return True
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False


def _install(template: Path) -> None:
    """Make the empty data folder that every server of the run begins with."""
    program()
    template.mkdir()
    template.chmod(0o755)
    owner = _owner()
    if owner is not None:
        os.chown(template, owner.pw_uid, owner.pw_gid)
    done = subprocess.run(
        ["mariadb-install-db", "--no-defaults", f"--datadir={template / 'data'}", "--skip-test-db"]
        + ["--auth-root-authentication-method=normal"]
        + ([] if owner is None else [f"--user={owner.pw_name}"]),
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"`mariadb-install-db` ended with code {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
        )
    (template / "ready").touch()


def _owner() -> pwd.struct_passwd | None:
    """The user the server runs as: this one, unless that is root."""
    if os.geteuid() != 0:
        return None
    for name in ("mysql", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise MariadbMissing("MariaDB refuses to run as root, and there is no user 'mysql' or 'nobody' to run it as")


if __name__ == "__main__":
    if sys.argv[1:2] == ["stop"]:
        stop(Path(sys.argv[2]) / "mariadb")
    else:
        try:
            print(program())
        except MariadbMissing as missing:
            sys.exit(str(missing))
