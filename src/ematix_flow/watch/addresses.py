"""URLs of this room: where something goes, and our own options behind the question mark.

What is wrong with one is said without showing it: keys, passwords, and the paths of webhooks are secrets.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, unquote_plus, urlsplit

from ematix_flow.errors import InvalidConfig, closest, listed

# Elsewhere, and where a scheme is mistyped, the place of the host may hold a key.
_HAS_HOST = re.compile(
    r"slack|webhook|(webhook\+)?https?|email|prometheus|pushgateway(\+https)?|(otel\+)?otlp(\+\w+)?|otel"
)
_HOST = re.compile(r"([\w.\-]*|\[[0-9a-fA-F:.]+\])(:\d*)?")


@dataclass(frozen=True)
class Address:
    """A URL taken apart. User, password and options are decoded; path and the rest of the query are as written.

    Attributes:
        shown: All of it that may be shown.
        identity: The same for the same URL, in every process; a hash, since the URL holds secrets.
        options: Those that were asked for; every value an option was given.
    """

    scheme: str
    shown: str
    identity: str
    host: str
    port: int | None = None
    user: str | None = None
    password: str | None = None
    path: str = ""
    query: str = ""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def option(self, name: str) -> str | None:
        """The value of an option; the last one when it was given more than once."""
        return self.options[name][-1] if name in self.options else None

    def seconds(self, name: str, default: float | None) -> float | None:
        """An option that is a duration.

        Raises:
            InvalidConfig: It is no number above 0.
        """
        written = self.option(name)
        if written is None:
            return default
        try:
            number = float(written)
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise InvalidConfig(f"{name}={written} is no number of seconds.", where=self.shown, fix=f"{name}=3600")
        return number

    def server(self, default_port: int | None = None) -> str:
        """`host:port` as URLs write it."""
        port = default_port if self.port is None else self.port
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if port is None else f"{host}:{port}"


def read_address(url: str, options: Collection[str] = (), *, keeps_others: bool = False) -> Address:
    """Take a URL apart.

    Args:
        options: Names of parameters that are ours.
        keeps_others: Whether other parameters belong to the place itself. Names are compared as written, so a place
            that has a parameter of the same name is told by writing one letter of it encoded: `%73ecret=`.

    Raises:
        InvalidConfig: It is no URL, or has a parameter that nobody knows.
    """
    seen = shown(url)
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise InvalidConfig(f"'{seen}' is no URL: its host or its port cannot be read.") from None
    if not parts.scheme or "://" not in url:
        raise InvalidConfig("This is no URL.", where=seen, fix="a scheme and a place, for example https://host/path")
    if parts.fragment:
        raise InvalidConfig("A '#' cannot be part of this URL.", where=seen, fix="write it as %23")
    taken: dict[str, tuple[str, ...]] = {}
    kept: list[str] = []
    for part in filter(None, parts.query.split("&")):
        name, _, value = part.partition("=")
        if name in options:
            taken[name] = (*taken.get(name, ()), unquote_plus(value))
        elif keeps_others:
            kept.append(part)
        else:
            hint = closest(name, options) or f"known: {listed(sorted(options))}"
            raise InvalidConfig(f"The option '{unquote_plus(name)}' is unknown.", where=seen, fix=hint)
    _, _, place = parts.netloc.rpartition("@")
    return Address(
        scheme=parts.scheme.lower(),
        shown=seen,
        identity=hashlib.sha256(url.strip().encode()).hexdigest()[:12],
        # urlsplit gives host names in small letters, and a key is no host name
        host=parts.hostname or "" if _HAS_HOST.fullmatch(parts.scheme.lower()) else place,
        port=port,
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        path=parts.path,
        query="&".join(kept),
        options=taken,
    )


def shown(url: str) -> str:
    """All of a URL that may be shown: its scheme and its host.

    >>> shown("https://ann:pw@hooks.slack.com/services/T0/B0/key"), shown("pagerduty://R0UTE")
    ('https://hooks.slack.com/…', 'pagerduty://…')
    """
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        return "…"
    place = rest.split("?")[0].rpartition("@")[2]
    host, _, path = place.partition("/")
    if not rest:
        return url.strip()
    if not _HAS_HOST.fullmatch(scheme.lower()) or not _HOST.fullmatch(host):
        return f"{scheme}://…"
    return f"{scheme}://{host}/…" if path else f"{scheme}://{host}"
