"""The documented import path of the key markers; they live in `declare/keys.py`."""

from __future__ import annotations

from ematix_flow.declare.keys import natural_key, nullable, pk

__all__ = ["natural_key", "nullable", "pk"]
