"""When a pipeline runs, after what, and how often it is tried again: checked where it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from ematix_flow.declare.cron_fields import read_cron
from ematix_flow.declare.dependencies import upstream_names
from ematix_flow.errors import InvalidDeclaration, WrongDeclarationType, closest, listed

CatchUp = Literal["none", "latest", "all"]
"""What becomes of times at which nobody was there to run: nothing, the latest of them, or all."""
RepeatedHour = Literal["once", "twice"]
MissingHour = Literal["shift", "skip"]
Backoff = Literal["fixed", "linear", "exponential"]


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How a failed run is repeated. Durations are seconds."""

    max_attempts: int = 1
    backoff: Backoff = "fixed"
    base_secs: float = 0
    max_backoff_secs: float | None = None
    backoff_factor: float = 2.0
    jitter: float = 0.0
    max_total_secs: float | None = None
    retry_on: tuple[Any, ...] = ()
    explicit: bool = False


@dataclass(frozen=True, kw_only=True)
class Orchestration:
    """What the orchestrator must know of anything that it starts. Every field is also a keyword of the declaration.

    Attributes:
        schedule: A cron expression; None runs only when asked.
        timezone: The zone on whose clock the schedule is read; UTC without one.
        catchup: What becomes of times at which nobody was there to run.
        max_catchup: With `catchup="all"`, at most so many, the newest ones.
        repeated_hour: Whether a time that the clock shows twice runs once or twice.
        missing_hour: Whether a time that the clock leaves out runs right after the gap, or not.
        depends_on: Names of the pipelines that must have succeeded before.
        upstream_freshness_secs: How old their success may be.
        idempotent: Whether a run whose end nobody saw may be repeated; None when that follows from what it does.
        priority: Of those that may start, the one with the highest number does.
        concurrency_group: Of those with the same group, one runs at a time.
    """

    schedule: str | None = None
    timezone: str | None = None
    catchup: CatchUp = "none"
    max_catchup: int = 100
    repeated_hour: RepeatedHour = "once"
    missing_hour: MissingHour = "shift"
    depends_on: tuple[str, ...] = ()
    upstream_freshness_secs: float | None = None
    retry: RetryPolicy = RetryPolicy()
    idempotent: bool | None = None
    priority: int = 0
    concurrency_group: str | None = None


ORCHESTRATION_OPTIONS = tuple(option.name for option in fields(Orchestration))
_CHOICES = {
    "catchup": get_args(CatchUp),
    "repeated_hour": get_args(RepeatedHour),
    "missing_hour": get_args(MissingHour),
}


def orchestration(name: str, given: Mapping[str, Any], *, what: str = "Pipeline") -> Orchestration:
    """Check the keywords that orchestration knows, of whatever kind of declaration; others are left alone.

    Raises:
        DeclarationError: One of them is wrong; the message has the name.
    """
    said = f"{what} '{name}'"
    values = {option: given[option] for option in ORCHESTRATION_OPTIONS if given.get(option) is not None}
    check_schedule(name, values.get("schedule"), values.get("timezone"), what=what)
    if "timezone" in values:
        values["timezone"] = str(values["timezone"])
    for option, choices in _CHOICES.items():
        if option in values and values[option] not in choices:
            raise InvalidDeclaration(
                f"{said}: {option} must be one of {listed(choices)}, not {values[option]!r}.",
                fix=closest(str(values[option]), choices),
            )
    if not _is_whole(values.get("max_catchup", 1)) or values.get("max_catchup", 1) < 1:
        raise InvalidDeclaration(f"{said}: max_catchup must be a whole number of at least 1.")
    if not _is_whole(values.get("priority", 0)):
        raise InvalidDeclaration(f"{said}: priority must be a whole number, not {values['priority']!r}.")
    if not _is_amount(values.get("upstream_freshness_secs", 0)):
        raise InvalidDeclaration(f"{said}: upstream_freshness_secs must be a number of at least 0.")
    if not isinstance(values.get("idempotent", True), bool):
        raise WrongDeclarationType(f"{said}: idempotent must be True or False, not {values['idempotent']!r}.")
    group = values.get("concurrency_group", "one")
    if not isinstance(group, str) or not group.strip():
        raise WrongDeclarationType(f"{said}: concurrency_group takes a name, not {group!r}.")
    values["depends_on"] = upstream_names(values.get("depends_on"))
    values["retry"] = retry_policy(name, values.get("retry"))
    return Orchestration(**values)


