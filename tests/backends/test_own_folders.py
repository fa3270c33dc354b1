"""Where things go when the home cannot be written to. A home below a file is one that not even root can write to."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

import pytest

from ematix_flow.backends import jars, own_folders
from ematix_flow.spark.session import _log_configuration
from ematix_flow.watch.metrics_handed_over import PushgatewayMetrics


@pytest.fixture(autouse=True)
def closed_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that nothing can be written to, and a folder for temporary files."""
    (tmp_path / "file").write_text("")
    home, temporary = tmp_path / "file" / "home", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("EMATIX_FLOW_CACHE_DIR", "EMATIX_FLOW_JARS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(own_folders, "_told", set())
    monkeypatch.setattr(own_folders, "_made", [])
    monkeypatch.setattr("ematix_flow.backends.jars.sys.platform", "linux")
    return home


def ours() -> Path:
    return Path(tempfile.gettempdir()) / f"ematix-flow-{os.getuid()}"


def test_the_cache_moves_to_a_folder_of_this_user_alone_after_one_warning(
    closed_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert jars.cache_root() == jars.cache_root() == ours() / "ematix-flow"
    assert ours().stat().st_mode & 0o777 == 0o700
    (warning,) = caplog.messages
    assert str(closed_home) in warning and "EMATIX_FLOW_CACHE_DIR" in warning


def test_spark_finds_its_settings_and_a_pushgateway_its_lock() -> None:
    assert _log_configuration().read_text().strip()
    metrics = PushgatewayMetrics("pushgateway://127.0.0.1:9")
    assert metrics._lock.parent == ours() / "locks"


def test_a_folder_that_others_may_write_to_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    ours().mkdir()
    ours().chmod(0o777)
    used = jars.cache_root()
    assert ours() not in used.parents and used.parent.stat().st_mode & 0o777 == 0o700
    assert jars.cache_root() == used, "the same one for the whole process"


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    ours().symlink_to(tmp_path / "elsewhere")
    assert jars.cache_root().parent not in (ours(), tmp_path / "elsewhere")


def test_what_was_chosen_is_not_replaced(closed_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_CACHE_DIR", str(closed_home / "chosen"))
    assert jars.cache_root() == closed_home / "chosen"


def test_jars_that_came_with_the_home_are_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought = tmp_path / "home" / ".cache/ematix-flow/jars/4.0"
    brought.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "access", lambda *_: False)  # chmod does not stop root
    assert jars.jar_cache_dir("4.0.5") == brought
    assert jars.cache_root() == ours() / "ematix-flow"
