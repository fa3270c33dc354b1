"""Importing the user's module, and what is said when that fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.config.loader import load_module
from ematix_flow.declare import registry
from ematix_flow.errors import InvalidConnection, ModuleNotLoaded


@pytest.fixture(autouse=True)
def _imports_are_undone() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


DECLARES = """
from ematix_flow.declare.connection import declare_connection

@declare_connection
class archive:
    kind = "sqlite"
    path = "a.db"
"""


@pytest.mark.parametrize("name", ["loader_case_one", "loader_case_one.py", "./loader_case_one.py"])
def test_a_module_of_the_working_directory_is_found_and_declares(project: Path, name: str) -> None:
    (project / "loader_case_one.py").write_text(DECLARES)
    load_module(name)
    assert set(registry.current().connections()) == {"archive"}
    assert str(registry.current().connection_where("archive")).startswith("loader_case_one.py:")


def test_a_module_of_a_package_is_found(project: Path) -> None:
    (project / "loader_pkg").mkdir()
    (project / "loader_pkg" / "flows.py").write_text(DECLARES)
    load_module("loader_pkg/flows.py")
    assert set(registry.current().connections()) == {"archive"}


def test_a_missing_module_suggests_the_nearest(project: Path) -> None:
    (project / "my_pipelines.py").write_text("")
    with pytest.raises(ModuleNotLoaded) as caught:
        load_module("my_pipeline")
    assert isinstance(caught.value, ImportError)
    assert "did you mean 'my_pipelines'?" in str(caught.value)
    with pytest.raises(ModuleNotLoaded, match="modules here: my_pipelines"):
        load_module("zzz")


@pytest.mark.parametrize("name", ["", "a b", "../x", "a;b", "1a", "a..b", ".a"])
def test_what_is_no_module_name_is_refused(name: str) -> None:
    with pytest.raises(ModuleNotLoaded, match="not the name of a module"):
        load_module(name)


@pytest.mark.parametrize(
    ("code", "line", "said"),
    [
        ("x = 1\n\ny = 1 / 0\n", 3, "ZeroDivisionError"),
        ("def f(:\n", 1, "SyntaxError"),
        ("\nimport surely_not_there_xyz\n", 2, "install the package that brings 'surely_not_there_xyz'"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        ("import json\njson.loads('{')\n", 2, "JSONDecodeError"),
        ("\n\nraise RuntimeError('postgres://ann:pw123@db/x')\n", 3, "RuntimeError"),
    ],
)
def test_a_module_that_raises_is_named_with_its_line(project: Path, code: str, line: int, said: str) -> None:
    (project / "loader_broken.py").write_text(code)
    with pytest.raises(ModuleNotLoaded) as caught:
        load_module("loader_broken")
    assert caught.value.where == f"loader_broken.py:{line}" and said in str(caught.value)
    assert "pw123" not in str(caught.value)


def test_our_own_errors_pass_through_with_their_place(project: Path) -> None:
    (project / "loader_wrong.py").write_text(
        "from ematix_flow.declare.connection import PostgresConnection\n\nPostgresConnection(name='w')\n"
    )
    with pytest.raises(InvalidConnection, match="url is required") as caught:
        load_module("loader_wrong")
    assert caught.value.where == "loader_wrong.py:3"
