"""`flow doctor`: what this machine has, what answers, and how to fix the rest. Starts no JVM."""

from __future__ import annotations

import threading
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ematix_flow.cli.declared import add_module, load
from ematix_flow.declare.redaction import display_url, scrub
from ematix_flow.errors import FlowError, UnsupportedBackend

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser

Status = Literal["ok", "fail", "skip"]
_MARKS: dict[Status, str] = {"ok": "✓ ok", "fail": "✗ fail", "skip": "- skip"}
_SPARK_EXTRA = 'pip install "ematix-flow[spark]"'

# What an extra brings, by the names of the packages.
_DRIVERS: dict[str, tuple[str, ...]] = {
    "postgres": ("psycopg", "adbc-driver-postgresql", "pyarrow"),
    "mysql": ("pymysql", "numpy", "pyarrow"),
    "duckdb": ("duckdb", "pytz"),
    "kafka": ("confluent-kafka",),
    "spark": ("pyspark", "pyarrow"),
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `skip` means: not there, and not needed before somebody asks for it."""

    name: str
    status: Status
    detail: str
    fix: str | None = None
    kind: str | None = None
    elapsed_ms: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data; only what is known."""
        fields = {
            "name": self.name,
            "kind": self.kind,
            "status": self.status,
            "ms": None if self.elapsed_ms is None else round(self.elapsed_ms, 1),
            "detail": self.detail,
            "fix": self.fix,
        }
        return {name: value for name, value in fields.items() if value is not None}


def configure(parser: CommandParser) -> None:
    """The module whose connections are asked too."""
    add_module(parser, required=False, what="also ask the connections that this module declares")
    parser.add_argument(
        "--timeout", type=_seconds, default=10.0, metavar="S", help="seconds a connection may take (default 10)"
    )
    parser.say(
        example="flow doctor --module my_pipelines",
        then="flow jars fetch   when jars are missing, flow connections check NAME   for one connection",
    )


def run(args: Namespace, console: Console) -> int:
    """Look at everything; 1 when something fails."""
    if args.module:
        load(args.module)
    machine = list(machine_findings())
    connections = connection_findings(timeout_s=args.timeout)
    failed = [finding for finding in (*machine, *connections) if finding.status == "fail"]
    if console.is_json:
        console.json(
            {
                "ok": not failed,
                "checks": [finding.to_dict() for finding in machine],
                "connections": [finding.to_dict() for finding in connections],
            }
        )
        return 1 if failed else 0
    console.table(("CHECK", "STATUS", "DETAIL"), [(f.name, _MARKS[f.status], f.detail) for f in machine])
    console.line()
    if connections:
        rows = [(f.name, f.kind, _MARKS[f.status], _ms(f), f.detail) for f in connections]
        console.table(("NAME", "KIND", "STATUS", "ms", "DETAIL"), rows)
    else:
        console.line("no connections registered")
    fixes = [f for f in (*machine, *connections) if f.fix and f.status != "ok"]
    if fixes:
        console.line()
        console.table(("HOW TO FIX", ""), [(finding.name, finding.fix) for finding in fixes])
    return 1 if failed else 0


def machine_findings() -> Iterable[Finding]:
    """Everything that is not a connection, cheapest first."""
    looks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("python", _python),
        ("java", _java),
        ("spark", _spark),
        ("pandas", _pandas),
        ("pyarrow", _pyarrow),
    )
    for name, look in looks:
        yield _guarded(name, look)
    yield from _drivers()
    for name, look in (
        ("jars", _jars),
        ("cache", _cache),
        ("run log", _run_log),
        ("project file", _project_file),
        ("user file", _user_file),
    ):
        yield _guarded(name, look)


def connection_findings(*, timeout_s: float) -> list[Finding]:
    """Every connection that can be named, asked at the same time; a silent one fails when the time is over."""
    from ematix_flow.config.resolve import listed_connections

    try:
        known = listed_connections()
    except FlowError as exc:  # a settings file that cannot be read; its own row says how to mend it
        return [Finding("connections", "fail", scrub(exc.message), exc.fix)]
    findings: dict[str, Finding] = {}
    threads = []
    for item in known:
        if item.problem:
            findings[item.name] = Finding(item.name, "fail", scrub(item.problem), f"see {item.place}", item.kind)
            continue
        # A daemon: a driver that hangs must not keep the command from ending.
        thread = threading.Thread(target=_ask, args=(item.name, item.kind, findings), daemon=True)
        thread.start()
        threads.append(thread)
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for item in known:
        late = Finding(item.name, "fail", f"no answer within {timeout_s:g} s", "raise --timeout", item.kind)
        findings.setdefault(item.name, replace(late, elapsed_ms=timeout_s * 1000))
    return [findings[item.name] for item in known]


def _ask(name: str, kind: str | None, findings: dict[str, Finding]) -> None:
    from ematix_flow.config.handles import connection_health
    from ematix_flow.config.resolve import resolve

    began = time.monotonic()
    try:
        health = connection_health(resolve(name))
        status: Status = "ok" if health.ok else "fail"
        fix = None if health.ok else f"flow connections list   shows where '{name}' comes from"
        found = Finding(name, status, scrub(health.detail), fix, kind, health.elapsed_ms)
    except UnsupportedBackend as exc:
        found = Finding(name, "skip", scrub(exc.message), exc.fix, kind)
    except FlowError as exc:
        found = Finding(name, "fail", scrub(exc.message), exc.fix, kind, (time.monotonic() - began) * 1000)
    except Exception as exc:  # a driver's own; the row must appear in any case
        reason = scrub(f"{type(exc).__name__}: {exc}".splitlines()[0])
        found = Finding(name, "fail", reason, None, kind, (time.monotonic() - began) * 1000)
    findings.setdefault(name, found)


