"""The contract of all backends on the stand-ins for the three warehouses: part of the long proofs (`make prove`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from ematix_flow.connections import (
    BigQueryConnection,
    ObjectStoreLocalConnection,
    RedshiftConnection,
    SnowflakeConnection,
)
from ematix_flow.errors import FlowError
from ematix_flow.testing.contract import BackendContract
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint
from ematix_flow.testing.gaps import never, notimpl
from tests.backends.test_warehouse_bigquery import BigqueryEndpoint, bigquery as bigquery
from tests.backends.test_warehouse_redshift import RedshiftEndpoint, redshift as redshift
from tests.backends.test_warehouse_snowflake import SnowflakeEndpoint, snowflake as snowflake

LEFT_TO_SPARK = frozenset(
    {
        "test_deduplicate_by_keeps_the_first_row_of_each_key",
        "test_steps_run_in_order_after_the_markers",
        "test_limit_and_sample_keep_a_part",
        "test_a_decimal_order_is_by_value",
        "test_every_type_keeps_every_value",
        "test_a_new_not_null_column_is_added_to_a_table_without_rows",
        "test_a_new_not_null_column_with_a_default_gives_it_to_the_rows_that_are_there",
    }
)
"""Tests whose rows are not pushed down, since a warehouse would order or convert them in its own way."""


class OnAStandIn(BackendContract):
    scd2 = never("a warehouse keeps no history")
    exact_history = never("a warehouse keeps no history")
    keys_enforced = notimpl("keys are remarks in a warehouse")
    gaps: ClassVar[Mapping[str, str]] = {}
    """Tests that fail, by the beginning of their names with parameters, and why."""

    @pytest.fixture
    def sources(self, tmp_project: Path) -> Mapping[str, Endpoint]:
        lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
        return {"files": FilesEndpoint(lake)}

    @pytest.fixture(autouse=True)
    def _gaps_of_warehouses(self, request: pytest.FixtureRequest, _known_gaps: None) -> None:
        name, call = request.function.__name__, getattr(request.node, "callspec", None)
        if name in LEFT_TO_SPARK and (call is None or call.params.get("route") == "pushdown"):
            request.applymarker(pytest.mark.xfail(reason="left to Spark", raises=FlowError, strict=True))
        for beginning, reason in self.gaps.items():
            if request.node.name.startswith(beginning):
                request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


if os.environ.get("EMATIX_PROVE"):  # minutes: `make prove`

    class TestSnowflake(OnAStandIn):
        gaps: ClassVar[Mapping[str, str]] = {
            "test_hostile_names_": "a plain name in capitals is refused: it is the one in lower case",
            "test_a_preview_of_an_append_shows_every_column_and_touches_nothing[pushdown]": "names are in capitals",
            "test_a_widened_type_takes_larger_values[float to double]": "its FLOAT has 64 bits: Float is left to Spark",
            "test_a_widened_type_is_the_live_tables_type_afterwards[float to double]": "its FLOAT has 64 bits",
            "test_validate_asks_source_and_target_": "fakesnow, which stands in, explains queries only",
        }

        @pytest.fixture
        def target(self, snowflake: SnowflakeConnection) -> SnowflakeEndpoint:
            return SnowflakeEndpoint(snowflake, "analytics")

    class TestRedshift(OnAStandIn):
        relaxes_not_null = never("Redshift cannot")
        gaps: ClassVar[Mapping[str, str]] = {
            "test_a_widened_type_is_the_live_tables_type_afterwards": "types stay as they are",
            **{
                f"test_a_widened_type_takes_larger_values[{change}]": "types stay as they are"
                for change in (
                    "small_int to integer",
                    "small_int to big_int",
                    "integer to big_int",
                    "string to text",
                    "numeric to more digits",
                    "numeric to more places",
                )
            },
            "test_a_name_too_long_for_the_system_": "PostgreSQL, which stands in, keeps only 63 bytes of a name",
        }

        @pytest.fixture
        def target(self, redshift: RedshiftConnection) -> RedshiftEndpoint:
            return RedshiftEndpoint(redshift, "analytics")

    class TestBigquery(OnAStandIn):
        pytestmark = pytest.mark.filterwarnings("ignore:You are using a Python version:FutureWarning")
        gaps: ClassVar[Mapping[str, str]] = {
            "test_hostile_names_": "no name of BigQuery holds a backtick or a backslash",
            "test_columns_that_only_the_live_table_has_are_left_alone": "it adds no column that must have a value",
            **dict.fromkeys(
                (
                    "test_a_value_that_does_not_fit_stops_the_load[pushdown-a decimal with too many digits-append]",
                    "test_a_value_that_does_not_fit_stops_the_load[pushdown-a decimal with too many digits-merge]",
                    "test_a_missing_table_is_created_with_the_declared_columns",
                    "test_a_widened_type_takes_larger_values[numeric to more digits]",
                    "test_a_widened_type_takes_larger_values[numeric to more places]",
                    "test_a_widened_type_is_the_live_tables_type_afterwards[string to longer string]",
                    "test_a_widened_type_is_the_live_tables_type_afterwards[numeric to more digits]",
                    "test_a_widened_type_is_the_live_tables_type_afterwards[numeric to more places]",
                    "test_on_drift_error_lists_every_difference_and_loads_nothing",
                    "test_incremental_append_by_decimal_compares_numbers_not_text[pushdown]",
                ),
                "bqemulator, which stands in, does not tell the lengths and digits of columns",
            ),
            **dict.fromkeys(
                (
                    "test_a_widened_type_takes_larger_values[float to double]",
                    "test_a_widened_type_is_the_live_tables_type_afterwards[float to double]",
                ),
                "its FLOAT64 has 64 bits: Float is left to Spark",
            ),
            **dict.fromkeys(
                (
                    "test_every_type_keeps_every_value[spark]",
                    "test_every_source_delivers_the_same_values",
                    "test_every_source_appends_the_same_values",
                ),
                "bqemulator holds no more than 38 digits",
            ),
            "test_a_new_not_null_column_needs_a_default_when_there_are_rows": "bqemulator counts no rows of a table",
            "test_validate_asks_source_and_target_": "bqemulator does not name the table that is missing",
        }

        @pytest.fixture
        def target(self, bigquery: BigQueryConnection) -> BigqueryEndpoint:
            return BigqueryEndpoint(bigquery, "analytics")
