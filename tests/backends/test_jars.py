"""The table of jars, the cache, and fetching from a real HTTP repository."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ematix_flow.backends import jars
from ematix_flow.errors import MissingJar, UnknownName

JAR_BYTES = b"PK not really a jar, but whole"
AVRO = jars.JARS["4.0"]["avro"].coordinates[0]


class Repository:
    """A Maven repository on this machine: answers by path, remembers what it was asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.failures: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.headers: list[str | None] = []
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                repository.asked.append(self.path)
                repository.headers.append(self.headers.get("Authorization"))
                waiting = repository.failures.get(self.path)
                code = waiting.pop(0) if waiting else 200 if self.path in repository.files else 404
                body = repository.files.get(self.path, b"") if code == 200 else b""
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def add(self, coordinate: str, body: bytes = JAR_BYTES, *, sha1: str | None = None) -> str:
        path = "/" + jars.Jar("", coordinate).repository_path
        self.files[path] = body
        self.files[path + ".sha1"] = (sha1 or hashlib.sha1(body, usedforsecurity=False).hexdigest()).encode()
        return path


@pytest.fixture
def repository() -> Iterator[Repository]:
    made = Repository()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own: no local Maven repository, no cache, no waiting between attempts."""
    for name in ("EMATIX_FLOW_JARS", "EMATIX_FLOW_CACHE_DIR", "EMATIX_FLOW_MAVEN", "EMATIX_FLOW_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("ematix_flow.backends.jars.time.sleep", lambda _: None)
    return tmp_path


@pytest.fixture
def served(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """The repository with the avro jar in it, and the variable that points at it."""
    repository.add(AVRO)
    monkeypatch.setenv("EMATIX_FLOW_MAVEN", repository.url)
    return repository


def test_the_table_holds_whole_coordinates_and_a_probe_for_each_family() -> None:
    for table in jars.JARS.values():
        for family in table.values():
            assert family.probe
            assert all(coordinate.count(":") in (2, 3) for coordinate in family.coordinates)


def test_jars_are_looked_up_by_spark_minor_version() -> None:
    assert jars.jars_for(["kafka"], "4.0.5") == jars.jars_for(["kafka"], "4.0.99")
    with pytest.raises(MissingJar, match=r"No connector versions are known for Spark 9\.1"):
        jars.jars_for(["kafka"], "9.1.0")


def test_a_jar_of_two_families_is_listed_once() -> None:
    listed = [jar.coordinate for jar in jars.jars_for(["kafka", "avro", "kafka"], "4.0.5")]
    assert len(listed) == len(set(listed)) == 5


def test_an_unknown_family_gets_a_suggestion() -> None:
    with pytest.raises(UnknownName) as caught:
        jars.jars_for(["dleta"], "4.0.5")
    assert caught.value.fix == "did you mean 'delta'?"


def test_the_cache_is_kept_per_spark_version_and_can_be_moved(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ematix_flow.backends.jars.sys.platform", "linux")
    assert jars.jar_cache_dir("4.0.5") == own_home / ".cache/ematix-flow/jars/4.0"
    monkeypatch.setenv("EMATIX_FLOW_CACHE_DIR", str(own_home / "elsewhere"))
    assert jars.jar_cache_dir("4.0.5") == own_home / "elsewhere/jars/4.0"
    monkeypatch.setenv("EMATIX_FLOW_JARS", str(own_home / "jars"))
    assert jars.jar_cache_dir("4.0.5") == own_home / "jars"


def test_fetch_brings_a_jar_once_and_check_trusts_it(served: Repository) -> None:
    seen: list[jars.Progress] = []
    (fetched,) = jars.fetch(["avro"], progress=seen.append)
    assert fetched.path.read_bytes() == JAR_BYTES
    assert (fetched.present, fetched.sha1_ok, fetched.bytes) == (True, True, len(JAR_BYTES))
    assert (seen[-1].done, seen[-1].total) == (len(JAR_BYTES), len(JAR_BYTES))
    asked = len(served.asked)
    jars.fetch(["avro"])
    assert len(served.asked) == asked
    assert [path.name for path in fetched.path.parent.glob(".*")] == []


def test_fetch_without_names_takes_the_shipped_families_only(served: Repository) -> None:
    assert {state.name for state in jars.fetch()} == set(jars.SHIPPED_FAMILIES)


def test_a_damaged_jar_is_seen_by_check_and_mended_by_fetch(served: Repository) -> None:
    (fetched,) = jars.fetch(["avro"])
    fetched.path.write_bytes(b"half")
    assert [state.sha1_ok for state in jars.check(["avro"])] == [False]
    assert [state.sha1_ok for state in jars.fetch(["avro"])] == [True]
    assert fetched.path.read_bytes() == JAR_BYTES


def test_a_download_that_does_not_match_its_checksum_never_gets_its_name(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.add(AVRO, sha1="0" * 40)
    monkeypatch.setenv("EMATIX_FLOW_MAVEN", repository.url)
    with pytest.raises(MissingJar, match="does not match its checksum"):
        jars.fetch(["avro"])
    assert [path.name for path in jars.jar_cache_dir().iterdir()] == []


def test_a_repository_that_stumbles_is_asked_again(served: Repository) -> None:
    served.failures["/" + jars.Jar("", AVRO).repository_path] = [503, 502]
    assert [state.sha1_ok for state in jars.fetch(["avro"])] == [True]


def test_a_jar_that_is_not_there_is_not_asked_for_again(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_MAVEN", repository.url)
    with pytest.raises(MissingJar, match="answered 404"):
        jars.fetch(["avro"])
    assert len(repository.asked) == 1


def test_without_network_the_error_names_coordinates_and_command(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_MAVEN", "http://127.0.0.1:1/never:secret@x")
    with pytest.raises(MissingJar) as caught:
        jars.resolve(["avro"], "4.0.5")
    assert AVRO in caught.value.message
    assert caught.value.fix == "run `flow jars fetch avro` with network access"
    assert "secret" not in str(caught.value)


def test_offline_nothing_is_asked(served: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_OFFLINE", "1")
    with pytest.raises(MissingJar, match="EMATIX_FLOW_OFFLINE"):
        jars.resolve(["avro"], "4.0.5")
    assert served.asked == []


def test_resolve_fetches_what_is_missing_and_works_offline_afterwards(
    served: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = jars.resolve(["avro"], "4.0.5")
    monkeypatch.setenv("EMATIX_FLOW_OFFLINE", "1")
    assert jars.resolve(["avro"], "4.0.5") == [path]


def test_the_local_maven_repository_is_asked_first(served: Repository, own_home: Path) -> None:
    local = own_home / ".m2/repository" / jars.Jar("", AVRO).repository_path
    local.parent.mkdir(parents=True)
    local.write_bytes(JAR_BYTES)
    sum_of_it = local.with_name(local.name + ".sha1")
    sum_of_it.write_text(hashlib.sha1(JAR_BYTES, usedforsecurity=False).hexdigest(), encoding="ascii")
    assert [state.sha1_ok for state in jars.fetch(["avro"])] == [True]
    assert served.asked == []


def test_a_broken_jar_in_the_local_maven_repository_is_not_copied(served: Repository, own_home: Path) -> None:
    local = own_home / ".m2/repository" / jars.Jar("", AVRO).repository_path
    local.parent.mkdir(parents=True)
    local.write_bytes(b"cut")
    local.with_name(local.name + ".sha1").write_text("0" * 40, encoding="ascii")
    (fetched,) = jars.fetch(["avro"])
    assert fetched.path.read_bytes() == JAR_BYTES


SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0">
  <servers><server><id>house</id><username>ann</username><password>pw</password></server></servers>
  <mirrors>
    <mirror><id>blocker</id><mirrorOf>external:http:*</mirrorOf><url>http://0.0.0.0/</url><blocked>true</blocked></mirror>
    <mirror><id>house</id><mirrorOf>{covers}</mirrorOf><url>{url}/</url></mirror>
  </mirrors>
</settings>"""


