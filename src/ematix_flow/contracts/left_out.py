"""What a source left out because it could not be read and its connection says to go on: never without being told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ematix_flow.errors import counted

_NAMED = 3


@dataclass(frozen=True)
class LeftOutFile:
    """A file whose rows are not in the load: its path for people, and why."""

    path: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """The file in a run's record."""
        return {"file": self.path, "reason": self.reason}


@runtime_checkable
class LeavesFilesOut(Protocol):
    """A source that can do without files it cannot read. `left_out` are those of the reading begun last."""

    left_out: tuple[LeftOutFile, ...]


def left_out_by(source: object) -> tuple[LeftOutFile, ...]:
    """What the last reading of a source lacks; nothing for sources that read all or fail."""
    return source.left_out if isinstance(source, LeavesFilesOut) else ()


def left_out_words(files: Sequence[LeftOutFile]) -> str:
    """How many files are left out, and the first of them with their reasons.

    >>> left_out_words([LeftOutFile("inbox/a.parquet", "it is empty")])
    '1 file cannot be read: inbox/a.parquet (it is empty)'
    """
    named = ", ".join(f"{file.path} ({file.reason})" for file in files[:_NAMED])
    return f"{counted(len(files), 'file')} cannot be read: {named}{', …' if len(files) > _NAMED else ''}"