# A synonym, the field it stands for, and what its value becomes there.
_SYNONYMS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "backoff_seconds": ("base_secs", lambda seconds: seconds),
    "retries": ("max_attempts", lambda retries: retries + 1),
    "retry_backoff_ms": ("base_secs", lambda ms: ms / 1000),
    "retry_max_total_ms": ("max_total_secs", lambda ms: ms / 1000),
}
_EXPONENTIAL = ("backoff_seconds", "retry_backoff_ms", "backoff_factor")


def retry_policy(pipeline: str, written: Mapping[str, Any] | RetryPolicy | None) -> RetryPolicy:
    """The policy behind `retry={...}`, in every documented spelling.

    >>> retry_policy("p", {"max_attempts": 5, "backoff_seconds": 30, "backoff_factor": 2.0}).backoff
    'exponential'
    """
    if written is None:
        return RetryPolicy()
    if isinstance(written, RetryPolicy):
        return replace(written, explicit=True)
    said = f"Pipeline '{pipeline}': retry"
    if not isinstance(written, Mapping):
        raise InvalidDeclaration(f"{said} takes a dict, not {written!r}.", fix='retry={"max_attempts": 3}')
    known = [option.name for option in fields(RetryPolicy) if option.name != "explicit"] + list(_SYNONYMS)
    values: dict[str, Any] = {}
    for key, value in written.items():
        if key not in known:
            raise InvalidDeclaration(
                f"Pipeline '{pipeline}': unknown retry key '{key}'.",
                fix=closest(str(key), known) or f"known: {listed(known)}",
            )
        name, become = _SYNONYMS.get(key, (key, None))
        if name in values:
            raise InvalidDeclaration(f"{said} gives '{name}' twice, as '{key}' too.")
        if become is not None and not _is_amount(value):
            raise InvalidDeclaration(f"{said} {key} must be a number of at least 0.")
        values[name] = value if become is None else become(value)
    if any(key in written for key in _EXPONENTIAL):
        values.setdefault("backoff", "exponential")
    if not _is_whole(values.get("max_attempts", 1)) or values.get("max_attempts", 1) < 1:
        raise InvalidDeclaration(f"{said} max_attempts must be a whole number of at least 1.")
    if values.get("backoff", "fixed") not in get_args(Backoff):
        raise InvalidDeclaration(f"{said} backoff must be 'fixed', 'linear' or 'exponential'.")
    for key in ("base_secs", "max_backoff_secs", "backoff_factor", "jitter", "max_total_secs"):
        if values.get(key) is not None and not _is_amount(values[key]):
            raise InvalidDeclaration(f"{said} {key} must be a number of at least 0.")
    if values.get("jitter", 0) > 1:
        raise InvalidDeclaration(f"{said} jitter is a fraction of the wait, from 0 to 1.")
    if "retry_on" in values:
        values["retry_on"] = _kinds(said, values["retry_on"])
    return RetryPolicy(**values, explicit=True)


def _kinds(said: str, written: Any) -> tuple[Any, ...]:
    if isinstance(written, str | type):
        written = (written,)
    if not isinstance(written, Iterable):
        raise InvalidDeclaration(
            f"{said} retry_on takes exception types and their names, not {written!r}.",
            fix='retry={"max_attempts": 3, "retry_on": [TimeoutError]}',
        )
    kinds = tuple(written)
    for kind in kinds:
        if not isinstance(kind, str) and not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidDeclaration(f"{said} retry_on takes exception types and their names, not {kind!r}.")
    return kinds


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def check_schedule(name: str, schedule: str | None, timezone: str | None, *, what: str = "Pipeline") -> None:
    """Refuse a cron expression or a time zone that no clock can follow, naming the pipeline."""
    try:
        if schedule is not None:
            read_cron(schedule)
        check_timezone(timezone)
    except InvalidDeclaration as exc:
        exc.message = f"{what} '{name}': {exc.message}"
        raise


def check_timezone(timezone: str | None) -> None:
    """Refuse a name that no time zone has.

    Raises:
        InvalidDeclaration: (a ValueError) There is no such zone.
    """
    if timezone is None:
        return
    import zoneinfo

    try:
        zoneinfo.ZoneInfo(str(timezone))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidDeclaration(
            f"'{timezone}' is not a time zone.", fix="use an IANA name such as 'Europe/Berlin'"
        ) from None
