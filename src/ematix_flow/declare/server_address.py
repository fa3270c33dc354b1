"""The parts of a database URL: who logs in, where, to which database.

One reader for all: identities are compared with it, handles report from it, and backends build driver arguments from
it. It forgives passwords that were written without percent-encoding by splitting at the last ``@``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*)://")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A database URL taken apart, percent-decoded.

    Attributes:
        scheme: Lower case, as written.
        user, password, database: None when the URL does not say.
        hosts: Host and port pairs in order; one for nearly everybody. An empty host means the driver's own default.
        parameters: The query string, without what went into the fields above.
    """

    scheme: str
    user: str | None
    password: str | None = field(repr=False)
    hosts: tuple[tuple[str, int], ...]
    database: str | None
    parameters: tuple[tuple[str, str], ...]

    @property
    def host(self) -> str:
        """The first host."""
        return self.hosts[0][0]

    @property
    def port(self) -> int:
        """The port of the first host."""
        return self.hosts[0][1]

    def parameter(self, name: str) -> str | None:
        """The last value of a query parameter, or None."""
        return next((value for key, value in reversed(self.parameters) if key == name), None)


def url_scheme(url: str) -> str | None:
    """The scheme of a URL in lower case; None for text that is not a URL, and while it is still a `${…}` reference."""
    found = _SCHEME.match(url)
    return found.group(1).lower() if found else None


def server_address(url: str, *, default_port: int) -> ServerAddress:
    """Take a database URL apart.

    Raises:
        ValueError: The text is not a URL, or a port is not a number. The message never repeats the URL.

    >>> a = server_address("postgres://ann:p%40ss@DB.example:6543/sales?sslmode=require", default_port=5432)
    >>> (a.user, a.password, a.host, a.port, a.database, a.parameter("sslmode"))
    ('ann', 'p@ss', 'db.example', 6543, 'sales', 'require')
    """
    scheme = url_scheme(url)
    if scheme is None:
        raise ValueError("it is not a URL of the form scheme://user@host/database")
    rest = url.split("://", 1)[1]
    user_info, at, location = rest.rpartition("@")
    if at and "?" in user_info and ":" not in user_info.split("?", 1)[0] and "@" not in user_info.split("?", 1)[0]:
        # The only '@' is inside the query string: there is no user info at all.
        user_info, location = "", rest
    elif "@" in user_info and "?" in user_info.split("@", 1)[1]:
        # A query value holds the last '@'; the first one ends the user info.
        user_info, _, location = rest.partition("@")
    authority_and_path, _, query = location.partition("?")
    authority, _, path = authority_and_path.partition("/")
    user, colon, password = user_info.partition(":")
    given = dict(parse_qsl(query, keep_blank_values=True))
    hosts = _hosts(given.get("host") or authority, given.get("port"), default_port)
    own = {"host", "port", "user", "password", "dbname"}
    return ServerAddress(
        scheme=scheme,
        user=given.get("user") or unquote(user) or None,
        password=given.get("password") or (unquote(password) if colon else None),
        hosts=hosts,
        database=given.get("dbname") or unquote(path) or None,
        parameters=tuple((key, value) for key, value in given.items() if key not in own),
    )


def _hosts(authority: str, port: str | None, default_port: int) -> tuple[tuple[str, int], ...]:
    ports = port.split(",") if port else []
    hosts: list[tuple[str, int]] = []
    for index, place in enumerate(authority.split(",")):
        found = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::(\d*))?", place)
        if found is None:
            raise ValueError("its host and port cannot be told apart")
        said = (ports[index] if index < len(ports) else ports[-1]) if ports else found.group(2)
        host = unquote(found.group(1)).strip("[]")
        # A folder with the server's socket keeps its case; names of hosts have none.
        hosts.append((host if host.startswith("/") else host.lower(), _port(said, default_port)))
    return tuple(hosts)


def _port(said: str | None, default_port: int) -> int:
    if not said:
        return default_port
    if not said.isdecimal() or not 0 < int(said) < 65536:
        raise ValueError("its port is not a number from 1 to 65535")
    return int(said)
