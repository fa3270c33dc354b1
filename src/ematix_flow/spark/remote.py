"""Sessions of Spark Connect: a server somewhere else, or the native engine in this process.

A client has no JVM: it knows nothing of jars, and only SQL settings travel.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow.backends.files_native import NATIVE_SETTING
from ematix_flow.errors import MissingDriver
from ematix_flow.spark import native
from ematix_flow.spark.failures import explain
from ematix_flow.spark.reach import require_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")


def open_remote(address: str, app_name: str, conf: Mapping[str, str]) -> SparkSession:
    """A session on a Spark Connect server, with the settings that it takes.

    Raises:
        InvalidConfig: the address is none of Spark Connect.
        ConnectionFailed: nobody listens there. Spark itself would try for minutes.
        MissingDriver: packages of the client are not installed.
    """
    require_server(address)
    from pyspark.sql import SparkSession

    try:
        session: SparkSession = SparkSession.builder.remote(address).appName(app_name).getOrCreate()
        session.version  # noqa: B018 - the first question shows whether it is Spark that answers
    except ImportError as exc:
        raise MissingDriver(
            "Spark Connect needs 'grpcio', 'grpcio-status' and 'googleapis-common-protos'.",
            fix='pip install "ematix-flow[connect]"',
        ) from exc
    except Exception as exc:
        raise (explain(exc) or exc) from exc
    set_what_can_be_set(session, conf)
    if native.is_running():
        session.conf.set(NATIVE_SETTING, "true")
    return session


def has_class(session: SparkSession, name: str) -> bool:
    """Whether a server can load a class; True where it does not say, as on platforms that allow no such question.

    A client can send expressions, and there is one that calls a function of Java's. It gives NULL when that fails.
    """
    from pyspark.sql import functions as F

    loads = [F.lit(given) for given in ("org.apache.spark.util.Utils", "classForName", name, False, False)]
    try:
        return session.range(1).select(F.try_reflect(*loads)).collect()[0][0] is not None
    except Exception as exc:
        log.debug("The server does not say whether it has %s: %s", name, type(exc).__name__)
        return True


def set_what_can_be_set(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Tell a running session all settings that may still change."""
    with warnings.catch_warnings():
        # A server warns of settings that mean nothing to it; they mean something elsewhere.
        warnings.filterwarnings("ignore", message=".*NOT supported in Spark Connect", category=UserWarning)
        for key, value in conf.items():
            if session.conf.isModifiable(key):
                session.conf.set(key, value)


def forget_remote_mode() -> None:
    """Let PySpark start Spark in this process even though its environment names a server."""
    for name in _CONNECT_VARIABLES:
        os.environ.pop(name, None)
