"""Keeping secrets out of everything people read: reprs, messages, logs, run history, command output.

Two nets. Known shapes (``://user:password@``, ``password=…``) are recognised in any text; known values (every secret
that a connection held or a resolver returned in this process) are replaced wherever they turn up, for example inside a
message that a database driver wrote.
"""

from __future__ import annotations

import json
import re
import threading
from urllib.parse import quote, quote_plus, unquote, unquote_plus

REDACTED = "<redacted>"
STARS = "***"

_SECRET_WORDS = frozenset({"password", "passwd", "pwd", "passphrase", "secret", "token", "key", "credential", "apikey"})
_SECRET_NAMES = frozenset({"access_key_id", "secret_access_key", "private_key", "api_key", "connection_string"})
_SHORTEST_SECRET = 3

# A test server's password is often the very name of its system. Blanking these words in every sentence would ruin the
# sentence and hide nothing; in the two known shapes they are blanked like any other value.
NEVER_SECRET = frozenset({"postgres", "postgresql", "mysql", "sqlite", "duckdb", "kafka", "default", "none", "null"})

_SECRET_PARAMETER = re.compile(
    r"""(?ix)
    (?P<name> [a-z0-9_.\-]* (?: password | passwd | pwd | passphrase | secret | token | api_?key | access_?key (?:_id)?
                              | private_?key | credential s? ) (?: _access_key )? )
    (?P<sign> ['"]? \s* [=:] \s* )
    (?P<value> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | [^\s&;,'")}\]]+ )
    """
)
_QUERY_PARAMETER = re.compile(r"(?P<lead>[?&;])(?P<name>[^=&;?#]+)=(?P<value>[^&#]*)")
_URL_IN_TEXT = re.compile(r"[a-zA-Z][a-zA-Z0-9+.\-]*://[^\s\"'<>`]*(?:<redacted>[^\s\"'<>`]*)*")

_lock = threading.Lock()
_remembered: set[str] = set()
_pattern: re.Pattern[str] | None = None


def is_secret_field(name: str) -> bool:
    """Whether a field of this name holds a secret. User names do not count.

    >>> [is_secret_field(n) for n in ("sasl_plain_password", "access_key_id", "sslpassword", "username", "url")]
    [True, True, True, False, False]
    """
    lowered = name.lower().replace("-", "_")
    return (
        lowered in _SECRET_NAMES
        or not _SECRET_WORDS.isdisjoint(lowered.split("_"))
        or lowered.endswith(("password", "passwd", "passphrase", "secret"))  # one word: sslpassword, trustStorePassword
    )


def redact_url(url: str) -> str:
    """A URL without its password and without secret-looking parameters, for `repr` and messages.

    >>> redact_url("postgres://ann:s3cret@db:5432/wh?sslmode=require&password=x")
    'postgres://ann:<redacted>@db:5432/wh?sslmode=require&password=<redacted>'
    """
    return _without_secrets(url, REDACTED)


def display_url(url: str) -> str:
    """A URL as command output shows it.

    >>> display_url("postgres://ann:s3cret@db:5432/wh")
    'postgres://ann:***@db:5432/wh'
    """
    return _without_secrets(url, STARS)


def url_secrets(url: str) -> tuple[str, ...]:
    """The secret parts of a URL, as written in it: the password and the values of secret-looking parameters."""
    found = [m["value"] for m in _QUERY_PARAMETER.finditer(url) if is_secret_field(m["name"]) and m["value"]]
    _, separator, rest = _blank_parameters(url, "").partition("://")
    user_info, at, _ = rest.rpartition("@")
    if separator and at and ":" in user_info:
        found.append(user_info.split(":", 1)[1])
    return tuple(part for part in found if part)


def remember_secret(value: str | None) -> None:
    """Replace this value from now on in everything that goes through `scrub`, in this process.

    Values shorter than three characters are not remembered: they would blank out ordinary words.
    """
    global _pattern
    if not value:
        return
    decoded = unquote(value)
    forms = {value, decoded, unquote_plus(value), quote(decoded, safe=""), quote_plus(decoded), quote(decoded)}
    # Drivers and loggers quote what they print.
    forms |= {repr(form)[1:-1] for form in tuple(forms)} | {json.dumps(form)[1:-1] for form in tuple(forms)}
    kept = {form for form in forms if len(form) >= _SHORTEST_SECRET and form.lower() not in NEVER_SECRET}
    with _lock:
        if not kept <= _remembered:
            _remembered.update(kept)
            _pattern = None


def forget_secrets() -> None:
    """Forget every remembered value; for tests."""
    global _pattern
    with _lock:
        _remembered.clear()
        _pattern = None


def scrub(text: str) -> str:
    """Text that may be shown: remembered secrets, URL passwords and ``password=…`` values are replaced.

    Every message of another system, every log line and every text stored in the run log goes through here.

    >>> scrub("could not reach mysql://ann:pw123@db/x (password=pw123)")
    'could not reach mysql://ann:<redacted>@db/x (password=<redacted>)'
    """
    pattern = _remembered_pattern()
    if pattern is not None:
        text = pattern.sub(REDACTED, text)
    text = _SECRET_PARAMETER.sub(_blank_assignment, text)
    return _URL_IN_TEXT.sub(lambda found: _without_secrets(found.group(), REDACTED), text)


def _without_secrets(url: str, blank: str) -> str:
    url = _blank_parameters(url, blank)
    scheme, separator, rest = url.partition("://")
    # The last '@', because people write passwords with '@' and '/' in them without encoding.
    user_info, at, host = rest.rpartition("@")
    user, colon, password = user_info.partition(":")
    if not (separator and at and colon) or password in ("", REDACTED, STARS):
        return url
    return f"{scheme}://{user}:{blank}@{host}"


def _blank_parameters(url: str, blank: str) -> str:
    def blanked(found: re.Match[str]) -> str:
        hide = is_secret_field(found["name"]) and found["value"] not in ("", REDACTED, STARS)
        return f"{found['lead']}{found['name']}={blank if hide else found['value']}"

    return _QUERY_PARAMETER.sub(blanked, url)


def _blank_assignment(found: re.Match[str]) -> str:
    value = found["value"]
    if value.startswith(("<", "${", "***", "…")):
        return found.group()  # already blanked, or a reference that is not the secret itself
    return f"{found['name']}{found['sign']}{REDACTED}"


def _remembered_pattern() -> re.Pattern[str] | None:
    global _pattern
    with _lock:
        if _pattern is None and _remembered:
            longest_first = sorted(_remembered, key=len, reverse=True)
            _pattern = re.compile("|".join(re.escape(secret) for secret in longest_first))
        return _pattern
