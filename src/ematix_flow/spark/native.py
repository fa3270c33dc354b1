"""The native engine: Sail, a Spark Connect server written in Rust, inside this process. No JVM, no jars.

The same PySpark code runs on it. Where it means something else than Spark, the expression is written in another way
(`spark/expressions.py`, `spark/fitting.py`) or refused with the reason (`refuse`, `plan/native.py`).
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from ematix_flow.errors import EngineFailed, MissingDriver, RouteImpossible

if TYPE_CHECKING:
    from pysail.spark import SparkConnectServer

_server: SparkConnectServer | None = None
_EXTRA = 'pip install "ematix-flow[native]"'


def is_running() -> bool:
    """Whether this process moves rows with the native engine. A process has one engine from start to end."""
    return _server is not None


def start() -> str:
    """Start Sail on a port of this machine that only this process knows; its address for PySpark.

    Raises:
        MissingDriver: pysail is not installed.
        EngineFailed: it did not start.
    """
    global _server
    if importlib.util.find_spec("pysail") is None:
        raise MissingDriver("The native engine needs 'pysail', which is not installed.", fix=_EXTRA)
    # Sail logs every failed task with its values before we can raise one clear error. Read when it is first imported.
    os.environ.setdefault("RUST_LOG", "off")
    # With statistics at hand it reads a column of one value, as the statistics have it, without looking at the rows:
    # a NaN among equal numbers, which no statistics know of, would become that number. Views of files that cannot hold
    # one are made with statistics all the same (`backends/files_native.py`), so that joins begin on the smaller side.
    # Its order of joins by cost stays off: it takes files without statistics for a thousand rows each.
    os.environ["SAIL_EXECUTION__COLLECT_STATISTICS"] = "false"
    from pysail.spark import SparkConnectServer

    if _server is None or not _server.running:
        _server = SparkConnectServer("127.0.0.1", 0)
        try:
            _server.start(background=True)
        except RuntimeError as exc:
            _server = None
            raise EngineFailed(f"The native engine did not start: {exc}.") from exc
    address = _server.listening_address
    if address is None:
        raise EngineFailed("The native engine started and listens nowhere.")
    return f"sc://127.0.0.1:{address[1]}"


def stop() -> None:
    """End Sail; may be called always. The process keeps its engine: `is_running` stays as it is."""
    if _server is not None and _server.running:
        _server.stop()


def refuse(what: str, because: str, fix: str | None = None) -> RouteImpossible:
    """The error for something whose result would differ from Spark's without a word."""
    return RouteImpossible(
        f"The native engine cannot {what}: {because}.", fix=fix or "run this pipeline with engine='spark'"
    )
