"""`flow connections`, as a user types it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.cli.main import main
from ematix_flow.config.resolve import resolve_dsn
from ematix_flow.declare import registry
from ematix_flow.declare.redaction import forget_secrets
from ematix_flow.declare.server_address import server_address


@pytest.fixture(autouse=True)
def project(tmp_project: Path) -> Iterator[Path]:
    with registry.isolated():
        forget_secrets()
        yield tmp_project
    forget_secrets()


Captured = pytest.CaptureFixture[str]


def test_nothing_configured_is_an_answer(capsys: Captured) -> None:
    assert main(["connections", "list"]) == 0
    assert capsys.readouterr().out == "no connections configured\n"


def test_list_shows_name_connection_and_origin_without_secrets(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", "postgres://ann:pw123@db/x?password=pw123")
    (project / ".ematix-flow.toml").write_text(
        '[connections.broken]\nurl = "postgres://ann:${NOT_SET_ANYWHERE}@db/y"\n'
        '[connections.k]\nkind = "kafka"\nbootstrap_servers = "b:1"\nsasl_plain_password = "pw123"\n'
    )
    (project / "cli_connections_case.py").write_text(
        "from ematix_flow.declare.connection import declare_connection\n\n"
        "@declare_connection\nclass archive:\n    kind = 'sqlite'\n    path = 'a.db'\n"
    )
    assert main(["connections", "list", "--module", "cli_connections_case"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split("  ") for line in out.splitlines()]
    assert [line[0].strip() for line in lines] == ["NAME", "archive", "broken", "k", "warehouse"]
    assert "postgres://ann:***@db/x?password=***" in out and "env: EMATIX_FLOW_DSN_WAREHOUSE" in out
    assert "sqlite:///a.db" in out and "code: cli_connections_case.py:" in out
    assert "'NOT_SET_ANYWHERE' is not set" in out
    assert "pw123" not in out + err

    assert main(["connections", "list", "--json"]) == 0
    answer = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    assert answer["k"]["origin"] == "project" and answer["k"]["kind"] == "kafka"
    assert "NOT_SET_ANYWHERE" in answer["broken"]["problem"] and answer["warehouse"]["problem"] is None
    assert "pw123" not in json.dumps(answer)


def test_check_says_ok(pg_url: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    address = server_address(pg_url, default_port=5432)
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", pg_url)
    assert main(["connections", "check", "warehouse"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("warehouse: ok (") and f"{address.user}:***@{address.host}" in out
    assert main(["connections", "check", "warehouse", "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True and answer["origin"] == "env" and answer["kind"] == "postgres"


@pytest.mark.parametrize("dsn", ["postgres://ann:pw123@127.0.0.1:1/x", "oracle://ann:pw123@h/x", None])
def test_check_of_what_does_not_answer_exits_2(
    dsn: str | None, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dsn:
        monkeypatch.setenv("EMATIX_FLOW_DSN_W", dsn)
    assert main(["connections", "check", "w"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("w: unreachable — ") and "pw123" not in err


@pytest.mark.parametrize(
    "words", [["w=postgres://ann:pw123@db/x?a=b"], ["w", "url=postgres://ann:pw123@db/x?a=b"]], ids=["short", "long"]
)
def test_set_writes_the_user_file_and_prints_its_path(words: list[str], capsys: Captured) -> None:
    assert main(["connections", "set", *words]) == 0
    out, err = capsys.readouterr()
    path = Path.home() / ".ematix-flow" / "connections.toml"
    assert out == f"{path}\n" and err == ""
    assert resolve_dsn("w") == "postgres://ann:pw123@db/x?a=b"


def test_set_takes_typed_fields(capsys: Captured) -> None:
    assert main(["connections", "set", "k", "kind=kafka", "bootstrap_servers=b:1", "sasl_plain_password=pw123"]) == 0
    capsys.readouterr()
    assert main(["connections", "list"]) == 0
    out = capsys.readouterr().out
    assert "kafka bootstrap_servers=b:1 sasl_plain_password=***" in out and "user: ~/.ematix-flow" in out


@pytest.mark.parametrize(
    "words",
    [
        ["w"],
        ["w", "postgres://ann:pw123@db/x"],
        ["postgres://ann:pw123@db/x?a=b"],
        ["=postgres://ann:pw123@db/x"],
        ["w="],
        ["w", "url="],
        ["w", "kind=kafka", "passwort=pw123"],
        ["w=oracle://ann:pw123@db/x"],
        ["w=sqlite:///a", "url=sqlite:///b"],
        [],
    ],
)
def test_a_malformed_set_exits_2_and_writes_nothing(words: list[str], capsys: Captured) -> None:
    assert main(["connections", "set", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err and "pw123" not in err
    assert not (Path.home() / ".ematix-flow").exists()


def test_a_module_that_cannot_be_loaded_exits_2(capsys: Captured) -> None:
    assert main(["connections", "list", "--module", "no_such_module_xyz"]) == 2
    assert "no_such_module_xyz" in capsys.readouterr().err
