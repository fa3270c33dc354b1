"""The documented import path of `ManagedTable`; it lives in `declare/table.py`."""

from __future__ import annotations

from ematix_flow.declare.table import ManagedTable

__all__ = ["ManagedTable"]
