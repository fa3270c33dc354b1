"""One HTTP request with a body, and a short patience. Nothing is followed, nothing is repeated."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from email.message import Message
from http.client import HTTPException
from typing import IO
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ematix_flow.declare.redaction import remember_secret, scrub
from ematix_flow.errors import ConnectionFailed

_MOST_OF_AN_ANSWER = 16 * 1024 * 1024


def basic_login(user: str | None, password: str | None) -> dict[str, str]:
    """The header that logs in with a name and a password; none without a name."""
    if user is None:
        return {}
    login = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
    remember_secret(password)
    remember_secret(login)
    return {"Authorization": f"Basic {login}"}


class _StayHere(HTTPRedirectHandler):
    """A redirected POST becomes a GET without its body: an alert that reached nobody would look delivered."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        return None


def exchange(
    method: str, url: str, body: bytes | None, headers: Mapping[str, str], *, timeout_s: float, shown: str
) -> bytes:
    """Send a request and give back what was answered.

    Args:
        shown: What messages call the place; its URL may hold secrets.

    Raises:
        ConnectionFailed: Nobody answered in time, or not with success.
    """
    request = Request(url, data=body, headers={"User-Agent": "ematix-flow", **headers}, method=method)
    try:
        with build_opener(_StayHere).open(request, timeout=timeout_s) as answer:
            return bytes(answer.read(_MOST_OF_AN_ANSWER))
    except HTTPError as exc:
        with exc:
            said = " ".join(scrub(exc.read(200).decode("utf-8", "replace")).split())
        raise ConnectionFailed(f"{shown} answered {exc.code}" + (f": {said}" if said else ".")) from None
    except (OSError, HTTPException, ValueError) as exc:
        # The cause is not chained: its text may hold the URL.
        reason = getattr(exc, "reason", None) or exc
        raise ConnectionFailed(f"{shown} cannot be reached: {scrub(str(reason)) or type(exc).__name__}") from None
