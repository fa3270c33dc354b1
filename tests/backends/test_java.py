"""Finding Java: order, versions, and what is said when none fits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ematix_flow.backends import java
from ematix_flow.backends.java import find_java
from ematix_flow.errors import MissingJava

MakeHome = Callable[[str], Path]


@pytest.fixture
def make_home(tmp_path: Path) -> MakeHome:
    """Builds a folder that looks like a Java installation of the given version."""

    def make(version: str, *, name: str | None = None) -> Path:
        home = tmp_path / (name or f"java-{version}")
        (home / "bin").mkdir(parents=True)
        program = home / "bin" / "java"
        program.write_text("#!/bin/sh\nexit 1\n", encoding="ascii")
        program.chmod(0o755)
        (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\n', encoding="ascii")
        return home

    return make


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java in the environment, on the PATH or in the usual folders."""
    for name in ("EMATIX_FLOW_JAVA_HOME", "JAVA_HOME", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(java, "_usual_homes", lambda: iter(()))


def test_this_machine_has_a_java_that_spark_can_use() -> None:
    found = find_java()
    assert found.is_usable
    assert found.executable.is_file()


def test_finding_java_takes_no_noticeable_time() -> None:
    began = time.perf_counter()
    find_java()
    assert time.perf_counter() - began < 0.25


def test_java_home_is_used_when_it_fits(
    bare_machine: None, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_home("21.0.4")))
    assert (find_java().major, find_java().build) == (21, "Test 21.0.4")


def test_a_java_home_of_another_version_is_passed_over_for_a_fitting_one(
    bare_machine: None, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fitting = make_home("17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(make_home("25.0.3")))
    monkeypatch.setattr(java, "_usual_homes", lambda: iter([fitting]))
    with caplog.at_level(logging.DEBUG, logger="ematix_flow"):
        assert find_java().path == fitting
    assert "JAVA_HOME: Java 25.0.3" in caplog.text


def test_among_the_usual_folders_java_17_goes_before_21(
    bare_machine: None, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = [make_home("21.0.4"), make_home("25.0.3"), make_home("17.0.9")]
    monkeypatch.setattr(java, "_usual_homes", lambda: iter(homes))
    assert find_java().major == 17


def test_java_on_the_path_is_followed_through_links(
    bare_machine: None, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = make_home("17.0.9")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    assert find_java().path == home


def test_our_own_variable_wins_and_must_fit(
    bare_machine: None, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_home("17.0.9")))
    monkeypatch.setenv("EMATIX_FLOW_JAVA_HOME", str(make_home("21.0.4")))
    assert find_java().major == 21
    monkeypatch.setenv("EMATIX_FLOW_JAVA_HOME", str(make_home("25.0.3")))
    with pytest.raises(MissingJava, match=r"holds Java 25\.0\.3; Spark needs Java 17 or 21"):
        find_java()


def test_a_machine_without_java_is_told_how_to_install_one(bare_machine: None) -> None:
    with pytest.raises(MissingJava) as caught:
        find_java()
    assert "no Java was found" in caught.value.message
    for word in ("apt install", "brew install", "winget install", "conda install"):
        assert word in str(caught.value.fix)


def test_unusable_javas_are_listed(bare_machine: None, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch) -> None:
    old = make_home("1.8.0_402")
    monkeypatch.setattr(java, "_usual_homes", lambda: iter([old]))
    with pytest.raises(MissingJava) as caught:
        find_java()
    assert caught.value.tried == (f"{old}: Java 1.8.0_402",)


def test_a_home_without_a_release_file_is_asked_itself(
    bare_machine: None, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home("17.0.9")
    (home / "release").unlink()
    program = home / "bin" / "java"
    program.write_text("#!/bin/sh\necho '    java.version = 17.0.9' >&2\n", encoding="ascii")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java().version == "17.0.9"
