"""The rules of the house, read from the syntax tree: who may import whom, and what importing may do.

Each rule is a function over one parsed module, so that the tests at the end can show each of them failing.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.long_proofs import PATTERNS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "ematix_flow"
PACKAGE = "ematix_flow"

# A room imports itself and rooms to its left.
ROOMS = [
    "errors",
    "declare",
    "contracts",
    "backends",
    "config",
    "plan",
    "spark",
    "quality",
    "watch",
    "run",
    "orchestrate",
    "features",
    "cli",
    "ui",
]
# Further walls. A planner is handed what it needs.
WALLS = {"plan": {"backends", "config"}}
# Methods of declared things and of handles that act (`.sync()` and its like) look up who does it when they are called.
LATE_BINDINGS = {
    ("declare/pipeline.py", "run"),
    ("declare/stream_pipeline.py", "config"),
    ("declare/stream_pipeline.py", "run"),
    ("declare/table.py", "run"),
    ("declare/warehouse.py", "run"),
    ("config/handles.py", "run"),
    ("orchestrate/warm_worker.py", "cli"),
}
# Written for tests, so it may know every room; nobody imports it.
FREE = {"testing"}
# No code: dashboards, rules and the files of a new project.
DATA = {"assets"}
# A window with a second one behind it: `run_log.history`.
WINDOW_FOLDERS = {"run_log"}
# The other modules beside the rooms are windows: import paths that documents promise, and nothing but re-exports.
NOT_WINDOWS = {"__init__", "__main__", "_core", "_version", "errors"}
# Rooms whose own name is such a promised path: their door may re-export, and do nothing else.
DOORS_WITH_A_WINDOW = {"config", "spark"}
NO_NOUN = {"common", "helper", "helpers", "misc", "util", "utils"}
MOST_LINES = 600

HEAVY = frozenset(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["flake8-tidy-imports"][
        "banned-module-level-imports"
    ]
)
HEAVY_ALLOWED = {"spark": HEAVY, "cli/console.py": frozenset({"rich"})}

# The home of one user or one checkout, as opposed to a place every system of a kind has.
ONE_MACHINE = re.compile(r"(?<![\w.}~])/(?:home|Users|root|work)/\w+")
PROSE_AND_CODE = {".cfg", ".ini", ".json", ".md", ".py", ".sh", ".sql", ".toml", ".txt", ".yaml", ".yml", ""}


@dataclass(frozen=True)
class Module:
    """One source file, named by its place below the package: `plan/route.py`."""

    place: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.place.split("/")[0].removesuffix(".py")

    @property
    def is_window(self) -> bool:
        return ("/" not in self.place and self.room not in NOT_WINDOWS) or self.room in WINDOW_FOLDERS

    @property
    def is_room_door(self) -> bool:
        return self.place.endswith("/__init__.py") and self.room not in WINDOW_FOLDERS


def parsed(place: str, text: str) -> Module:
    return Module(place, ast.parse(text, filename=place))


MODULES = [
    parsed(path.relative_to(SRC).as_posix(), path.read_text(encoding="utf-8")) for path in sorted(SRC.rglob("*.py"))
]
every_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.place)


# ── what a module does when it runs ──────────────────────────────────────────────────────────────────────────────────


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and any(
        getattr(part, "id", getattr(part, "attr", None)) == "TYPE_CHECKING" for part in ast.walk(node.test)
    )


def runtime_nodes(node: ast.AST, *, into_functions: bool) -> Iterator[ast.AST]:
    """The nodes below `node` that run, without what only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            assert isinstance(child, ast.If)
            for otherwise in child.orelse:
                yield otherwise
                yield from runtime_nodes(otherwise, into_functions=into_functions)
            continue
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not into_functions:
            continue
        yield child
        yield from runtime_nodes(child, into_functions=into_functions)


def imports(module: Module, *, into_functions: bool) -> set[str]:
    """Full names of what is imported, also by `import_module("…")` with a plain string."""
    found: set[str] = set()
    for node in runtime_nodes(module.tree, into_functions=into_functions):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return found


