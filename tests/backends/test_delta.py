"""Delta tables keep the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow import Annotated, BigInt, Text, pk
from ematix_flow.connections import DeltaLocalConnection
from ematix_flow.errors import UnfitValue
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.endpoints import Endpoint
from ematix_flow.testing.lake_endpoints import DeltaEndpoint
from ematix_flow.testing.spark import settings
from tests.backends.lake_contract import SAME_FOR_ALL_LAKES, LakeContract, endpoint, into, left_to_prove


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


if settings().engine == "spark":  # the native engine takes them a dozen times faster (`tests/spark/test_native.py`)
    left_to_prove(TestDelta, *SAME_FOR_ALL_LAKES)
