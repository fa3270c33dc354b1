"""What we were told is wrong: variables, files, modules, options that contradict each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow import BigInt, Target, ematix
from tests.bad_input.conftest import PASSWORD, Bench

LOAD = """
@ematix.pipeline(target=People, target_connection={connection!r}, mode="merge")
def load(conn):
    return SOURCE
"""


def test_a_variable_that_is_not_set_is_named(bench: Bench, people: str) -> None:
    before = bench.picture()
    declared = '@ematix.connection\nclass lake:\n    kind = "postgres"\n    url = "postgres://u:${LAKE_PW}@h/db"\n'
    outcome = bench.run(people + declared + LOAD.format(connection="lake"))
    bench.refused(outcome, "LAKE_PW", "lake", code=2)
    assert bench.picture() == before
    bench.recorded_as_failed(in_target=False)


def test_a_variable_that_is_not_set_in_a_file_is_named_with_its_entry(bench: Bench, people: str) -> None:
    Path(".ematix-flow.toml").write_text(f'[connections.lake]\nurl = "postgres://u:{PASSWORD}@${{LAKE_HOST}}/db"\n')
    outcome = bench.run(people + LOAD.format(connection="lake"))
    bench.refused(outcome, "LAKE_HOST", ".ematix-flow.toml", code=2)
    bench.recorded_as_failed(in_target=False)


def test_an_entry_that_nobody_uses_may_be_broken(bench: Bench, people: str) -> None:
    Path(".ematix-flow.toml").write_text('[connections.lake]\nurl = "postgres://u:${LAKE_PW}@h/db"\n')
    assert bench.run(people + LOAD.format(connection="warehouse")).code == 0


def test_a_file_that_is_no_toml_says_where(bench: Bench, people: str) -> None:
    before = bench.picture()
    Path(".ematix-flow.toml").write_text(f'[connections.lake\nurl = "postgres://u:{PASSWORD}@h/db"\n')
    outcome = bench.run(people + LOAD.format(connection="lake"))
    bench.refused(outcome, ".ematix-flow.toml", "line 1", code=2, fix=None)
    assert bench.picture() == before


def test_a_key_that_a_connection_does_not_have_suggests_the_nearest(bench: Bench, people: str) -> None:
    Path(".ematix-flow.toml").write_text(
        f'[connections.lake]\nkind = "postgres"\nurll = "postgres://u:{PASSWORD}@h/d"\n'
    )
    outcome = bench.run(people + LOAD.format(connection="lake"))
    bench.refused(outcome, "urll", code=2, fix="url")


def test_a_kind_that_does_not_exist_suggests_the_nearest(bench: Bench, people: str) -> None:
    Path(".ematix-flow.toml").write_text('[connections.lake]\nkind = "postgress"\nurl = "postgres://u@h/d"\n')
    outcome = bench.run(people + LOAD.format(connection="lake"))
    bench.refused(outcome, "postgress", code=2, fix="postgres")


@pytest.mark.parametrize("dsn", ["oracle://u:hush-hush-91@h/db", "hush-hush-91", "postgres://u:hush-hush-91@/"])
def test_an_address_that_cannot_be_used_is_not_repeated_with_its_secret(
    bench: Bench, people: str, monkeypatch: pytest.MonkeyPatch, dsn: str
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_LAKE", dsn)
    outcome = bench.run(people + LOAD.format(connection="lake"))
    bench.refused(outcome, "lake", code=2, fix=None)


def test_a_backend_that_is_not_there_yet_says_so(bench: Bench, people: str) -> None:
    before = bench.picture()
    declared = '@ematix.connection\nclass bus:\n    kind = "kafka"\n    bootstrap_servers = "broker:9092"\n'
    outcome = bench.run(people + declared + LOAD.format(connection="bus"))
    bench.refused(outcome, "kafka", code=1, fix=None)
    assert bench.picture() == before


MODULES = {
    "syntax": ("def broken(:\n    pass\n", "SyntaxError"),
    "import": ("import no_such_package_here\n", "no_such_package_here"),
    "raises": ("raise RuntimeError('on purpose')\n", "RuntimeError: on purpose"),
    "exits": ("import sys\nsys.exit(3)\n", "SystemExit"),
    "name": ("load = undefined_thing\n", "undefined_thing"),
}


@pytest.mark.parametrize("what", sorted(MODULES))
def test_a_module_that_does_not_import_says_which_line(bench: Bench, what: str) -> None:
    before = bench.picture()
    text, says = MODULES[what]
    outcome = bench.run(text)
    bench.refused(outcome, "could not be imported", says, "  at     bad_input_", code=2, fix=None)
    assert bench.picture() == before


def test_a_module_that_is_not_there_suggests_the_nearest(bench: Bench, people: str) -> None:
    name = bench.module(people)
    bench.refused(bench.flow("run", "--module", f"{name}x", "load"), "There is no module", code=2, fix=name)


@pytest.mark.parametrize("name", ["", "1abc", "a b", "../etc/passwd", "os; import sys", "a..b", "ä\n"])
def test_a_module_name_that_is_none_is_refused(bench: Bench, name: str) -> None:
    bench.refused(bench.flow("run", "--module", name, "load"), code=2)


def test_a_module_error_does_not_repeat_a_secret(bench: Bench) -> None:
    outcome = bench.run(f"raise RuntimeError('cannot reach postgres://u:{PASSWORD}@h/db')\n")
    bench.refused(outcome, "RuntimeError", code=2, fix=None)


OPTIONS = {
    "ttl without scd2": 'mode="merge", ttl_seconds=60',
    "event time without scd2": 'mode="merge", event_timestamp_column="age"',
    "deletes with append": 'mode="append", handle_deletes="hard"',
    "unknown deletes": 'mode="merge", handle_deletes="maybe"',
    "hard deletes with scd2": 'mode="scd2", handle_deletes="hard"',
    "incremental merge": 'mode="merge", incremental_column="age"',
    "incremental without a column": 'mode="append", incremental=True',
    "compare the key": 'mode="merge", compare_columns=["id"]',
    "a name instead of names": 'mode="merge", keys="id"',
    "unknown drift": 'mode="merge", on_drift="ignore"',
    "unknown path": 'mode="merge", force_path="fast"',
    "unknown engine": 'mode="merge", engine="sparc"',
    "one reader in parallel": 'mode="merge", parallel_reads=1',
    "unknown lateness": 'mode="scd2", late_arrivals="drop"',
    "a schedule that is none": 'mode="merge", schedule="every day"',
    "a retry option that is none": 'mode="merge", retry={"attempts": 3}',
    "no mode": "",
    "two targets": 'mode="merge", targets=[]',
    "a source without schema": 'mode="merge", source_table="people"',
    "a step that is none": 'mode="merge", transforms_pre=["x"]',
    "an after-load step that is none": 'mode="merge", transforms_post=[5]',
    "negative ttl": 'mode="scd2", ttl_seconds=-1',
    "soft deletes with merge": 'mode="merge", handle_deletes="soft"',
}


@pytest.mark.parametrize("what", sorted(OPTIONS))
def test_options_that_cannot_be_are_refused_before_anything_connects(
    bench: Bench, people: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", f"postgres://u:{PASSWORD}@127.0.0.1:1/nowhere")
    outcome = bench.run(
        people + f'@ematix.pipeline(target=People, target_connection="warehouse", {OPTIONS[what]})\n'
        "def load(conn):\n    return SOURCE\n"
    )
    bench.refused(outcome, "  at     bad_input_", code=(1, 2), fix=None)
    assert bench.run_log() == []


def test_the_key_of_a_streams_target_is_not_passed_over_by_a_batch_load() -> None:
    @ematix.table(schema="main")
    class Numbers:
        id: BigInt

    target = Target(table=Numbers, connection="warehouse", primary_key=["id"])
    with pytest.raises(ValueError, match="primary_key= on a Target is for streams"):
        ematix.pipeline(targets=[target], mode="append")(lambda conn: "SELECT 1")


@pytest.mark.parametrize("body", ["return 5", "return None", "return ['SELECT 1']"])
def test_a_function_that_gives_no_source(bench: Bench, people: str, body: str) -> None:
    before = bench.picture()
    outcome = bench.run(
        people + f'@ematix.pipeline(target=People, target_connection="warehouse", mode="merge")\n'
        f"def load(conn):\n    {body}\n"
    )
    bench.refused(outcome, "Pipeline 'load'", "(load)", code=1)
    assert bench.picture() == before
    bench.recorded_as_failed(in_target=False)


def test_a_function_that_raises_is_named(bench: Bench, people: str) -> None:
    before = bench.picture()
    outcome = bench.run(
        people + '@ematix.pipeline(target=People, target_connection="warehouse", mode="merge")\n'
        f"def load(conn):\n    raise KeyError('postgres://u:{PASSWORD}@h/db')\n"
    )
    bench.refused(outcome, "The function of pipeline 'load' raised KeyError", "(load)", code=1, fix=None)
    assert bench.picture() == before
    bench.recorded_as_failed(in_target=False)
