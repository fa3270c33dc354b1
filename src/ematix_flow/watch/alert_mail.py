"""Alerts by mail, through any SMTP server."""

from __future__ import annotations

import smtplib
import socket
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Literal

from ematix_flow.contracts.orchestration import AlertEvent
from ematix_flow.declare.redaction import remember_secret, scrub
from ematix_flow.errors import ConnectionFailed, InvalidConfig, listed
from ematix_flow.watch.addresses import Address, read_address
from ematix_flow.watch.alert_base import COMMON_OPTIONS, UrlAlerter
from ematix_flow.watch.alert_text import headline, moment, scrubbed

Encryption = Literal["starttls", "tls", "off"]
TIMEOUT_S = 10.0

_PORTS: dict[Encryption, int] = {"starttls": 587, "tls": 465, "off": 25}
_WORDS: dict[str, Encryption] = {"1": "starttls", "true": "starttls", "0": "tls", "false": "tls", "off": "off"}


class MailAlerter(UrlAlerter):
    """Sends a plain text mail.

    Args:
        url: `email://[user[:password]@]host[:port]?to=a,b[&from=…][&starttls=1|0|off]`. STARTTLS on 587 by default,
            `starttls=0` is TLS from the first byte on 465 (so is port 465 itself), `starttls=off` sends in the clear
            on 25, for a relay on this machine or network. Certificates are checked; `SSL_CERT_FILE` names further ones.
    """

    def __init__(self, url: str) -> None:
        address = read_address(url, ("to", "from", "starttls", *COMMON_OPTIONS))
        super().__init__(address, timeout_s=TIMEOUT_S)
        if not address.host:
            raise InvalidConfig("This URL names no mail server.", where=self.shown, fix="email://host?to=you@host")
        self._to = [to.strip() for to in (address.option("to") or "").split(",") if to.strip()]
        if not self._to:
            raise InvalidConfig("Nobody is to get the mail.", where=self.shown, fix="add ?to=you@example.com")
        self._encryption = _encryption(address)
        self._host, self._port = address.host, address.port or _PORTS[self._encryption]
        self._user, self._password = address.user, address.password
        if self._password is not None and self._encryption == "off":
            raise InvalidConfig(
                "The password would be sent in the clear.", where=self.shown, fix="leave starttls=off or the login out"
            )
        remember_secret(self._password)
        said = address.option("from")
        self._from = said or (self._user if self._user and "@" in self._user else f"ematix-flow@{socket.gethostname()}")
        if any(not part.isprintable() for part in (*self._to, self._from)):
            raise InvalidConfig("An address of this URL cannot be one.", where=self.shown)

    def notify(self, event: AlertEvent) -> None:
        """Send it. Raises ConnectionFailed, also when only some of the receivers were accepted."""
        try:
            with self._connected() as server:
                if self._encryption == "starttls":
                    server.starttls(context=ssl.create_default_context())
                if self._user is not None:
                    server.login(self._user, self._password or "")
                refused = server.send_message(self._message(event))
        except (OSError, smtplib.SMTPException) as exc:
            raise ConnectionFailed(f"{self.shown} did not take the mail: {_reason(exc)}") from None
        if refused:
            raise ConnectionFailed(f"{self.shown} refused {listed(refused)}; the others got the mail.")

    def _connected(self) -> smtplib.SMTP:
        # Without a name for this machine, smtplib asks the DNS for one, and may wait long for it.
        me = socket.gethostname() or "localhost"
        if self._encryption == "tls":
            return smtplib.SMTP_SSL(
                self._host, self._port, me, timeout=self.timeout_s, context=ssl.create_default_context()
            )
        return smtplib.SMTP(self._host, self._port, me, timeout=self.timeout_s)

    def _message(self, event: AlertEvent) -> EmailMessage:
        message = EmailMessage()
        message["Subject"] = f"[ematix-flow] {headline(event)}"
        message["From"] = self._from
        message["To"] = ", ".join(self._to)
        message["Date"] = formatdate()
        message["Message-ID"] = make_msgid(domain=self._from.rpartition("@")[2] or "localhost")
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(mail_text(event))
        return message


def mail_text(event: AlertEvent) -> str:
    """The body of the mail; an error keeps its lines."""
    event = scrubbed(event)
    error = ": ".join(part for part in (event.error_type, event.error_message) if part)
    lines = [f"Pipeline: {event.pipeline}", f"Event: {event.kind}", f"Time: {moment(event.timestamp)}"]
    if error:
        lines.append(f"Error: {error}")
    if event.attempt_count:
        of = f" of {event.max_attempts}" if event.max_attempts else ""
        lines.append(f"Attempts: {event.attempt_count}{of}")
    if event.run_id:
        lines.append(f"Run: {event.run_id}")
    return "\n".join(lines) + "\n"


def _encryption(address: Address) -> Encryption:
    written = address.option("starttls")
    if written is None:
        return "tls" if address.port == _PORTS["tls"] else "starttls"
    if written.lower() not in _WORDS:
        raise InvalidConfig(
            f"starttls={written} is unknown.",
            where=address.shown,
            fix="1: STARTTLS on 587, 0: TLS on 465, off: no encryption",
        )
    return _WORDS[written.lower()]


def _reason(exc: Exception) -> str:
    if isinstance(exc, smtplib.SMTPRecipientsRefused):
        return f"it refused {listed(exc.recipients)}"
    said = getattr(exc, "smtp_error", None)
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(exc)
    return scrub(" ".join(text.split())) or type(exc).__name__
