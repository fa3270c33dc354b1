"""Delta tables keep the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow.connections import DeltaLocalConnection
from ematix_flow.testing.endpoints import Endpoint
from ematix_flow.testing.lake_endpoints import DeltaEndpoint
from tests.backends.lake_contract import LakeContract


class TestDelta(LakeContract):
    """A folder of Delta tables."""

    @pytest.fixture
    def target(self, tmp_project: Path) -> Endpoint:
        return DeltaEndpoint(DeltaLocalConnection(name="lake", path=str(tmp_project / "lake")), schema="analytics")
