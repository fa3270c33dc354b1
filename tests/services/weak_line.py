"""A line to a server that a test can cut: connections pass through it until it is down, and again when it is up."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class WeakLine:
    """Listens on a port of 127.0.0.1 and passes everything on to another address."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._is_up = True
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection, and take no new one."""
        self._is_up = False
        self.drop()

    def drop(self) -> None:
        """End every connection; new ones pass."""
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def mend(self) -> None:
        """Let connections pass again."""
        self._is_up = True

    def close(self) -> None:
        """End it all."""
        self.cut()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if not self._is_up:
                near.close()
                continue
            try:
                far = socket.create_connection(self._target, timeout=10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            threading.Thread(target=self._pass, args=(near, far), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        source.close()


@contextlib.contextmanager
def weak_line(host: str, port: int) -> Iterator[WeakLine]:
    """A line that ends with the block."""
    line = WeakLine(host, port)
    try:
        yield line
    finally:
        line.close()
