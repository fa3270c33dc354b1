"""From the URL of a run log to the log: one row per scheme, one function per kind of store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from ematix_flow.contracts.orchestration import RunLog
from ematix_flow.declare.redaction import remember_secret, url_secrets
from ematix_flow.errors import InvalidConfig, closest, listed

CHOICES = (
    "a path, sqlite:///path, memory://, postgres://…, mysql://…, duckdb:///path, s3://bucket/prefix, gs://bucket/prefix,"
    " azure://account/container"
)
_EXAMPLE = "for example sqlite:///var/lib/flow/run_log.db"
_RETENTION = ("max_age_days", "max_records")


def from_url(url: str) -> RunLog:
    """Open the run log at a URL or path; the strict way.

    Raises:
        InvalidConfig: Empty, an unknown scheme, an incomplete URL or a wrong option.
        MissingDriver: The store's driver is not installed; it is an ImportError.
        ConnectionFailed: The store is there in name only.
    """
    if not url.strip():
        raise InvalidConfig("The run log's URL is empty.", fix=f"{_EXAMPLE} ({CHOICES})")
    for secret in url_secrets(url):
        remember_secret(secret)
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "sqlite", url
    opener = _OPENERS.get(scheme.lower())
    if opener is None:
        raise InvalidConfig(
            f"The run log's scheme '{scheme}' is unknown.", fix=closest(scheme, _OPENERS) or f"use one of {CHOICES}"
        )
    place, query = _split(rest)
    return opener(scheme.lower(), place, dict(parse_qsl(query, keep_blank_values=True)))


def _sqlite(scheme: str, path: str, options: Mapping[str, str]) -> RunLog:
    from ematix_flow.run.runlogs.sqlite import SqliteRunLog

    return SqliteRunLog(_path(path), **_known(options))


def _memory(scheme: str, path: str, options: Mapping[str, str]) -> RunLog:
    from ematix_flow.run.runlogs.memory import InMemoryRunLog

    return InMemoryRunLog(**_known(options))


def _postgres(scheme: str, place: str, options: Mapping[str, str]) -> RunLog:
    from ematix_flow.run.runlogs.postgres import PostgresRunLog

    ours, theirs = _apart(options, "schema", "create_tables")
    known = {"schema": "ematix_flow", **_known(ours, "schema", "create_tables")}
    return PostgresRunLog(f"{scheme}://{place}{_query(theirs)}", **known)


def _mysql(scheme: str, place: str, options: Mapping[str, str]) -> RunLog:
    from ematix_flow.run.runlogs.mysql import MySQLRunLog

    ours, theirs = _apart(options, "table_prefix", "create_tables")
    return MySQLRunLog(f"{scheme}://{place}{_query(theirs)}", **_known(ours, "table_prefix", "create_tables"))


def _duckdb(scheme: str, path: str, options: Mapping[str, str]) -> RunLog:
    from ematix_flow.run.runlogs.duckdb import DuckDBRunLog

    return DuckDBRunLog(_path(path), **_known(options, "create_tables"))


def _s3(scheme: str, place: str, options: Mapping[str, str]) -> RunLog:
    from ematix_flow.run.runlogs.s3 import S3RunLog

    bucket, prefix = _bucket(scheme, place)
    return S3RunLog(bucket, prefix=prefix, **_known(options, "region", "endpoint"))


def _gcs(scheme: str, place: str, options: Mapping[str, str]) -> RunLog:
    from ematix_flow.run.runlogs.gcs import GcsRunLog

    bucket, prefix = _bucket(scheme, place)
    return GcsRunLog(bucket, prefix=prefix, **_known(options, "project", "endpoint"))


def _azure(scheme: str, place: str, options: Mapping[str, str]) -> RunLog:
    from ematix_flow.run.runlogs.azure import AzureBlobRunLog

    account, _, rest = place.partition("/")
    container, _, prefix = rest.partition("/")
    if not account or not container:
        raise InvalidConfig("The run log's URL is incomplete.", fix=f"{scheme}://account/container/prefix")
    known = _known(options, "endpoint")
    endpoint = known.pop("endpoint", None) or f"https://{account}.blob.core.windows.net"
    return AzureBlobRunLog(container, account_url=endpoint, prefix=unquote(prefix), **known)


_OPENERS: dict[str, Callable[[str, str, Mapping[str, str]], RunLog]] = {
    "sqlite": _sqlite,
    "file": _sqlite,
    "memory": _memory,
    "postgres": _postgres,
    "postgresql": _postgres,
    "mysql": _mysql,
    "mariadb": _mysql,
    "duckdb": _duckdb,
    "s3": _s3,
    "gs": _gcs,
    "gcs": _gcs,
    "azure": _azure,
    "azureblob": _azure,
}


def _split(rest: str) -> tuple[str, str]:
    """What stands before the options, and the options. Passwords are also written with a '?' in them."""
    sign = rest.find("?", rest.rfind("@") + 1)
    if sign < 0:
        sign = rest.find("?") if rest.find("?") < rest.find("@") and "=" in rest.partition("?")[2] else -1
    return (rest, "") if sign < 0 else (rest[:sign], rest[sign + 1 :])


def _apart(options: Mapping[str, str], *ours: str) -> tuple[dict[str, str], dict[str, str]]:
    """Our options, and those of the driver."""
    mine = {name: value for name, value in options.items() if name in (*ours, *_RETENTION)}
    return mine, {name: value for name, value in options.items() if name not in mine}


def _query(options: Mapping[str, str]) -> str:
    return f"?{urlencode(options)}" if options else ""


def _known(options: Mapping[str, str], *names: str) -> dict[str, Any]:
    """The options as a store's constructor takes them; others are refused."""
    allowed = (*names, *_RETENTION)
    for name in options:
        if name not in allowed:
            raise InvalidConfig(
                f"The run log's option '{name}' is unknown.",
                fix=closest(name, allowed) or f"known: {listed(allowed)}",
            )
    found: dict[str, Any] = dict(options)
    try:
        if "max_age_days" in found:
            found["max_age_days"] = float(found["max_age_days"])
        if "max_records" in found:
            found["max_records"] = int(found["max_records"])
    except ValueError:
        raise InvalidConfig("The run log's max_age_days and max_records are numbers.") from None
    if "create_tables" in found:
        said = found["create_tables"].lower()
        if said not in ("true", "false", "1", "0", "yes", "no"):
            raise InvalidConfig("The run log's create_tables is true or false.")
        found["create_tables"] = said in ("true", "1", "yes")
    return found


def _path(path: str) -> str:
    if not path:
        raise InvalidConfig("The run log's path is empty.", fix=_EXAMPLE)
    return path


def _bucket(scheme: str, place: str) -> tuple[str, str]:
    bucket, _, prefix = place.partition("/")
    if not bucket:
        raise InvalidConfig("The run log's URL names no bucket.", fix=f"{scheme}://bucket/prefix")
    return bucket, unquote(prefix)
