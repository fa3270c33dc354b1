"""The built package: a wheel that works outside the checkout, with nothing missing and nothing extra."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

import pytest

from ematix_flow._version import __version__

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTED_EXTRAS = {
    *("all", "dev", "df", "spark", "quality", "observability", "executor-k8s", "executor-lambda"),
    *("metrics", "metrics-otel", "metrics-prometheus"),
    *("runlog", "runlog-azure", "runlog-duckdb", "runlog-gcs", "runlog-mysql", "runlog-postgres", "runlog-s3"),
    *("postgres", "mysql", "duckdb", "kafka", "s3", "gcs", "azure"),
}


def call(command: Sequence[str | Path], cwd: Path) -> str:
    """What a command prints, without the settings of the environment that runs the tests."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EMATIX_FLOW_"))}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built with the tools at hand."""
    out = tmp_path_factory.mktemp("dist")
    call([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT], ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it. Its dependencies are borrowed, so that no network is needed."""
    env = tmp_path_factory.mktemp("env")
    call([sys.executable, "-m", "venv", env], env)
    python = env / "bin" / "python"
    call([python, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel], env)
    place = Path(call([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], env).strip())
    # Paths named in a .pth file come last and their own .pth files are not read: the checkout stays out of sight.
    (place / "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    return python


def test_the_wheel_is_imported_outside_the_checkout(clean_python: Path, tmp_path: Path) -> None:
    code = "import ematix_flow; print(ematix_flow.__file__); print(ematix_flow.__version__)"
    file, version = call([clean_python, "-c", code], tmp_path).split()
    assert Path(file).is_relative_to(clean_python.parents[1])
    assert version == __version__


def test_every_name_of_the_front_door_works_in_the_wheel(clean_python: Path, tmp_path: Path) -> None:
    call([clean_python, "-c", "import ematix_flow; [getattr(ematix_flow, n) for n in ematix_flow.__all__]"], tmp_path)


def test_the_flow_command_runs(clean_python: Path, tmp_path: Path) -> None:
    assert "flow" in call([clean_python.with_name("flow"), "--help"], tmp_path)


def test_the_wheel_holds_every_module_the_types_and_the_license(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    ours = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*") if p.suffix in {".py", ".typed"}}
    assert "ematix_flow/py.typed" in packed
    assert {name for name in packed if ".dist-info/" not in name} >= ours
    assert any(name.endswith("licenses/LICENSE") for name in packed)
    assert {name.split("/")[0] for name in packed} == {"ematix_flow", f"ematix_flow-{__version__}.dist-info"}


def test_the_metadata_has_the_version_and_the_documented_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        metadata = Parser().parsestr(packed.read(f"ematix_flow-{__version__}.dist-info/METADATA").decode())
    assert metadata["Version"] == __version__
    assert set(metadata.get_all("Provides-Extra", [])) >= DOCUMENTED_EXTRAS
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_changelog_is_about_this_version() -> None:
    newest = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert newest.split()[1] == __version__