def neighbours(module: Module) -> set[str]:
    """The rooms and root modules of this package that a module uses, its own left out."""
    names = {name.split(".")[1] for name in imports(module, into_functions=True) if name.startswith(f"{PACKAGE}.")}
    return names - {module.room}


# ── the rules ────────────────────────────────────────────────────────────────────────────────────────────────────────


def forbidden_neighbours(module: Module) -> set[str]:
    if module.room not in ROOMS:
        return set()
    right = set(ROOMS[ROOMS.index(module.room) + 1 :]) | WALLS.get(module.room, set()) | FREE
    late = {room for place, room in LATE_BINDINGS if place == module.place}
    return (neighbours(module) & right) - late


def windows_used(module: Module) -> set[str]:
    """Windows are for users: inside, a name is imported from the module that owns it."""
    windows = {other.room for other in MODULES if other.is_window}
    return neighbours(module) & windows if module.room in ROOMS else set()


def heavy_at_module_level(module: Module) -> set[str]:
    allowed = HEAVY_ALLOWED.get(module.place, HEAVY_ALLOWED.get(module.room, frozenset()))
    top_names = {name.split(".")[0] for name in imports(module, into_functions=False)}
    return (top_names & HEAVY) - allowed


def relative_imports(module: Module) -> list[int]:
    return [node.lineno for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom) and node.level]


def deeds_at_import(module: Module) -> list[str]:
    """Reading the environment or a file, printing, starting a thread: not while being imported."""
    forbidden = re.compile(
        r"(os\.)?(environ|getenv)\b.*|open|print|(logging\.)?basicConfig|(threading\.)?Thread|.*\.read_text"
    )
    found = []
    for node in runtime_nodes(module.tree, into_functions=False):
        named = node.func if isinstance(node, ast.Call) else node if isinstance(node, ast.Attribute) else None
        text = ast.unparse(named) if named is not None else ""
        if forbidden.fullmatch(text) and (isinstance(node, ast.Call) or "environ" in text):
            found.append(f"line {getattr(node, 'lineno', '?')}: {text}")
    return found


def missing_head(module: Module) -> str | None:
    """Every file says what it is for; every file with code has the `__future__` line."""
    if ast.get_docstring(module.tree) is None:
        return "has no docstring"
    has_future = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in module.tree.body)
    return None if has_future or len(module.tree.body) == 1 else "lacks `from __future__ import annotations`"


def times_read_unevenly(module: Module) -> list[int]:
    """Uses of `datetime.fromisoformat`, which before Python 3.11 refuses `Z`, outside of the reader that knows it."""
    return [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "fromisoformat"
        and ast.unparse(node.value) not in ("date", "datetime.date")
        and module.place != "declare/instants.py"
    ]


def more_than_reexports(module: Module) -> list[int]:
    """Lines of a window that are neither docstring, import, nor what a lazy re-export is made of."""

    def is_reexport(node: ast.stmt) -> bool:
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant)
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return {ast.unparse(target) for target in targets} <= {"__all__", "_EXPORTS", "_OWNERS"}
        if isinstance(node, ast.FunctionDef):
            return node.name in {"__getattr__", "__dir__"}
        return isinstance(node, (ast.Import, ast.ImportFrom)) or is_type_checking(node)

    return [node.lineno for node in module.tree.body if not is_reexport(node)]


# ── the house as it stands ───────────────────────────────────────────────────────────────────────────────────────────


@every_module
def test_a_room_only_looks_left(module: Module) -> None:
    seen = forbidden_neighbours(module)
    assert not seen, f"{module.place} in '{module.room}' imports {sorted(seen)}; hand it in as an argument instead"


@every_module
def test_rooms_import_from_the_owner_of_a_name(module: Module) -> None:
    seen = windows_used(module)
    assert not seen, f"{module.place} imports the window {sorted(seen)}; import from the module that owns the name"


@every_module
def test_heavy_modules_stay_inside_functions(module: Module) -> None:
    seen = heavy_at_module_level(module)
    assert not seen, f"{module.place} imports {sorted(seen)} at module level; import inside the function that needs it"


@every_module
def test_imports_are_absolute(module: Module) -> None:
    assert not relative_imports(module), f"{module.place} has relative imports in lines {relative_imports(module)}"


