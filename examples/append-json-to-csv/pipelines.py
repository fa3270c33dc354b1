"""Feedback from a web form: JSON lines in, CSV out."""

from __future__ import annotations

from ematix_flow import Annotated, BigInt, SmallInt, Text, ematix
from ematix_flow.normalize import empty_to_null, trim


@ematix.connection
class website:
    kind = "object_store_local"
    format = "json_lines"
    path = "website"


@ematix.connection
class office:
    kind = "object_store_local"
    format = "csv"
    path = "office"


@ematix.table(schema="web")
class Feedback:
    feedback_id: BigInt
    stars: SmallInt
    words: Annotated[Text | None, trim(), empty_to_null()]


@ematix.pipeline(
    source_connection="website",
    target=Feedback,
    target_connection="office",
    mode="append",
    incremental_column="feedback_id",
)
def export_feedback(files):
    return "feedback"
