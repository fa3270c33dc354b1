"""A folder in the user's home, or another one of this user's own where the home cannot be written to.

So it is in containers whose user owns nothing but a volume, under service accounts, and on read-only file systems.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

_told: set[str] = set()
_made: list[Path] = []


def writable_folder(meant: str, *, fix: str) -> Path:
    """The folder that is meant (`~/…`), or one of the same name among the temporary files after one warning.

    Args:
        meant: Where it belongs. Nothing is made there.
        fix: What the warning says besides: how to choose another place.
    """
    try:
        folder = Path(meant).expanduser()
    except RuntimeError:  # this user has no home
        folder = None
    if folder is not None and is_writable(folder):
        return folder
    instead = _temporary_root() / Path(meant).name.lstrip(".~")
    if meant not in _told:
        _told.add(meant)
        log.warning("%s cannot be written to; %s is used, which does not last: %s", folder or meant, instead, fix)
    return instead


def is_writable(folder: Path) -> bool:
    """Whether something can be written into the folder, or it can be made."""
    nearest = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _temporary_root() -> Path:
    """The same for all processes of this user, unless somebody else has put a folder of that name there."""
    if _made and _made[0].is_dir():
        return _made[0]
    user = os.getuid() if hasattr(os, "getuid") else None
    root = Path(tempfile.gettempdir()) / f"ematix-flow-{user or 0}"
    try:
        root.mkdir(mode=0o700)
    except FileExistsError:
        found = root.lstat()
        is_ours = user is None or (found.st_uid == user and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        if not is_ours or not stat.S_ISDIR(found.st_mode):
            # What lies in it is loaded by Java: it must be nobody else's.
            root = Path(tempfile.mkdtemp(prefix="ematix-flow-"))
    _made[:] = [root]
    return root
