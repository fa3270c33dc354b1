"""The documented import path of pipelines between warehouses; the same names as in `ematix_flow.warehouses`."""

from __future__ import annotations

from ematix_flow.warehouses import *  # noqa: F403
from ematix_flow.warehouses import __all__ as __all__
