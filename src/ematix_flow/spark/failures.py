"""Spark's errors as ours: one sentence about what happened, and never a value from a row.

Three things arrive here. Errors of our own that were raised inside a Python worker: the worker's traceback ends with
their printed form, from which they are rebuilt. Refusals written into expressions by `raise_error`: a line
`ematix-flow-error: {json}`. And Spark's own conditions, known by the name in brackets that starts their message.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.errors import AnalysisException

from ematix_flow import errors
from ematix_flow.backends import jars
from ematix_flow.contracts import refusals
from ematix_flow.declare.withheld import HOW_TO_SEE
from ematix_flow.errors import (
    EngineFailed,
    FlowError,
    InvalidPlan,
    InvalidSource,
    MissingJar,
    MissingSourceColumn,
    StatementFailed,
    StepFailed,
    UnfitValue,
    listed,
)
from ematix_flow.spark import native
from ematix_flow.spark.kafka_failures import kafka_failure
from ematix_flow.spark.lake_failures import lake_stream_failure, lake_version_failure


def explain(exc: BaseException) -> FlowError | None:
    """The error a user can act on; None for an exception that does not come from Spark.

    Called once, where the engine room hands back to the runner, which raises the result `from exc`.
    """
    if isinstance(exc, FlowError):
        return exc
    if not _is_from_spark(exc):
        return None
    text = _text(exc)
    found = _carried(text) or _refused(text)
    if found is None:
        condition = _condition(exc, text)
        found = next((error for rule in _RULES if (error := rule(condition, text))), None)
        if found is None and not isinstance(exc, AnalysisException):  # what is wrong before any row is no row's fault
            found = _unworkable_value(condition, text)
    return _scrubbed(found or _unnamed(text))


# ── errors of our own ────────────────────────────────────────────────────────────────────────────────────────────────

_PRINTED = re.compile(
    r"^ematix_flow\.errors\.(?P<name>\w+): (?P<message>(?:(?!^ematix_flow\.errors\.).)*?) \[FLOW\d+\]"
    r"(?:\n  at     (?P<where>[^\n]*))?(?:\n  tried  (?P<tried>[^\n]*))?(?:\n  fix    (?P<fix>[^\n]*))?$",
    re.MULTILINE | re.DOTALL,
)


def _carried(text: str) -> FlowError | None:
    """An error of ours that a worker raised, from the printed form at the end of its traceback."""
    printed = list(_PRINTED.finditer(text))
    if not printed:
        return None
    last = printed[-1]
    tried = last["tried"].split(" · ") if last["tried"] else ()
    return _rebuilt(last["name"], last["message"], where=last["where"], tried=tuple(tried), fix=last["fix"])


def _refused(text: str) -> FlowError | None:
    """An error of ours that an expression raised for a value."""
    facts = refusals.facts_in(text)
    if facts is None:
        return None
    column, wanted, marker = facts.get("column"), str(facts.get("type")), facts.get("marker")
    message, fix = facts.get("message"), facts.get("fix")
    if not message and wanted == "NOT NULL":
        message = f"Column '{column}' is NOT NULL, and the source has rows without a value for it."
        fix = f"declare it nullable ({column}: T | None), fill it with default(...), or mend the source"
    elif not message and wanted.startswith("String["):
        message = f"Column '{column}' is declared {wanted}, and the source has a longer text for it."
        fix = "declare a longer String[n] or Text, or shorten with truncate(n)"
    elif not message:
        step = f" after {marker}()" if marker else ""
        message = f"A value of column '{column}' does not fit its type{step}: {wanted}."
        fix = fix or "declare a wider type, or convert it in the source SQL"
    error = _rebuilt(str(facts.get("error", "")), str(message), fix=fix)
    if column:
        vars(error)["column"] = column
    return error


def _rebuilt(
    name: str, message: str, *, where: str | None = None, tried: tuple[str, ...] = (), fix: str | None = None
) -> FlowError:
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, FlowError)):
        kind = EngineFailed
    error: FlowError = kind.__new__(kind)
    # Leaves may ask for facts in their own constructor; what crossed a process is text, so the root's is called.
    FlowError.__init__(error, message, where=where, tried=tried, fix=fix)
    return error


# ── conditions of Spark ──────────────────────────────────────────────────────────────────────────────────────────────

_UNFIT = (
    "CAST_INVALID_INPUT",
    "CAST_OVERFLOW",
    "NUMERIC_VALUE_OUT_OF_RANGE",
    "ARITHMETIC_OVERFLOW",
    "BINARY_ARITHMETIC_OVERFLOW",
    "INTERVAL_ARITHMETIC_OVERFLOW",
    "CANNOT_PARSE_",
    "CANNOT_CHANGE_DECIMAL_PRECISION",
    "CONVERSION_INVALID_INPUT",
    "DATETIME_OVERFLOW",
    "EXCEED_LIMIT_LENGTH",
    "INVALID_FRACTION_OF_SECOND",
    "FAILED_TO_PARSE_TOO_COMPLEX",
    "MALFORMED_RECORD_IN_PARSING",
    "NOT_NULL_ASSERT_VIOLATION",
)


def _unfit_value(condition: str, text: str) -> FlowError | None:
    if not condition.startswith(_UNFIT):
        return None
    column = _column_in(text)
    types = re.search(r'of the type "([^"]+)" cannot be cast to "([^"]+)"', text)
    decimal = re.search(r"cannot be represented as (Decimal\(\d+, ?\d+\))", text)
    subject = f"A value of column '{column}'" if column else "A value"
    if condition == "NOT_NULL_ASSERT_VIOLATION":
        return UnfitValue("A value is NULL where NULL is not allowed.", fix="fill or filter it, or declare nullable()")
    if condition.startswith("MALFORMED_RECORD_IN_PARSING"):
        return UnfitValue(
            "A record of the source cannot be read with the given schema.",
            where=_file_in(text),
            fix="check format and schema",
        )
    if types:
        reason = "is too large for" if "OVERFLOW" in condition else "cannot be read as"
        message = f"{subject} of type {types[1]} {reason} {types[2]}."
    elif decimal:
        message = f"{subject} does not fit {decimal[1]}."
    elif condition.startswith("CANNOT_PARSE_"):
        kind = condition.removeprefix("CANNOT_PARSE_").partition(".")[0].lower().replace("_", " ")
        message = f"{subject} cannot be parsed as {kind}."
    else:
        message = f"{subject} is out of range ({condition.partition('.')[0]})."
    return UnfitValue(message, where=_place_in(text), fix="clean it with a marker, or declare a wider type")


_UNWORKABLE = {
    "INVALID_URL": "is no URL",
    "CANNOT_DECODE_URL": "is no encoded URL",
    "INVALID_TIMEZONE": "names no time zone",
    "ILLEGAL_DAY_OF_WEEK": "names no day of the week",
    "DATETIME_FIELD_OUT_OF_BOUNDS": "is no part of a date or time",
    "INVALID_INTERVAL_FORMAT": "is no interval",
    "INVALID_UTF8_STRING": "is no text in its character set",
    "MALFORMED_CHARACTER_CODING": "is no text in its character set",
    "INVALID_FORMAT.MISMATCH_INPUT": "does not match its format",
    "INVALID_ARRAY_INDEX": "points outside of its array",
    "INVALID_INDEX_OF_ZERO": "points outside of its array",
    "INVALID_BITMAP_POSITION": "points outside of its bitmap",
    "INVALID_VARIANT_CAST": "is of another kind than its variant is cast to",
    "MALFORMED_VARIANT": "is no variant",
    "VARIANT_DUPLICATE_KEY": "has a key twice",
    "NULL_MAP_KEY": "is NULL and the key of a map",
    "DUPLICATED_MAP_KEY": "is twice the key of a map",
    "COLLECTION_SIZE_LIMIT_EXCEEDED": "would make a list too long",
    "INVALID_PARAMETER_VALUE.AES_CRYPTO_ERROR": "cannot be decrypted",
}
"""What Spark's functions have against a value, by condition. Its own sentences show the value."""

