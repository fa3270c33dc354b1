"""`flow doctor`: what works, what does not, and how to fix it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ematix_flow.cli.doctor import connection_findings, machine_findings
from ematix_flow.cli.main import main
from ematix_flow.declare import registry


@pytest.fixture(autouse=True)
def own_registry():
    """What one test declares, the next one must not see."""
    with registry.isolated():
        yield


def findings_of(words: list[str], capsys) -> tuple[int, dict[str, dict], dict[str, dict]]:
    """Exit code, rows of the machine and rows of the connections, by name."""
    code = main(["doctor", "--json", *words])
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is (code == 0)
    return code, {row["name"]: row for row in told["checks"]}, {row["name"]: row for row in told["connections"]}


def test_a_sound_machine_without_connections_is_fine(tmp_project: Path, capsys) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for name in ("java", "spark", "pandas", "pyarrow", "postgres driver", "sqlite driver", "jars", "cache", "run log"):
        assert f"\n{name} " in said
    assert "✓ ok" in said
    assert "no connections registered" in said


def test_doctor_starts_no_jvm_and_imports_no_spark(tmp_project: Path) -> None:
    program = (
        "import sys\nfrom ematix_flow.cli.main import main\nmain(['doctor', '--json'])\n"
        "print(sorted({'pyspark', 'py4j', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert asked.stdout.splitlines()[-1] == "[]"


def test_no_usable_java_fails_and_says_how_to_get_one(tmp_project: Path, capsys, monkeypatch) -> None:
    from ematix_flow.backends import java
    from ematix_flow.errors import MissingJava

    def none_here():
        raise MissingJava("No usable Java was found.", fix=java.INSTALL_HINT)

    monkeypatch.setattr(java, "find_java", none_here)
    code, machine, _ = findings_of([], capsys)
    assert code == 1
    assert machine["java"]["status"] == "fail"
    assert "openjdk-17" in machine["java"]["fix"]
    assert machine["spark"]["status"] == "ok", "the other rows still appear"


def test_a_missing_driver_is_skipped_with_the_line_that_installs_it(tmp_project: Path, capsys, monkeypatch) -> None:
    from ematix_flow.cli import doctor

    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "psycopg" else known(package))
    code, machine, _ = findings_of([], capsys)
    assert code == 0, "nobody asked for PostgreSQL"
    row = machine["postgres driver"]
    assert row["status"] == "skip"
    assert "psycopg" in row["detail"]
    assert row["fix"] == 'pip install "ematix-flow[postgres]"'


def test_pandas_3_fails(tmp_project: Path, capsys, monkeypatch) -> None:
    from ematix_flow.cli import doctor

    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda package: "3.0.1" if package == "pandas" else known(package))
    code, machine, _ = findings_of([], capsys)
    assert code == 1
    assert machine["pandas"]["fix"] == 'pip install "pandas>=2.2,<3"'


def test_a_broken_project_file_fails_in_its_own_row(tmp_project: Path, capsys) -> None:
    (tmp_project / ".ematix-flow.toml").write_text("[conections]\n")
    code, machine, connections = findings_of([], capsys)
    assert code == 1
    assert machine["project file"]["status"] == "fail"
    assert "connections" in machine["project file"]["fix"]
    assert machine["java"]["status"] == "ok"
    assert connections["connections"]["status"] == "fail"


def test_a_run_log_that_cannot_be_opened_fails_without_its_password(tmp_project: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_RUN_LOG_URL", "postgres://ann:s3cret@127.0.0.1:1/x")
    assert main(["doctor"]) == 1
    said = capsys.readouterr()
    assert "cannot be opened" in said.out
    assert "s3cret" not in said.out + said.err


def test_a_cache_that_cannot_be_made_fails(tmp_project: Path, capsys, monkeypatch) -> None:
    (tmp_project / "file").write_text("in the way")
    monkeypatch.setenv("EMATIX_FLOW_CACHE_DIR", str(tmp_project / "file" / "cache"))
    code, machine, _ = findings_of([], capsys)
    assert code == 1
    assert machine["cache"]["status"] == "fail"
    assert "EMATIX_FLOW_CACHE_DIR" in machine["cache"]["fix"]


def test_connections_declared_in_a_module_are_asked(tmp_project: Path, pg_url: str, capsys) -> None:
    (tmp_project / "declared_connections.py").write_text(
        "from ematix_flow import SchemaRegistryConnection, PostgresConnection, SQLiteConnection, register_connection\n"
        f"register_connection(PostgresConnection(name='warehouse', url={pg_url!r}))\n"
        "register_connection(SQLiteConnection(name='local', path='local.db'))\n"
        "register_connection(SchemaRegistryConnection(name='events', url='http://localhost:1/'))\n"
        "register_connection(PostgresConnection(name='gone', url='postgres://ann:s3cret@127.0.0.1:1/x'))\n"
        "register_connection(PostgresConnection(name='unset', url='postgres://ann:${NOT_SET_ANYWHERE}@h/x'))\n"
    )
    code, _, connections = findings_of(["--module", "declared_connections"], capsys)
    assert code == 1
    assert {name: row["status"] for name, row in connections.items()} == {
        "events": "skip",
        "gone": "fail",
        "local": "ok",
        "unset": "fail",
        "warehouse": "ok",
    }
    assert connections["warehouse"]["kind"] == "postgres"
    assert connections["warehouse"]["ms"] > 0
    assert "NOT_SET_ANYWHERE" in connections["unset"]["detail"]
    assert "s3cret" not in json.dumps(connections)


def test_good_connections_alone_are_fine(tmp_project: Path, pg_url: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", pg_url)
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "warehouse" in said
    assert "HOW TO FIX" not in said or "warehouse" not in said.partition("HOW TO FIX")[2]


def test_a_server_that_never_answers_fails_when_the_time_is_over(tmp_project: Path, monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        held: list[socket.socket] = []
        threading.Thread(target=lambda: held.append(silent.accept()[0]), daemon=True).start()
        monkeypatch.setenv("EMATIX_FLOW_DSN_SILENT", f"postgres://ann:pw@127.0.0.1:{port}/x")
        began = time.monotonic()
        (row,) = connection_findings(timeout_s=0.5)
        assert time.monotonic() - began < 5
        for one in held:
            one.close()
    assert row.status == "fail"
    assert row.detail == "no answer within 0.5 s"


def test_every_row_of_the_machine_has_a_name_of_its_own(tmp_project: Path) -> None:
    names = [finding.name for finding in machine_findings()]
    assert len(names) == len(set(names))


def test_a_timeout_that_is_no_number_is_wrong(capsys) -> None:
    assert main(["doctor", "--timeout", "soon"]) == 2
    assert "'soon' is not a number of seconds" in capsys.readouterr().err
