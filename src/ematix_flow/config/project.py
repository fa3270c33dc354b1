"""The two settings files: `.ematix-flow.toml` of a project and `~/.ematix-flow/connections.toml` of a user.

Reading is strict about the frame (an unknown key is refused with the nearest known one) and lazy about the connections
in it: an entry is only judged when it is used, so one broken entry never disturbs the others.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Literal, cast, get_args

from ematix_flow.contracts.session import SparkSettings
from ematix_flow.declare.pipeline import CLUSTER_ANSWER, Mover
from ematix_flow.errors import InvalidConfig, closest, listed

PROJECT_FILE = ".ematix-flow.toml"
USER_FILE = "~/.ematix-flow/connections.toml"

EngineChoice = Literal["auto", "pushdown", "spark", "native", "datafusion", "distributed"]
_PROJECT_KEYS = ("connections", "spark", "run_log", "engine", "pushdown")
_SPARK_KEYS = ("master", "remote", "engine", "driver_memory", "short_job", "conf")
_ON_A_CLUSTER = ("peers", "tls", "worker_tls")


@dataclass(frozen=True, slots=True)
class ConnectionEntry:
    """One ``[connections.<name>]`` as written: nothing expanded, nothing judged.

    Attributes:
        fields: The table's keys and values; None when the entry is not a table.
        place: For messages: ``./.ematix-flow.toml [connections.warehouse]``.
    """

    name: str
    fields: Mapping[str, object] | None = field(repr=False)
    place: str


@dataclass(frozen=True, slots=True)
class ProjectSettings:
    """What a project's file says. Every part has a default, so a project without a file has settings too.

    Attributes:
        run_log: URL of the run log, or None for the built-in default.
        engine: Engine for pipelines that do not name one.
        pushdown: False turns the route inside the database off for the whole project.
    """

    connections: Mapping[str, ConnectionEntry] = field(default_factory=dict)
    spark: SparkSettings = field(default_factory=SparkSettings)
    run_log: str | None = None
    engine: EngineChoice = "auto"
    pushdown: bool = True


def project_file() -> Path:
    """Where the project's file is looked for: the working directory, no parent of it."""
    return Path.cwd() / PROJECT_FILE


def user_file() -> Path:
    """The user's file; follows ``$HOME``."""
    return Path(os.path.expanduser(USER_FILE))


def project_settings() -> ProjectSettings:
    """Read the project's file; defaults when there is none.

    Raises:
        InvalidConfig: The file cannot be read, or holds a key or value that is not known.
    """
    place = f"./{PROJECT_FILE}"
    content = _read_toml(project_file(), place)
    _refuse_unknown(content, _PROJECT_KEYS, place)
    return ProjectSettings(
        connections=_entries(content, place),
        spark=_spark(content.get("spark", {}), f"{place} [spark]"),
        run_log=_run_log(content.get("run_log"), place),
        engine=_engine(content.get("engine"), place),
        pushdown=_truth(content.get("pushdown", True), "pushdown", place),
    )


def user_connections() -> Mapping[str, ConnectionEntry]:
    """The connections of the user's file; none when there is no file.

    Raises:
        InvalidConfig: The file cannot be read, or holds something other than connections.
    """
    content = _read_toml(user_file(), USER_FILE)
    misplaced = [key for key in content if key in _PROJECT_KEYS and key != "connections"]
    if misplaced:
        raise InvalidConfig(
            f"'{misplaced[0]}' is a setting of a project.", where=USER_FILE, fix=f"move it to {PROJECT_FILE}"
        )
    _refuse_unknown(content, ("connections",), USER_FILE)
    return _entries(content, USER_FILE)


def _read_toml(path: Path, place: str) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise InvalidConfig(f"The settings file cannot be read: {reason}.", where=place) from exc
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return cast("dict[str, object]", toml.loads(text))
    except toml.TOMLDecodeError as exc:
        raise InvalidConfig(f"The settings file is not valid TOML: {exc}", where=place) from exc