_UNWORKABLE_UNNAMED = {
    r"\b(?:long|integer) overflow\b": "is out of range",
    r"Illegal sequence boundaries": "bounds no sequence",
    r"Last unit does not have enough valid bits|Illegal base64 character|Input byte\[\] should": "is no base64",
    r"The key array and value array of MapData must have the same length": "makes no map",
}


def _unworkable_value(condition: str, text: str) -> FlowError | None:
    """A function of the SQL was given something that it cannot work with."""
    found = next((words for name, words in _UNWORKABLE.items() if condition.startswith(name)), None)
    if not condition or condition.startswith("_LEGACY_ERROR"):
        found = next((words for said, words in _UNWORKABLE_UNNAMED.items() if re.search(said, text)), None)
    if found is None:
        return None
    return UnfitValue(
        f"A value that a function of the SQL was given {found}.",
        where=_place_in(text),
        fix="filter or mend such values in the SQL; for many functions there is one that gives NULL: try_…",
    )


def _column_in(text: str) -> str | None:
    """The column of a cast that is written out in the message: `CAST(x AS INT)`, also behind a table name."""
    shown = re.search(r"== SQL[^\n]*==\n(?P<sql>.*)", text, flags=re.DOTALL)
    cast = re.search(r"(?i)\bcast\(\s*((?:`[^`]+`|\w+)(?:\.(?:`[^`]+`|\w+))*)\s+as\b", shown["sql"]) if shown else None
    return re.findall(r"`[^`]+`|\w+", cast[1])[-1].strip("`") if cast else None


