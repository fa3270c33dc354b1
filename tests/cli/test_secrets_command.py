"""`flow secrets test`: found or not, without showing what."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.cli.main import main
from ematix_flow.config.secrets import unregister_resolver
from ematix_flow.declare import registry
from ematix_flow.declare.redaction import forget_secrets
from tests.cli.commands import known_command

Captured = pytest.CaptureFixture[str]
RESOLVER = """
from ematix_flow.secrets import register_resolver

class Safe:
    def resolve(self, reference):
        return {"app#pw": "abcdefghwxyz", "empty": "", "pin": "1234"}[reference]

register_resolver("safe", Safe())
"""


@pytest.fixture(autouse=True)
def project(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    known_command(monkeypatch, "secrets")
    monkeypatch.setenv("SHOP_PASSWORD", "tr0ub4dor-and-3")
    (tmp_project / "safe_case.py").write_text(RESOLVER)
    monkeypatch.delitem(sys.modules, "safe_case", raising=False)
    with registry.isolated():
        yield tmp_project
    unregister_resolver("safe")
    forget_secrets()


@pytest.mark.parametrize(
    "reference", ["${SHOP_PASSWORD}", "SHOP_PASSWORD", "${env:SHOP_PASSWORD}", "env:SHOP_PASSWORD"]
)
def test_a_reference_in_any_spelling(reference: str, capsys: Captured) -> None:
    assert main(["secrets", "test", reference]) == 0
    assert capsys.readouterr() == ("tr...-3  (15 chars; pass --show to reveal)\n", "")


def test_the_resolvers_of_a_module_are_known(capsys: Captured) -> None:
    for reference, shown in (
        ("safe:app#pw", "ab...yz  (12 chars; pass --show to reveal)"),
        ("safe:pin", "****  (4 chars; pass --show to reveal)"),
        ("safe:empty", "<empty>"),
    ):
        assert main(["secrets", "test", reference, "--module", "safe_case"]) == 0
        assert capsys.readouterr().out == shown + "\n"


def test_show_prints_it(capsys: Captured) -> None:
    assert main(["secrets", "test", "SHOP_PASSWORD", "--show"]) == 0
    assert capsys.readouterr().out == "tr0ub4dor-and-3\n"
    assert main(["secrets", "test", "SHOP_PASSWORD", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"reference": "SHOP_PASSWORD", "ok": True, "chars": 15}


@pytest.mark.parametrize("reference", ["NOT_SET_ANYWHERE", "safe:app#pw", "${vault:app#pw}"])
def test_a_missing_secret_is_exit_code_1(reference: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VAULT_ADDR", raising=False)
    assert main(["secrets", "test", reference]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "FLOW205" in err


def test_every_reference_of_a_file(project: Path, capsys: Captured) -> None:
    (project / "connections.toml").write_text(
        '[connections.shop]\nurl = "postgres://ann:${SHOP_PASSWORD}@db/x"\n'
        '[connections.crm]\nurl = "postgres://${CRM_USER}:${SHOP_PASSWORD}@db/x"\n'
    )
    assert main(["secrets", "test", "connections.toml"]) == 1
    out, err = capsys.readouterr()
    lines = [line.split(maxsplit=4) for line in out.splitlines()[1:]]
    assert [(line[0], line[2], line[3]) for line in lines] == [
        ("✓", "connections.shop.url", "${SHOP_PASSWORD}"),
        ("✗", "connections.crm.url", "${CRM_USER}"),
        ("✓", "connections.crm.url", "${SHOP_PASSWORD}"),
    ]
    assert "'CRM_USER' is not set" in out and "tr0ub4dor" not in out + err


def test_without_an_argument_both_settings_files_are_looked_at(project: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["secrets", "test"]) == 0
    assert capsys.readouterr().out == "no references\n"
    (project / ".ematix-flow.toml").write_text('[connections.a]\nurl = "sqlite:///${SHOP_PASSWORD}"\n')
    home = tmp_path / "home" / ".ematix-flow"
    home.mkdir()
    (home / "connections.toml").write_text('[connections.b]\nurl = "sqlite:///${SHOP_PASSWORD}"\n')
    assert main(["secrets", "test", "--json"]) == 0
    assert [found["place"] for found in json.loads(capsys.readouterr().out)] == [
        ".ematix-flow.toml connections.a.url",
        "connections.toml connections.b.url",
    ]


@pytest.mark.parametrize("words", [["no/such/file.toml"], ["connections.toml", "--show"], ["broken.toml"]])
def test_a_command_that_makes_no_sense_is_exit_code_2(words: list[str], project: Path, capsys: Captured) -> None:
    (project / "connections.toml").write_text("")
    (project / "broken.toml").write_text("[")
    assert main(["secrets", "test", *words]) == 2
    assert "FLOW206" in capsys.readouterr().err