def _refuse_unknown(table: Mapping[str, object], known: tuple[str, ...], place: str) -> None:
    for key in table:
        if key not in known:
            raise InvalidConfig(
                f"Unknown key '{key}'; known are {listed(known)}.",
                where=place,
                fix=CLUSTER_ANSWER if key in _ON_A_CLUSTER else closest(key, known) or f"remove '{key}'",
            )


def _entries(content: Mapping[str, object], place: str) -> dict[str, ConnectionEntry]:
    entries = _table(content.get("connections", {}), "connections", place)
    return {
        name: ConnectionEntry(
            name=name,
            fields=cast("Mapping[str, object]", value) if isinstance(value, dict) else None,
            place=f"{place} [connections.{name}]",
        )
        for name, value in entries.items()
    }


def _spark(value: object, place: str) -> SparkSettings:
    table = _table(value, "spark", place)
    _refuse_unknown(table, _SPARK_KEYS, place)
    conf = _table(table.get("conf", {}), "spark.conf", place)
    return SparkSettings(
        master=_text(table.get("master"), "master", place),
        remote=_text(table.get("remote"), "remote", place),
        engine=_mover(table.get("engine"), place),
        driver_memory=_memory(table.get("driver_memory"), place),
        conf=dict(_flat(conf, place)),
        short_job=_truth(table["short_job"], "short_job", place) if "short_job" in table else None,
    )


def _memory(value: object, place: str) -> str | None:
    """What Java takes for the size of its heap; it would say no more than that it could not be created."""
    said = _text(value, "driver_memory", place)
    if said is not None and not re.fullmatch(r"[1-9][0-9]*[kmgtKMGT]", said):
        raise InvalidConfig(
            f"driver_memory = {said!r} is no amount of memory.", where=place, fix='write "4g" or "512m"'
        )
    return said


def _flat(conf: Mapping[str, object], place: str, prefix: str = "") -> list[tuple[str, str]]:
    """Spark's options as text. TOML reads an unquoted ``spark.ui.enabled`` as nested tables; both spellings count."""
    options: list[tuple[str, str]] = []
    for key, value in conf.items():
        if isinstance(value, dict):
            options.extend(_flat(cast("Mapping[str, object]", value), place, f"{prefix}{key}."))
        elif isinstance(value, bool):
            options.append((f"{prefix}{key}", "true" if value else "false"))
        elif isinstance(value, (str, int, float)):
            options.append((f"{prefix}{key}", str(value)))
        else:
            raise InvalidConfig(f"'{prefix}{key}' must be text, a number, true or false.", where=place)
    return options


def _run_log(value: object, place: str) -> str | None:
    if isinstance(value, dict):
        _refuse_unknown(cast("Mapping[str, object]", value), ("url",), f"{place} [run_log]")
        value = value.get("url")
    return _text(value, "run_log", place)


def _mover(value: object, place: str) -> Mover:
    known = get_args(Mover)
    if value is None:
        return "spark"
    if value not in known:
        raise InvalidConfig(
            f"Unknown engine {value!r}; what moves rows is one of {listed(known)}.",
            where=place,
            fix=closest(str(value), known) or "'pushdown' and 'auto' belong in front of all sections: engine = …",
        )
    return cast(Mover, value)


def _engine(value: object, place: str) -> EngineChoice:
    known = get_args(EngineChoice)
    if value is None:
        return "auto"
    if value not in known:
        raise InvalidConfig(
            f"Unknown engine {value!r}; known are {listed(known)}.", where=place, fix=closest(str(value), known)
        )
    return cast(EngineChoice, value)


def _table(value: object, name: str, place: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidConfig(f"'{name}' must be a table.", where=place, fix=f"write [{name}] on a line of its own")
    return cast("Mapping[str, object]", value)


def _text(value: object, name: str, place: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidConfig(f"'{name}' must be text.", where=place)
    return value


def _truth(value: object, name: str, place: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidConfig(f"'{name}' must be true or false.", where=place)
    return value
