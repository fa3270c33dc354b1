"""A registry of its own for a test: declarations of one test are not seen by the next."""

from __future__ import annotations

from ematix_flow.declare.registry import Registry, isolated as isolated_registry

__all__ = ["Registry", "isolated_registry"]
