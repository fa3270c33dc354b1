"""`flow jars`: what is here, what is missing, what is damaged. The repository is a real one, on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ematix_flow.backends import jars
from ematix_flow.cli.main import main


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Not a word."""


@pytest.fixture
def repository(tmp_project: Path, monkeypatch) -> Iterator[Path]:
    """A Maven repository that holds the avro family, and an empty cache."""
    folder = tmp_project / "repository"
    for jar in jars.jars_for(["avro"]):
        path = folder / jar.repository_path
        path.parent.mkdir(parents=True)
        path.write_bytes(b"PK" + jar.coordinate.encode() * 1000)
        digest = hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
        path.with_name(path.name + ".sha1").write_text(digest)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("EMATIX_FLOW_MAVEN", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("EMATIX_FLOW_JARS", str(tmp_project / "cache"))
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


def test_list_shows_every_family_and_what_is_missing(repository: Path, capsys) -> None:
    assert main(["jars", "list"]) == 0
    said = capsys.readouterr()
    assert "io.delta:delta-spark" in said.out
    assert "missing" in said.out
    assert main(["jars", "list", "avro", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["family"] for row in told} == {"avro"}
    assert {row["state"] for row in told} == {"missing"}


def test_fetch_brings_a_family_and_check_finds_it_whole(repository: Path, capsys) -> None:
    assert main(["jars", "fetch", "avro"]) == 0
    said = capsys.readouterr()
    assert "spark-avro" in said.out
    assert "spark-avro" in said.err, "the story names what is on its way"
    assert main(["jars", "check", "avro", "--json"]) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["ok"] * len(jars.jars_for(["avro"]))
    assert main(["jars", "list", "avro"]) == 0
    assert "here" in capsys.readouterr().out


def test_check_fails_for_a_damaged_jar_and_says_what_to_do(repository: Path, capsys) -> None:
    assert main(["jars", "fetch", "avro"]) == 0
    victim = jars.state(["avro"])[0].path
    victim.write_bytes(victim.read_bytes()[:-1] + b"X")
    capsys.readouterr()
    assert main(["jars", "check"]) == 1
    said = capsys.readouterr()
    assert "damaged" in said.out
    assert "flow jars fetch avro" in said.err
    assert main(["jars", "fetch", "avro"]) == 0
    assert main(["jars", "check", "avro"]) == 0


def test_check_fails_for_a_missing_jar_only_when_its_family_was_named(repository: Path, capsys) -> None:
    assert main(["jars", "check"]) == 0
    assert main(["jars", "check", "avro"]) == 1


def test_a_jar_that_no_repository_has_is_one_error(repository: Path, capsys) -> None:
    assert main(["jars", "fetch", "delta"]) == 1
    said = capsys.readouterr().err
    assert "io.delta:delta-spark" in said
    assert "Traceback" not in said


def test_an_unknown_family_suggests_the_nearest(repository: Path, capsys) -> None:
    assert main(["jars", "fetch", "dleta"]) == 2
    assert "did you mean 'delta'?" in capsys.readouterr().err


def test_fetch_without_a_family_brings_what_this_version_needs(repository: Path, capsys) -> None:
    if jars.SHIPPED_FAMILIES:
        pytest.fail("backends need jars now: let this test fetch them from the repository fixture")
    assert main(["jars", "fetch"]) == 0
    assert "nothing to fetch" in capsys.readouterr().out
