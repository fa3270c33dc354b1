"""The checks that values of a stream share: one word of a set, a text, a whole number, how late rows are treated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ematix_flow.declare.connection import Connection
from ematix_flow.errors import InvalidDeclaration, WrongConnectionType, WrongDeclarationType, closest, listed

_MOST = 2**53
"""As many milliseconds are 64 bits of microseconds; nobody means more of anything."""

LateData = Literal["drop", "reopen", "dlq"]


def check_one_of(what: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse a word that is not among the allowed ones."""
    if value not in allowed:
        raise InvalidDeclaration(
            f"{what} must be one of {listed(allowed)}, not {value!r}.", fix=closest(str(value), allowed)
        )


def check_text(what: str, value: object) -> None:
    """Refuse what is missing, empty or no text."""
    if value is None or value == "" or (isinstance(value, str) and not value.strip()):
        raise InvalidDeclaration(f"{what} is missing or empty.")
    if not isinstance(value, str):
        raise WrongDeclarationType(f"{what} must be text, not {type(value).__name__}.")


def check_whole(what: str, value: object, *, least: int | None = None, most: int = _MOST) -> None:
    """Refuse what is no whole number in its range; None passes, where the option may be left out."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidDeclaration(f"{what} must be a whole number, not {value!r}.")
    if least is not None and value < least:
        raise InvalidDeclaration(f"{what} must be at least {least}, not {value}.")
    if value > most:
        raise InvalidDeclaration(f"{what} must be at most {most}, not {value}.")


def check_late_data(what: str, policy: object, allowed_lateness_ms: int | None) -> None:
    """Refuse an unknown policy, and a lateness that the policy does not use."""
    check_one_of(f"{what}: late_data", policy, get_args(LateData))
    check_whole(f"{what}: allowed_lateness_ms", allowed_lateness_ms, least=0)
    if policy == "reopen" and allowed_lateness_ms is None:
        raise InvalidDeclaration(f"{what}: late_data='reopen' needs allowed_lateness_ms.")
    if policy != "reopen" and allowed_lateness_ms is not None:
        raise InvalidDeclaration(f"{what}: allowed_lateness_ms needs late_data='reopen', not {policy!r}.")


def check_connection(what: str, connection: object) -> None:
    """Refuse what is neither a connection nor the name of one."""
    if isinstance(connection, str):
        check_text(f"{what}: connection", connection)
    elif not isinstance(connection, Connection):
        raise WrongConnectionType(
            f"{what}: connection takes a connection or its name, not {type(connection).__name__}."
        )
