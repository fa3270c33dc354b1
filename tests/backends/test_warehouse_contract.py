"""The contract of all backends on the stand-ins for Snowflake and Redshift: part of the long proofs (`make prove`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from ematix_flow.connections import ObjectStoreLocalConnection, RedshiftConnection, SnowflakeConnection
from ematix_flow.errors import FlowError
from ematix_flow.testing.contract import BackendContract
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint
from ematix_flow.testing.gaps import Gap, never, notimpl
from tests.backends.test_warehouse_redshift import RedshiftEndpoint, redshift as redshift
from tests.backends.test_warehouse_snowflake import SnowflakeEndpoint, snowflake as snowflake

LEFT_TO_SPARK = frozenset(
    {
        "test_deduplicate_by_keeps_the_first_row_of_each_key",
        "test_steps_run_in_order_after_the_markers",
        "test_limit_and_sample_keep_a_part",
        "test_a_decimal_order_is_by_value",
        "test_every_type_keeps_every_value",
    }
)
"""Tests whose rows are not pushed down, since a warehouse would order or convert them in its own way."""


class OnAStandIn(BackendContract):
    scd2 = never("a warehouse keeps no history")
    exact_history = never("a warehouse keeps no history")
    keys_enforced = notimpl("keys are remarks in a warehouse")
    gaps: ClassVar[Mapping[str, Gap]] = {}

    @pytest.fixture
    def sources(self, tmp_project: Path) -> Mapping[str, Endpoint]:
        lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
        return {"files": FilesEndpoint(lake)}

    @pytest.fixture(autouse=True)
    def _gaps_of_warehouses(self, request: pytest.FixtureRequest, _known_gaps: None) -> None:
        name, call = request.function.__name__, getattr(request.node, "callspec", None)
        if name in LEFT_TO_SPARK and call is not None and call.params.get("route") == "pushdown":
            request.applymarker(pytest.mark.xfail(reason="left to Spark", raises=FlowError, strict=True))
        if name in self.gaps:
            request.applymarker(self.gaps[name].marker)


if os.environ.get("EMATIX_PROVE"):  # minutes: `make prove`

    class TestSnowflake(OnAStandIn):
        @pytest.fixture
        def target(self, snowflake: SnowflakeConnection) -> SnowflakeEndpoint:
            return SnowflakeEndpoint(snowflake, "analytics")

    class TestRedshift(OnAStandIn):
        @pytest.fixture
        def target(self, redshift: RedshiftConnection) -> RedshiftEndpoint:
            return RedshiftEndpoint(redshift, "analytics")
