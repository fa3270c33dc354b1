"""`flow preview` of a stream: what it would do and promise, before anything starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ematix_flow.cli.main import main
from ematix_flow.declare import registry

MODULE = '''
from ematix_flow import Aggregation, KafkaConnection, PostgresConnection, Window, ematix, udf


@udf(args=["Int64"], returns="Int64")
def doubled(amounts):
    return amounts


@ematix.streaming_pipeline(
    name="per_minute",
    source=KafkaConnection(name="broker", bootstrap_servers="nowhere.invalid:9092", group_id="shop"),
    source_query="orders",
    target=PostgresConnection(name="pg", url="postgresql://shop:s3cret@nowhere.invalid/shop"),
    target_table=("public", "per_minute"),
    transform_sql="SELECT shop, doubled(amount) AS amount FROM source WHERE amount > 0",
    udfs=[doubled],
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
        "function doubled: Python",
        "transform_sql: over each batch",
        "tumbling window: Spark's aggregation over each batch",
        "postgres: public.per_minute",
        "exactly once",
        "tumbling window duration_ms=60000 by shop: count()",
        "checkpoints/per_minute",
    ):
        assert words in said
    assert "s3cret" not in said


FILE = """
pipeline_name = "clean"
source_query = "events"
[source]
kind = "object_store_local"
path = "drop"
format = "csv"
[target]
kind = "sqlite"
path = "shop.db"
table = { schema = "main", name = "clean" }
[transform]
sql = "SELECT s.id, u.tier FROM source s LEFT JOIN users u ON u.id = s.id"
[transform.lookups.users]
kind = "sqlite"
path = "dims.db"
table = "dim_users"
refresh_interval_ms = 60000
"""


def test_a_stream_of_a_file_is_previewed_with_its_lookups(
    tmp_project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_project)
    Path("clean.toml").write_text(FILE)
    assert main(["preview", "clean.toml"]) == 0
    said = capsys.readouterr().out
    for words in (
        "stream clean",
        "lookup users: dim_users of sqlite, read when the stream starts, and again every 60,000 ms",
        "transform_sql: over each batch",
        "sqlite: main.clean",
    ):
        assert words in said
    assert main(["preview", "clean.tomll"]) == 2
    assert "There is no file 'clean.tomll'" in capsys.readouterr().err


def test_a_preview_for_machines_has_the_same(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", "--module", module, "per_minute", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["delivery"] == "exactly_once"
    assert len(facts["steps"]) == 3


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        ("SELECT shop, doubled", "SELEC shop, doubled", "cannot be parsed"),
        ("SELECT shop, doubled(amount) AS amount", "SELECT count(*) AS n", "the aggregate count"),
        ("SELECT shop, doubled(amount)", "SELECT shop, doubled(amount, 2)", "takes 1 argument, not 2"),
        ("FROM source WHERE", "FROM sauce WHERE", "'sauce'"),
        ('"count", "n")', '"vwap", "n", columns=["amount"])', "there is no aggregate 'vwap'"),
    ],
)
def test_a_preview_refuses_what_could_not_start(
    module: str,
    capsys: pytest.CaptureFixture[str],
    tmp_project: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: str,
    instead: str,
    said: str,
) -> None:
    assert written in MODULE
    (tmp_project / "wrong.py").write_text(MODULE.replace(written, instead))
    monkeypatch.delitem(sys.modules, "wrong", raising=False)
    with registry.isolated():
        assert main(["preview", "--module", "wrong", "per_minute"]) != 0
    assert said in capsys.readouterr().err
