"""The session: its settings, its reuse, its silence, its class archive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ematix_flow.backends import jars
from ematix_flow.backends.java import JavaHome, find_java
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.errors import InvalidConfig, MissingJar
from ematix_flow.spark import session as sessions
from ematix_flow.spark.appcds import Archive, archive_for, is_accepted_by_java, mode, training_command
from ematix_flow.spark.jvm import Launch, can_start_directly, find_spark_home, spark_defaults, to_properties
from ematix_flow.spark.session import LIST_KEYS, open_session, session_conf

NO_NEEDS, NO_WISHES = SessionNeeds(), SparkSettings()


def conf(
    needs: SessionNeeds = NO_NEEDS,
    settings: SparkSettings = NO_WISHES,
    *,
    defaults: dict[str, str] | None = None,
    cores: int = 4,
    memory_mb: int = 16_384,
) -> dict[str, str]:
    return session_conf(needs, settings, defaults=defaults or {}, cores=cores, memory_mb=memory_mb)


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_local_session_is_sized_by_the_machine() -> None:
    assert conf()["spark.master"] == "local[*]"
    assert conf(cores=6)["spark.sql.shuffle.partitions"] == "12"
    assert conf(settings=SparkSettings(master="local[3]"))["spark.sql.shuffle.partitions"] == "6"
    assert conf()["spark.driver.memory"] == "2048m"
    assert conf(memory_mb=3000)["spark.driver.memory"] == "1500m"
    assert conf(cores=16, memory_mb=65_536)["spark.driver.memory"] == "8192m"
    assert conf(cores=16, memory_mb=8_192)["spark.driver.memory"] == "4096m"
    assert conf(settings=SparkSettings(master="local[2]"), cores=16, memory_mb=65_536)["spark.driver.memory"] == "2048m"
    assert conf()["spark.ui.enabled"] == "false"


def test_a_cluster_keeps_its_own_sizes_and_addresses() -> None:
    given = conf(settings=SparkSettings(master="spark://host:7077"))
    assert given["spark.master"] == "spark://host:7077"
    assert not {"spark.ui.enabled", "spark.driver.host", "spark.driver.memory", "spark.sql.shuffle.partitions"} & set(
        given
    )
    assert given["spark.sql.session.timeZone"] == "UTC"


def test_the_users_settings_win_over_needs_and_spark_defaults_over_ours() -> None:
    needs = SessionNeeds(conf={"spark.a": "need", "spark.b": "need"})
    settings = SparkSettings(conf={"spark.a": "user", "spark.ui.enabled": "true"}, driver_memory="3g")
    given = conf(needs, settings, defaults={"spark.b": "file", "spark.locality.wait": "7s", "spark.a": "file"})
    assert (given["spark.a"], given["spark.b"], given["spark.locality.wait"]) == ("user", "file", "7s")
    assert (given["spark.ui.enabled"], given["spark.driver.memory"]) == ("true", "3g")


@pytest.mark.parametrize("key", sorted(LIST_KEYS))
def test_lists_are_merged_and_hold_each_entry_once(key: str) -> None:
    given = conf(SessionNeeds(conf={key: "a, b"}), SparkSettings(conf={key: "b,c"}), defaults={key: "d"})
    assert given[key] == "a,b,d,c"


def test_a_jar_family_brings_its_extension_and_settings() -> None:
    given = conf(SessionNeeds(jars=frozenset({"delta"}), extensions=("x.Y",)))
    assert given["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,x.Y"
    assert given["spark.sql.catalog.spark_catalog"] == "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def test_needs_of_two_plans_are_united() -> None:
    united = SessionNeeds(frozenset({"a"}), {"k": "1"}, ("x",)) | SessionNeeds(frozenset({"b"}), {"l": "2"}, ("x", "y"))
    assert united == SessionNeeds(frozenset({"a", "b"}), {"k": "1", "l": "2"}, ("x", "y"))


def test_a_mistyped_master_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"'local\[two\]' is no Spark master"):
        conf(settings=SparkSettings(master="local[two]"))


def test_settings_survive_the_way_through_a_properties_file() -> None:
    text = to_properties({"spark.a b": " C:\\x", "spark.b": "1\n2", "spark.c": "ü=:#"})
    assert text == "spark.a\\ b=\\ C:\\\\x\nspark.b=1\\n2\nspark.c=ü=:#\n"


def test_spark_defaults_are_read_in_both_spellings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# x\nspark.a   1 2\nspark.b=c=d\n\n", encoding="utf-8")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert spark_defaults(tmp_path) == {"spark.a": "1 2", "spark.b": "c=d"}


def test_java_is_started_by_spark_submit_where_that_may_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = find_spark_home()
    assert can_start_directly(home, "local[*]", {}, "4.0.5")
    assert not can_start_directly(home, "yarn", {}, "4.0.5")
    assert not can_start_directly(home, "local[*]", {}, "4.9.0")
    assert not can_start_directly(home, "local[*]", {"spark.driver.extraLibraryPath": "/x"}, "4.0.5")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-env.sh").touch()
    assert not can_start_directly(home, "local[*]", {}, "4.0.5")


# ── the session itself ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_session_has_our_profile(spark: SparkSession) -> None:
    wanted = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.scheduler.mode": "FAIR",
        "spark.pyspark.python": sys.executable,
    }
    assert {key: spark.conf.get(key) for key in wanted} == wanted
    assert spark.sparkContext.appName == "ematix-flow"
    assert spark.sql("SELECT current_timezone()").head()[0] == "UTC"  # type: ignore[index]


def test_workers_run_this_python_and_find_our_package(spark: SparkSession) -> None:
    def report(batches):
        import sys

        import pyarrow

        import ematix_flow.errors

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable], "name": [ematix_flow.errors.__name__]})

    rows = spark.range(1, numPartitions=1).mapInArrow(report, "python string, name string").collect()
    assert [(os.path.realpath(row.python), row.name) for row in rows] == [
        (os.path.realpath(sys.executable), "ematix_flow.errors")
    ]


def test_opening_again_gives_the_same_session(spark: SparkSession) -> None:
    assert open_session(NO_NEEDS, NO_WISHES) is spark


def test_threads_that_open_at_once_get_one_session(spark: SparkSession) -> None:
    found: list[SparkSession] = []
    threads = [threading.Thread(target=lambda: found.append(open_session(NO_NEEDS, NO_WISHES))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {id(one) for one in found} == {id(spark)}


def test_a_setting_that_can_still_be_set_needs_no_new_session(spark: SparkSession) -> None:
    key = "spark.sql.files.maxPartitionBytes"
    before = spark.conf.get(key)
    try:
        assert open_session(SessionNeeds(conf={key: "1048576"}), NO_WISHES) is spark
        assert spark.conf.get(key) == "1048576"
    finally:
        spark.conf.set(key, before)  # type: ignore[arg-type]


def test_a_session_of_somebody_else_is_used_but_not_fought(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_own", None)  # from here on nobody knows that we made it
    assert open_session(NO_NEEDS, NO_WISHES) is spark
    with pytest.raises(MissingJar) as caught:
        open_session(SessionNeeds(jars=frozenset({"hadoop-azure"})), NO_WISHES)  # which no test here brings
    assert "spark.jars.packages=org.apache.hadoop:hadoop-azure:" in str(caught.value.fix)
    sessions.close_session()
    assert spark.range(3).count() == 3


SCRIPT = """
import signal
def asked_for(*_): ...
signal.signal(signal.SIGINT, asked_for)
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.spark.session import open_session, close_session
settings = SparkSettings(master="local[1]", short_job=True, conf={"spark.x": "top" + "secret"})
spark = open_session(SessionNeeds(), settings)
print(spark.range(10).count())
try:
    spark.createDataFrame([("rowvalue",)], "t string").selectExpr("cast(t as int)").collect()
