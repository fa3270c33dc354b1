"""Writing the user's connections file, with everything else in it left as it was."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ematix_flow.config.project import USER_FILE, user_file
from ematix_flow.declare.connection import connection_from_dsn, connection_from_fields
from ematix_flow.errors import InvalidConfig

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

_NAME = re.compile(r"\w[\w.\-]*")


def set_connection(name: str, dsn: str | None = None, *, fields: Mapping[str, str] | None = None) -> Path:
    """Define a connection in the user's file, or replace its definition there.

    Comments, other connections and unknown keys stay. The file holds passwords, so only its owner can ever read it
    (mode 0600), and it is replaced in one step: a crash leaves the old file or the new one.

    Args:
        name: Letters, digits, ``_``, ``-`` and ``.``.
        dsn: A URL, when that is the whole definition.
        fields: Field names and values: ``{"kind": "kafka", "bootstrap_servers": "…"}``, or ``{"url": "…"}``.

    Returns:
        The path of the file.

    Raises:
        InvalidConfig: The name is not one, or the file cannot be read or written.
        InvalidConnection: The definition would not be accepted when used.
    """
    # The name is not repeated: a forgotten name makes a whole URL, password included, look like one.
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidConfig("A connection's name holds letters, digits, '_', '-' and '.'.")
    entry = dict(fields or {})
    if dsn is not None:
        if "url" in entry or "dsn" in entry:
            raise InvalidConfig(f"Connection '{name}' is given two URLs.", fix="keep one of them")
        entry = {"url": dsn, **entry}
    _check(name, entry)

    # A linked file (people keep their settings elsewhere) stays a link.
    path = Path(os.path.realpath(user_file()))
    document = _document(path)
    _put(document, name, entry)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(path, document.as_string())
    except OSError as exc:
        raise InvalidConfig(f"The file cannot be written: {exc.strerror}.", where=USER_FILE) from exc
    return user_file()


def _check(name: str, entry: Mapping[str, str]) -> None:
    """Refuse now what would be refused later; what still has references can only be judged when they are filled in."""
    fields = dict(entry)
    kind = fields.pop("kind", None)
    if kind is not None:
        connection_from_fields(kind, name, fields)
        return
    url = fields.get("url", fields.get("dsn"))
    if not url:
        raise InvalidConfig(f"Connection '{name}' needs a url or a kind.", fix=f"flow connections set {name} url=…")
    if "${" in url:
        return
    connection = connection_from_dsn(name, url)
    connection_from_fields(connection.kind, name, fields)


def _document(path: Path) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import ParseError

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return tomlkit.document()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise InvalidConfig(f"The file cannot be read: {reason}.", where=USER_FILE) from exc
    try:
        return tomlkit.parse(text)
    except ParseError as exc:
        place = f"{USER_FILE}:{exc.line}"
        raise InvalidConfig("The file is not valid TOML, so it was left alone.", where=place) from exc


def _put(document: TOMLDocument, name: str, entry: Mapping[str, str]) -> None:
    import tomlkit

    if "connections" not in document:
        document["connections"] = tomlkit.table(is_super_table=True)
    connections = document["connections"]
    if not isinstance(connections, dict):
        raise InvalidConfig("'connections' must be a table.", where=USER_FILE)
    earlier = connections.get(name)
    if not isinstance(earlier, dict):
        table = tomlkit.table()
        table.update(entry)
        connections[name] = table
        return
    values = cast("dict[str, str]", earlier)
    if "dsn" in values and "dsn" not in entry and "url" in entry:
        entry = {("dsn" if key == "url" else key): value for key, value in entry.items()}  # keep the owner's spelling
    for key in [key for key in values if key not in entry]:
        del values[key]
    values.update(entry)


def _replace(path: Path, text: str) -> None:
    # mkstemp makes the file 0600 from its first moment, so the secret is never readable in between.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
