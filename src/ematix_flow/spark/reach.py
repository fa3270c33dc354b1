"""Whether somebody answers where Spark is said to be. Asked first, since Spark itself would try for minutes."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from ematix_flow.errors import ConnectionFailed, InvalidConfig

CONNECT_PORT = 15002
MASTER_PORT = 7077
TIMEOUT_S = 5.0
_MASTERS = "local[*], local[4], spark://host:7077, k8s://https://host:6443, yarn"


def require_server(address: str) -> None:
    """Refuse an address of Spark Connect that cannot be right, or where nobody listens.

    Raises:
        InvalidConfig: it is no such address.
        ConnectionFailed: nobody answers within seconds.
    """
    parts = urlsplit(address)
    host, port = _host_and_port(address, CONNECT_PORT)
    if parts.scheme != "sc" or not host or not port:
        raise InvalidConfig(
            f"'{shown(address)}' is no address of Spark Connect.",
            fix=f"sc://host:{CONNECT_PORT}/, with ;use_ssl=true;token=… behind it if need be",
        )
    _require_any(
        [(host, port)],
        f"No Spark Connect server answers at {shown(address)}",
        "start it (sbin/start-connect-server.sh of Spark), or mend --spark-remote, SPARK_REMOTE or [spark] remote",
    )


def require_master(master: str) -> None:
    """Refuse a master that is none, or a cluster none of whose masters can be reached.

    Raises:
        InvalidConfig: Spark has no such kind of master.
        ConnectionFailed: nobody answers within seconds.
    """
    if master.startswith(("local", "yarn")):
        return
    if master.startswith("spark://"):
        addresses = [f"spark://{one}" for one in master.removeprefix("spark://").split(",")]
        places = [_host_and_port(one, MASTER_PORT) for one in addresses]
    elif master.startswith("k8s://"):
        address = master.removeprefix("k8s://")
        places = [_host_and_port(address if "://" in address else f"https://{address}", 443)]
    else:
        places = []
    if not places or not all(host and port for host, port in places):
        raise InvalidConfig(f"'{master}' is no Spark master.", fix=_MASTERS)
    _require_any(places, f"No Spark master answers at {master}", "start it, or mend --spark-master or [spark] master")


def shown(address: str) -> str:
    """An address for people: without what stands behind it, which may be a token."""
    return address.partition(";")[0].rstrip("/")


def is_this_machine(address: str) -> bool:
    """Whether a server is on this machine, so that both see the same files."""
    return _host_and_port(address, CONNECT_PORT)[0] in ("localhost", "127.0.0.1", "::1", socket.gethostname().lower())


def _host_and_port(address: str, default: int) -> tuple[str, int]:
    parts = urlsplit(address)
    try:
        return parts.hostname or "", parts.port or default
    except ValueError:
        return "", 0


def _require_any(places: Sequence[tuple[str, int]], sentence: str, fix: str) -> None:
    reason = ""
    for place in places:
        try:
            socket.create_connection(place, timeout=TIMEOUT_S).close()
            return
        except OSError as exc:
            reason = exc.strerror or type(exc).__name__
    raise ConnectionFailed(f"{sentence}: {reason}.", fix=fix)
