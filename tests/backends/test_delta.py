"""Delta tables keep the contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake

from ematix_flow import Annotated, BigInt, Text, pk
from ematix_flow.connections import DeltaLocalConnection
from ematix_flow.declare.table import table_spec
from ematix_flow.errors import InvalidSource, UnfitValue
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.endpoints import Endpoint, arrow_table
from ematix_flow.testing.lake_endpoints import DeltaEndpoint
from ematix_flow.testing.spark import settings
from tests.backends.lake_contract import SAME_FOR_ALL_LAKES, LakeContract, endpoint, giving, into, left_to_prove


class TestDelta(LakeContract):
    """A folder of Delta tables."""

    @pytest.fixture
    def target(self, tmp_project: Path) -> Endpoint:
        return DeltaEndpoint(DeltaLocalConnection(name="lake", path=str(tmp_project / "lake")), schema="analytics")

    def test_an_empty_text_that_would_be_a_folder_without_a_name_stops_the_load(self, bench: Bench) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], city=Text)
        bench.put(users, [(1, "Rome"), (2, "")], route="spark")
        with pytest.raises(UnfitValue, match="'city' has an empty text"):
            into(bench, users, mode="merge", partition_by=["city"]).sync()
        assert not endpoint(bench).folder("users").exists()
        bench.put(users, [(1, "Rome")], route="spark")
        into(bench, users, mode="merge", partition_by=["city"]).sync()
        with pytest.raises(UnfitValue, match="'city' has an empty text"):  # also from a pipeline that does not say it
            bench.load(users, [(2, "")], route="spark", mode="append")
        assert bench.rows(users) == [(1, "Rome")]

    def test_a_table_of_others_is_read_from_a_folder_of_any_depth(self, bench: Bench) -> None:
        ids = table_spec(bench.table("ids", id=BigInt)).columns
        root = endpoint(bench).root
        for path, number in (("flat", 1), ("a/b/c", 2)):
            write_deltalake(str(root / path), arrow_table(ids, [(number,)]))
        copies = bench.table("copies", id=BigInt)
        for source, rows in (
            ("flat", [(1,)]),
            ("a/b/c/", [(2,)]),
            ("SELECT id FROM flat UNION ALL SELECT id FROM `a/b/c`", [(1,), (2,)]),
        ):
            function = giving(source)
            bench.pipeline(copies, route="spark", mode="truncate", place=bench.target, function=function).sync()
            assert bench.rows(copies) == rows
        with pytest.raises(InvalidSource, match=r"'a\.b\.c' is not a table"):
            function = giving("a.b.c")
            bench.pipeline(copies, route="spark", mode="truncate", place=bench.target, function=function).sync()


if (
    settings().engine == "spark"
):  # `make test` runs these parts on the native engine alone (`tests/spark/test_native.py`)
    left_to_prove(TestDelta, *SAME_FOR_ALL_LAKES)
