"""Commands of this folder's tests, whether or not the front door has them in its table yet."""

from __future__ import annotations

import pytest

from ematix_flow.cli import main as front
from ematix_flow.cli.main import Command


def known_command(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let `flow NAME` be found."""
    if name not in {command.name for command in front.COMMANDS}:
        command = Command(name, f"ematix_flow.cli.{name.replace('-', '_')}", "a command")
        monkeypatch.setattr(front, "COMMANDS", (*front.COMMANDS, command))
