"""Numbers of a stream for Prometheus, from what is known of it at one moment."""

from __future__ import annotations

from ematix_flow.contracts.streams import BATCH_SECONDS, Lag
from ematix_flow.run.stream_metrics import families
from ematix_flow.run.stream_watch import COUNTS, StreamView


def test_what_a_source_keeps_for_a_stream_is_shown_where_the_source_can_tell() -> None:
    view = StreamView(
        pipeline="mirror",
        phase="running",
        counts=dict.fromkeys(COUNTS, 0),
        lag={"public.orders": [Lag("the_slot", 3, held_bytes=4096)], "topic": [Lag("topic-0", 1)]},
        batch_seconds=[0] * (len(BATCH_SECONDS) + 1),
    )
    found = {family.name: family.samples for family in families(view)}
    held = [(sample.labels, sample.value) for sample in found["ematix_streaming_source_held_bytes"]]
    assert held == [({"pipeline": "mirror", "source": "public.orders", "partition": "the_slot"}, 4096)]
    assert [sample.value for sample in found["ematix_streaming_lag"]] == [3, 1]
