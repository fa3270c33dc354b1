"""`kill -9` of a real run at every point that matters; the run after it must leave exactly the right rows."""

from __future__ import annotations

import pytest

from tests.crash.conftest import MODES, Project

EXPECTED = [(n, f"name {n}", n) for n in range(1, 201)]


def changed(project: Project) -> list[tuple[int, str, int]]:
    """Change the source a little, as it would between two runs."""
    table = "raw.source" if project.is_postgres else "source"
    project.execute(f"UPDATE {table} SET name = 'new' WHERE id <= 3")
    return [(n, "new" if n <= 3 else f"name {n}", n) for n in range(1, 201)]


def expected_after(mode: str, first: list[tuple[int, str, int]], second: list[tuple[int, str, int]]) -> list[object]:
    """The target after a whole first load and a second one that was killed and repeated."""
    if mode == "append":
        return sorted([*first, *second])
    if mode == "scd2":
        return sorted([*first, *(row for row in second if row not in first)])
    return sorted(second)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", ["opened", "planned", "mid-settle", "settled"])
def test_a_killed_pushdown_is_made_good_by_the_next_run(project: Project, mode: str, point: str) -> None:
    name = f"{mode}_pushdown"
    assert project.run(name)[0] == 0
    second = changed(project)
    before = project.rows()
    code, said = project.run(name, crash_at=point)
    assert code == -9, said
    committed = point == "settled"
    assert project.rows() == (expected_after(mode, EXPECTED, second) if committed else before)
    code, said = project.run(name)
    assert code == 0, said
    assert project.rows() == expected_after(mode, EXPECTED, second)
    assert project.history()[-1] == "success"
    assert "running" not in project.history()


@pytest.mark.parametrize(
    ("mode", "point"),
    [("append", "staged"), ("append", "mid-settle"), ("append", "settled"), ("truncate", "staged"), ("merge", "staged")]
    + [("scd2", "staged")],
)
def test_a_killed_spark_load_is_made_good_by_the_next_run(project: Project, mode: str, point: str) -> None:
    name = f"{mode}_spark"
    code, said = project.run(name, crash_at=point)
    assert code == -9, said
    if point == "staged":
        assert project.staging_exists()
    code, said = project.run(name.replace("spark", "pushdown") if mode != "append" else name)
    assert code == 0, said
    if mode == "append" or point == "settled":
        assert project.rows() == EXPECTED
    code, said = project.run(name)
    assert code == 0, said
    assert project.rows() == (sorted([*EXPECTED, *EXPECTED]) if mode == "append" else EXPECTED)
    assert not project.staging_exists(), "the staging of the dead run is gone"


def test_a_run_killed_in_the_middle_of_staging_leaves_nothing_behind(project: Project) -> None:
    if project.is_postgres:
        project.env["CRASH_SOURCE"] = "SELECT id, name, amount FROM raw.source WHERE pg_sleep(0.02) IS NOT NULL"
    process = project.start("append_spark")
    project.kill_when(process, project.staging_exists)
    project.env["CRASH_SOURCE"] = "SELECT id, name, amount FROM " + ("raw.source" if project.is_postgres else "source")
    code, said = project.run("append_spark")
    assert code == 0, said
    assert project.rows() == EXPECTED
    assert not project.staging_exists()


def test_a_task_killed_after_its_copy_committed_doubles_nothing(project: Project) -> None:
    if not project.is_postgres:
        project.env["CRASH_SOURCE"] = "SELECT id, name, amount FROM source"
    (project.folder / ".ematix-flow.toml").write_text('[spark]\nmaster = "local[2,3]"\n')
    code, said = project.run("append_spark", crash_at="task-copied")
    assert code == 0, said
    assert project.rows() == EXPECTED


def test_of_two_runs_at_once_one_wins_and_the_other_says_so(project: Project) -> None:
    assert project.run("append_pushdown", "--run-id", "first")[0] == 0
    if project.is_postgres:
        project.env["CRASH_SOURCE"] = "SELECT id, name, amount FROM raw.source WHERE pg_sleep(0.01) IS NOT NULL"
    started = [project.start("append_spark"), project.start("append_spark")]
    said = [process.communicate(timeout=180) for process in started]
    codes = sorted(process.returncode for process in started)
    loads = codes.count(0)
    assert codes in ([0, 1], [0, 0]), said
    if codes == [0, 1]:
        assert any("Another run of 'append_spark'" in err for _, err in said), said
    # Whoever was refused changed nothing; two that did not meet are two loads.
    assert project.rows() == sorted(EXPECTED * (1 + loads))


def test_the_staging_of_a_living_run_is_left_alone(project: Project) -> None:
    if not project.is_postgres:
        pytest.skip("SQLite has one writer; its spools are covered by the lock file tests")
    project.env["CRASH_SOURCE"] = "SELECT id, name, amount FROM raw.source WHERE pg_sleep(0.03) IS NOT NULL"
    slow = project.start("append_spark")
    deadline_rows = "SELECT id, name, amount FROM raw.source"
    while not project.staging_exists():
        assert slow.poll() is None, slow.communicate()
    other = {**project.env, "CRASH_SOURCE": deadline_rows}
    quick = Project(project.folder, project.url, other)
    code, said = quick.run("merge_pushdown")
    assert code in (0, 1), said
    out, err = slow.communicate(timeout=120)
    assert slow.returncode == 0, out + err
