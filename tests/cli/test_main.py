"""The front door: what every command shares."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ematix_flow._version import __version__
from ematix_flow.cli.main import COMMANDS, exit_code, main
from ematix_flow.cli.parser import CommandParser
from ematix_flow.declare import registry
from ematix_flow.errors import EngineFailed, InvalidDeclaration, MissingSecret, UnknownName

HEAVY = {"pyspark", "py4j", "pandas", "pyarrow", "psycopg", "rich", "sqlglot", "tomlkit"}


@pytest.fixture(autouse=True)
def own_registry():
    """What one test declares, the next one must not see."""
    with registry.isolated():
        yield


def flow(*words: str, **options) -> subprocess.CompletedProcess[str]:
    """`flow` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ematix_flow", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


def test_help_is_fast_and_loads_nothing_heavy() -> None:
    began = time.monotonic()
    asked = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ematix_flow", "--help"], capture_output=True, text=True, check=True
    )
    assert time.monotonic() - began < 2, "generous here, since other tests may be running; measured alone elsewhere"
    loaded = {line.rsplit("|", 1)[-1].strip() for line in asked.stderr.splitlines()}
    assert not HEAVY & loaded
    assert "ematix_flow.cli.main" in loaded
    others = {name for name in loaded if name.startswith("ematix_flow.")}
    commands = {command.module for command in COMMANDS}
    assert not others & commands, "the help must not import the commands it lists"


@pytest.mark.parametrize(
    ("told", "words", "is_there"),
    [
        ({"EMATIX_FLOW_BANNER": "1"}, ("run", "--module", "not_there", "x"), True),
        ({"EMATIX_FLOW_BANNER": "1"}, ("list", "--module", "not_there"), False),
        ({"EMATIX_FLOW_BANNER": "1", "EMATIX_FLOW_NO_BANNER": "1"}, ("run", "--module", "not_there", "x"), False),
        ({}, ("run", "--module", "not_there", "x"), False),
    ],
)
def test_long_work_says_what_is_running_where_that_is_asked_for(
    told: dict[str, str], words: tuple[str, ...], is_there: bool, tmp_path: Path
) -> None:
    done = flow(*words, env={**os.environ, **told}, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"ematix-flow {__version__}\n") is is_there


def test_a_command_imports_only_its_own_file() -> None:
    program = "import sys; from ematix_flow.cli.main import main; main(['runs', '--help']); print(sorted(sys.modules))"
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(re.findall(r"'([\w.]+)'", asked.stdout.splitlines()[-1]))
    assert "ematix_flow.cli.runs" in loaded
    assert not {command.module for command in COMMANDS} & loaded - {"ematix_flow.cli.runs"}
    assert not HEAVY & loaded


@pytest.mark.parametrize("module", ["ematix_flow", "ematix_flow.cli"])
def test_the_module_is_the_command(module: str) -> None:
    asked = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == f"ematix-flow {__version__}"


def test_no_command_prints_the_help_and_is_wrong(capsys) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "commands:" in said.err


def test_an_unknown_command_suggests_the_nearest(capsys) -> None:
    assert main(["validat"]) == 2
    assert "unknown command 'validat'; did you mean 'validate'?" in capsys.readouterr().err


def test_an_unknown_command_that_is_near_nothing_lists_all(capsys) -> None:
    assert main(["xyzzy"]) == 2
    assert "'completion'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["runs", "list", "--pipelin", "x"], ["--jsn", "runs", "list"], ["runs", "list", "--jsn"]]
)
def test_an_unknown_option_suggests_the_nearest(words: list[str], capsys) -> None:
    assert main(words) == 2
    assert re.search(r"unknown option '--\w+'; did you mean '--(pipeline|json)'\?", capsys.readouterr().err)


def test_an_unknown_subcommand_suggests_the_nearest(capsys) -> None:
    assert main(["runs", "lst"]) == 2
    assert "did you mean 'list'?" in capsys.readouterr().err


def test_options_are_never_abbreviated(capsys) -> None:
    assert main(["runs", "list", "--pipe", "x"]) == 2
    assert "unknown option '--pipe'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_helps_with_an_example_and_what_comes_next(command: str, capsys) -> None:
    assert main([command, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"flow {command}" in said
    assert re.search(r"(?i)examples?:", said)
    assert re.search(r"(?i)next:", said)
    assert "--json" in said


def test_shared_options_work_in_front_of_and_behind_the_command(tmp_project: Path, capsys) -> None:
    for words in (["--json", "runs", "list"], ["runs", "--json", "list"], ["runs", "list", "--json"]):
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out) == []
    for words in (["--format", "json", "runs", "list"], ["runs", "list", "--format=json"]):
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out) == []


def test_a_missing_module_is_one_error_without_a_traceback(tmp_project: Path, capsys) -> None:
    (tmp_project / "pipelines_one.py").write_text("")
    assert main(["list", "--module", "pipelines_on"]) == 2
    said = capsys.readouterr().err
    assert "There is no module 'pipelines_on'." in said
    assert "did you mean 'pipelines_one'?" in said
    assert "Traceback" not in said


