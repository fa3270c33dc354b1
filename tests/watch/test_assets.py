"""The dashboard and the alert rules that are shipped: every series they ask for is one that the code exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import promql_parser
import pytest
import yaml

from ematix_flow.run.stream_metrics import families
from ematix_flow.run.stream_watch import StreamWatch
from ematix_flow.watch.metrics_prometheus import RunNumbers

DASHBOARD = json.loads((files("ematix_flow") / "assets" / "grafana" / "ematix-flow.json").read_text("utf-8"))
RULES = yaml.safe_load((files("ematix_flow") / "assets" / "prometheus" / "ematix-flow-rules.yml").read_text("utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OUTCOMES = {"success", "failure", "skipped", "dispatched", "dispatch_failed", "lease_expired", "tick_error"}
PROMISED = {
    *("Runs by outcome", "Failure ratio", "Duration, p50 and p95", "Failures in a row", "Pipelines skipped"),
    *("Dispatch failures", "Rows per second", "Batch cycle, p50 and p95", "Errors and restarts"),
    *("Dead letters per second", "Watermark lag"),
}


def exported() -> dict[str, set[str]]:
    """Every series of the code, and its labels."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}
    numbers = RunNumbers()
    labels = {"pipeline_runs": {"outcome"}, "pipeline_rows": {"action"}}
    series: dict[str, set[str]] = {}
    for family in [*numbers.families(), *families(StreamWatch("visits").view())]:
        own = {"pipeline", *labels.get(family.name, ())} | {name for s in family.samples for name in s.labels}
        for suffix in suffixes[family.type]:
            series[family.name + suffix] = own | ({"le"} if suffix == "_bucket" else set())
    # Labels of series that a stream has only while it runs.
    series["ematix_streaming_lag"] |= {"source", "partition"}
    return series


def expressions() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m").replace("$pipeline", "orders|visits")
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def selectors(node: Any) -> Iterator[Any]:
    """Every selector below a node of PromQL's syntax tree."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        part = getattr(node, name, None)
        if part is not None:
            yield from selectors(part)
    for part in getattr(node, "args", None) or ():
        yield from selectors(part)


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize(("place", "text"), EXPRESSIONS, ids=[place for place, _ in EXPRESSIONS])
def test_every_expression_asks_for_series_and_labels_that_exist(place: str, text: str) -> None:
    known = exported()
    asked = list(selectors(promql_parser.parse(text)))
    assert {selector.name for selector in asked} == set(re.findall(r"\b(?:pipeline|ematix_streaming)_\w+", text))
    for selector in asked:
        assert selector.name in known
        for matcher in selector.matchers.matchers:
            assert matcher.name in known[selector.name]
            if matcher.name == "outcome":
                assert set(matcher.value.split("|")) <= OUTCOMES


def test_labels_that_are_summed_by_exist() -> None:
    known = exported()
    for place, text in EXPRESSIONS:
        names = {name for group in re.findall(r"by \(([^)]*)\)", text) for name in group.replace(" ", "").split(",")}
        own = set().union(*(known[selector.name] for selector in selectors(promql_parser.parse(text))))
        assert names <= own, place


def test_the_dashboard_has_what_is_promised() -> None:
    assert {panel["title"] for panel in PANELS} >= PROMISED
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "pipeline"}
    asked = re.findall(r"[a-z_]+_(?:total|up)", variables["pipeline"]["definition"])
    assert set(asked) <= set(exported())
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells


def test_every_rule_says_how_bad_it_is_and_what_happened() -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
