"""The front door: light to open, and the same whichever way one looks at it."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import ematix_flow
from tests.test_house import HEAVY, is_type_checking

DOOR = Path(ematix_flow.__file__)
FLOW = Path(sys.executable).parent / "flow"
# The console may print help with rich; the time allowed for `flow --help` is its limit.
HEAVY_FOR_HELP = HEAVY - {"rich"}


def loaded_by(arguments: Sequence[str], elsewhere: Path) -> set[str]:
    """Top-level modules that a fresh Python loads for `arguments`."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, cwd=elsewhere, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in lines}


def best_of_five(command: Sequence[str | Path], elsewhere: Path) -> float:
    """Wall seconds of the whole process, interpreter start included; the best run is the least disturbed one."""

    def once() -> float:
        started = time.perf_counter()
        subprocess.run(command, cwd=elsewhere, check=True, capture_output=True)
        return time.perf_counter() - started

    return min(once() for _ in range(5))


def test_the_measuring_itself_sees_a_heavy_module(tmp_path: Path) -> None:
    assert "sqlglot" in loaded_by(["-c", "import sqlglot"], tmp_path)


def test_importing_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = HEAVY & loaded_by(["-c", "import ematix_flow"], tmp_path)
    assert not heavy, f"`import ematix_flow` loads {sorted(heavy)}; see: python -X importtime -c 'import ematix_flow'"


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = HEAVY_FOR_HELP & loaded_by(["-m", "ematix_flow", "--help"], tmp_path)
    assert not heavy, f"`flow --help` loads {sorted(heavy)}; see: python -X importtime -m ematix_flow --help"


def test_using_every_exported_name_loads_nothing_heavy(tmp_path: Path) -> None:
    code = "import ematix_flow\nfor name in ematix_flow.__all__: getattr(ematix_flow, name)"
    heavy = HEAVY & loaded_by(["-c", code], tmp_path)
    assert not heavy, f"declaring loads {sorted(heavy)}; an exported name drags it in"


@pytest.mark.alone
def test_importing_the_package_takes_less_than_150_ms(tmp_path: Path) -> None:
    seconds = best_of_five([sys.executable, "-c", "import ematix_flow"], tmp_path)
    assert seconds < 0.15, (
        f"`import ematix_flow` takes {seconds:.3f} s; see: python -X importtime -c 'import ematix_flow'"
    )


@pytest.mark.alone
def test_help_takes_less_than_300_ms(tmp_path: Path) -> None:
    assert FLOW.exists(), "the `flow` command is not installed beside this Python: make env"
    seconds = best_of_five([FLOW, "--help"], tmp_path)
    assert seconds < 0.3, f"`flow --help` takes {seconds:.3f} s; see: python -X importtime -m ematix_flow --help"


def test_exports_all_and_type_checkers_see_the_same_names() -> None:
    exports = set(ematix_flow._EXPORTS)
    public = set(ematix_flow.__all__)
    assert len(public) == len(ematix_flow.__all__), "a name stands twice in __all__"
    assert public - {"__version__"} == exports - {"__version__"}
    assert names_for_type_checkers() == {name: ematix_flow._EXPORTS[name] for name in exports}
    assert public <= set(dir(ematix_flow))


def names_for_type_checkers() -> dict[str, str]:
    """Name → owner, from the imports under `if TYPE_CHECKING` of the front door; each must be `X as X`, a re-export."""
    found = {}
    for block in filter(is_type_checking, ast.parse(DOOR.read_text(encoding="utf-8")).body):
        for node in ast.walk(block):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    assert alias.asname == alias.name, f"write `import {alias.name} as {alias.name}`: a re-export"
                    found[alias.name] = str(node.module)
    return found


@pytest.mark.parametrize("name", sorted(ematix_flow.__all__))
def test_an_exported_name_is_its_owners(name: str) -> None:
    value = getattr(ematix_flow, name)
    if name in ematix_flow._EXPORTS:
        assert value is getattr(importlib.import_module(ematix_flow._EXPORTS[name]), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        ematix_flow.no_such_name  # noqa: B018


def test_the_module_and_the_command_are_the_same(tmp_path: Path) -> None:
    commands: list[list[str | Path]] = [[FLOW, "--help"], [sys.executable, "-m", "ematix_flow", "--help"]]
    texts = [subprocess.run(c, cwd=tmp_path, check=True, capture_output=True, text=True).stdout for c in commands]
    assert texts[0] == texts[1] != ""


def test_closed_output_is_no_crash(tmp_path: Path) -> None:
    """`flow --help | head -1` ends without a traceback."""
    done = subprocess.run(
        ["sh", "-c", '"$0" --help | head -1 >/dev/null', str(FLOW)], cwd=tmp_path, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr, done.stderr[-500:]
