"""Every test of this room starts in an empty project, with an empty home, registry and memory of secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.declare import registry
from ematix_flow.declare.redaction import forget_secrets


@pytest.fixture(autouse=True)
def project(tmp_project: Path) -> Iterator[Path]:
    with registry.isolated():
        forget_secrets()
        yield tmp_project
    forget_secrets()


@pytest.fixture
def user_toml() -> Path:
    """The user's file, not yet written."""
    path = Path.home() / ".ematix-flow" / "connections.toml"
    path.parent.mkdir()
    return path
