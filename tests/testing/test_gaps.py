"""Known gaps are strict: a missing ability must really be missing, and what makes no sense must be refused clearly."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

CONTRACT = """
from __future__ import annotations
import pytest
from ematix_flow.errors import UnsupportedMode
from ematix_flow.testing.contract import BackendContract
from ematix_flow.testing.gaps import {gap}, needs

class TestThing(BackendContract):
    merge = {gap}("no upsert")

    @needs("merge")
    def test_the_one_in_question(self):
        {body}
"""


@pytest.mark.parametrize(
    ("gap", "body", "outcome"),
    [
        pytest.param("never", "raise UnsupportedMode('no')", {"xfailed": 1}, id="never, refused clearly"),
        pytest.param("never", "assert 1 == 2", {"failed": 1}, id="never, wrong rows"),
        pytest.param("never", "pass", {"failed": 1}, id="never, yet it works"),
        pytest.param("notimpl", "assert 1 == 2", {"xfailed": 1}, id="not built"),
        pytest.param("notimpl", "pass", {"failed": 1}, id="not built, yet it works"),
        pytest.param("notyet", "raise ValueError", {"xfailed": 1}, id="not possible yet"),
    ],
)
def test_a_gap_expects_its_own_failure(pytester: pytest.Pytester, gap: str, body: str, outcome: dict[str, int]) -> None:
    pytester.makepyfile(CONTRACT.format(gap=gap, body=body))
    result = pytester.runpytest("-k", "the_one_in_question", "-p", "no:cacheprovider")
    counted = {key: number for key, number in result.parseoutcomes().items() if key in ("failed", "passed", "xfailed")}
    assert counted == outcome


def test_a_contract_without_a_target_says_what_is_missing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from __future__ import annotations
        from ematix_flow.testing.contract import BackendContract

        class TestThing(BackendContract):
            pass
        """
    )
    result = pytester.runpytest("-k", "limit_and_sample", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["*a contract class gives a 'target' fixture*"])