except Exception as exc:
    print(type(exc).__name__)
import subprocess
print(signal.getsignal(signal.SIGINT) is asked_for)
print("top" + "secret" in subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True).stdout)
"""


def run_script(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script in a Python of its own; source folders on the path, as under pytest."""
    paths = os.pathsep.join([str(Path(sessions.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": paths, "EMATIX_FLOW_APPCDS": "use", **environment},
        check=False,
    )


def test_a_run_says_nothing_but_its_answer_and_leaves_no_java_behind(tmp_path: Path) -> None:
    done = run_script(SCRIPT + "import pyspark; print(pyspark.SparkContext._gateway.proc.pid)")
    count, failure, keeps_interrupts, leaked, pid = done.stdout.split()
    assert (count, failure, leaked) == ("10", "NumberFormatException", "False")
    assert keeps_interrupts == "True", "a stream that Ctrl-C is to end finishes its batch"
    assert done.stderr == ""
    assert not Path(f"/proc/{pid}").exists()


VOUCHED_GARBAGE = """
import json
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.errors import EngineFailed
from ematix_flow.spark import session
settings = SparkSettings(master="local[1]", short_job=True, driver_memory={memory!r})
archive = session.archive_of(SessionNeeds(), settings)
archive.path.parent.mkdir(parents=True)
archive.path.write_bytes(b"garbage" * 1000)
stat = archive.path.stat()
note = {{"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "accepted": True}}
archive.path.with_suffix(".json").write_text(json.dumps(note))
assert archive.is_usable
try:
    print(session.open_session(SessionNeeds(), settings).range(4).count())
except EngineFailed as exc:
    print(exc.message, archive.is_usable)
"""


def test_a_broken_class_archive_costs_nothing_but_time(tmp_path: Path) -> None:
    """Garbage under the very name, with a note that vouches for it: Java must start all the same."""
    done = run_script(VOUCHED_GARBAGE.format(memory="1g"), EMATIX_FLOW_CACHE_DIR=str(tmp_path))
    assert (done.stdout, done.stderr) == ("4\n", "")


def test_a_java_that_cannot_start_is_told_in_one_error_and_the_archive_is_not_blamed(tmp_path: Path) -> None:
    done = run_script(VOUCHED_GARBAGE.format(memory="1k"), EMATIX_FLOW_CACHE_DIR=str(tmp_path))
    assert done.stdout == "Java ended with code 1 before Spark was up. True\n"


# ── the class archive ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "one.jar").write_bytes(b"1")
    return Launch(JavaHome(tmp_path, "17.0.1", "build 1"), tmp_path, {}, options=("-XX:+UseSerialGC",))


def accept(path: Path) -> bool:
    return path.read_bytes() == b"classes"


def recorded(archive: Archive, content: bytes = b"classes") -> None:
    with archive.recording(accept) as partial:
        assert partial is not None
        partial.write_bytes(content)


def test_an_archive_belongs_to_one_java_spark_and_class_path(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    first = archive_for(launch, "4.0.5")
    assert archive_for(launch, "4.0.5") == first
    (launch.spark_home / "jars" / "two.jar").write_bytes(b"2")
    second = archive_for(launch, "4.0.5")
    (launch.spark_home / "jars" / "two.jar").write_bytes(b"22")
    third = archive_for(launch, "4.0.5")
    other_java = Launch(JavaHome(launch.spark_home, "17.0.1", "build 2"), launch.spark_home, {}, options=launch.options)
    assert len({first, second, third, archive_for(launch, "4.0.6"), archive_for(other_java, "4.0.5")}) == 5


def test_a_recorded_archive_is_usable_until_somebody_touches_it(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "x.jsa")
    assert not archive.is_usable
    recorded(archive)
    assert archive.is_usable
    archive.using()
    assert archive.is_usable
    archive.path.write_bytes(b"classe")
    assert not archive.is_usable


def test_a_recording_that_fails_leaves_no_archive_and_is_not_repeated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    archive = Archive(tmp_path / "x.jsa")
    assert archive.is_worth_recording
    with pytest.raises(RuntimeError), archive.recording(accept) as partial:
        assert partial is not None
        partial.write_bytes(b"half")
        raise RuntimeError
    assert not archive.is_usable
    assert not archive.is_worth_recording
    assert [path.name for path in tmp_path.iterdir()] == ["x.failed"]


def test_an_archive_that_java_was_stopped_over_never_gets_its_name(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "x.jsa")
    recorded(archive, b"clas")
    assert not archive.is_usable
    assert [path.name for path in tmp_path.iterdir()] == ["x.failed"]


def test_java_itself_says_whether_an_archive_is_whole(tmp_path: Path) -> None:
    launch = sessions.launch_of(NO_NEEDS, NO_WISHES)
    half = tmp_path / "half.jsa"
    half.write_bytes(b"\0" * 100_000)
    assert not is_accepted_by_java(launch, half)


def test_only_one_process_records_at_a_time_and_a_dead_one_is_forgotten(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "x.jsa")
    with archive.recording(accept) as first, archive.recording(accept) as second:
        assert first is not None
        assert second is None
        first.write_bytes(b"classes")
    assert archive.is_usable
    archive.discard()
    lock = tmp_path / "x.lock"
    lock.touch()
    os.utime(lock, (time.time() - 3600, time.time() - 3600))
    recorded(archive)
    assert archive.is_usable


def test_a_throw_away_cache_gets_no_recording_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert not Archive(tmp_path / "home" / "x.jsa").is_worth_recording


def test_an_order_to_record_holds_no_setting_that_might_be_secret() -> None:
    settings = SparkSettings(conf={"spark.hadoop.fs.s3a.secret.key": "abc", "spark.driver.extraClassPath": "/x.jar"})
    order = json.loads(training_command(SessionNeeds(frozenset({"kafka"})), settings)[-1])
    assert order == {
        "jars": ["kafka"],
        "master": None,
        "conf": {"spark.driver.extraClassPath": "/x.jar"},
        "driver_memory": None,
    }


def test_an_unknown_archive_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_APPCDS", "maybe")
    with pytest.raises(InvalidConfig, match="EMATIX_FLOW_APPCDS"):
        mode()


def test_the_class_path_starts_with_connectors_and_is_always_the_same() -> None:
    home = find_spark_home()
    launch = Launch(find_java(), home, {}, class_path=(Path("/c.jar"),))
    paths = launch.full_class_path()
    assert paths == launch.full_class_path()
    assert paths[0] == Path("/c.jar")
    assert [path.name for path in paths if path.suffix == ".jar"][1].startswith("slf4j-api")
    assert jars.families("4.0.5")