def test_debug_shows_the_traceback_of_an_error(tmp_project: Path, capsys) -> None:
    assert main(["--debug", "list", "--module", "not_there"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "There is no module 'not_there'." in said


def test_json_mode_gives_errors_as_json(tmp_project: Path, capsys) -> None:
    assert main(["list", "--module", "not_there", "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    told = json.loads(said.err)
    assert told["code"] == "FLOW208"
    assert "not_there" in told["error"]


def test_an_unexpected_error_is_one_line_that_names_debug(tmp_project: Path, capsys, monkeypatch) -> None:
    from ematix_flow.cli import runs

    def broken(args, console):
        raise ZeroDivisionError("division by zero, password=hunter2")

    monkeypatch.setattr(runs, "run", broken)
    assert main(["runs", "list"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("unexpected error: ZeroDivisionError: division by zero")
    assert "--debug" in said
    assert "hunter2" not in said


def test_errors_have_the_exit_code_of_their_family() -> None:
    assert exit_code(UnknownName("x")) == 2
    assert exit_code(InvalidDeclaration("x")) == 2
    assert exit_code(MissingSecret("x")) == 2
    assert exit_code(EngineFailed("x")) == 1


def test_an_interrupted_command_ends_with_130_and_one_line(tmp_project: Path) -> None:
    (tmp_project / "slow_pipelines.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "ematix_flow", "list", "--module", "slow_pipelines"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        assert process.stderr.readline() == "importing\n", "what the module prints is part of the story"
        process.send_signal(signal.SIGINT)
        _, story = process.communicate(timeout=30)
    assert process.returncode == 130
    assert story == "interrupted\n"


def test_a_reader_that_goes_away_is_no_error(tmp_project: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    asked = subprocess.run(
        [sys.executable, "-m", "ematix_flow", "completion", "bash"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert asked.stderr == ""


def test_list_shows_names_kinds_and_schedules_sorted(tmp_project: Path, capsys) -> None:
    (tmp_project / "declared_pipelines.py").write_text(
        "from __future__ import annotations\n"
        "from typing import Annotated\n"
        "from ematix_flow import BigInt, ematix, pk\n"
        "@ematix.table(schema='main')\n"
        "class Copied:\n"
        "    id: Annotated[BigInt, pk()]\n"
        "@ematix.pipeline(target=Copied, mode='append', schedule='0 6 * * *')\n"
        "def zebra(conn):\n"
        "    return 'SELECT 1 AS id'\n"
        "@ematix.pipeline(target=Copied, mode='append')\n"
        "def aardvark(conn):\n"
        "    return 'SELECT 1 AS id'\n"
        "@ematix.transform(name='middle')\n"
        "def tidy(conn):\n"
        "    return None\n"
    )
    assert main(["list", "--module", "declared_pipelines"]) == 0
    lines = [line.split(None, 2) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["aardvark", "pipeline", "(unscheduled)"],
        ["middle", "transform", "(unscheduled)"],
        ["zebra", "pipeline", "0 6 * * *"],
    ]


def test_completion_for_bash_completes_commands_options_and_values() -> None:
    script = flow("completion", "bash").stdout
    program = f"""
{script}
complete_at() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _flow; echo "${{COMPREPLY[@]}}"; }}
complete_at flow va
complete_at flow runs ""
complete_at flow runs list --stat
complete_at flow runs list --status fa
complete_at flow completion z
complete_at flow --json runs list --pipeline ""
"""
    asked = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    answers = asked.stdout.splitlines()
    assert answers[0] == "validate"
    assert answers[1].split()[:2] == ["list", "show"]
    assert answers[2] == "--status"
    assert answers[3] == "failed"
    assert answers[4] == "zsh"
    assert answers[5] == "", "after --pipeline comes a name that only the user knows"
    assert asked.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_knows_every_command_in_every_shell(shell: str, capsys) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in COMMANDS:
        assert f"'{command.name}" in script or f" {command.name}" in script
    assert "--status" in script or "-l status" in script


def test_a_value_outside_the_known_ones_is_answered_with_the_nearest(capsys) -> None:
    parser = CommandParser(prog="flow try")
    parser.add_argument("--mode", choices=("append", "merge"))
    with pytest.raises(SystemExit):
        parser.parse_args(["--mode", "appendd"])
    assert "unknown --mode 'appendd'; did you mean 'append'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run-due --interval 1e12", "more than a century"),
        ("run-due --now 0001-01-01", "not in the years"),
        ("run-due --now 0001-01-01T00:00:00+05:00", "no time"),
        ("run --lease-seconds 1e300 p", "more than a century"),
        ("backfill p --from 0001-01-01 --to 2026-01-01", "not in the years"),
        ("backfill p --from 2026-01-01 --to 9999-12-31", "not in the years"),
        ("backfill p --from 2026-01-01 --to 2026-01-02 --parallel ²", "not a number from 1 to 64"),
        ("scheduler --interval 1e12", "more than a century"),
        ("scheduler --poll-interval 1e300", "more than a century"),
        ("scheduler --leader-lease-seconds 1e13", "more than a century"),
        ("scheduler --lease-seconds 0", "not a number above zero"),
        ("scheduler --lease-seconds soon", "not a number above zero"),
        ("scheduler --drain-seconds -1", "not a number of at least zero"),
        ("scheduler --drain-seconds nan", "not a number of at least zero"),
        ("scheduler --health-port 99999", "no port"),
        ("scheduler --health-port -1", "no port"),
    ],
)
def test_numbers_that_no_clock_can_follow_are_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--module", "nowhere"]) == 2
    assert said in capsys.readouterr().err
