"""Names become things: connections from environment, files and code; settings; the user's modules.

Rooms of this house do not re-export, with one exception: `ematix_flow.config` is an import path that the documentation
promises, so the five documented functions can be had from here. They are loaded when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.config.edit import set_connection as set_connection
    from ematix_flow.config.handles import check_connection as check_connection, connect as connect
    from ematix_flow.config.resolve import list_connections as list_connections, resolve_dsn as resolve_dsn

__all__ = ["check_connection", "connect", "list_connections", "resolve_dsn", "set_connection"]

_OWNERS = {
    "check_connection": "ematix_flow.config.handles",
    "connect": "ematix_flow.config.handles",
    "list_connections": "ematix_flow.config.resolve",
    "resolve_dsn": "ematix_flow.config.resolve",
    "set_connection": "ematix_flow.config.edit",
}


def __getattr__(name: str) -> object:
    if name not in _OWNERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_OWNERS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
