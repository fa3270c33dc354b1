"""The other side is not there, or says no: drivers, Java, addresses, passwords."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.bad_input.conftest import PASSWORD, Bench

LOAD = """
@ematix.pipeline(target=People, target_connection="warehouse", mode="merge", engine={engine!r})
def load(conn):
    return SOURCE
"""
BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {package!r}:
            raise ImportError(f"no module named {{name!r}}")

sys.meta_path.insert(0, Blocker())
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_driver_that_is_not_installed_is_named_with_the_line_that_installs_it(bench: Bench, people: str) -> None:
    before = bench.picture()
    module = bench.module(people + LOAD.format(engine="auto"))
    outcome = bench.process("run", "--module", module, "load", program=BLOCK.format(package="psycopg"))
    bench.refused(
        outcome,
        "The postgres backend needs 'psycopg'. [FLOW402]",
        "(load)",
        code=1,
        fix='pip install "ematix-flow[postgres]"',
    )
    assert bench.picture() == before
    bench.recorded_as_failed(in_target=False)


def test_spark_that_is_not_installed_is_named_with_the_line_that_installs_it(bench: Bench, people: str) -> None:
    before = bench.picture()
    module = bench.module(people + LOAD.format(engine="spark"))
    outcome = bench.process("run", "--module", module, "load", program=BLOCK.format(package="pyspark"))
    bench.refused(outcome, "pyspark", code=1, fix='pip install "ematix-flow[spark]"')
    assert bench.picture() == before
    bench.recorded_as_failed()


def test_java_that_is_not_there_is_missed_by_a_load_that_needs_spark(bench: Bench, people: str) -> None:
    before = bench.picture()
    module = bench.module(people + LOAD.format(engine="spark"))
    Path("empty").mkdir()
    # Java is also looked for in the usual folders of a machine; those must look empty too.
    program = "import ematix_flow.backends.java as java\njava._usual_homes = lambda: iter(())\n"
    outcome = bench.process(
        "run", "--module", module, "load", program=program, PATH=f"{os.getcwd()}/empty", JAVA_HOME=""
    )
    bench.refused(outcome, "Spark needs Java 17 or 21", "[FLOW404]", "(load)", code=1, fix="install Java 17")
    assert bench.picture() == before
    bench.recorded_as_failed()


def test_a_java_home_without_java_is_named(bench: Bench, people: str) -> None:
    before = bench.picture()
    module = bench.module(people + LOAD.format(engine="spark"))
    outcome = bench.process("run", "--module", module, "load", EMATIX_FLOW_JAVA_HOME="/no/such/folder")
    bench.refused(outcome, "EMATIX_FLOW_JAVA_HOME", "[FLOW404]", code=1, fix="Java 17")
    assert bench.picture() == before
    bench.recorded_as_failed()


def test_a_load_that_is_pushed_down_needs_no_java(bench: Bench, people: str) -> None:
    module = bench.module(people + LOAD.format(engine="auto"))
    outcome = bench.process(
        "run", "--module", module, "load", program=BLOCK.format(package="pyspark"), PATH="/nonexistent", JAVA_HOME=""
    )
    assert outcome.code == 0, outcome
    assert '"path": "same_db"' in outcome.out


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("what", ["port", "host", "password", "user", "database"])
def test_a_server_that_cannot_be_had_is_named_without_its_password(
    bench: Bench, people: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bench.picture()
    whole = urlsplit(bench.url)
    address = {
        "port": bench.url.replace(f":{whole.port}/", f":{free_port()}/"),
        "host": bench.url.replace("127.0.0.1", "no-such-host.invalid"),
        "password": bench.url.replace(PASSWORD, f"{PASSWORD}-wrong"),
        "user": bench.url.replace(str(whole.username), "nobody_at_all"),
        "database": bench.url + "_not_there",
    }[what]
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", address)
    outcome = bench.run(people + LOAD.format(engine="auto"))
    bench.refused(
        outcome,
        "PostgreSQL connection 'warehouse' failed",
        "[FLOW401]",
        "(load)",
        code=1,
        fix="flow connections check warehouse",
    )
    assert bench.picture() == before
    bench.recorded_as_failed(in_target=False)


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("what", ["port", "user"])
def test_a_source_that_cannot_be_had_leaves_the_target_alone(
    bench: Bench, people: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bench.picture()
    address = bench.url.replace(str(urlsplit(bench.url).username), "nobody_at_all")
    if what == "port":
        address = bench.url.replace(f":{urlsplit(bench.url).port}/", f":{free_port()}/")
    monkeypatch.setenv("EMATIX_FLOW_DSN_ORIGIN", address)
    text = LOAD.format(engine="auto").replace('mode="merge"', 'mode="merge", source_connection="origin"')
    outcome = bench.run(people + text)
    bench.refused(outcome, "PostgreSQL connection 'origin' failed", code=1)
    assert bench.picture() == before
    bench.recorded_as_failed()


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("what", ["no folder", "a folder", "no database"])
def test_a_file_that_cannot_be_opened_is_named(
    bench: Bench, people: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("text.db").write_text("this is no database, and long enough to be told from an empty file " * 20)
    Path("folder.db").mkdir()
    name = {"no folder": "nowhere/x.db", "a folder": "folder.db", "no database": "text.db"}[what]
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", f"sqlite:///{os.getcwd()}/{name}")
    outcome = bench.run(people + LOAD.format(engine="auto"))
    bench.refused(outcome, name, "[FLOW401]", code=1)
    assert bench.run_log()[-1][:2] == ("load", "failed")


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_user_without_the_right_to_write_is_told_so(bench: Bench, people: str) -> None:
    role = urlsplit(bench.url).username
    bench.execute(
        "CREATE TABLE analytics.people_dim (id bigint PRIMARY KEY, name text, age integer)",
        "INSERT INTO analytics.people_dim VALUES (9, 'kept', 1)",
        f"GRANT USAGE ON SCHEMA analytics TO {role}",
        f"GRANT SELECT ON analytics.people_dim TO {role}",
        as_admin=True,
    )
    before = bench.picture()
    outcome = bench.run(people + LOAD.format(engine="auto"))
    bench.refused(outcome, "people_dim", code=1)
    assert bench.picture() == before
    bench.recorded_as_failed()
