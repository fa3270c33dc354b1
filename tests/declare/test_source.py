"""A batch source as a value, and the import paths that lead to declared things."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import cast

import pytest

from ematix_flow import _core
from ematix_flow.declare import columns
from ematix_flow.declare.connection import PostgresConnection, SnowflakeConnection
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.source import BatchSource
from ematix_flow.errors import InvalidDeclaration, WrongConnectionType, WrongDeclarationType
from ematix_flow.source import Source

PG = PostgresConnection(name="crm", url="postgres://ann:s3cretword@db/crm")
SNOW = SnowflakeConnection(name="snow", account="a", user="u", password="hush-hush")


class OpensOnFirstUse:
    """Like the handle a pipeline function gets: asking it anything would connect."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"the connection was asked for {name}")


def test_the_window_shows_the_batch_source() -> None:
    assert Source is BatchSource


def test_a_query_and_a_table_keep_their_parts() -> None:
    query = Source.postgres_query("crm", "SELECT 1 AS id")
    assert (query.connection, query.query, query.schema, query.table, query.columns) == (
        "crm",
        "SELECT 1 AS id",
        None,
        None,
        None,
    )
    table = Source.postgres_table(PG, "public", "customers", columns=["id", "email"])
    assert (table.query, table.schema, table.table, table.columns) == (None, "public", "customers", ("id", "email"))
    assert Source.postgres_table("crm", "public", "customers").columns is None


@pytest.mark.parametrize("kind", ["snowflake", "bigquery", "redshift", "postgres"])
def test_every_kind_of_query_takes_a_name_or_a_handle_without_asking_it(kind: str) -> None:
    handle = OpensOnFirstUse()
    make = getattr(Source, f"{kind}_query")
    assert make("wh", "SELECT 1").connection == "wh"
    assert make(handle, "SELECT 1").connection is handle


def test_a_connection_of_another_kind_is_a_type_error() -> None:
    with pytest.raises(WrongConnectionType, match="'snow' is a snowflake connection") as caught:
        Source.postgres_query(SNOW, "SELECT 1")
    assert isinstance(caught.value, TypeError)
    with pytest.raises(WrongConnectionType, match="needs a redshift connection"):
        Source.redshift_query(PG, "SELECT 1")


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: Source("crm"), InvalidDeclaration, "a query or a table"),
        (lambda: Source("crm", query="SELECT 1", schema="s", table="t"), InvalidDeclaration, "not both"),
        (lambda: Source.postgres_query("", "SELECT 1"), InvalidDeclaration, "needs a connection"),
        (lambda: Source.postgres_query("crm", "  "), InvalidDeclaration, "query is empty"),
        (lambda: Source("crm", query=cast("str", 7)), WrongDeclarationType, "query must be text, not int"),
        (lambda: Source.postgres_table("crm", "", "t"), InvalidDeclaration, "schema is empty"),
        (lambda: Source("crm", table="t"), WrongDeclarationType, "schema must be text"),
        (lambda: Source.postgres_table("crm", "s", "t", "id"), WrongDeclarationType, "tuple or list of column names"),
        (lambda: Source.postgres_table("crm", "s", "t", []), InvalidDeclaration, "columns= is empty"),
        (lambda: Source("crm", query="SELECT 1", columns=("id",)), InvalidDeclaration, "needs a table"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused_where_it_is_written(make, error, said: str) -> None:
    with pytest.raises(error, match=said):
        make()


def test_a_password_in_an_address_does_not_show() -> None:
    source = Source.postgres_query("postgres://ann:openSesame9@db/crm", "SELECT 1")
    assert "openSesame9" not in repr(source) and "ann" in repr(source)
    assert "openSesame9" not in scrub("the driver said openSesame9")
    assert "s3cretword" not in repr(Source.postgres_query(PG, "SELECT 1"))


@pytest.mark.parametrize(
    ("window", "names"),
    [
        ("types", {cls.__name__ for cls in columns.ALL_TYPES} | {"Decimal", "Column"}),
        ("table", {"ManagedTable"}),
        ("markers", {"pk", "natural_key", "nullable"}),
        ("warehouses", {"SnowflakeConnection", "BigQueryConnection", "RedshiftConnection"}),
        ("source", {"Source"}),
        ("streaming", {"run_pipeline", "run_streaming_pipeline", "streaming_pipeline"}),
    ],
)
def test_a_promised_import_path_has_its_names(window: str, names: set[str]) -> None:
    module = importlib.import_module(f"ematix_flow.{window}")
    assert names <= set(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_core_connects_by_url(tmp_path: Path) -> None:
    with _core.connect(f"sqlite:///{tmp_path}/a.db") as handle:
        assert handle.query("SELECT 1 AS one")["rows"] == [[1]]
