"""What alerters that are made from URLs have in common."""

from __future__ import annotations

from ematix_flow.watch.addresses import Address

COMMON_OPTIONS = ("timeout", "realert_after")


class UrlAlerter:
    """An alerter with a place.

    Attributes:
        shown: What messages call it.
        identity: The same for the same URL, in every process.
        timeout_s: How long it is waited for.
        realert_after_s: Tells again of what is still wrong only after this time; None: of every failure.
    """

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        self.shown = address.shown
        self.identity = address.identity
        self.timeout_s = address.seconds("timeout", timeout_s) or timeout_s
        self.realert_after_s = address.seconds("realert_after", None)
