"""`flow init`: a project that runs as it is made, whose tests pass, and whose every command is one of ours."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ematix_flow._version import __version__
from ematix_flow.cli.init import project_files
from ematix_flow.cli.main import COMMANDS, command_parser, main
from ematix_flow.config.resolve import resolve
from ematix_flow.declare import registry
from ematix_flow.declare.connection import PostgresConnection
from tests.cli.commands import known_command

Captured = pytest.CaptureFixture[str]
NEW = ("init", "lineage", "secrets", "logs")


@pytest.fixture(autouse=True)
def commands(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NEW:
        known_command(monkeypatch, name)


@pytest.fixture
def project(tmp_project: Path, capsys: Captured) -> Iterator[Path]:
    assert main(["init", "my shop"]) == 0
    capsys.readouterr()
    yield tmp_project / "my shop"


def in_a_shell(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in the project's folder, as a user would call it."""
    environ = {**os.environ, "HOME": str(project.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, *words], cwd=project, env=environ, capture_output=True, text=True, timeout=120
    )


def test_it_says_what_it_made_and_where(tmp_project: Path, capsys: Captured) -> None:
    assert main(["init", "shop"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    made = sorted(str(path.relative_to("shop")) for path in Path("shop").rglob("*") if path.is_file())
    assert first == f"flow init: scaffolded {len(made)} files in {tmp_project / 'shop'}"
    assert sorted(line.strip() for line in rest) == made
    assert {"pipelines.py", "connections.toml", "Dockerfile", "flow.service", ".gitignore", "README.md"} <= set(made)
    assert not [path for path in Path("shop").rglob("*") if path.is_file() and "@NAME@" in path.read_text()]


def test_nothing_is_touched_when_a_file_is_there_already(tmp_project: Path, capsys: Captured) -> None:
    Path("shop").mkdir()
    Path("shop/README.md").write_text("mine")
    assert main(["init", "shop"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "README.md" in err and "--force" in err
    assert [path.name for path in Path("shop").iterdir()] == ["README.md"]
    assert Path("shop/README.md").read_text() == "mine"
    assert main(["init", "shop", "--force"]) == 0
    assert Path("shop/README.md").read_text().startswith("# shop\n")


def test_a_place_that_cannot_be_written_to_is_said(tmp_project: Path, capsys: Captured) -> None:
    Path("file").write_text("")
    assert main(["init", "file/below"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_its_pipelines_run_at_once_without_a_server(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.delitem(sys.modules, "pipelines", raising=False)
    with registry.isolated():
        for name in ("example_sync", "load_customers"):
            assert main(["run", name, "--module", "pipelines"]) == 0, capsys.readouterr().err
    sys.modules.pop("pipelines")  # not by monkeypatch, which would put it back for the next test
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows_inserted"] == 2
    db = sqlite3.connect("warehouse.db")
    rows = db.execute("SELECT name, email FROM customers ORDER BY id").fetchall()
    db.close()
    assert rows == [("Ada", "ada@example.com"), ("Ben", "ben@example.com")]


def test_its_own_tests_pass(project: Path) -> None:
    done = in_a_shell(project, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert not (project / "warehouse.db").exists()


def test_what_is_commented_out_works_too(project: Path) -> None:
    """Take the comment signs away, as the file says."""
    source = (project / "pipelines.py").read_text()
    head, _, tail = source.partition("# More of what can be declared.")
    uncommented = "\n".join(line.removeprefix("# ").removeprefix("#") for line in tail.splitlines()[1:])
    (project / "pipelines.py").write_text(head + uncommented)
    runs = "p.example_sync(); p.load_customers.sync(); print(p.keep_history.sync()['rows_inserted'])"
    done = in_a_shell(project, "-c", f"import pipelines as p; {runs}")
    assert done.stdout == "2\n", done.stderr


def test_its_connections_are_in_the_form_that_is_read(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (project / "connections.toml").read_text()
    entries = text[text.index("# [connections") :]
    home = tmp_path / "home" / ".ematix-flow"
    home.mkdir()
    (home / "connections.toml").write_text("\n".join(line.removeprefix("#").strip() for line in entries.splitlines()))
    monkeypatch.setenv("WAREHOUSE_PASSWORD", "pw-of-warehouse")
    found = resolve("warehouse").connection
    assert isinstance(found, PostgresConnection) and "pw-of-warehouse" in found.url
    assert resolve("events").connection.kind == "kafka"


# ── every command in it is one of ours ───────────────────────────────────────────────────────────────────────────────


def rendered(text: str, values: dict[str, object]) -> str:
    """A chart without control structures, filled in. Helm itself is not asked; the templates use no more than this."""
    filled = text.replace("{{ .Release.Name }}", "release")
    filled = re.sub(r"\{\{ \.Values\.(\w+) \}\}", lambda found: str(values[found[1]]), filled)
    assert "{{" not in filled
    return filled


def commands_in(files: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Every `flow …` of the project, with the file it stands in."""
    for block in re.findall(r"```sh\n(.*?)```", files["README.md"], flags=re.DOTALL):
        for line in block.splitlines():
            if line.startswith("flow "):
                yield "README.md", shlex.split(line)
    (command,) = re.findall(r"^CMD (\[.*\])$", files["Dockerfile"], flags=re.MULTILINE)
    yield "Dockerfile", json.loads(command)
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(files["flow.service"])
    yield "flow.service", shlex.split(unit["Service"]["ExecStart"])
    job = yaml.safe_load(files["deploy/kubernetes/cronjob.yaml"])
    yield "cronjob.yaml", job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
    values = yaml.safe_load(files["deploy/helm/values.yaml"])
    chart = yaml.safe_load(rendered(files["deploy/helm/templates/scheduler.yaml"], values))
    yield "helm", chart["spec"]["template"]["spec"]["containers"][0]["args"]


def test_every_command_is_understood(capsys: Captured) -> None:
    from ematix_flow.cli import main as front

    found = list(commands_in(project_files("My Shop")))
    assert {file for file, _ in found} == {"README.md", "Dockerfile", "flow.service", "cronjob.yaml", "helm"}
    for file, (program, name, *words) in found:
        assert Path(program).name == "flow"
        command = next((known for known in front.COMMANDS if known.name == name), None)
        assert command is not None, f"{file}: `flow {name}` is no command"
        _, parser = command_parser(command)
        try:
            parser.parse_args(words)
        except SystemExit:
            pytest.fail(f"{file}: `flow {name} {shlex.join(words)}`\n{capsys.readouterr().err}")


def test_every_module_that_is_named_is_the_one_that_is_made() -> None:
    modules = {
        words[words.index("--module") + 1] for _, words in commands_in(project_files("x")) if "--module" in words
    }
    assert modules == {"pipelines"}


def test_names_and_versions_are_filled_in() -> None:
    files = project_files("My Shop_2")
    assert f"\nematix-flow[runlog-postgres]>={__version__}\n" in files["requirements.txt"]
    chart, values = yaml.safe_load(files["deploy/helm/Chart.yaml"]), yaml.safe_load(files["deploy/helm/values.yaml"])
    assert (chart["name"], values["image"]) == ("my-shop-2", "my-shop-2:latest")
    job = yaml.safe_load(files["deploy/kubernetes/cronjob.yaml"])
    assert job["metadata"]["name"] == "my-shop-2" and job["kind"] == "CronJob"
    compose = yaml.safe_load(files["compose.yaml"])
    assert compose["services"]["scheduler"]["volumes"] == ["state:/data"] and "state" in compose["volumes"]


def test_the_chart_lets_the_scheduler_make_jobs() -> None:
    """What `docs/executors.md` asks for, given to the account that the pods run under."""
    files = project_files("x")
    values = yaml.safe_load(files["deploy/helm/values.yaml"])
    scheduler = yaml.safe_load(rendered(files["deploy/helm/templates/scheduler.yaml"], values))
    account, role, binding = yaml.safe_load_all(rendered(files["deploy/helm/templates/rights.yaml"], values))
    assert (account["kind"], role["kind"], binding["kind"]) == ("ServiceAccount", "Role", "RoleBinding")
    assert role["rules"] == [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "delete"]}]
    assert scheduler["spec"]["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])


def test_what_the_container_writes_goes_where_its_user_may() -> None:
    dockerfile = project_files("x")["Dockerfile"].replace("\\\n", " ")
    (settings,) = re.findall(r"^ENV (.*)$", dockerfile, flags=re.MULTILINE)
    variables = dict(word.split("=", 1) for word in settings.split())
    owned = re.findall(r"chown flow (\S+)", dockerfile)
    assert owned == ["/data", "/app/.ematix-flow"] and variables["HOME"] == "/app"
    writes = ("RUN_LOG_URL", "LOGS_DIR", "CHECKPOINT_DIR", "CACHE_DIR")
    assert all(variables[f"EMATIX_FLOW_{name}"].removeprefix("sqlite:///").startswith("/data/") for name in writes)


def test_probes_ask_the_port_that_the_scheduler_serves() -> None:
    files = project_files("x")
    chart = yaml.safe_load(
        rendered(files["deploy/helm/templates/scheduler.yaml"], yaml.safe_load(files["deploy/helm/values.yaml"]))
    )
    (container,) = chart["spec"]["template"]["spec"]["containers"]
    port = container["args"][container["args"].index("--health-port") + 1]
    assert container["ports"] == [{"name": "health", "containerPort": int(port)}]
    assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {"health"}
    assert f":{port}/healthz" in files["compose.yaml"] and f'"--health-port", "{port}"' in files["Dockerfile"]


def test_the_front_door_knows_what_the_project_uses() -> None:
    assert {"run", "run-due", "scheduler", "status", "retry", "graph"} <= {command.name for command in COMMANDS}