def _place_in(text: str) -> str | None:
    """The line of the user's code that Spark names."""
    place = re.search(r'^"\w+" was called from\n(?P<place>[^\n]+:\d+)$', text, flags=re.MULTILINE)
    return place["place"] if place else None


def _missing_path(condition: str, text: str) -> FlowError | None:
    if not condition.startswith(("PATH_NOT_FOUND", "FAILED_READ_FILE.FILE_NOT_EXIST")):
        return None
    path = re.search(r"(?:Path does not exist: |file )(\S+?)\.?(?:\s|$)", text)
    return InvalidSource(
        f"There is no file or folder {path[1]}." if path else "A file or folder of the source does not exist.",
        fix="check the path, and that every machine of the cluster sees it",
    )


def _damaged_file(condition: str, text: str) -> FlowError | None:
    """A file that cannot be read for no reason that has a name of its own."""
    file = _file_in(text)
    if file is None:
        return None
    if "iceberg.exceptions.NotFoundException" in text:
        return InvalidSource(f"There is no file {file}, and the table needs it.", fix="put it back")
    return InvalidSource(f"The file {file} cannot be read; it is damaged.", fix="mend or remove it")


def _file_in(text: str) -> str | None:
    """The file that Spark was reading."""
    file = re.search(
        r"(?:\[FAILED_READ_FILE[.A-Z_]*\] Encountered error while reading file "
        r"|iceberg\.exceptions\.\w+: (?:Failed to open (?:Parquet file|input stream for file)|File does not exist): )"
        r"(\S+?)\.?\s",
        text,
    )
    return file[1] if file else None


def _missing_column(condition: str, text: str) -> FlowError | None:
    if not condition.startswith(("UNRESOLVED_COLUMN", "UNRESOLVED_MAP_KEY", "FIELD_NOT_FOUND")):
        return None
    name = re.search(r"with name (`[^\n]+?`) cannot be resolved", text)
    offered = re.search(r"\[(`[^\]\n]+`)\]", text)
    near = re.findall(r"`((?:[^`]|``)+)`", offered[1]) if offered else []
    column = name[1].strip("`").replace("`.`", ".") if name else "?"
    return MissingSourceColumn(
        f"There is no column '{column}'.", fix=f"did you mean one of {listed(near)}?" if near else "check its spelling"
    )


def _missing_table(condition: str, text: str) -> FlowError | None:
    if not condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        return None
    name = re.search(r"table or view (\S+) cannot be found", text)
    return InvalidSource(
        f"Spark knows no table or view {name[1].replace('`', '')}." if name else "Spark does not know a table or view.",
        fix="check its spelling, or register it before the pipeline reads it",
    )


def _bad_sql(condition: str, text: str) -> FlowError | None:
    if not condition.startswith(("PARSE_SYNTAX_ERROR", "PARSE_EMPTY_STATEMENT")):
        return None
    place = re.search(r"\(line (\d+), pos (\d+)\)", text)
    where = f"line {place[1]}, column {int(place[2]) + 1} of the SQL" if place else None
    return InvalidPlan("Spark cannot read this SQL.", where=where, fix="on file sources, SQL is Spark SQL")


def _users_refusal(condition: str, text: str) -> FlowError | None:
    """`raise_error` and `assert_true` in the user's SQL; their text may be put together from values."""
    if condition != "USER_RAISED_EXCEPTION":
        return None
    return StepFailed("A raise_error() or assert_true() of the query stopped it.", fix=HOW_TO_SEE)