@every_module
def test_importing_does_nothing(module: Module) -> None:
    assert not deeds_at_import(module), f"{module.place} acts while being imported: {deeds_at_import(module)}"


@every_module
def test_every_file_says_what_it_is_for(module: Module) -> None:
    assert missing_head(module) is None, f"{module.place} {missing_head(module)}"


@every_module
def test_times_are_read_alike_by_every_python(module: Module) -> None:
    lines = times_read_unevenly(module)
    assert not lines, f"{module.place} reads times itself in lines {lines}; see declare/instants.py"


@every_module
def test_a_module_is_one_idea(module: Module) -> None:
    lines = len((SRC / module.place).read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES, f"{module.place} has {lines} lines; look for the second idea inside it"
    assert not NO_NOUN & set(module.place.removesuffix(".py").split("/")), f"{module.place}: name what it is about"


@pytest.mark.parametrize("module", [m for m in MODULES if m.is_window], ids=lambda module: module.place)
def test_a_window_only_shows_what_others_own(module: Module) -> None:
    lines = more_than_reexports(module)
    assert not lines, f"{module.place} is a window and may only re-export; see lines {lines}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.is_room_door], ids=lambda module: module.place)
def test_a_room_door_says_its_purpose_and_exports_nothing(module: Module) -> None:
    if module.room in DOORS_WITH_A_WINDOW:
        assert not more_than_reexports(module), f"{module.place} may only re-export: {more_than_reexports(module)}"
    elif module.room not in FREE:
        assert not imports(module, into_functions=True) - {"__future__.annotations"}, f"{module.place} re-exports"


def test_every_folder_is_a_known_room() -> None:
    folders = {path.name for path in SRC.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= {*ROOMS, *FREE, *DATA, *WINDOW_FOLDERS}, "give the new room its place in ROOMS"
    assert all((SRC / folder / "__init__.py").exists() for folder in folders)


def test_nothing_names_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in own_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for match in ONE_MACHINE.finditer(line)
    ]
    assert not found, "\n".join(found)


def own_files() -> list[Path]:
    """Files of the project that people read: what git tracks or would track."""
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True) if shutil.which("git") else None
    if listed is not None and listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # no git, or an unpacked source archive
        folders = [ROOT / name for name in ("src", "tests", "docs", "demo", "scripts")]
        paths = [path for folder in folders for path in folder.rglob("*")] + list(ROOT.glob("*"))
    return [path for path in paths if path.is_file() and path.suffix in PROSE_AND_CODE and path.name != "LICENSE"]


# ── the rules can fail ───────────────────────────────────────────────────────────────────────────────────────────────

HEAD = '"""Something."""\nfrom __future__ import annotations\nfrom typing import TYPE_CHECKING\n'


def sample(place: str, code: str) -> Module:
    return parsed(place, HEAD + code)


def test_what_is_left_to_prove_is_proven() -> None:
    runs = list(prove_runs((ROOT / "Makefile").read_text(encoding="utf-8")))
    files = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    for pattern in PATTERNS:
        where, first, *_ = pattern.split("::")
        meant = [
            name for name, path in files.items() if (re.search(where + "$", name) if where else has_class(path, first))
        ]
        assert meant, f"{pattern} in tests/long_proofs.py names no file"
        for name in meant:
            assert any(is_run(name, pattern, run) for run in runs), (
                f"{pattern} leaves tests of {name} out of `make test`, and no line of `make prove` runs them"
            )


def prove_runs(makefile: str) -> Iterator[tuple[list[str], list[str]]]:
    """The files and folders of every run of pytest in `make prove` that has the long tests, and what `-k` asks for."""
    rules = makefile.split("\nprove:")[1].split("\n\n")[0]
    for line in rules.splitlines():
        if "-m pytest" in line and re.search(r"EMATIX_PROVE=\w", line):
            words = shlex.split(line.split("-m pytest")[1].replace("$(", "("))
            asked = words[words.index("-k") + 1].split(" or ") if "-k" in words else []
            yield [word for word in words if word.startswith("tests/")], asked


