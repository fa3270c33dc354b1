"""What `--debug` adds to an error: where it came from, without secrets and without values of rows."""

from __future__ import annotations

import traceback

from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.withheld import without_values


def traceback_text(exc: BaseException) -> str:
    """The stacks of an exception and of what caused it, the first cause first."""
    return scrub("".join(traceback.format_exception(without_values(exc))))