@pytest.mark.parametrize("covers", ["central", "*", "external:*", "internal,central"])
def test_the_mirror_of_mavens_settings_is_used_with_its_login(
    repository: Repository, own_home: Path, covers: str
) -> None:
    repository.add(AVRO)
    (own_home / ".m2").mkdir()
    (own_home / ".m2/settings.xml").write_text(SETTINGS.format(url=repository.url, covers=covers), encoding="utf-8")
    assert [state.sha1_ok for state in jars.fetch(["avro"])] == [True]
    assert set(repository.headers) == {"Basic YW5uOnB3"}


@pytest.mark.parametrize("covers", ["other", "*,!central"])
def test_a_mirror_of_something_else_is_not_used(own_home: Path, covers: str) -> None:
    (own_home / ".m2").mkdir()
    settings = own_home / ".m2/settings.xml"
    settings.write_text(SETTINGS.format(url="http://127.0.0.1:1", covers=covers), encoding="utf-8")
    assert jars._repository().base == jars.MAVEN_CENTRAL


def test_two_fetches_at_once_leave_one_whole_jar(served: Repository) -> None:
    errors: list[BaseException] = []

    def fetch_it() -> None:
        try:
            jars.fetch(["avro"])
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=fetch_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [state.sha1_ok for state in jars.check(["avro"])] == [True]
