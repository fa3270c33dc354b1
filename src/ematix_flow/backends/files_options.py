"""The options of files: checked before anything runs, and put into the words of Spark's readers and writers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow.declare.fileformats import FileFormat
from ematix_flow.declare.target import FileOptions
from ematix_flow.errors import InvalidDeclaration, closest, listed

PARQUET_CODECS = ("uncompressed", "snappy", "gzip", "zstd")
SPARK_FORMAT: dict[FileFormat, str] = {"parquet": "parquet", "csv": "csv", "json_lines": "json", "orc": "orc"}
EXTENSION: dict[FileFormat, str] = {"parquet": "parquet", "csv": "csv", "json_lines": "jsonl", "orc": "orc"}

EMPTY_TEXT = "\ue000ematix-flow-empty\ue000"
"""What Spark's CSV reader is told to answer for a quoted empty field, so that it does not become NULL."""

# Said again when our files are read: Spark would guess, and may take a '\r' inside a value for the end of a line.
_LINE_END = "\n"

_CHARACTER_KEYS = ("delimiter", "quote", "escape", "terminator", "comment")

_ONLY_FOR: dict[str, FileFormat] = {
    "parquet_compression": "parquet",
    "csv_delimiter": "csv",
    "csv_header": "csv",
    "csv_quote": "csv",
    "csv_escape": "csv",
    "csv_null_value": "csv",
    "csv_read_options": "csv",
    "json_read_options": "json_lines",
}


def check_options(file_format: FileFormat, options: FileOptions) -> None:
    """Refuse options that do not fit the format, unknown keys, and values of the wrong kind. Touches nothing.

    Raises:
        InvalidDeclaration: (a `ValueError`) with the option, what is wrong and what would be right.
    """
    for name, value in options.given().items():
        wanted = _ONLY_FOR.get(name)
        if wanted is not None and wanted != file_format:
            raise InvalidDeclaration(
                f"{name}= is for {wanted} files; the connection's format is '{file_format}'.", fix=f"remove {name}="
            )
        if name in _CHECKS:
            _CHECKS[name](name, value)
    if file_format == "csv":
        _require_apart(
            {
                "csv_delimiter": options.csv_delimiter or ",",
                "csv_quote": options.csv_quote or '"',
                "csv_escape": options.csv_escape,
            }
        )
        read = read_layout(options, tab_separated=False)
        given = options.csv_read_options or {}
        names = ("delimiter", "quote", "escape", "comment", "terminator")
        _require_apart(
            {f"csv_read_options['{name}']" if name in given else name: getattr(read, name) for name in names}
        )


def _require_apart(meanings: Mapping[str, str | None]) -> None:
    """Refuse one character that would mean two things; only the escape may be the quote."""
    seen: dict[str, str] = {}
    for name, character in meanings.items():
        if character is None:
            continue
        other = seen.setdefault(character, name)
        if other != name and not ("quote" in other and "escape" in name):
            raise InvalidDeclaration(f"{name} and {other} are both {character!r}.", fix="choose two characters")


def given_read_options(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Read options as a connection has them; in TOML a character may also be given by its number."""
    if options is None:
        return None
    return {
        key: chr(value) if key in _CHARACTER_KEYS and type(value) is int and 0 < value < 128 else value
        for key, value in options.items()
    }


def prefix_segments(prefix: str) -> tuple[str, ...]:
    """The folders a prefix names below the connection's path; each of them visible and inside it.

    >>> prefix_segments("events/raw/")
    ('events', 'raw')
    """
    segments = tuple(prefix.strip().rstrip("/").split("/"))
    for segment in segments:
        problem = unfit_name(segment)
        if problem:
            raise InvalidDeclaration(
                f"The prefix {prefix!r} cannot be a folder below the connection's path: {problem}.",
                fix="write a relative folder such as 'events/raw'",
            )
    return segments


def unfit_name(name: str) -> str | None:
    """Why a name cannot be one folder below the connection's path, or None."""
    if not name.strip():
        return "a name in it is empty"
    if name in (".", "..") or name[0] in "._":
        return f"names that begin with '{name[0]}' are hidden from readers"
    if re.search(r"[/\\:\x00-\x1f\x7f]", name):
        return "a name may not hold '/', '\\', ':' or control characters"
    if len(name.encode()) > 255:
        return "a name may have at most 255 bytes"
    return None


@dataclass(frozen=True)
class CsvLayout:
    """How one CSV file is written. Kept in the manifest for files of ours, so that reading them needs no options."""

    delimiter: str = ","
    quote: str = '"'
    escape: str = '"'
    header: bool = True
    null_value: str = ""
    terminator: str | None = None
    comment: str | None = None
    null_regex: str | None = None
    truncated_rows_ok: bool = False

    def write_options(self) -> dict[str, str]:
        """RFC-4180: quotes are doubled, white space is kept, NULL and '' differ."""
        return {
            "sep": self.delimiter,
            "quote": self.quote,
            "escape": self.escape,
            "header": str(self.header).lower(),
            "nullValue": self.null_value,
            "emptyValue": self.quote * 2,
            "lineSep": _LINE_END,
            "ignoreLeadingWhiteSpace": "false",
            "ignoreTrailingWhiteSpace": "false",
            "encoding": "UTF-8",
            **TEXT_TIMES,
        }

    def read_options(self) -> dict[str, str]:
        """Strict reading. Newlines may stand in quotes, so Spark reads each file whole, in one task."""
        options = {
            "sep": self.delimiter,
            "quote": self.quote,
            "escape": self.escape,
            "header": str(self.header).lower(),
            "nullValue": self.null_value,
            "emptyValue": EMPTY_TEXT,
            "multiLine": "true",
            "mode": "PERMISSIVE" if self.truncated_rows_ok else "FAILFAST",
            "ignoreLeadingWhiteSpace": "false",
            "ignoreTrailingWhiteSpace": "false",
            "encoding": "UTF-8",
        }
        if self.terminator is not None:
            options["lineSep"] = self.terminator
        if self.comment is not None:
            options["comment"] = self.comment
        return options

    def to_dict(self) -> dict[str, Any]:
        """The part a manifest keeps."""
        return {
            "delimiter": self.delimiter,
            "quote": self.quote,
            "escape": self.escape,
            "header": self.header,
            "null_value": self.null_value,
            "terminator": self.terminator,
        }


# Explicit, because Spark's own patterns cut fractions of a second. All instants are in UTC.
TEXT_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
}


