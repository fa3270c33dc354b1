"""Names that nobody knows: one error, the nearest known name, nothing touched."""

from __future__ import annotations

import pytest

from tests.bad_input.conftest import Bench

LOAD = """
@ematix.pipeline(target=People, target_connection="warehouse", mode="merge")
def load(conn):
    return SOURCE
"""


def declared(options: str, source: str = "SOURCE") -> str:
    return f"""
@ematix.pipeline(target=People, {options})
def load(conn):
    return {source}
"""


def test_a_pipeline_that_is_not_declared_suggests_the_nearest(bench: Bench, people: str) -> None:
    before = bench.picture()
    outcome = bench.run(people + LOAD, "laod")
    bench.refused(outcome, "declares no pipeline or workflow named 'laod'.", code=2, fix="did you mean 'load'?")
    assert bench.picture() == before
    assert bench.history() == []


def test_a_pipeline_far_from_every_name_lists_what_there_is(bench: Bench, people: str) -> None:
    bench.refused(bench.run(people + LOAD, "zebra"), "'zebra'", code=2, fix="it declares: 'load'")


@pytest.mark.parametrize("option", ["target_connection", "source_connection"])
def test_a_connection_that_is_not_defined_suggests_the_nearest(bench: Bench, people: str, option: str) -> None:
    before = bench.picture()
    others = 'mode="merge", target_connection="warehouse", ' if option == "source_connection" else 'mode="merge", '
    outcome = bench.run(people + declared(f'{others}{option}="warehous"'))
    bench.refused(
        outcome,
        "Connection 'warehous' is not defined. [FLOW201]",
        "(load)",
        "tried  EMATIX_FLOW_DSN_WAREHOUS · ./.ematix-flow.toml",
        code=2,
        fix="did you mean 'warehouse'?",
    )
    assert bench.picture() == before
    bench.recorded_as_failed(in_target=False)


@pytest.mark.parametrize(
    "option",
    [
        'keys=["idd"]',
        'update_columns=["naem"]',
        'compare_columns=["naem"]',
        'column_map={"naem": "name"}',
        'mode="scd2", event_timestamp_column="agee"',
        'mode="append", incremental_column="agee"',
    ],
)
def test_an_option_that_names_an_undeclared_column_suggests_the_nearest(bench: Bench, people: str, option: str) -> None:
    before = bench.picture()
    mode = "" if "mode=" in option else 'mode="merge", '
    outcome = bench.run(people + declared(f'target_connection="warehouse", {mode}{option}'))
    bench.refused(outcome, "is not a column of", "bad_input_", code=2, fix="did you mean '")
    assert bench.picture() == before


def test_a_column_that_the_source_does_not_deliver_suggests_the_nearest(bench: Bench, people: str) -> None:
    before = bench.picture()
    source = f'"SELECT id, name, age AS agee FROM {bench.raw}.people"'
    outcome = bench.run(people + declared('target_connection="warehouse", mode="merge"', source))
    bench.refused(outcome, "The source does not deliver 'age'", code=1, fix="did you mean 'agee'?")
    assert bench.picture() == before
    bench.recorded_as_failed()


def test_a_column_that_the_source_table_does_not_have(bench: Bench, people: str) -> None:
    before = bench.picture()
    source = f'"SELECT id, nome, age FROM {bench.raw}.people"'
    outcome = bench.run(people + declared('target_connection="warehouse", mode="merge"', source))
    bench.refused(outcome, "nome", code=1)
    assert bench.picture() == before
    bench.recorded_as_failed()


def test_a_source_table_that_is_not_there(bench: Bench, people: str) -> None:
    before = bench.picture()
    outcome = bench.run(
        people + f'@ematix.pipeline(target=People, target_connection="warehouse", mode="merge", '
        f'source_table="{bench.raw}.persons")\ndef load(): pass\n'
    )
    bench.refused(outcome, "persons", code=1)
    assert bench.picture() == before
    bench.recorded_as_failed()


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [('modee="merge"', "mode"), ('target_conection="warehouse"', "target_connection"), ('key=["id"]', "keys")],
)
def test_an_option_that_does_not_exist_suggests_the_nearest(bench: Bench, people: str, wrong: str, hint: str) -> None:
    before = bench.picture()
    bench.refused(bench.run(people + declared(f'mode="merge", {wrong}')), code=2, fix=f"did you mean '{hint}'?")
    assert bench.picture() == before


def test_a_mode_that_does_not_exist_suggests_the_nearest(bench: Bench, people: str) -> None:
    outcome = bench.run(people + declared('target_connection="warehouse", mode="marge"'))
    bench.refused(outcome, "Unknown mode 'marge'", code=2, fix="did you mean 'merge'?")


def test_a_table_that_does_not_declare_a_type_correctly(bench: Bench) -> None:
    outcome = bench.run("class T(ManagedTable):\n    __schema__ = 'a'\n    __tablename__ = 'b'\n    id: int\n")
    bench.refused(outcome, "column 'id' of 'T'", code=2)


@pytest.mark.parametrize("words", [["rum"], ["run", "--modul", "x", "load"], ["run", "load"]])
def test_a_command_line_that_makes_no_sense(bench: Bench, words: list[str]) -> None:
    outcome = bench.flow(*words)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert "flow" in outcome.err


def test_an_after_load_transform_that_is_not_declared_suggests_the_nearest(bench: Bench, people: str) -> None:
    text = people + "@ematix.transform()\ndef refresh(conn): pass\n"
    outcome = bench.run(
        text + declared('target_connection="warehouse", mode="merge", transforms_post=[ematix.transform_ref("refesh")]')
    )
    bench.refused(outcome, "'refesh'", code=2, fix="did you mean 'refresh'?")
    assert bench.run_log()[-1][:2] == ("load", "failed")
    assert [entry[:2] for entry in bench.history()] == [("load", "failed"), ("load", "transform_failed")]
