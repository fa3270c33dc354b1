"""A load whose source lacks some files: whether its mode can do without them."""

from __future__ import annotations

from collections.abc import Sequence

from ematix_flow.contracts.left_out import LeftOutFile, left_out_words
from ematix_flow.contracts.plans import BatchPlan
from ematix_flow.errors import InvalidSource


def require_all_rows(plan: BatchPlan, files: Sequence[LeftOutFile]) -> None:
    """Refuse a load that would be wrong without the rows of these files.

    Raises:
        InvalidSource: a key that is not there would be taken for deleted; or the watermark would pass rows of a file
            that is mended later, and they would never be loaded.
    """
    why = None
    if plan.target.handle_deletes is not None:
        why = f"handle_deletes='{plan.target.handle_deletes}' would take their rows for deleted"
    elif plan.watermark is not None:
        why = f"their rows may be older than the mark that '{plan.watermark.column}' sets, and would never come"
    if why is not None:
        raise InvalidSource(
            f"{left_out_words(files)}. {plan.target.table} cannot be loaded without: {why}.", fix="mend or remove them"
        )
