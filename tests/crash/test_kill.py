"""`kill -9` of a real run at every point that matters; the run after it must leave exactly the right rows."""

from __future__ import annotations

import os

import pytest

from tests.crash.conftest import MODES, Project

EXPECTED = [(n, f"name {n}", n) for n in range(1, 201)]


def changed(project: Project) -> list[tuple[int, str, int]]:
    """Change the source a little, as it would between two runs."""
    project.execute(f"UPDATE {project.source} SET name = 'new' WHERE id <= 3")
    return [(n, "new" if n <= 3 else f"name {n}", n) for n in range(1, 201)]


def expected_after(mode: str, first: list[tuple[int, str, int]], second: list[tuple[int, str, int]]) -> list[object]:
    """The target after a whole first load and a second one that was killed and repeated."""
    if mode == "append":
        return sorted([*first, *second])
    if mode == "scd2":
        return sorted([*first, *(row for row in second if row not in first)])
    return sorted(second)


# Every cell costs three processes, two of them with Spark: the whole matrix is for `make prove`.
PUSHDOWN_POINTS = ["mid-settle", "settled"]
SPARK_POINTS = [("append", "staged"), ("merge", "mid-settle")]
if os.environ.get("EMATIX_PROVE"):
    PUSHDOWN_POINTS = ["opened", "planned", "mid-settle", "settled"]
    SPARK_POINTS = [
        (mode, point) for mode in MODES for point in ("opened", "planned", "staged", "mid-settle", "settled")
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", PUSHDOWN_POINTS)
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


@pytest.mark.parametrize(("mode", "point"), SPARK_POINTS)
def test_a_killed_spark_load_is_made_good_by_the_next_run(project: Project, mode: str, point: str) -> None:
    name = f"{mode}_spark"
    code, said = project.run(name, crash_at=point)
    assert code == -9, said
    assert project.staging_exists() == (point in ("staged", "mid-settle"))
    code, said = project.run(name)
    assert code == 0, said
    assert project.rows() == EXPECTED
    assert "running" not in project.history()
    assert not project.staging_exists(), "the staging of the dead run is gone"


def test_a_run_killed_in_the_middle_of_staging_leaves_nothing_behind(project: Project) -> None:
    if project.is_postgres or project.is_mysql:
        project.env["CRASH_SOURCE"] = f"SELECT id, name, amount FROM raw.source WHERE {project.slow}"
    process = project.start("append_spark")
    project.kill_when(process, project.staging_exists)
    project.env["CRASH_SOURCE"] = f"SELECT id, name, amount FROM {project.source}"
    code, said = project.run("append_spark")
    assert code == 0, said
    assert project.rows() == EXPECTED
    assert not project.staging_exists()


def test_a_task_killed_after_its_copy_committed_doubles_nothing(project: Project) -> None:
    (project.folder / ".ematix-flow.toml").write_text('[spark]\nmaster = "local[2,3]"\n')
    code, said = project.run("append_spark", crash_at="task-copied")
    assert code == 0, said
    assert project.rows() == EXPECTED


def test_of_two_runs_at_once_one_wins_and_the_other_says_so(project: Project) -> None:
    project.env["CRASH_SOURCE"] = f"SELECT id, name, amount FROM {project.source} WHERE {project.slow}"
    first = project.start("append_pushdown")
    while not project.is_leased("append_pushdown"):
        assert first.poll() is None, first.communicate()
    # A process with a run log of its own knows nothing of the first one's claim: the target keeps it out.
    elsewhere = Project(project.folder, project.url, {**project.env, "EMATIX_FLOW_RUN_LOG_URL": "memory://"})
    code, said = elsewhere.run("append_pushdown")
    out, err = first.communicate(timeout=180)
    assert first.returncode == 0, out + err
    assert code == 1
    assert "Another run of 'append_pushdown'" in said
    assert project.rows() == EXPECTED


def test_the_staging_of_a_living_run_is_left_alone(project: Project) -> None:
    project.env["CRASH_SOURCE"] = f"SELECT id, name, amount FROM {project.source} WHERE {project.slow}"
    staging = project.start("append_spark")
    while not project.is_leased("append_spark"):
        assert staging.poll() is None, staging.communicate()
    quick = Project(
        project.folder, project.url, {**project.env, "CRASH_SOURCE": f"SELECT id, name, amount FROM {project.source}"}
    )
    code, said = quick.run("other_pushdown")
    assert code == 0, said
    out, err = staging.communicate(timeout=180)
    assert staging.returncode == 0, out + err
    assert project.rows() == EXPECTED
