"""Stopping a stream while Spark hands over its next batch: neither waits for the other. And what counts as waiting."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ematix_flow.spark.checkpoints import CheckpointFolder
from ematix_flow.spark.stream import StreamRun, StreamStopped


class Handing:
    """A query that hands over a batch while it is being stopped, and ends when that batch has."""

    isActive = True

    def __init__(self, run: StreamRun) -> None:
        self._run = run
        self.raised: list[BaseException] = []
        self.waited_in_vain = False

    def _hand_over(self) -> None:
        try:
            self._run._batch(cast(Any, None), 1)
        except StreamStopped as exc:
            self.raised.append(exc)

    def stop(self) -> None:
        handing = threading.Thread(target=self._hand_over, daemon=True)
        handing.start()
        handing.join(10)
        self.waited_in_vain = handing.is_alive()


@pytest.mark.parametrize(
    ("message", "pause_ms", "is_waiting"),
    [
        ("Waiting for data to arrive", 500, True),
        ("Getting offsets from FileStreamSource[s3a://bucket/visits]", 500, False),
        ("Getting offsets from FileStreamSource[s3a://bucket/visits]", 1, True),
        ("Initializing sources", 500, False),
    ],
)
def test_a_source_that_is_asked_for_news_and_does_not_answer_is_not_waited_for(
    message: str, pause_ms: int, is_waiting: bool, tmp_path: Path
) -> None:
    folder = CheckpointFolder("s", str(tmp_path))
    begun = folder.begin("shape", None)
    run = StreamRun(
        cast(Any, None), "s", [], folder, begun, lambda rows, batch: None, idle_pause_ms=pause_ms, once=False
    )
    run._query = cast(Any, SimpleNamespace(status={"isDataAvailable": False, "message": message}))
    assert run.is_waiting() is is_waiting


def test_a_batch_that_comes_while_a_stream_is_stopped_is_turned_away(tmp_path: Path) -> None:
    folder = CheckpointFolder("s", str(tmp_path))
    begun = folder.begin("shape", None)
    run = StreamRun(cast(Any, None), "s", [], folder, begun, lambda rows, batch: None, idle_pause_ms=1, once=False)
    query = Handing(run)
    run._query = cast(Any, query)
    run.stop()
    assert not query.waited_in_vain
    assert len(query.raised) == 1