def _guarded(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except FlowError as exc:
        return Finding(name, "fail", scrub(exc.message), exc.fix)
    except (
        Exception
    ) as exc:  # a broken installation shows itself in many ways; each is a row, none ends the examination
        return Finding(name, "fail", scrub(f"{type(exc).__name__}: {exc}"))


def _python() -> Finding:
    import platform

    return Finding("python", "ok", platform.python_version())


def _java() -> Finding:
    from ematix_flow.backends.java import find_java

    java = find_java()
    return Finding("java", "ok", f"{java.version} in {java.path}")


def _spark() -> Finding:
    version = _version("pyspark")
    if version is None:
        return Finding("spark", "fail", "pyspark is not installed; pushed-down loads work without it", _SPARK_EXTRA)
    if not version.startswith("4."):
        return Finding("spark", "fail", f"pyspark {version} is too old", _SPARK_EXTRA)
    return Finding("spark", "ok", f"pyspark {version}")


def _pandas() -> Finding:
    version = _version("pandas")
    if version is None:
        return Finding("pandas", "fail", "not installed; Spark needs it", _SPARK_EXTRA)
    if int(version.partition(".")[0]) >= 3:
        return Finding(
            "pandas", "fail", f"{version}: Spark reads its null strings as text", 'pip install "pandas>=2.2,<3"'
        )
    return Finding("pandas", "ok", version)


def _pyarrow() -> Finding:
    version = _version("pyarrow")
    if version is None:
        return Finding("pyarrow", "fail", "not installed; Spark needs it", _SPARK_EXTRA)
    return Finding("pyarrow", "ok", version)


def _drivers() -> Iterable[Finding]:
    """One row per backend: what it needs to be importable, without importing it."""
    from ematix_flow.backends.catalog import BACKENDS

    for kind, entry in BACKENDS.items():
        needed = _DRIVERS.get(entry.extra or "", ())
        versions = {package: _version(package) for package in needed}
        missing = [package for package, version in versions.items() if version is None]
        name = f"{kind} driver"
        if missing:
            detail = f"{', '.join(missing)} not installed"
            yield Finding(name, "skip", detail, f'pip install "ematix-flow[{entry.extra}]"')
        elif needed:
            yield Finding(name, "ok", ", ".join(f"{package} {version}" for package, version in versions.items()))
        else:
            yield Finding(name, "ok", "part of Python")


def _jars() -> Finding:
    from ematix_flow.backends.jars import SHIPPED_FAMILIES, jar_cache_dir, state

    states = state()
    here = [jar for jar in states if jar.present]
    missing = [jar for jar in states if not jar.present and jar.name in SHIPPED_FAMILIES]
    if missing:
        return Finding("jars", "fail", f"{len(missing)} missing in {jar_cache_dir()}", "flow jars fetch")
    needed = (
        f"{len(SHIPPED_FAMILIES)} families needed" if SHIPPED_FAMILIES else "none needed by databases and local files"
    )
    return Finding("jars", "ok", f"{needed}; {len(here)} of {len(states)} known ones in {jar_cache_dir()}")


def _cache() -> Finding:
    """The folder for jars and class archives: there and writable, or somewhere it can be made."""
    from ematix_flow.backends.jars import cache_root
    from ematix_flow.backends.own_folders import is_writable

    folder = cache_root()
    if not is_writable(folder):
        return Finding(
            "cache", "fail", f"{folder} cannot be written to", "point EMATIX_FLOW_CACHE_DIR at a folder that can"
        )
    return Finding("cache", "ok", f"{folder}" if folder.is_dir() else f"{folder}, made when needed")


def _run_log() -> Finding:
    from ematix_flow.run.runlogs.open import run_log_url
    from ematix_flow.run.runlogs.urls import from_url

    url = run_log_url()
    history = from_url(url)
    try:
        _, total = history.list_runs(limit=1)
    finally:
        history.close()
    return Finding("run log", "ok", f"{display_url(url)}, {total} run{'' if total == 1 else 's'}")


def _project_file() -> Finding:
    from ematix_flow.config.project import PROJECT_FILE, project_file, project_settings

    if not project_file().exists():
        return Finding("project file", "skip", f"no {PROJECT_FILE} here; none is needed")
    settings = project_settings()
    return Finding("project file", "ok", f"./{PROJECT_FILE}, {_connections(len(settings.connections))}")


def _user_file() -> Finding:
    from ematix_flow.config.project import USER_FILE, user_connections, user_file

    if not user_file().exists():
        return Finding("user file", "skip", f"no {USER_FILE}; none is needed")
    return Finding("user file", "ok", f"{USER_FILE}, {_connections(len(user_connections()))}")


def _connections(count: int) -> str:
    return f"{count} connection{'' if count == 1 else 's'}"


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _ms(finding: Finding) -> str:
    return "" if finding.elapsed_ms is None else f"{finding.elapsed_ms:.0f}"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 3600:
        raise ArgumentTypeError(f"'{text}' is not a number of seconds above zero")
    return value