def _missing_class(condition: str, text: str) -> FlowError | None:
    is_source = "ailed to find data source: " in text or condition.startswith("DATA_SOURCE_NOT_FOUND")
    missing = re.search(
        r"(?:ailed to find (?:the )?data source: |ClassNotFoundException: |NoClassDefFoundError: |Cannot load class )"
        r"([\w./$-]+)",
        text,
    )
    no_scheme = re.search(r'No FileSystem for scheme "?(\w+)', text)
    found = missing or no_scheme
    if found is None:
        return None
    name = found[1].rstrip(".").replace("/", ".")
    kind = "data source" if is_source else "class" if missing else "file system"
    family = _family_of(name)
    return MissingJar(
        f"Spark has no {kind} '{name}': its jar is not in this session.",
        tried=[jar.coordinate for jar in jars.jars_for([family])] if family else (),
        fix=f"run `flow jars fetch {family}`, then run again" if family else "add its jar in [spark.conf] spark.jars",
    )


_PACKAGES = (
    ("kafka", ("kafka", "org.apache.spark.sql.kafka010", "org.apache.kafka")),
    ("avro", ("avro", "org.apache.spark.sql.avro")),
    ("delta", ("delta", "io.delta", "org.apache.spark.sql.delta")),
    ("iceberg", ("iceberg", "org.apache.iceberg")),
    ("hadoop-aws", ("s3", "s3a", "org.apache.hadoop.fs.s3a", "software.amazon")),
    ("gcs-connector", ("gs", "com.google.cloud.hadoop")),
    ("hadoop-azure", ("abfs", "abfss", "org.apache.hadoop.fs.azurebfs")),
    ("postgresql", ("org.postgresql",)),
    ("mysql", ("com.mysql",)),
    ("mariadb", ("org.mariadb",)),
    ("sqlite", ("org.sqlite",)),
    ("duckdb", ("org.duckdb",)),
)


def _family_of(name: str) -> str | None:
    """The jar family that holds a class, format or file system."""
    for family, roots in _PACKAGES:
        if any(name == root or name.startswith(root + ".") for root in roots):
            return family
    return None


def _out_of_memory(condition: str, text: str) -> FlowError | None:
    if "java.lang.OutOfMemoryError" in text or condition.startswith("UNABLE_TO_ACQUIRE_MEMORY"):
        return EngineFailed(
            "Spark ran out of memory.", fix='give the driver more, [spark] driver_memory = "4g", or use fewer cores'
        )
    if "Python worker exited unexpectedly" in text or "Python worker failed to connect back" in text:
        return EngineFailed(
            "A Python worker of Spark died.",
            fix="memory is the usual reason: lower spark.sql.execution.arrow.maxRecordsPerBatch, or use fewer cores",
        )
    return None


# Behind the name of an exception of files: the same words may stand in a row.
_NO_SPACE = re.compile(
    r"(?:IOException|FileSystemException|FSError|OSError): [^\n'\"]*"
    r"(?:No space left on device|Disk quota exceeded|not enough space on the disk)"
)


def _full_disk(condition: str, text: str) -> FlowError | None:
    """What a system says when a disk, or what a user may take of it, is full; of the target or of Spark's own files."""
    if not _NO_SPACE.search(text):
        return None
    return StatementFailed(
        "A disk is full: Spark could not write. What the target held is as it was.",
        fix="make room where the target is, and where Spark keeps its own files (spark.local.dir), then run it again",
    )


def _users_code(condition: str, text: str) -> FlowError | None:
    """An exception of the user's own function on a worker; its message may hold values, so only its name is told."""
    if "Traceback (most recent call last)" not in text:
        return None
    last = text.rpartition("Traceback (most recent call last)")[2]
    raised = re.findall(r"^([A-Za-z_][\w.]*)(?::|$)", last, re.MULTILINE)
    frames = [
        frame
        for frame in re.findall(r'^  File "([^"]+)", line (\d+), in (\S+)$', text, re.MULTILINE)
        if "pyspark" not in frame[0]
    ]
    where = f"{frames[-1][0]}:{frames[-1][1]} ({frames[-1][2]})" if frames else None
    name = raised[0] if raised else "an exception"
    if name.endswith("ModuleNotFoundError"):
        return StepFailed(
            "Python code on a Spark worker could not import a module.",
            where=where,
            fix="install it where the workers run, or ship it with spark.submit.pyFiles",
        )
    return StepFailed(f"Python code running on Spark raised {name}.", where=where, fix=f"mend it there; {HOW_TO_SEE}")


