"""`/healthz` and `/readyz` of a scheduler: whether its ticks come, and whether its run log answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ematix_flow.errors import PortTaken
from ematix_flow.orchestrate.scheduler import Pulse

_GRACE_S = 30.0


@contextmanager
def serving_health(pulse: Pulse, poll_s: float, address: str, port: int | None) -> Iterator[int | None]:
    """Serve for as long as the block runs; the port, which is a free one when 0 was asked for. Nothing without a port.

    Raises:
        PortTaken: (a ValueError) The port cannot be had.
    """
    if port is None:
        yield None
        return
    try:
        server = ThreadingHTTPServer((address, port), _handler(pulse, poll_s))
    except OSError as exc:
        raise PortTaken(f"Health cannot be served on {address}:{port}: {exc.strerror or exc}.") from exc
    thread = threading.Thread(target=server.serve_forever, name="ematix-flow-health", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def _handler(pulse: Pulse, poll_s: float) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = {"/healthz": _is_alive(pulse, poll_s), "/readyz": _is_alive(pulse, poll_s) and not pulse.problem}
            path = self.path.partition("?")[0]
            if path not in known:
                self.send_error(404)
                return
            body = json.dumps({"ok": known[path], **_facts(pulse)}).encode()
            self.send_response(200 if known[path] else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Probes come every few seconds; nobody wants to read of them."""

    return Handler


def _is_alive(pulse: Pulse, poll_s: float) -> bool:
    return time.monotonic() - pulse.steady_s < 3 * poll_s + _GRACE_S


def _facts(pulse: Pulse) -> dict[str, Any]:
    facts = {name: value for name, value in asdict(pulse).items() if name != "steady_s"}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in facts.items()}
