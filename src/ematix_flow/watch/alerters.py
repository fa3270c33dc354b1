"""Alerters: made from URLs, kept for this process, and told without ever holding up or breaking a run."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context

from ematix_flow.config.secrets import expand_field
from ematix_flow.contracts.orchestration import Alerter, AlertEvent
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import FlowError, InvalidConfig, closest, listed
from ematix_flow.watch.addresses import read_address, shown
from ematix_flow.watch.alert_base import COMMON_OPTIONS, UrlAlerter
from ematix_flow.watch.alert_text import moment, one_line, scrubbed, sentence

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""How long an alerter that says nothing else (`timeout_s`) is waited for."""


class StdoutAlerter(UrlAlerter):
    """One line on stderr; stdout is for answers."""

    def __init__(self, url: str = "stdout://") -> None:
        super().__init__(read_address(url, COMMON_OPTIONS), timeout_s=PATIENCE_S)

    def notify(self, event: AlertEvent) -> None:
        """Write it."""
        sys.stderr.write(one_line(f"[ALERT] {moment(event.timestamp)} {sentence(event)}") + "\n")
        sys.stderr.flush()


def from_url(url: str) -> Alerter:
    """The alerter that a URL means; nothing is connected yet.

    Raises:
        InvalidConfig: Unknown, or something is missing.
    """
    scheme, separator, _ = url.strip().partition("://")
    kind = _KINDS.get(scheme.lower()) if separator else None
    if kind is None:
        known = listed(f"{name}://" for name in _KINDS)
        raise InvalidConfig(
            f"Alerts cannot be sent to '{shown(url)}'.", fix=closest(scheme, _KINDS) or f"known: {known}"
        )
    return kind(url.strip())


def _http(url: str) -> Alerter:
    from ematix_flow.watch.alert_http import SlackAlerter, WebhookAlerter, is_slack

    return SlackAlerter(url) if is_slack(url) else WebhookAlerter(url)


def _slack(url: str) -> Alerter:
    from ematix_flow.watch.alert_http import SlackAlerter

    return SlackAlerter(url)


def _mail(url: str) -> Alerter:
    from ematix_flow.watch.alert_mail import MailAlerter

    return MailAlerter(url)


def _pagerduty(url: str) -> Alerter:
    from ematix_flow.watch.alert_pagerduty import PagerDutyAlerter

    return PagerDutyAlerter(url)


# Most commands tell nobody: what speaks HTTP and SMTP is loaded for those that do.
_KINDS: dict[str, Callable[[str], Alerter]] = {
    "stdout": StdoutAlerter,
    "slack": _slack,
    "webhook": _http,
    "webhook+http": _http,
    "webhook+https": _http,
    "http": _http,
    "https": _http,
    "email": _mail,
    "pagerduty": _pagerduty,
}


def open_alerters(urls: Sequence[str], *, warn: Callable[[str], None] | None = None) -> tuple[Alerter, ...]:
    """The alerters of several URLs, `${…}` filled in; a bad one is a warning and is left out.

    Args:
        warn: Takes the one line; by default it is logged as a warning.
    """
    opened: list[Alerter] = []
    for url in urls:
        try:
            opened.append(from_url(expand_field(url)))
        except FlowError as exc:
            fix = f" ({exc.fix})" if exc.fix else ""
            line = scrub(one_line(f"alerter {shown(url)} is left out: {exc.message}{fix}"))
            (warn or _log_warning)(line)
    return tuple(opened)


def split_urls(text: str) -> tuple[str, ...]:
    """The URLs of a list with commas; a comma inside of one (`?to=ann@host,bob@host`) separates nothing.

    >>> split_urls("stdout://, email://mail?to=a@x,b@x")
    ('stdout://', 'email://mail?to=a@x,b@x')
    """
    parts = re.split(r",(?=\s*[A-Za-z][A-Za-z0-9+.\-]*://)", text)
    return tuple(part.strip() for part in parts if part.strip())


# ── the alerters of this process ─────────────────────────────────────────────────────────────────────────────────────

_lock = threading.Lock()
_active: list[Alerter] = []


def register_alerter(alerter: Alerter) -> None:
    """Tell this alerter of everything in this process that is not told otherwise; quality checks for example."""
    with _lock:
        if not any(known is alerter for known in _active):
            _active.append(alerter)


def active_alerters() -> tuple[Alerter, ...]:
    """The registered ones, in order."""
    with _lock:
        return tuple(_active)


def clear_alerters() -> None:
    """Forget all of them."""
    with _lock:
        _active.clear()


@contextmanager
def registered(alerters: Sequence[Alerter]) -> Iterator[None]:
    """Have alerters registered while the block runs."""
    before = active_alerters()
    for alerter in alerters:
        register_alerter(alerter)
    try:
        yield
    finally:
        with _lock:
            _active[:] = [known for known in _active if any(known is b for b in before)]


# ── telling them ─────────────────────────────────────────────────────────────────────────────────────────────────────


def send(event: AlertEvent, alerters: Sequence[Alerter]) -> tuple[Alerter, ...]:
    """Tell all of them at once, and wait no longer than each may take. Never raises: a failure is one warning.

    Returns:
        Those that did not confirm it.
    """
    event = scrubbed(event)
    deliveries = [_Delivery(alerter, event) for alerter in alerters]
    for delivery in deliveries:
        delivery.start()
    return tuple(delivery.alerter for delivery in deliveries if not delivery.arrived())


def name_of(alerter: Alerter) -> str:
    """What messages call an alerter."""
    return str(getattr(alerter, "shown", None) or type(alerter).__qualname__)


class _Delivery:
    """One event on its way to one alerter, in a thread: a server that is slow to say no holds up nobody."""

    def __init__(self, alerter: Alerter, event: AlertEvent) -> None:
        self.alerter = alerter
        self._event = event
        self._error: BaseException | None = None
        self._patience_s = float(getattr(alerter, "timeout_s", PATIENCE_S))
        self._until = 0.0
        # Log lines of the thread belong to the same run.
        self._thread = threading.Thread(target=copy_context().run, args=(self._notify,), name="alert", daemon=True)

    def start(self) -> None:
        self._until = time.monotonic() + self._patience_s
        self._thread.start()

    def arrived(self) -> bool:
        self._thread.join(max(self._until - time.monotonic(), 0.0))
        if self._thread.is_alive():
            why = f"no answer within {self._patience_s:g} s; it may still arrive"
        elif self._error is not None:
            exc = self._error
            why = exc.message if isinstance(exc, FlowError) else f"{type(exc).__name__}: {exc}".rstrip(": ")
        else:
            return True
        about = f"'{self._event.pipeline}' {self._event.kind}"
        log.warning("%s", scrub(one_line(f"alert not delivered ({about}, {name_of(self.alerter)}): {why}")))
        return False

    def _notify(self) -> None:
        try:
            self.alerter.notify(self._event)
        except BaseException as exc:  # it is somebody else's code, and the run goes on
            self._error = exc


def _log_warning(line: str) -> None:
    log.warning("%s", line)
