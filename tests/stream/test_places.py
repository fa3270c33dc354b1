"""Where a stream cannot run, it says so before anything connects."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow import KafkaConnection, SQLiteConnection, run_streaming_pipeline
from ematix_flow.errors import RouteImpossible


@pytest.mark.parametrize(
    ("settings", "said"),
    [('remote = "sc://spark.example:15002"', "Spark Connect server"), ('engine = "native"', "native engine")],
)
def test_a_stream_refuses_places_that_cannot_keep_its_promises(tmp_project: Path, settings: str, said: str) -> None:
    (tmp_project / ".ematix-flow.toml").write_text(f"[spark]\n{settings}\n")
    with pytest.raises(RouteImpossible, match=said):
        run_streaming_pipeline(
            name="nowhere",
            source=KafkaConnection(name="broker", bootstrap_servers="127.0.0.1:1", group_id="g"),
            source_query="events",
            target=SQLiteConnection(name="lite", path=str(tmp_project / "lite.db")),
            target_table=("main", "events"),
            once=True,
        )