def _native_failure(condition: str, text: str) -> FlowError | None:
    """An error of the native engine itself. Its texts quote values anywhere, so none of them is shown."""
    if not native.is_running() or condition or _raised_by_python(text):
        return None
    if re.search(r"Cannot cast|out of range|[Oo]verflow|representable|Cast error", text):
        return UnfitValue(
            "A value is out of the range of its type, or cannot be read as it.",
            fix="clean it with a marker, or declare a wider type; engine='spark' may know more about it",
        )
    missing = re.search(r"(?:No files found|Object at location|path not found|No such file)[^\n]*", text)
    if missing:
        return InvalidSource("A file or folder of the source does not exist.", fix="check the path")
    return EngineFailed("The native engine failed.", fix=f"{HOW_TO_SEE}; engine='spark' may be able to do it")


def _raised_by_python(text: str) -> bool:
    """Whether code of ours or of the user raised; an error of the engine under Python code comes out of `spark.py`."""
    frames = re.findall(r'^  File "([^"]+)", line \d+, in ', text, re.MULTILINE)
    return bool(frames) and frames[-1] != "spark.py"


_RULES: tuple[Callable[[str, str], FlowError | None], ...] = (
    _full_disk,
    kafka_failure,
    lake_stream_failure,
    lake_version_failure,
    _native_failure,
    _out_of_memory,
    _users_code,
    _unfit_value,
    _missing_path,
    _missing_column,
    _missing_table,
    _bad_sql,
    _users_refusal,
    _missing_class,
    _damaged_file,
)


# ── reading an exception ─────────────────────────────────────────────────────────────────────────────────────────────


def _is_from_spark(exc: BaseException) -> bool:
    return any(kind.__module__.partition(".")[0] in ("pyspark", "py4j") for kind in type(exc).__mro__)


def _text(exc: BaseException) -> str:
    """Everything the exception says; Java's own report where PySpark has not translated it."""
    text = str(exc)
    nested: list[str] = []
    cause = getattr(exc, "_cause", None)
    while cause is not None and len(nested) < 10:
        nested.append(str(getattr(cause, "_desc", None) or cause))
        cause = getattr(cause, "_cause", None)
    return "\n".join([text, *nested])


def _condition(exc: BaseException, text: str) -> str:
    """The name of Spark's error condition; empty when it has none. The innermost name says most."""
    told = getattr(exc, "getCondition", None) or getattr(exc, "getErrorClass", None)
    name = told() if callable(told) else None
    wrappers = ("FAILED_EXECUTE_UDF", "TASK_WRITE_FAILED", "_LEGACY_ERROR", "STREAM_FAILED", "FAILED_READ_FILE.NO_HINT")
    if isinstance(name, str) and not name.startswith(wrappers):
        return name
    bracketed = re.findall(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]", text)
    named = [found for found in bracketed if not found.startswith(wrappers)]
    return named[-1] if named else str(name or "")


def _unnamed(text: str) -> FlowError:
    """What has no clearer name: Spark's first sentence, with everything quoted taken out, since it may be a value."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if not line.startswith("An error occurred while calling")), "")
    first = re.sub(r"^: ", "", first)
    first = re.sub(r"^(?:(?:[\w$]+\.)+[\w$]+(?:Exception|Error): )+", "", first)
    first = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", first)
    sentence = re.split(r"(?<=[.!?])\s|\sSQLSTATE:", first)[0].rstrip(".")
    sentence = re.sub(r"'[^']*'", "'…'", sentence)[:300]
    return EngineFailed(f"Spark failed: {sentence or 'no reason given'}.", fix=HOW_TO_SEE)


def _scrubbed(error: FlowError) -> FlowError:
    from ematix_flow.declare.redaction import scrub

    error.message = scrub(error.message)
    error.args = (error.message,)
    error.where = scrub(error.where) if error.where else None
    error.fix = scrub(error.fix) if error.fix else None
    error.tried = tuple(scrub(one) for one in error.tried)
    return error
