"""`flow preview` of a stream: what it would do and promise, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ematix_flow.cli.main import main

MODULE = '''
from ematix_flow import Aggregation, KafkaConnection, PostgresConnection, Window, ematix


@ematix.streaming_pipeline(
    name="per_minute",
    source=KafkaConnection(name="broker", bootstrap_servers="nowhere.invalid:9092", group_id="shop"),
    source_query="orders",
    target=PostgresConnection(name="pg", url="postgresql://shop:s3cret@nowhere.invalid/shop"),
    target_table=("public", "per_minute"),
    transform_sql="SELECT shop, amount FROM source WHERE amount > 0",
    window=Window("tumbling", [Aggregation("count", "n")], duration_ms=60_000, group_by=("shop",)),
)
def per_minute():
    """Orders per minute."""
'''


@pytest.fixture
def module(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_project / "previewed.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_project))
    monkeypatch.chdir(tmp_project)
    return "previewed"


def test_a_preview_says_what_a_stream_does_promises_and_remembers(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preview", "--module", module, "per_minute"]) == 0
    said = capsys.readouterr().out
    for words in (
        "kafka: orders",
        "transform_sql: over each batch",
        "tumbling window: Spark's aggregation over each batch",
        "postgres: public.per_minute",
        "exactly once",
        "tumbling window duration_ms=60000 by shop: count()",
        "checkpoints/per_minute",
    ):
        assert words in said
    assert "s3cret" not in said


def test_a_preview_for_machines_has_the_same(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", "--module", module, "per_minute", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["delivery"] == "exactly_once"
    assert len(facts["steps"]) == 2
