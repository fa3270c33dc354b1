"""`BackendContract`: one test class proves a backend. Whole tables are compared, on every route, on the real system.

    class TestClickhouse(BackendContract):
        merge = never("no transactional upsert")

        @pytest.fixture
        def target(self, clickhouse_url):
            return SqlEndpoint(ClickhouseConnection(name="warehouse", url=clickhouse_url), schema="analytics")

        @pytest.fixture
        def sources(self, tmp_path):
            lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_path), format="parquet")
            return {"files": FilesEndpoint(lake)}

The target must be empty for each test. The first of the sources feeds the Spark route of every test; the others are
tried once with a table of all types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest

# Before the modules are imported: their asserts then show both sides, as those of a test file do.
pytest.register_assert_rewrite(
    *(f"ematix_flow.testing.contract_{part}" for part in ("modes", "runs", "sources", "tables", "values"))
)

from ematix_flow.testing.bench import Bench, RouteName  # noqa: E402
from ematix_flow.testing.contract_modes import AppendAndTruncate, Incremental, Merge, Scd2  # noqa: E402
from ematix_flow.testing.contract_runs import AfterLoad, Books, Looking, SeveralTargets  # noqa: E402
from ematix_flow.testing.contract_sources import Markers, RowSteps, Sources  # noqa: E402
from ematix_flow.testing.contract_tables import MORE_PLACES, Tables  # noqa: E402
from ematix_flow.testing.contract_values import Names, Types, UnfitValues  # noqa: E402
from ematix_flow.testing.endpoints import Endpoint  # noqa: E402
from ematix_flow.testing.gaps import Ability, Gap, needed_by  # noqa: E402
from ematix_flow.testing.registry import isolated_registry  # noqa: E402
from ematix_flow.testing.runlog import MemoryRunLog, use_run_log  # noqa: E402

_ABILITY_OF_MODE: dict[str, Ability] = {
    "append": "append",
    "truncate": "truncate",
    "merge": "merge",
    "scd1": "merge",
    "scd2": "scd2",
}


class BackendContract(
    AppendAndTruncate,
    Merge,
    Scd2,
    Incremental,
    Tables,
    Types,
    UnfitValues,
    Names,
    Sources,
    RowSteps,
    Markers,
    Looking,
    Books,
    SeveralTargets,
    AfterLoad,
):
    """What every backend promises. Subclasses say where it is, and which promises it cannot keep."""

    append: ClassVar[Gap | None] = None
    truncate: ClassVar[Gap | None] = None
    merge: ClassVar[Gap | None] = None
    scd2: ClassVar[Gap | None] = None
    exact_history: ClassVar[Gap | None] = None
    incremental: ClassVar[Gap | None] = None
    pushdown: ClassVar[Gap | None] = None
    keys_enforced: ClassVar[Gap | None] = None
    not_null_kept: ClassVar[Gap | None] = None
    adds_columns: ClassVar[Gap | None] = None
    widens_columns: ClassVar[Gap | None] = None
    widens_places: ClassVar[Gap | None] = None
    relaxes_not_null: ClassVar[Gap | None] = None
    fills_added_columns: ClassVar[Gap | None] = None
    sql: ClassVar[Gap | None] = None

    @pytest.fixture
    def target(self) -> Endpoint:
        """The system under test, empty."""
        raise NotImplementedError("a contract class gives a 'target' fixture")

    @pytest.fixture
    def sources(self) -> Mapping[str, Endpoint]:
        """Other systems that rows may come from, by name; the first feeds the Spark route."""
        raise NotImplementedError("a contract class gives a 'sources' fixture")

    @pytest.fixture(params=["pushdown", "spark"])
    def route(self, request: pytest.FixtureRequest) -> RouteName:
        """Both ways a load can take."""
        chosen: RouteName = request.param
        return chosen

    @pytest.fixture
    def bench(self, target: Endpoint, sources: Mapping[str, Endpoint]) -> Iterator[Bench]:
        """The workbench, with a registry and a run log of its own."""
        with isolated_registry(), use_run_log(MemoryRunLog()):
            yield Bench(target, next(iter(sources.values())))

    @pytest.fixture(autouse=True)
    def _known_gaps(self, request: pytest.FixtureRequest) -> None:
        """A test that needs what is missing is expected to fail, strictly."""
        needed = list(needed_by(request.function))
        call = getattr(request.node, "callspec", None)
        if call is not None and call.params.get("route") == "pushdown":
            needed.append("pushdown")
        if call is not None and call.params.get("mode") is not None:
            needed.append(_ABILITY_OF_MODE[call.params["mode"]])
        if call is not None and MORE_PLACES in call.id:
            needed.append("widens_places")
        for ability in needed:
            gap = getattr(self, ability)
            if isinstance(gap, Gap):
                request.applymarker(gap.marker)
