"""What all connections have in common: fields that are checked, secrets that do not show, an identity to compare.

The kinds themselves are in `connection.py`, which is also where `Connection` is imported from.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeVar
from urllib.parse import quote

from ematix_flow.declare.fileformats import FILE_FORMATS, ON_CORRUPT_FILE, TYPED_FORMATS
from ematix_flow.declare.redaction import (
    REDACTED,
    STARS,
    display_url,
    is_secret_field,
    redact_url,
    remember_secret,
    url_secrets,
)
from ematix_flow.declare.server_address import ServerAddress, server_address, url_scheme
from ematix_flow.errors import InvalidConnection, closest, listed

MEMORY = ":memory:"

OPTION_FIELDS = ("csv_read_options", "json_read_options")
"""Fields that are a table of settings of their own."""

_memory_numbers = itertools.count(1)
_Self = TypeVar("_Self", bound="Connection")


class Options(dict[str, object]):
    """The settings in one field; never changed, so that a connection can be compared and kept in a set."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted((name, repr(value)) for name, value in self.items())))


@dataclass(frozen=True, repr=False)
class Connection:
    """Base of all connections. A subclass is a frozen dataclass with a `kind` and the names of its required fields.

    Fields have defaults only so that a missing one can be named in the error; `required` decides. Secrets never show in
    `repr`, and every secret that is not a reference is remembered for `scrub` at construction.
    """

    kind: ClassVar[str] = ""
    required: ClassVar[tuple[str, ...]] = ()

    name: str = ""

    def __init_subclass__(cls) -> None:
        # A dataclass would write its own repr, with the password in it, unless the class body already has one.
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Connection.__repr__  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        self._check_name()
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, self._fitted(field, getattr(self, field.name)))
        for field_name in self.required:
            if getattr(self, field_name) in (None, ""):
                self.refuse(f"{field_name} is required")
        self._check_together()
        for secret in self.secrets():
            remember_secret(secret)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_shown(name, value)}" for name, value in self._said())
        head = f"name={self.name!r}, kind={self.kind!r}"
        return f"{type(self).__name__}({head}{', ' if shown else ''}{shown})"

    def __str__(self) -> str:
        return repr(self)

    def identity(self) -> str:
        """Same system, database and user give the same string, whatever the connection is called.

        The planner compares identities to decide that no data has to move. Meaningful once references are filled in.
        """
        return f"{self.kind}:" + " ".join(
            f"{name}={value.identity() if isinstance(value, Connection) else redact_url(str(value))}"
            for name, value in self._said()
            if not is_secret_field(name)
        )

    def display(self) -> str:
        """One line for command output: where this leads, with secrets as ``***``."""
        fields = (
            f"{name}={STARS if is_secret_field(name) else display_url(str(value))}"
            for name, value in self._said()
            if not isinstance(value, Connection) and value is not False
        )
        return " ".join([self.kind, *fields])

    def dsn(self) -> str:
        """The connection as one URL, password included; for drivers, never for people.

        Raises:
            InvalidConnection: This kind has no URL form.
        """
        self.refuse(f"a {self.kind} connection has no DSN")

    def check_ready(self) -> None:
        """Whether the connection can be used now that its references are filled in; called once by the resolver.

        Raises:
            InvalidConnection: A filled-in value cannot be what it should be.
        """

    def secrets(self) -> tuple[str, ...]:
        """The secret values this connection holds, without those that are still references."""
        found: list[str] = []
        for name, value in self._said():
            if isinstance(value, str):
                found.extend([value] if is_secret_field(name) else url_secrets(value))
        return tuple(secret for secret in found if "${" not in secret)

    def with_fields(self: _Self, **changes: object) -> _Self:
        """A copy with some fields changed; the very same object when nothing differs.

        Sameness matters for ``:memory:`` databases, which belong to one object.
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                self.refuse(f"unknown field '{name}'", fix=field_hint(name, known))
        if all(getattr(self, name) == value for name, value in changes.items()):
            return self
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def _check_together(self) -> None:
        """Rules over several fields; subclasses refuse combinations here."""

    def _check_name(self) -> None:
        if not isinstance(self.name, str):
            raise InvalidConnection(f"{type(self).__name__}: name must be text, not {type(self.name).__name__}")
        if not self.name.strip():
            self.refuse("name is required")
        if not self.name.isprintable():
            self.refuse("name holds a control character", fix="use letters, digits and '_'")

    def _fitted(self, field: dataclasses.Field[object], value: object) -> object:
        """The value in its field's type; text is read as a number or a truth where one belongs."""
        if value is not None and field.name in OPTION_FIELDS:
            if not isinstance(value, Mapping):
                self.refuse(f"{field.name} must be a table of settings, not {type(value).__name__}")
            return Options({str(name): setting for name, setting in value.items()})
        if value is None or isinstance(value, str) and "${" in value:
            return value
        if isinstance(field.default, bool):
            if isinstance(value, str) and value.lower() in ("true", "false"):
                return value.lower() == "true"
            if not isinstance(value, bool):
                self.refuse(f"{field.name} must be true or false")
            return value
        if isinstance(field.default, int) or field.type == "int | None":
            if isinstance(value, str) and value.isdecimal():
                return int(value)
            if not isinstance(value, int) or isinstance(value, bool):
                self.refuse(f"{field.name} must be a whole number")
            return value
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, str):
            if "\0" in value:
                self.refuse(f"{field.name} holds a NUL character")
            return value
        if field.name == "schema_registry" and isinstance(value, Connection):
            return value
        self.refuse(f"{field.name} must be text, not {type(value).__name__}")

    def _said(self) -> Iterator[tuple[str, object]]:
        """The fields that have a value, except the name."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "name" and value is not None and value != "":
                yield field.name, value

    def refuse(self, reason: str, *, fix: str | None = None) -> NoReturn:
        """Say that this connection cannot be used, and why, without any of its values.

        Raises:
            InvalidConnection: Always.
        """
        raise InvalidConnection(f"{type(self).__name__}({self.name!r}): {reason}", fix=fix)


class ServerUrlConnection(Connection):
    """Shared by kinds whose whole address is one URL."""

    schemes: ClassVar[tuple[str, ...]] = ()
    default_port: ClassVar[int] = 0
    url: str

    def address(self) -> ServerAddress:
        """The URL taken apart.

        Raises:
            InvalidConnection: It is not a URL of this kind.
        """
        if url_scheme(self.url) not in self.schemes:
            self.refuse(f"url must begin with {' or '.join(f'{s}://' for s in self.schemes)}")
        try:
            return server_address(self.url, default_port=self.default_port)
        except ValueError as exc:
            self.refuse(f"url cannot be read: {exc}")

    def check_ready(self) -> None:
        if not self.address().database:
            self.refuse("the URL names no database", fix=f"write {self.schemes[0]}://user:password@host/database")

    def identity(self) -> str:
        if "${" in self.url:
            return f"{self.kind}:{redact_url(self.url)}"
        address = self.address()
        hosts = ",".join(f"{host}:{port}" for host, port in address.hosts)
        # Two logins of one user that start with different settings (a search path) do not see the same tables.
        options = address.parameter("options")
        tail = f"?options={quote(options)}" if options else ""
        user, database = quote(address.user or "", safe=""), quote(address.database or "", safe="")
        return f"{self.kind}://{user}@{hosts}/{database}{tail}"

    def display(self) -> str:
        return display_url(self.url)

    def dsn(self) -> str:
        return self.url

    def _check_together(self) -> None:
        scheme = url_scheme(self.url)
        if scheme is not None and scheme not in self.schemes:
            self.refuse(
                f"url begins with '{scheme}://', which is not a {self.kind} URL",
                fix=f"use {' or '.join(f'{s}://' for s in self.schemes)}",
            )


class DatabaseFileConnection(Connection):
    """Shared by databases that are one file, or live in memory."""

    path: str

    @property
    def is_memory(self) -> bool:
        """Whether the database lives in this process only."""
        return self.path == MEMORY

    def __post_init__(self) -> None:
        super().__post_init__()
        # Two objects are two databases, so the number, unlike `id()`, may never be given out twice.
        object.__setattr__(self, "_memory_number", next(_memory_numbers) if self.is_memory else 0)

    def identity(self) -> str:
        if self.is_memory:
            return f"{self.kind}:{MEMORY}#{getattr(self, '_memory_number', 0)}"
        return f"{self.kind}:{os.path.realpath(self.path)}"

    def display(self) -> str:
        return self.dsn()

    def dsn(self) -> str:
        return f"{self.kind}:///{self.path}"


class FolderConnection(Connection):
    """Shared by kinds that are a folder of this machine."""

    path: str

    def identity(self) -> str:
        return f"{self.kind}:{os.path.realpath(self.path)}"


class HoldsFiles(Connection):
    """Shared by kinds whose tables are files of one format; the options say how files of others are to be read."""

    format: str
    csv_read_options: Mapping[str, Any] | None
    json_read_options: Mapping[str, Any] | None
    on_corrupt_file: str | None

    def identity(self) -> str:
        # The same folder read in two ways is two sources.
        said = (
            ("format", self.format),
            ("csv", self.csv_read_options),
            ("json", self.json_read_options),
            ("on_corrupt_file", self.on_corrupt_file if self.on_corrupt_file == "quarantine" else None),
        )
        return " ".join([super().identity(), *(f"{name}={value}" for name, value in said if value)])

    def _check_together(self) -> None:
        if "${" not in self.format and self.format not in FILE_FORMATS:
            self.refuse(
                f"format '{self.format}' is unknown; known are {listed(FILE_FORMATS)}",
                fix=closest(self.format, FILE_FORMATS),
            )
        asked = self.on_corrupt_file
        if asked is not None and "${" not in asked:
            if asked not in ON_CORRUPT_FILE:
                self.refuse(
                    f"on_corrupt_file '{asked}' is unknown; known are {listed(ON_CORRUPT_FILE)}",
                    fix=closest(asked, ON_CORRUPT_FILE),
                )
            if asked == "quarantine" and "${" not in self.format and self.format not in TYPED_FORMATS:
                self.refuse(
                    f"on_corrupt_file 'quarantine' is for {listed(TYPED_FORMATS)} files; whether a {self.format} file "
                    "can be read shows only when it is read to its end, and half of one is never loaded",
                    fix="leave it out, or keep the files as Parquet",
                )


def field_hint(name: str, known: list[str]) -> str:
    return closest(name, known) or f"valid fields are {listed(known)}"


def _shown(name: str, value: object) -> str:
    if is_secret_field(name):
        return REDACTED
    return repr(redact_url(value)) if isinstance(value, str) else repr(value)
