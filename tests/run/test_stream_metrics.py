"""Numbers of a stream for Prometheus, from what is known of it at one moment."""

from __future__ import annotations

from ematix_flow.contracts.streams import BATCH_SECONDS, Lag, StreamCounters
from ematix_flow.run.stream_metrics import families
from ematix_flow.run.stream_watch import COUNTS, StreamView, StreamWatch


def test_what_a_source_keeps_for_a_stream_is_shown_where_the_source_can_tell() -> None:
    view = StreamView(
        pipeline="mirror",
        phase="running",
        counts=dict.fromkeys(COUNTS, 0),
        lag={"public.orders": [Lag("the_slot", 3, held_bytes=4096, held_limit=5000)], "topic": [Lag("topic-0", 1)]},
        batch_seconds=[0] * (len(BATCH_SECONDS) + 1),
    )
    found = {family.name: family.samples for family in families(view)}
    held = [(sample.labels, sample.value) for sample in found["ematix_streaming_source_held_bytes"]]
    assert held == [({"pipeline": "mirror", "source": "public.orders", "partition": "the_slot"}, 4096)]
    assert [sample.value for sample in found["ematix_streaming_source_held_limit_bytes"]] == [5000]
    assert [sample.value for sample in found["ematix_streaming_lag"]] == [3, 1]


class Waiting:
    def is_waiting(self) -> bool:
        return True


def test_what_windows_remember_is_shown() -> None:
    watch, counters = StreamWatch("per_minute"), StreamCounters()
    with watch.run_of(counters, lambda facts: None):
        counters.add(windows_emitted=3)
        counters.remembers(
            rows=5,
            size=700,
            mark_us=90_000_000,
            oldest_us=60_000_000,
            windows=2,
            sources_us={"a": 90_000_000, "b": 95_000_000},
            held_keys=lambda: {"open_windows": 2, "groups": 4, "keys": 3},
        )
        with watch.sampling(Waiting(), lambda positions: {}):
            pass
        found = {family.name: [sample.value for sample in family.samples] for family in families(watch.view())}
    shown = ("state_rows", "state_bytes", "windows_active", "state_oldest_event_seconds", "watermark_seconds")
    assert [found[f"ematix_streaming_{name}"] for name in shown] == [[5], [700], [2], [60], [90, 90, 95]]
    shown = ("windows_emitted", "state_groups_total", "state_keys", "per_source_watermark_micros")
    assert [found[f"ematix_streaming_{name}"] for name in shown] == [[3], [4], [3], [90_000_000, 95_000_000]]
