"""The version, written once: the package metadata, `flow --version` and the run log all read it here."""

from __future__ import annotations

__version__ = "0.1.0"