def written_layout(options: FileOptions) -> CsvLayout:
    """How new CSV files are written."""
    return CsvLayout(
        delimiter=options.csv_delimiter or ",",
        quote=options.csv_quote or '"',
        escape=options.csv_escape or options.csv_quote or '"',
        header=options.csv_header is not False,
        null_value=options.csv_null_value or "",
        terminator=_LINE_END,
    )


def read_layout(options: FileOptions, *, tab_separated: bool) -> CsvLayout:
    """How CSV files of others are read: `csv_read_options`, then what was said about writing, then RFC-4180."""
    given: Mapping[str, Any] = options.csv_read_options or {}
    written = written_layout(options)
    quote = given.get("quote") or written.quote
    default_delimiter = "\t" if tab_separated and options.csv_delimiter is None else written.delimiter
    return CsvLayout(
        delimiter=given.get("delimiter") or default_delimiter,
        quote=quote,
        escape=given.get("escape") or options.csv_escape or quote,
        header=given.get("has_header", written.header),
        null_value=written.null_value,
        terminator=given.get("terminator"),
        comment=given.get("comment"),
        null_regex=given.get("null_regex"),
        truncated_rows_ok=given.get("truncated_rows_ok", False),
    )


# ── checks of single values ──────────────────────────────────────────────────────────────────────────────────────────


def _character(name: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value == "\x00":
        raise InvalidDeclaration(f"{name} must be one ASCII character, not {value!r}.")


def _in_line(name: str, value: Any) -> None:
    """A character that has a meaning within a line, so it cannot end one."""
    _character(name, value)
    if value in "\r\n":
        raise InvalidDeclaration(f"{name} may not be a line break.")


def _separator(name: str, value: Any) -> None:
    _in_line(name, value)
    if value == "\\":
        raise InvalidDeclaration(
            f"{name} may not be a backslash, which Spark takes for the start of another character."
        )


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidDeclaration(f"{name} must be True or False, not {value!r}.")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidDeclaration(f"{name} must be text, not {value!r}.")


def _null_value(name: str, value: Any) -> None:
    _text(name, value)
    if any(character in value for character in "\r\n"):
        raise InvalidDeclaration(f"{name} may not hold a line break.")


def _positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidDeclaration(f"{name} must be a whole number above zero, not {value!r}.")


def _pattern(name: str, value: Any) -> None:
    _text(name, value)
    try:
        re.compile(value)
    except re.error as exc:
        raise InvalidDeclaration(f"{name} is not a regular expression: {exc}.") from None


def _codec(name: str, value: Any) -> None:
    if value not in PARQUET_CODECS:
        raise InvalidDeclaration(
            f"{name} must be one of {listed(PARQUET_CODECS)}, not {value!r}.", fix=closest(str(value), PARQUET_CODECS)
        )


def _columns(name: str, value: Any) -> None:
    if isinstance(value, str) or not all(isinstance(column, str) for column in value) or not list(value):
        raise InvalidDeclaration(f"{name} must be a list of column names, not {value!r}.")
    if len(set(value)) != len(list(value)):
        raise InvalidDeclaration(f"{name} names a column twice.")


def _prefix(name: str, value: Any) -> None:
    _text(name, value)
    prefix_segments(value)


def _keys(known: Mapping[str, Callable[[str, Any], None]]) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise InvalidDeclaration(f"{name} must be a dict, not {value!r}.")
        for key, setting in value.items():
            if key not in known:
                raise InvalidDeclaration(
                    f"{name}: unknown key {key!r}.", fix=closest(str(key), known) or f"known keys: {listed(known)}"
                )
            known[key](f"{name}['{key}']", setting)

    return check


_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "prefix": _prefix,
    "partition_by": _columns,
    "parquet_compression": _codec,
    "csv_delimiter": _separator,
    "csv_header": _flag,
    "csv_quote": _in_line,
    "csv_escape": _in_line,
    "csv_null_value": _null_value,
    "csv_read_options": _keys(
        {
            "has_header": _flag,
            "delimiter": _separator,
            "quote": _in_line,
            "escape": _in_line,
            "terminator": _character,
            "comment": _in_line,
            "null_regex": _pattern,
            "truncated_rows_ok": _flag,
            "schema_infer_max_records": _positive,
        }
    ),
    "json_read_options": _keys({"schema_infer_max_records": _positive, "batch_size": _positive}),
}
