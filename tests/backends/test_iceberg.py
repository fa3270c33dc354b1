"""Iceberg tables keep the contract, and catalogs of every kind list them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, cast
from uuid import uuid4

import pytest

from ematix_flow import pk
from ematix_flow.backends.iceberg import IcebergBackend
from ematix_flow.backends.lake_commits import told
from ematix_flow.connections import IcebergConnection, SQLiteConnection
from ematix_flow.errors import FlowError, IncompatibleSchema, InvalidConnection
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.endpoints import Endpoint, SqliteEndpoint
from ematix_flow.testing.gaps import never
from ematix_flow.testing.lake_endpoints import IcebergEndpoint
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.types import BigInt, Numeric, Text
from tests.backends.lake_contract import SAME_FOR_ALL_LAKES, LakeContract, ReadBySpark, left_to_prove
from tests.services.iceberg_rest import door_before, rest_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TestIceberg(LakeContract):
    """A folder of Iceberg tables, which lists them itself."""

    widens_places = never("the places of a decimal are for good")

    @pytest.fixture
    def target(self, tmp_project: Path) -> Endpoint:
        return IcebergEndpoint(IcebergConnection(name="lake", warehouse=str(tmp_project / "lake")), schema="analytics")

    def test_a_commit_whose_answer_was_lost_is_not_made_again(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        users = bench.table("users", id=BigInt, name=Text)
        bench.load(users, [(1, "ann")], route="spark", mode="append")

        @contextmanager
        def loses_the_answer(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
            with told(spark, conf):
                yield
            raise RuntimeError("org.apache.iceberg.exceptions.CommitStateUnknownException: Cannot determine whether…")

        with monkeypatch.context() as line:
            line.setattr("ematix_flow.backends.iceberg.told", loses_the_answer)
            loaded = bench.load(users, [(2, "bob")], route="spark", mode="append", run_id="tuesday")
        assert (loaded.rows_inserted, loaded.status) == (1, "success")
        assert bench.rows(users) == [(1, "ann"), (2, "bob")]
        assert bench.pipeline(users, route="spark", mode="append").sync(run_id="tuesday").replayed

    def test_a_decimal_keeps_its_places(self, bench: Bench) -> None:
        before = bench.table("things", id=BigInt, v=Numeric[4, 2])
        bench.load(before, [(1, "12.34")], route="spark", mode="append")
        after = bench.table("things", id=BigInt, v=Numeric[8, 4])
        with pytest.raises(IncompatibleSchema, match=r"column 'v' is decimal\(4,2\), declared Numeric\[8, 4\]"):
            bench.load(after, [(2, "1234.5678")], route="spark", mode="append")
        assert bench.rows(before) == [(1, Decimal("12.34"))]


left_to_prove(TestIceberg, *SAME_FOR_ALL_LAKES)


# ── catalogs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergConnection]:
    """Tables below a folder that a REST catalog lists."""
    warehouse = tmp_path_factory.mktemp("rest")
    with rest_catalog(warehouse) as address:
        yield IcebergConnection(name="lake", warehouse=str(warehouse), catalog="rest", uri=address)


@pytest.fixture
def jdbc(pg_url: str, tmp_path: Path) -> IcebergConnection:
    """Tables below a folder that a PostgreSQL database lists."""
    return IcebergConnection(
        name="lake", warehouse=str(tmp_path / "jdbc"), catalog="jdbc", uri=pg_url, catalog_name=f"c{uuid4().hex}"
    )


@pytest.mark.parametrize("catalog", ["rest", "jdbc"])
def test_tables_of_a_catalog_are_loaded_changed_and_read(
    catalog: str, tmp_project: Path, request: pytest.FixtureRequest
) -> None:
    lake: IcebergConnection = request.getfixturevalue(catalog)
    till = SQLiteConnection(name="till", path=str(tmp_project / "till.db"))
    bench = Bench(ReadBySpark(lake, schema="analytics"), SqliteEndpoint(till, "main"))
    with isolated_registry():
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        first = bench.load(users, [(1, "ann"), (2, "bob")], route="spark", mode="merge")
        second = bench.load(users, [(1, "Ann"), (3, "cid")], route="spark", mode="merge")
        assert (first.rows_inserted, second.rows_inserted, second.rows_updated) == (2, 1, 1)
        copies = bench.table("copies", id=BigInt, name=Text)
        bench.pipeline(copies, route="spark", mode="append", place=bench.target, source_table="analytics.users").sync()
        for table in (users, copies):
            assert bench.rows(table) == [(1, "Ann"), (2, "bob"), (3, "cid")]


def test_a_login_and_the_name_of_a_warehouse_reach_a_rest_catalog(rest: IcebergConnection, tmp_project: Path) -> None:
    till = SQLiteConnection(name="till", path=str(tmp_project / "till.db"))
    with door_before(rest.uri or "", credential="flow:pw-4711") as door, isolated_registry():
        for secret in ("pw-4711", "wrong-12"):
            lake = replace(
                rest,
                uri=f"{door.address}/" if secret == "wrong-12" else door.address,  # a catalog of its own
                warehouse_name="analytics",
                credential=f"flow:{secret}",
                scope="catalog",
                oauth2_server_uri=f"{door.address}/login",
            )
            assert secret not in repr(lake)
            bench = Bench(ReadBySpark(lake, schema="doors"), SqliteEndpoint(till, "main"))
            users = bench.table("users", id=BigInt)
            if secret == "pw-4711":
                bench.load(users, [(1,)], route="spark", mode="append")
                assert bench.rows(users) == [(1,)]
            else:
                with pytest.raises(FlowError, match="catalog of 'lake' at .* cannot be used") as caught:
                    bench.load(users, [(1,)], route="spark", mode="append")
                assert secret not in str(caught.value)
    assert door.warehouses == {"analytics"}
    assert {login["client_id"] for login in door.logins} == {"flow"}
    assert {login["scope"] for login in door.logins} == {"catalog"}


def test_a_catalog_that_is_not_there_is_named_in_one_error(tmp_project: Path) -> None:
    lake = IcebergConnection(name="lake", warehouse=str(tmp_project / "x"), catalog="rest", uri="http://127.0.0.1:9")
    till = SQLiteConnection(name="till", path=str(tmp_project / "till.db"))
    bench = Bench(IcebergEndpoint(lake, schema="analytics"), SqliteEndpoint(till, "main"))
    with isolated_registry(), pytest.raises(FlowError) as caught:
        bench.load(bench.table("users", id=BigInt), [(1,)], route="spark", mode="append")
    assert "catalog of 'lake' does not answer at http://127.0.0.1:9" in str(caught.value)


def test_secrets_of_a_catalog_are_hidden_in_event_logs_before_a_session_has_them() -> None:
    told: list[tuple[str, str]] = []
    conf = SimpleNamespace(
        set=lambda key, value: told.append((key, value)), get=lambda key, default=None: default, unset=told.append
    )
    java = SimpleNamespace(sc=lambda: SimpleNamespace(conf=lambda: conf))
    spark = SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(_jsc=java))
    given = {"catalog": "jdbc", "uri": "postgresql://ann:pw-4711@db/list"}
    IcebergBackend(IcebergConnection(name="lake", warehouse="w", **given)).prepare(cast("SparkSession", spark))
    assert [value for key, value in told if key.endswith(".jdbc.password")] == ["<redacted>", "pw-4711"]


@pytest.mark.parametrize(
    ("catalog", "uri"),
    [
        ("rest", "https://ann:pw-4711@host/catalog"),
        ("rest", "https://host/catalog?token=pw-4711"),
        ("jdbc", "jdbc:postgresql://host/db?user=ann&password=pw-4711"),
    ],
)
def test_a_secret_in_an_address_that_spark_would_show_is_refused(catalog: str, uri: str) -> None:
    with pytest.raises(InvalidConnection, match="would be shown by Spark") as caught:
        IcebergBackend(IcebergConnection(name="lake", warehouse="w", catalog=catalog, uri=uri))
    assert "pw-4711" not in str(caught.value)
    with pytest.raises(InvalidConnection, match="oauth2_server_uri would be shown by Spark"):
        login = {"credential": "a:b", "oauth2_server_uri": "https://h/login?client_secret=pw-4711"}
        IcebergBackend(IcebergConnection(name="lake", warehouse="w", catalog="rest", uri="https://h", **login))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"catalog": "glue"}, "catalog 'glue' is unknown"),
        ({"catalog": "rest"}, "needs a uri"),
        ({"uri": "http://x"}, "has no uri"),
        (
            {"catalog": "rest", "uri": "http://x", "catalog_name": "c"},
            r"(?s)catalog_name is for catalog 'jdbc'.*warehouse_name=",
        ),
        ({"warehouse_name": "analytics"}, "warehouse_name is for catalog 'rest'"),
        ({"catalog": "rest", "uri": "http://x", "token": "t", "credential": "a:b"}, "two logins"),
        ({"catalog": "rest", "uri": "http://x", "scope": "all"}, "belong to a credential"),
        ({"warehouse": "s3://b/p"}, "a warehouse in S3 needs .*secret_access_key"),
        ({"region": "r"}, "belong to a warehouse in S3"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConnection, match=said):
        IcebergConnection(**{"name": "lake", "warehouse": "w", **given})
