"""`flow lineage`: tables and columns over all pipelines of a module."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.cli.main import main
from ematix_flow.declare import registry
from tests.cli.commands import known_command

MODULE = """
from ematix_flow import Annotated, BigInt, Text, TimestampTZ, ematix, pk
from ematix_flow.normalize import lower

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

@ematix.connection
class crm:
    kind = "postgres"
    url = "postgres://ann:${NOT_SET_HERE}@db/sales"

@ematix.table(schema="main")
class Customers:
    id: Annotated[BigInt, pk()]
    email: Annotated[Text, lower()]

@ematix.table(schema="main")
class CustomerHistory:
    id: Annotated[BigInt, pk()]
    contact: Text

@ematix.pipeline(target=Customers, target_connection="shop", source_connection="crm", mode="merge")
def load_customers(conn):
    print("called")
    return "SELECT id, mail AS email FROM public.contacts"

@ematix.pipeline(target=CustomerHistory, target_connection="shop", mode="scd2")
def keep_history(conn):
    return "SELECT id, email AS contact FROM customers"

@ematix.pipeline(target=Customers, target_connection="shop", mode="append", name="asks_first")
def asks_first(conn):
    return conn.query("SELECT 1")
"""


@pytest.fixture(autouse=True)
def project(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    known_command(monkeypatch, "lineage")
    (tmp_project / "lineage_case.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "lineage_case", raising=False)
    with registry.isolated():
        yield tmp_project


def flow(*words: str) -> int:
    return main(["lineage", *words, "--module", "lineage_case"])


def test_a_column_is_followed_across_pipelines(capsys) -> None:
    assert flow("main.customer_history.contact") == 0
    out, err = capsys.readouterr()
    first, *rest = out.splitlines()
    assert first.startswith("main.customer_history.contact   sqlite://")
    assert rest == [
        "comes from",
        "  main.customers.email   as it is · keep_history",
        "    public.contacts.mail   transformed · load_customers",
    ]
    assert "'asks_first' does not say its source beforehand" in err and "called" in err


def test_what_depends_on_a_column(capsys) -> None:
    assert flow("contacts.mail", "--downstream") == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "goes to",
        "  main.customers.email   transformed · load_customers",
        "    main.customer_history.contact   as it is · keep_history",
        "    main.customer_history.row_hash   transformed · keep_history",
    ]


def test_tables_both_ways_as_data(capsys) -> None:
    assert flow("customers", "--format", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["name"], answer["column"], answer["made_here"]) == ("main.customers", None, False)
    assert [(edge["pipeline"], edge["from"]["name"]) for edge in answer["upstream"]] == [
        ("load_customers", "public.contacts")
    ]
    assert [(edge["pipeline"], edge["to"]["name"]) for edge in answer["downstream"]] == [
        ("keep_history", "main.customer_history")
    ]
    # The password of the connection is not known here, so neither is its address.
    assert answer["upstream"][0]["from"]["namespace"] == "connection://crm"


def test_a_column_that_the_load_makes(capsys) -> None:
    assert flow("customer_history.is_current", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["made_here"] and answer["upstream"] == []


def test_a_drawing(capsys) -> None:
    assert flow("customers", "--format", "mermaid") == 0
    assert capsys.readouterr().out.splitlines() == [
        "flowchart LR",
        '  n0["public.contacts"]',
        '  n1["main.customers"]',
        '  n2["main.customer_history"]',
        '  n0 -->|"load_customers"| n1',
        '  n1 -->|"keep_history"| n2',
        "  style n1 stroke-width:3px",
    ]


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        ("custmers", "did you mean"),
        ("customers.emial", "did you mean 'email'?"),
        ("nothing_like_it", "known: 'main.customer_history', 'main.customers', 'public.contacts'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(what: str, hint: str, capsys) -> None:
    assert flow(what) == 2
    assert hint in capsys.readouterr().err


STREAMS = """
from ematix_flow import Annotated, BigInt, Text, ematix, pk
from ematix_flow.connections import KafkaConnection, SQLiteConnection, register_connection
from ematix_flow import Lookup

register_connection(KafkaConnection(name="broker", bootstrap_servers="k:9092", payload_format="json"))
register_connection(SQLiteConnection(name="shop", path="shop.db"))

@ematix.table(schema="main")
class Clicks:
    id: Annotated[BigInt, pk()]
    page: Text
    area: Text

@ematix.streaming_pipeline(
    name="clicks",
    source="broker",
    source_query="web.clicks",
    transform_sql="SELECT s.id, lower(s.url) AS page, a.name AS area FROM source s JOIN areas a ON a.id = s.area",
    lookups={"areas": Lookup(connection="shop", query="SELECT id, name FROM areas")},
    target="shop",
    target_table=Clicks,
)
def clicks():
    pass
"""


def test_streams_are_part_of_it(project: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (project / "stream_case.py").write_text(STREAMS)
    monkeypatch.delitem(sys.modules, "stream_case", raising=False)
    assert main(["lineage", "clicks.page", "--module", "stream_case"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == ["comes from", "  web.clicks.url   transformed · clicks"], err
    assert main(["lineage", "main.clicks", "--module", "stream_case", "--json"]) == 0
    edges = json.loads(capsys.readouterr().out)["upstream"]
    assert [(edge["from"]["namespace"].split("/")[0], edge["from"]["name"]) for edge in edges] == [
        ("kafka:", "web.clicks"),
        ("sqlite:", "main.areas"),
    ]
