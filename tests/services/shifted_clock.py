"""A host whose time of day somebody sets: processes that are started with it see another time, and see it jump.

Steady clocks stay as they are, as they do when a clock is really set. Needs a C compiler (`cc`).
"""

from __future__ import annotations

import struct
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path


class ShiftedClock:
    """The clock of some processes. Files keep the real times at which they were written."""

    def __init__(self, folder: Path) -> None:
        self._file, library = folder / "clock-shift", folder / "shifted_clock.so"
        self._shift_s = 0
        self._file.write_bytes(struct.pack("q", 0))
        source = Path(__file__).with_name("shifted_clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
        self.environment = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(self._file)}
        """What processes that live by it are started with."""

    def now(self) -> datetime:
        """The time that those processes see."""
        return datetime.now(timezone.utc) + timedelta(seconds=self._shift_s)

    def set_off(self, hours: float) -> None:
        """From now on it is off by so much. Processes that run see the jump at once."""
        self._shift_s = round(hours * 3600)
        with self._file.open("r+b") as file:  # in place: they have it mapped
            file.write(struct.pack("q", self._shift_s))
