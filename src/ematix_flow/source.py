"""The documented import path of the batch `Source`; it lives in `declare/source.py`."""

from __future__ import annotations

from ematix_flow.declare.source import BatchSource as Source

__all__ = ["Source"]
