"""Writing the user's connections file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ematix_flow.config import resolve_dsn, set_connection
from ematix_flow.config.resolve import resolve
from ematix_flow.declare.connection import KafkaConnection
from ematix_flow.errors import InvalidConfig, InvalidConnection

URL = "postgres://ann:pw123@db/x"


def test_a_new_file_holds_the_connection_and_is_private() -> None:
    path = set_connection("warehouse", URL)
    assert path == Path.home() / ".ematix-flow" / "connections.toml"
    assert resolve_dsn("warehouse") == URL
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["connections.toml"]


def test_everything_else_in_the_file_stays(user_toml: Path) -> None:
    before = (
        "# mine\n"
        "[connections.typed]  # a typed one\n"
        'kind = "kafka"\n'
        'bootstrap_servers = "b"\n\n'
        "[connections.old]\n"
        'dsn = "sqlite:///old.db"\n\n'
        "[foreign]\n"
        "key = [1, 2]\n"
    )
    user_toml.write_text(before)
    user_toml.chmod(0o644)
    set_connection("new", URL)
    after = user_toml.read_text()
    for line in before.splitlines():
        assert line in after
    assert stat.S_IMODE(user_toml.stat().st_mode) == 0o600


def test_setting_again_replaces_the_definition_and_keeps_the_spelling(user_toml: Path) -> None:
    user_toml.write_text(
        '[connections.a]\ndsn = "sqlite:///a.db"\n\n[connections.b]\nkind = "kafka"\nbootstrap_servers = "b"\n'
    )
    set_connection("a", URL)
    set_connection("b", URL)
    assert user_toml.read_text() == f'[connections.a]\ndsn = "{URL}"\n\n[connections.b]\nurl = "{URL}"\n'
    assert resolve_dsn("a") == resolve_dsn("b") == URL


def test_typed_fields_and_references_can_be_set() -> None:
    set_connection("k", fields={"kind": "kafka", "bootstrap_servers": "b", "sasl_plain_password": "${PW}"})
    set_connection("w", "postgres://ann:${PW}@db/x")
    set_connection("whole", "${URL}")
    os.environ["PW"] = "pw123"
    try:
        found = resolve("k").connection
    finally:
        del os.environ["PW"]
    assert found == KafkaConnection(name="k", bootstrap_servers="b", sasl_plain_password="pw123")


@pytest.mark.parametrize("name", ["my-db", "a.b", "ünï", "x1"])
def test_unusual_names_survive_the_round_trip(name: str) -> None:
    set_connection(name, URL)
    assert resolve_dsn(name) == URL


@pytest.mark.parametrize(
    "value", ['sqlite:///a"b.db', "sqlite:///a\\b.db", "sqlite:///a'b\u2028.db", "sqlite:///]\n[x"]
)
def test_values_cannot_break_out_of_the_file(value: str) -> None:
    set_connection("other", URL)
    set_connection("evil", value)
    assert (resolve_dsn("evil"), resolve_dsn("other")) == (value, URL)


@pytest.mark.parametrize("name", ["", "a b", "a]\n[x", "postgres://ann:pw123@db/x?a", "-x", None])
def test_a_bad_name_is_refused_without_repeating_it(name: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        set_connection(name, URL)
    assert "pw123" not in str(caught.value)
    assert not (Path.home() / ".ematix-flow").exists()


@pytest.mark.parametrize(
    ("dsn", "fields"),
    [
        ("oracle://ann:pw123@db/x", None),
        ("pw123", None),
        (None, {"kind": "kafkaa"}),
        (None, {"kind": "kafka"}),
        (None, {"kind": "kafka", "bootstrap_servers": "b", "passwrd": "pw123"}),
        (URL, {"timeout": "pw123"}),
    ],
)
def test_a_definition_that_could_not_be_used_is_not_written(dsn: str | None, fields: dict[str, str] | None) -> None:
    with pytest.raises(InvalidConnection) as caught:
        set_connection("w", dsn, fields=fields)
    assert "pw123" not in str(caught.value)
    assert not (Path.home() / ".ematix-flow").exists()


def test_nothing_at_all_and_two_urls_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="needs a url or a kind"):
        set_connection("w")
    with pytest.raises(InvalidConfig, match="two URLs"):
        set_connection("w", URL, fields={"url": URL})


def test_a_broken_file_is_left_alone(user_toml: Path) -> None:
    user_toml.write_text("[connections.a\n")
    with pytest.raises(InvalidConfig, match="left alone"):
        set_connection("w", URL)
    assert user_toml.read_text() == "[connections.a\n"


def test_a_linked_file_stays_a_link(user_toml: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "dotfiles.toml"
    elsewhere.write_text("# kept\n")
    user_toml.symlink_to(elsewhere)
    set_connection("w", URL)
    assert user_toml.is_symlink() and "# kept" in elsewhere.read_text() and "[connections.w]" in elsewhere.read_text()
