"""`flow graph`: the same graph as layers, as data and in the words of other programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.cli.main import main
from ematix_flow.declare import registry

MODULE = """
from ematix_flow import AllOf, AnyOf, ematix, pipeline

print("what a module says while it is imported is not part of the answer")


def declare(name, schedule=None, timezone=None, depends_on=None):
    pipeline.register(name=name, schedule=schedule, timezone=timezone, depends_on=depends_on)(lambda: {})


declare("report", "0 6 * * *", "Europe/Berlin", ["orders", "stock"])
declare("raw", "@hourly")
declare("orders", depends_on=["raw"])
declare("stock", depends_on=["raw"])
declare('say "hi"')
ematix.workflow(name="nightly", jobs=["orders", "raw"], schedule="0 2 * * *")
ematix.workflow(name="mails", jobs=['say "hi"'], triggered_by=AllOf("report", AnyOf("stock", "nightly")))
"""


@pytest.fixture(autouse=True)
def shop(tmp_project: Path) -> Iterator[None]:
    """A project of five pipelines in two workflows."""
    (tmp_project / "drawn_shop.py").write_text(MODULE)
    sys.modules.pop("drawn_shop", None)  # every test declares anew
    with registry.isolated():
        yield


def graph(capsys, *words: str) -> str:
    """What the command prints."""
    assert main(["graph", "--module", "drawn_shop", *words]) == 0
    said: str = capsys.readouterr().out
    return said


def test_layers_arrows_schedules_and_boxes(capsys) -> None:
    assert graph(capsys) == (
        "1  raw                     @hourly\n"
        '   say "hi"\n'
        "2  orders ← raw\n"
        "   stock ← raw\n"
        "3  report ← orders, stock  0 6 * * * Europe/Berlin\n"
        "\n"
        "┌ nightly · 0 2 * * * ─┐\n"
        "│ raw                  │\n"
        "│ orders ← raw         │\n"
        "└──────────────────────┘\n"
        "\n"
        "┌ mails · after report and (stock or nightly) ─┐\n"
        '│ say "hi"                                     │\n'
        "└──────────────────────────────────────────────┘\n"
    )


def test_a_name_shows_what_belongs_to_it(capsys) -> None:
    assert graph(capsys, "stock") == (
        "1  raw             @hourly\n"
        "2  stock ← raw\n"
        "3  report ← stock  0 6 * * * Europe/Berlin\n"
        "\n"
        "┌ nightly · 0 2 * * * ─┐\n"
        "│ raw                  │\n"
        "│ orders               │\n"
        "└──────────────────────┘\n"
    )
    assert graph(capsys, "nightly").startswith("1  raw           @hourly\n2  orders ← raw\n\n┌ nightly")


def test_as_data(capsys) -> None:
    for words in (["--format", "json"], ["--json"]):
        found = json.loads(graph(capsys, *words))
        assert found["nodes"][-2:] == [
            {"name": 'say "hi"', "schedule": None, "timezone": None},
            {"name": "stock", "schedule": None, "timezone": None},
        ]
        assert found["edges"] == [
            {"from": "orders", "to": "report"},
            {"from": "stock", "to": "report"},
            {"from": "raw", "to": "orders"},
            {"from": "raw", "to": "stock"},
        ]
        nightly, mails = found["workflows"]
        assert nightly == {
            "name": "nightly",
            "schedule": "0 2 * * *",
            "timezone": None,
            "jobs": ["raw", "orders"],
            "triggered_by": None,
            "on_message": None,
        }
        assert mails["triggered_by"] == {"all": ["report", {"any": ["stock", "nightly"]}]}


def test_a_topic_that_starts_a_workflow_is_in_its_title(tmp_project: Path, capsys) -> None:
    (tmp_project / "drawn_shop.py").write_text(
        MODULE + 'ematix.workflow(name="arrivals", jobs=["raw"], on_message="events/orders")'
    )
    with pytest.warns(UserWarning, match="job 'raw' moves"):
        assert graph(capsys, "arrivals").endswith(
            "┌ arrivals · on events/orders ─┐\n│ raw                          │\n└──────────────────────────────┘\n"
        )
    assert json.loads(graph(capsys, "--json"))["workflows"][-1]["on_message"] == "events/orders"
    assert '["arrivals · on events/orders"]' in graph(capsys, "--format", "mermaid")
    assert 'label="arrivals · on events/orders"' in graph(capsys, "--format", "dot")
    assert main(["status", "--module", "drawn_shop", "--no-run-log"]) == 0
    assert "on events/orders" in next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("arrivals")
    )


def test_as_mermaid(capsys) -> None:
    assert graph(capsys, "--format", "mermaid").splitlines() == [
        "flowchart LR",
        '  n1["report<br/>0 6 * * * Europe/Berlin"]',
        '  n2["raw<br/>@hourly"]',
        '  n3["orders"]',
        '  n4["stock"]',
        '  n5["say &quot;hi&quot;"]',
        '  subgraph n6["nightly · 0 2 * * *"]',
        "    n2",
        "    n3",
        "  end",
        '  subgraph n7["mails"]',
        "    n5",
        "  end",
        "  n3 --> n1",
        "  n4 --> n1",
        "  n2 --> n3",
        "  n2 --> n4",
        "  n1 -.-> n7",
        "  n4 -.-> n7",
        "  n6 -.-> n7",
    ]


def test_as_dot(capsys) -> None:
    said = graph(capsys, "--format", "dot").splitlines()
    assert said[0] == "digraph pipelines {" and said[-1] == "}"
    assert '  "report" [label="report\\n0 6 * * * Europe/Berlin"];' in said
    assert '  "say \\"hi\\"" [label="say \\"hi\\""];' in said
    assert '  "raw" -> "orders";' in said
    assert '  "report" -> "say \\"hi\\"" [style=dashed, lhead=cluster_1];' in said
    assert '  "raw" -> "say \\"hi\\"" [style=dashed, lhead=cluster_1, ltail=cluster_0];' in said


def test_a_name_that_nothing_has_is_answered_with_the_nearest(capsys) -> None:
    assert main(["graph", "--module", "drawn_shop", "reports"]) == 2
    assert "did you mean 'report'?" in capsys.readouterr().err


def test_a_module_without_pipelines_says_so(tmp_project: Path, capsys) -> None:
    (tmp_project / "drawn_shop.py").write_text("")
    assert graph(capsys) == "no pipelines registered\n"


def test_modules_are_read_together(tmp_project: Path, capsys) -> None:
    (tmp_project / "drawn_more.py").write_text(
        "from ematix_flow import pipeline\n"
        "pipeline.register(name='more', schedule=None, depends_on='raw')(lambda: {})\n"
    )
    assert "more ← raw" in graph(capsys, "--module", "drawn_more")


def test_a_graph_that_does_not_hold_is_not_drawn(tmp_project: Path, capsys) -> None:
    (tmp_project / "drawn_shop.py").write_text(MODULE.replace('["raw"]', '["rau"]'))
    assert main(["graph", "--module", "drawn_shop"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "'orders' depends on 'rau'" in said.err