def is_run(name: str, pattern: str, run: tuple[list[str], list[str]]) -> bool:
    places, asked = run
    is_there = any(name == place or name.startswith(f"{place}/") for place in places)
    return is_there and (not asked or any(word in pattern for word in asked))


def has_class(path: Path, pattern: str) -> bool:
    return any(
        isinstance(node, ast.ClassDef) and re.fullmatch(pattern, node.name)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
    )


def test_looking_right_is_seen_at_module_level_and_inside_functions() -> None:
    assert forbidden_neighbours(sample("declare/x.py", "from ematix_flow.run.runner import run")) == {"run"}
    assert forbidden_neighbours(sample("declare/x.py", "def f():\n    import ematix_flow.spark.session")) == {"spark"}
    assert forbidden_neighbours(sample("declare/x.py", "from ematix_flow import cli")) == {"cli"}
    assert forbidden_neighbours(sample("run/x.py", "import_module('ematix_flow.cli.main')")) == {"cli"}
    assert forbidden_neighbours(sample("plan/x.py", "from ematix_flow.backends.sql import SqlBackend")) == {"backends"}
    assert forbidden_neighbours(sample("run/x.py", "from ematix_flow.testing.spark import local_spark")) == {"testing"}


def test_looking_left_and_annotations_are_free() -> None:
    assert not forbidden_neighbours(sample("run/x.py", "from ematix_flow.plan.batch import plan"))
    annotation = "if TYPE_CHECKING:\n    from ematix_flow.run.runner import Runner"
    assert not forbidden_neighbours(sample("declare/x.py", annotation))
    late = "def sync():\n    from ematix_flow.run.runner import run"
    assert not forbidden_neighbours(sample("declare/pipeline.py", late))


def test_heavy_imports_are_seen_where_they_run_at_import() -> None:
    assert heavy_at_module_level(sample("run/x.py", "import pyspark.sql")) == {"pyspark"}
    assert heavy_at_module_level(sample("run/x.py", "try:\n    import psycopg\nexcept ImportError: ...")) == {"psycopg"}
    assert heavy_at_module_level(sample("cli/x.py", "from rich.table import Table")) == {"rich"}
    assert heavy_at_module_level(sample("testing/x.py", "import pyspark")) == {"pyspark"}
    assert not heavy_at_module_level(sample("spark/x.py", "import pyspark, pandas"))
    assert not heavy_at_module_level(sample("cli/console.py", "import rich"))
    assert not heavy_at_module_level(sample("run/x.py", "def f():\n    import pyspark"))
    assert not heavy_at_module_level(sample("run/x.py", "if TYPE_CHECKING:\n    import pyspark"))


def test_deeds_at_import_are_seen() -> None:
    assert deeds_at_import(sample("run/x.py", "import os\nA = os.environ['A']"))
    assert deeds_at_import(sample("run/x.py", "import os\nA = os.getenv('A')"))
    assert deeds_at_import(sample("run/x.py", "A = Path('a').read_text()"))
    assert not deeds_at_import(sample("run/x.py", "import os\ndef f():\n    return os.environ['A']"))


def test_other_rules_are_seen_failing() -> None:
    assert relative_imports(sample("run/x.py", "from . import y")) == [4]
    assert more_than_reexports(sample("types.py", "X = 1")) == [4]
    assert times_read_unevenly(sample("run/x.py", "a = datetime.fromisoformat(text)")) == [4]
    assert not times_read_unevenly(sample("run/x.py", "a = date.fromisoformat(text)"))
    assert not more_than_reexports(
        sample("types.py", "from ematix_flow.declare.columns import Text\n__all__ = ['Text']")
    )
    assert missing_head(parsed("run/x.py", "import os")) == "has no docstring"
    assert missing_head(parsed("run/x.py", '"""Doc."""\nimport os')) == "lacks `from __future__ import annotations`"
    assert missing_head(parsed("run/__init__.py", '"""Doc."""')) is None
    for path in ("/".join(["", "home", "somebody", "x"]), "/".join(["", "work", "main"])):
        assert ONE_MACHINE.search(f"see {path}")
    assert not ONE_MACHINE.search("/usr/lib/jvm/java-17")
