"""Numbers of processes that end before Prometheus comes to ask: handed over to a file or to a Pushgateway.

A counter that starts at 0 in every process tells Prometheus nothing. So what a process counted is added to what is
there already, under a lock, and its state replaces the one that is there.
"""

from __future__ import annotations

import base64
import logging
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from ematix_flow.backends.locks import FileLock, digest
from ematix_flow.backends.own_folders import writable_folder
from ematix_flow.errors import InvalidConfig, WriteConflict
from ematix_flow.watch.addresses import read_address
from ematix_flow.watch.metrics_prometheus import RunNumbers, needs_prometheus, read_numbers
from ematix_flow.watch.posting import basic_login, exchange

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0
_REST_S = 30.0


class _HandedOver(ABC):
    """Counts, and adds it to what is there with every flush. What could not be handed over stays for the next one."""

    def __init__(self) -> None:
        needs_prometheus()
        self._counting = threading.Lock()
        self._pending = RunNumbers()

    def inc_runs(self, name: str, outcome: str) -> None:
        """One run more with that outcome."""
        with self._counting:
            self._pending.inc_runs(name, outcome)

    def observe_duration(self, name: str, secs: float) -> None:
        """How long one took."""
        with self._counting:
            self._pending.observe_duration(name, secs)

    def set_attempt(self, name: str, count: int) -> None:
        """Failures in a row."""
        with self._counting:
            self._pending.set_attempt(name, count)

    def add_rows(self, name: str, action: str, rows: int) -> None:
        """Rows that a run changed."""
        with self._counting:
            self._pending.add_rows(name, action, rows)

    def set_last_success(self, name: str, at: float) -> None:
        """When a run ended well."""
        with self._counting:
            self._pending.set_last_success(name, at)

    def flush(self) -> None:
        """Hand over what was counted since the last time."""
        with self._counting:
            counted, self._pending = self._pending, RunNumbers()
        if counted.is_empty():
            return
        try:
            self._add(counted)
        except BaseException:
            with self._counting:
                self._pending = counted.plus(self._pending)
            raise

    def close(self) -> None:
        """Hand over what is left."""
        self.flush()

    @abstractmethod
    def _add(self, counted: RunNumbers) -> None:
        """Add them to what is there already."""


class TextfileMetrics(_HandedOver):
    """A file for the textfile collector of Prometheus' node exporter; several processes may share it.

    Args:
        url: `textfile:///var/lib/node_exporter/flow.prom`. The folder must be there, the name must end in `.prom`:
            the collector reads no other files.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        written = url.partition("://")[2]
        if "?" in written:
            raise InvalidConfig("A textfile:// has no options.", fix="textfile:///path/to/flow.prom")
        self._path = Path(unquote(written)).expanduser().absolute()
        if self._path.suffix != ".prom":
            raise InvalidConfig(
                "The node exporter reads only files whose names end in '.prom'.", fix="textfile:///path/to/flow.prom"
            )
        if not self._path.parent.is_dir():
            raise InvalidConfig(
                f"The folder '{self._path.parent}' does not exist, so nobody reads metrics there.",
                fix="name the folder of the node exporter's --collector.textfile.directory",
            )

    def _add(self, counted: RunNumbers) -> None:
        with _locked(self._path.with_name(f".{self._path.name}.lock")):
            text = self._known().plus(counted).exposition()
            new = self._path.with_name(f".{self._path.name}.new")
            new.write_bytes(text)
            os.chmod(new, 0o644)  # the exporter is another user
            os.replace(new, self._path)  # it never sees half a file

    def _known(self) -> RunNumbers:
        try:
            return read_numbers(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return RunNumbers()
        except (ValueError, KeyError) as exc:
            log.warning("'%s' holds no metrics and is written anew: %s", self._path, exc)
            return RunNumbers()


class PushgatewayMetrics(_HandedOver):
    """A Pushgateway, under the labels `job` and `instance`.

    Args:
        url: `pushgateway://[user:password@]host:9091[/path][?job=…&instance=…]`, `pushgateway+https://…` with TLS.
            `instance` is this machine by default: processes of one machine take turns, so nothing is lost between
            them. Where several machines share an instance, one of two that come at the same moment may be lost.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        address = read_address(url, ("job", "instance", "timeout"))
        if not address.host:
            raise InvalidConfig("This URL names no host.", where=address.shown, fix="pushgateway://host:9091")
        self._shown = address.shown
        self._timeout_s = address.seconds("timeout", _PATIENCE_S) or _PATIENCE_S
        self._labels = {
            "job": address.option("job") or "ematix_flow",
            "instance": address.option("instance") or socket.gethostname() or "localhost",
        }
        scheme = "https" if address.scheme.endswith("https") else "http"
        server = address.server(None if scheme == "https" else 9091)
        self._all = f"{scheme}://{server}{address.path.rstrip('/')}/metrics"
        self._own = self._all + "".join(_grouping(name, value) for name, value in self._labels.items())
        self._headers = basic_login(address.user, address.password)
        locks = writable_folder("~/.ematix-flow/locks", fix="give the processes of this user a HOME of their own")
        self._lock = locks / f"metrics-{digest(self._own)}.lock"
        self._rests_until = 0.0

    def flush(self) -> None:
        """Hand over what was counted; for half a minute after a failure it is kept instead."""
        if time.monotonic() < self._rests_until:
            return
        try:
            super().flush()
        except Exception:
            self._rests_until = time.monotonic() + _REST_S  # a gateway that is down shall not slow down every run
            raise

    def close(self) -> None:
        """Hand over what is left, also shortly after a failure."""
        self._rests_until = 0.0
        self.flush()

    def _add(self, counted: RunNumbers) -> None:
        def ask(method: str, url: str, body: bytes | None, headers: dict[str, str]) -> bytes:
            sent = {**self._headers, **headers}
            return exchange(method, url, body, sent, timeout_s=self._timeout_s, shown=self._shown)

        with _locked(self._lock):
            known = read_numbers(ask("GET", self._all, None, {}).decode("utf-8"), self._labels)
            text = known.plus(counted).exposition()
            ask("PUT", self._own, text, {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _grouping(name: str, value: str) -> str:
    """A label in the path of a Pushgateway, which cannot hold a slash as it is."""
    if "/" in value:
        return f"/{name}@base64/{base64.urlsafe_b64encode(value.encode()).decode()}"
    return f"/{name}/{quote(value, safe='')}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock, until = FileLock(str(path)), time.monotonic() + _PATIENCE_S
    while not lock.acquire():
        if time.monotonic() > until:
            raise WriteConflict(f"Another process has held '{path}' for {_PATIENCE_S:g} s.")
        time.sleep(0.01)
    try:
        yield
    finally:
        lock.release()
