"""A warehouse as the target of a stream, on fakesnow (a stand-in): every message once, also in a batch done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ematix_flow import connect, run_streaming_pipeline
from ematix_flow.backends.snowflake import ADDRESS
from ematix_flow.connections import register_connection
from ematix_flow.errors import DeliveryImpossible
from tests.services import fakesnow
from tests.stream.conftest import Topic


def test_a_stream_into_snowflake_takes_every_message_once(
    topic: Topic, snowflake_url: str, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS, snowflake_url)
    snow = fakesnow.connection(f"snow_{topic.name}")
    register_connection(snow)

    def consume(**options: Any) -> int:
        done = run_streaming_pipeline(
            name=f"snow_{topic.name}",
            source=topic.connection(),
            source_query=topic.name,
            target=snow,
            target_table=("shop", "visits"),
            once=True,
            **options,
        )
        return int(done["total_rows"])

    def ids() -> list[int]:
        with connect(snow.name) as db:
            return [int(row[0]) for row in db.query("SELECT id FROM shop.visits ORDER BY id")["rows"]]

    with pytest.raises(DeliveryImpossible, match="snowflake cannot keep the name of a batch"):
        consume(delivery="exactly_once")
    topic.send({"id": n, "page": "/"} for n in range(20))
    assert consume() == 20
    (commits,) = checkpoints.glob("*/gen-*/commits")
    last = max((file for file in commits.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()
    topic.send({"id": n, "page": "/cart"} for n in range(20, 30))
    assert consume() == 10
    assert ids() == list(range(30))
    assert topic.committed() == 30
