"""Named points of a run at which tests kill or freeze the process. Without the variables set they do nothing."""

from __future__ import annotations

import os
import signal

VARIABLE = "EMATIX_FLOW_CRASH_AT"
FREEZE_VARIABLE = "EMATIX_FLOW_FREEZE_AT"
_frozen_at: set[str] = set()


def reached(point: str, *, attempt: int = 0) -> None:
    """Kill this process, as an operator or the kernel would, if it was told to die here; a retried task lives.

    Or freeze it, the first time it comes here, until somebody lets it go on.
    """
    if attempt == 0 and os.environ.get(VARIABLE) == point:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get(FREEZE_VARIABLE) == point and point not in _frozen_at:
        _frozen_at.add(point)
        os.kill(os.getpid(), signal.SIGSTOP)
