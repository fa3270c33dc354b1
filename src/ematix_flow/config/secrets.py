"""`${…}` references: environment variables and values from secret stores, fetched when a connection is used.

``${VAR}`` and ``${env:VAR}`` read the environment; ``${prefix:reference}`` asks the resolver registered for the prefix,
or else the secret store that the environment names (`secret_stores.py`). References have no defaults and there is no
escape; a value that is fetched is not searched for further references.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable
from typing import Protocol, overload, runtime_checkable
from urllib.parse import quote

from ematix_flow.config.secret_stores import STORES, store_from_environment
from ematix_flow.declare.redaction import is_secret_field, remember_secret, scrub, url_secrets
from ematix_flow.errors import InvalidConfig, MissingSecret, closest, listed

MissingSecretError = MissingSecret
"""The documented name of the error; a `KeyError`."""

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_+.\-]*")


@runtime_checkable
class Resolver(Protocol):
    """Something that can look up a secret: register one with `register_resolver`."""

    def resolve(self, reference: str) -> str:
        """The secret behind a reference; any exception is reported as a missing secret."""
        ...


class EnvironmentResolver:
    """Reads environment variables; built in under the prefix ``env`` and behind ``${VAR}``."""

    def resolve(self, reference: str) -> str:
        """The variable's value.

        Raises:
            MissingSecret: It is not set, or its name is not one.
        """
        if not _VARIABLE.fullmatch(reference):
            word = _VARIABLE.fullmatch(reference.upper())
            said = f"'${{{reference}}}'" if word else "'${…}'"
            raise MissingSecret(
                f"{said} is not a reference: names of variables are A-Z, 0-9 and '_'.",
                fix=f"write '${{{reference.upper()}}}'" if word else None,
            )
        value = os.environ.get(reference)
        if value is None:
            raise MissingSecret(
                f"Environment variable '{reference}' is not set.",
                fix=closest(reference, os.environ) or f"export {reference}=…",
            )
        if is_secret_field(reference.lower()):
            remember_secret(value)
        return value


_lock = threading.Lock()
_resolvers: dict[str, Resolver] = {"env": EnvironmentResolver()}


def register_resolver(prefix: str, resolver: Resolver) -> None:
    """Let ``${prefix:reference}`` be answered by `resolver`; an earlier one of the same prefix is replaced.

    Raises:
        InvalidConfig: The prefix is not a word, or the object has no `resolve` method.
    """
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidConfig(f"A resolver's prefix is a word such as 'vault', not {prefix!r}.")
    if not callable(getattr(resolver, "resolve", None)):
        raise InvalidConfig(f"The resolver for '{prefix}' has no method resolve(reference) -> str.")
    with _lock:
        _resolvers[prefix] = resolver


def unregister_resolver(prefix: str) -> None:
    """Forget a resolver; nothing happens when there is none. ``${VAR}`` keeps working whatever is removed."""
    with _lock:
        _resolvers.pop(prefix, None)


@overload
def expand(value: str) -> str: ...
@overload
def expand(value: None) -> None: ...
def expand(value: str | None) -> str | None:
    """The text with every ``${…}`` replaced by what it stands for; None passes through.

    Raises:
        MissingSecret: (a KeyError) A variable is not set, a prefix is unknown, or a store does not have the secret.
    """
    return None if value is None else _expanded(value, lambda found, _position: found)


def expand_field(value: str) -> str:
    """Like `expand`, for a connection's field: what is put inside a URL is encoded so that the URL stays one.

    A password with ``@`` or ``/`` in it works in ``postgres://user:${PASSWORD}@host/db``. References that stand for
    more than a user, a password or a parameter's value (``postgres://${REST}``) are put in as they are.
    """
    if "://" not in value:
        return expand(value)
    template = _REFERENCE.sub(lambda found: "\ufffc" * len(found.group()), value)
    return _expanded(value, lambda found, at: _url_part(found) if _is_one_part(template, at) else found)


def _expanded(value: str, placed: Callable[[str, int], str]) -> str:
    return _REFERENCE.sub(lambda found: placed(_fetched(found.group(1)), found.start()), value)


def _fetched(inside: str) -> str:
    """What one reference stands for; `inside` is the text between the braces."""
    prefix, colon, reference = inside.partition(":")
    if not colon:
        # Not through the table: `${VAR}` works even when someone replaced or removed the prefix 'env'.
        return EnvironmentResolver().resolve(inside)
    with _lock:
        resolver, known = _resolvers.get(prefix), sorted({*_resolvers, *STORES})
    if resolver is None and prefix in STORES:
        resolver = store_from_environment(prefix)
    if resolver is None:
        raise MissingSecret(
            # What follows the prefix is not repeated: people try ${PASSWORD:-the-password-itself}.
            f"A reference asks for the resolver '{prefix}', which is not registered; known are {listed(known)}.",
            fix=f"write '${{{prefix}}}': references have no default values"
            if reference.startswith("-")
            else closest(prefix, known) or f"call ematix_flow.secrets.register_resolver('{prefix}', …) first",
        )
    try:
        found: object = resolver.resolve(reference)
    except MissingSecret:
        raise
    except Exception as exc:  # a plugin may raise anything; the user needs to know which reference it was
        reason = f"{type(exc).__name__}: {scrub(str(exc)).splitlines()[0]}" if str(exc) else type(exc).__name__
        raise MissingSecret(f"Resolver '{prefix}' could not resolve '{reference}' ({reason}).") from exc
    if not isinstance(found, str):
        raise MissingSecret(f"Resolver '{prefix}' gave {type(found).__name__}, not text, for '{reference}'.")
    if prefix != "env":
        for secret in _secret_parts(found):
            remember_secret(secret)
    return found


def _secret_parts(found: str) -> Iterable[str]:
    """What of a fetched value must never be shown: of a URL its password, of a JSON map also each of its values."""
    if "://" in found:
        return url_secrets(found)
    values: object = None
    if found.startswith("{"):
        try:
            values = json.loads(found)
        except ValueError:
            values = None
    inside = values.values() if isinstance(values, dict) else ()
    return (found, *(value for value in inside if isinstance(value, str)))


def _is_one_part(template: str, at: int) -> bool:
    """Whether the reference at this position of a URL is a part of its user, its password or a parameter's value."""
    start = template.find("://") + 3
    if at < start:
        return False
    query = template.find("?", start)
    if 0 <= query < at:
        return template.rfind("=", query, at) > template.rfind("&", query, at)
    at_sign = template.rfind("@", start, query if query >= 0 else len(template))
    # Without a ':' beside it, the reference may hold user and password together.
    return start <= at < at_sign and ":" in template[start:at_sign]


def _url_part(value: str) -> str:
    """Encoded for a URL, unless its author already did: an existing ``%2F`` is left alone."""
    return "".join(
        piece if re.fullmatch(r"%[0-9A-Fa-f]{2}", piece) else quote(piece, safe="")
        for piece in re.split(r"(%[0-9A-Fa-f]{2})", value)
    )
