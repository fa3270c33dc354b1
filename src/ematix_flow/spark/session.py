"""The one Spark session of this process: opened, reused, tuned and closed here, and nowhere else.

Where Spark runs (this machine, a cluster, Spark Connect) differs only in this file. Settings are laid over each other:
our profile, what the connectors need, the user's `spark-defaults.conf`, the user's `[spark.conf]`; lists are merged.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ematix_flow.backends import jars
from ematix_flow.backends.java import find_java
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.errors import AlreadyRunning, EngineFailed, MissingDriver
from ematix_flow.spark import appcds, jvm, native, worker_daemon
from ematix_flow.spark.cluster_sizes import tasks_at_once
from ematix_flow.spark.connectors import checked_for_jars, is_connect, require_on_server
from ematix_flow.spark.failures import explain
from ematix_flow.spark.reach import require_master, shown
from ematix_flow.spark.remote import forget_remote_mode, open_remote, set_what_can_be_set
from ematix_flow.spark.sizes import (
    SHUFFLE_PARTITIONS,
    cores_of,
    local_sizes,
    memory_mb_of_machine,
    processors,
    shuffle_partitions,
    tasks_here,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

APP_NAME = "ematix-flow"
LIST_KEYS = frozenset(
    {
        "spark.jars",
        "spark.jars.packages",
        "spark.jars.excludes",
        "spark.jars.repositories",
        "spark.sql.extensions",
        "spark.files",
        "spark.submit.pyFiles",
    }
)
"""Settings that hold a list: ours and the user's are merged, never overwritten."""

REDACTED = r"(?i)secret|password|passwd|passphrase|token|credential|(access|api|private|account)[._-]?key|dsn|\bsas\b"

SQL_PROFILE: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Falling back to rows loses nulls and types without a word; a refusal is better.
    "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    # Standard timestamps, which every other reader of Parquet understands, instead of INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""What a session means to a load, wherever it runs: one clock, strict casts, Arrow between Spark and Python."""

CORE_PROFILE: Mapping[str, str] = {
    "spark.scheduler.mode": "FAIR",
    "spark.redaction.regex": REDACTED,
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_PROFILE: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    # Without pages to show them on, finished jobs need not be remembered: a stream has some in every batch.
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "100",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.locality.wait": "0",
}


Place = Literal["spark", "remote", "native"]
_PLACES: Mapping[Place, str] = {
    "spark": "Spark in this process",
    "remote": "a Spark Connect server",
    "native": "the native engine",
}


@dataclass
class _Own:
    """The session that this module made, and what it was made for."""

    session: SparkSession
    needs: SessionNeeds
    settings: SparkSettings
    driver: jvm.DriverJvm | None
    wants_archive: bool
    place: Place = "spark"
    is_recording: bool = False
    tasks_at_once: int | None | Literal["unknown"] = "unknown"


_lock = threading.RLock()
_own: _Own | None = None
_place: Place | None = None
_is_registered = False


def open_session(needs: SessionNeeds, settings: SparkSettings, *, record_to: Path | None = None) -> SparkSession:
    """The session to run plans in: the one there is, or a new one with everything the plans need.

    A session that somebody else made (a notebook, a managed platform) is used as it is. One of ours that lacks jars
    is replaced by one that has them, unless it is busy. Safe to call from any thread, as often as needed.

    Args:
        needs: The union over all plans of this process.
        settings: The user's `[spark]` section.
        record_to: Where Java is to record a class archive when it ends; only `spark/training.py` says this.

    Raises:
        MissingDriver: pyspark, pandas or pyarrow is not installed.
        MissingJava: No usable Java.
        MissingJar: A connector is not there and cannot be brought.
        EngineFailed: Spark did not start.
    """
    global _own, _place
    with _lock:
        wanted = _wanted_place(settings)
        if _own is not None and _own.driver is not None and _own.driver.process.poll() is not None:
            jvm.forget_dead_session()  # Java was killed under it
            _own.driver.end()
            _own = None
        if _own is not None and _is_alive(_own.session):
            _refuse_to_mix(_own.place, wanted)
            _refuse_to_move(_own.settings, settings)
            if _fits(_own, needs):
                return _own.session
            _refuse_if_busy(_own.session)
            needs = _own.needs | needs
            log.debug("The Spark session is replaced by one with jars %s", sorted(needs.jars))
            _close()
        _own = None
        _require_packages()
        session = _somebody_elses_session()
        if session is not None:
            if wanted == "native":
                _refuse_to_mix("remote" if is_connect(session) else "spark", wanted)
            return checked_for_jars(session, needs)
        if _place is not None:
            _refuse_to_mix(_place, wanted)
        if wanted == "spark":
            forget_remote_mode()
            _own = _open_classic(needs, settings, record_to)
        else:
            address = native.start() if wanted == "native" else str(settings.remote)
            told = {key: value for key, value in settings.conf.items() if key.startswith("spark.sql.")}
            session = open_remote(address, APP_NAME, _merged([SQL_PROFILE, needs.conf, told]))
            _own = _Own(session, SessionNeeds(), settings, None, wants_archive=False, place=wanted)
        _place = wanted
        _register_closing()
        _require_connectors(_own, needs)
        return _own.session


def use_session(session: SparkSession, needs: SessionNeeds) -> SparkSession:
    """A session that the user names, or that a DataFrame of the user's lives in; it is never stopped or replaced.

    Raises:
        EngineFailed: it has been stopped.
        MissingJar: it lacks a connector.
    """
    with _lock:
        if not _is_alive(session):
            raise EngineFailed(
                "The Spark session of this DataFrame has been stopped, and its rows went with it.",
                fix="make the DataFrame again in a session that runs",
            )
        return session if _own is not None and session is _own.session else checked_for_jars(session, needs)


def fit_to_job(session: SparkSession, read_bytes: int | None) -> None:
    """Tell a session of ours how large the next job is; what the user or the cluster has set stays as it is."""
    with _lock:
        if _own is None or session is not _own.session or read_bytes is None:
            return
        if _own.tasks_at_once == "unknown":
            _own.tasks_at_once = _tasks_at_once(_own)
        if _own.tasks_at_once is not None:
            session.conf.set(SHUFFLE_PARTITIONS, str(shuffle_partitions(_own.tasks_at_once, read_bytes)))


def _tasks_at_once(own: _Own) -> int | None:
    """How many tasks of a session run at the same time; None where parts of a shuffle are not ours to choose."""
    if own.place == "remote" or own.driver is None:  # without a driver: the native engine, or a `spark-submit`
        return tasks_at_once(own.session, is_connect=True) if own.place == "remote" else None
    conf = own.session.sparkContext.getConf()
    master = conf.get("spark.master", "local[*]")
    if master.startswith("local"):
        return tasks_here(master, conf.get(SHUFFLE_PARTITIONS))
    return tasks_at_once(own.session, is_connect=False)


def close_session() -> None:
    """Stop the session that `open_session` made; one that somebody else made is left alone. May be called always."""
    with _lock:
        _close()


def archive_of(needs: SessionNeeds, settings: SparkSettings) -> appcds.Archive | None:
    """The class archive that a session with these needs uses; None where archives are not used."""
    launch = launch_of(needs, settings)
    return appcds.archive_for(launch, _spark_version()) if launch.is_direct and appcds.mode() != "off" else None


def launch_of(needs: SessionNeeds, settings: SparkSettings) -> jvm.Launch:
    """How Java is started for a session with these needs."""
    return _launch(needs, settings, jvm.find_spark_home())


def session_conf(
    needs: SessionNeeds, settings: SparkSettings, *, defaults: Mapping[str, str], cores: int, memory_mb: int
) -> dict[str, str]:
    """Every Spark setting of a session that we start; a pure function of what it is given.

    Args:
        needs: What connectors need; jar families bring their own extensions and settings.
        settings: The user's wishes.
        defaults: The user's `spark-defaults.conf`.
        cores: Processors of this machine.
        memory_mb: Memory of this machine.
    """
    told = {**defaults, **settings.conf}
    master = settings.master or told.get("spark.master") or "local[*]"
    layers: list[Mapping[str, str]] = [{"spark.app.name": APP_NAME}, SQL_PROFILE, CORE_PROFILE]
    if master.startswith("local"):
        layers += [LOCAL_PROFILE, local_sizes(master, cores, memory_mb)]
    layers.append(
        {
            "spark.pyspark.python": sys.executable,
            "spark.pyspark.driver.python": sys.executable,
        }
    )
    families = [jars.family(name, _spark_version()) for name in sorted(needs.jars)]
    layers += [dict(family.conf) for family in families]
    layers.append(needs.conf)
    extensions = [name for family in families for name in family.extensions] + list(needs.extensions)
    if extensions:
        layers.append({"spark.sql.extensions": ",".join(dict.fromkeys(extensions))})
    layers += [defaults, settings.conf, {"spark.master": master}]
    if settings.driver_memory:
        layers.append({"spark.driver.memory": settings.driver_memory})
    return _merged(layers)


# ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _open_classic(needs: SessionNeeds, settings: SparkSettings, record_to: Path | None) -> _Own:
    """Start Java, then import pyspark while Java comes up, then join the two."""
    spark_home = jvm.find_spark_home()
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # started by spark-submit: the JVM is there and waits for us
        return _Own(_build(_conf(needs, settings, spark_home)), needs, settings, None, wants_archive=False)
    launch = _launch(needs, settings, spark_home)
    require_master(launch.conf["spark.master"])
    archive = appcds.archive_for(launch, _spark_version()) if launch.is_direct and appcds.mode() != "off" else None
    is_archived = archive is not None and archive.is_usable and record_to is None
    flags = [f"-XX:ArchiveClassesAtExit={record_to}"] if record_to is not None else []
    if settings.short_job and record_to is None:
        flags.append("-XX:TieredStopAtLevel=1")  # quick code at once; slower code in the long run
    try:
        driver, gateway = _started(launch, [*archive.using(), *flags] if archive and is_archived else flags)
    except EngineFailed:
        if archive is None or not is_archived:
            raise
        log.debug("Java did not start with the class archive; trying without")
        driver, gateway = _started(launch, flags)
        archive.discard()  # only now is it known that the archive was to blame, and not a setting
        is_archived = False
    try:
        jvm.adopt(gateway)
        session = _build(launch.conf)
    except BaseException:
        jvm.forget_gateway()
        driver.end()
        raise
    wants_archive = archive is not None and not is_archived and record_to is None and appcds.mode() == "auto"
    return _Own(session, needs, settings, driver, wants_archive, is_recording=record_to is not None)


def _started(launch: jvm.Launch, flags: list[str]) -> tuple[jvm.DriverJvm, Any]:
    """A JVM that answers, and PySpark's gateway to it; one that does not answer is ended."""
    driver = jvm.DriverJvm(launch, extra_options=flags)
    try:
        # The import that takes longest happens here, while Java comes up.
        import pyspark.sql  # noqa: F401

        return driver, driver.connect()
    except BaseException:
        driver.end()
        raise


def _launch(needs: SessionNeeds, settings: SparkSettings, spark_home: Path) -> jvm.Launch:
    """How Java is to be started for these needs; fetches jars that are not there yet."""
    conf = _conf(needs, settings, spark_home)
    master = conf["spark.master"]
    paths = jars.resolve(needs.jars, _spark_version())
    if paths and not master.startswith("local"):
        # A cluster gets the jars shipped; on this machine the class path spares copying them for each start.
        conf = _merged([conf, {"spark.jars": ",".join(str(path) for path in paths)}])
        paths = []
    launch = jvm.Launch(
        java=find_java(),
        spark_home=spark_home,
        conf=conf,
        class_path=tuple(paths),
        options=tuple(_jvm_options(cores_of(master, processors()))),
        is_direct=jvm.can_start_directly(spark_home, master, conf, _spark_version()),
    )
    return launch if launch.is_direct else _for_spark_submit(launch)


def _for_spark_submit(launch: jvm.Launch) -> jvm.Launch:
    """The same start in the words of `spark-submit`: flags and class path become settings."""
    quiet = [option for option in launch.options if option.startswith("-D")]
    conf = dict(launch.conf)
    conf["spark.driver.extraJavaOptions"] = " ".join([*quiet, conf.get("spark.driver.extraJavaOptions", "")]).strip()
    if launch.class_path:
        users = filter(None, [conf.get("spark.driver.extraClassPath")])
        conf["spark.driver.extraClassPath"] = os.pathsep.join([*map(str, launch.class_path), *users])
    return replace(launch, conf=conf, class_path=())


def _conf(needs: SessionNeeds, settings: SparkSettings, spark_home: Path) -> dict[str, str]:
    conf = session_conf(
        needs,
        settings,
        defaults=jvm.spark_defaults(spark_home),
        cores=processors(),
        memory_mb=memory_mb_of_machine(),
    )
    if conf["spark.master"].startswith("local"):
        # Spark would make a folder `spark-warehouse` wherever the user happens to stand.
        conf.setdefault("spark.sql.warehouse.dir", (jars.cache_root() / "warehouse").as_uri())
        conf |= worker_daemon.settings(conf)
    return conf


def _build(conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]
    _silence_query_reports()
    builder = SparkSession.builder
    builder._options.clear()  # what an earlier session in this process was told must not leak into this one
    try:
        with jvm.keeping_interrupts():
            return builder.config(map=dict(conf)).getOrCreate()
    except Exception as exc:
        raise (explain(exc) or exc) from exc


def _silence_query_reports() -> None:
    """PySpark prints each failed query with its values to stderr; we raise one error without them instead."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _wanted_place(settings: SparkSettings) -> Place:
    if settings.engine == "native":
        return "native"
    return "remote" if settings.remote else "spark"


def _refuse_to_move(there: SparkSettings, wanted: SparkSettings) -> None:
    """A session stays where it was opened. Local masters differ only in size; the one that is there will do."""
    places = [settings.remote or settings.master or "local[*]" for settings in (there, wanted)]
    if wanted.engine == "spark" and places[0] != places[1] and not all(place.startswith("local") for place in places):
        raise AlreadyRunning(
            f"The session of this process is at {shown(places[0])}, and rows are to be moved at {shown(places[1])}.",
            fix="run the pipeline in a process of its own, for example with `flow run`",
        )


def _refuse_to_mix(there: Place, wanted: Place) -> None:
    if there != wanted:
        raise AlreadyRunning(
            f"This process already moves rows with {_PLACES[there]}; PySpark cannot change to {_PLACES[wanted]}.",
            fix="run the pipeline in a process of its own, for example with `flow run`",
        )


def _require_packages() -> None:
    """Say early what is missing: Spark's own message about pyarrow comes late, from a worker."""
    for name in ("pyspark", "pandas", "pyarrow"):
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            raise MissingDriver(
                f"Moving rows with Spark needs '{name}', which is not installed.",
                fix='pip install "ematix-flow[spark]"',
            )


# ── sessions that are there ──────────────────────────────────────────────────────────────────────────────────────────


def _somebody_elses_session() -> SparkSession | None:
    """The active session of this process, if pyspark is imported and one is alive."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession() or _session_of_process()
    return session if session is not None and _is_alive(session) else None


def _session_of_process() -> SparkSession | None:
    """The session for threads that have not asked for one, and so have none that is active."""
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    if not is_remote():
        return getattr(SparkSession, "_instantiatedSession", None)
    from pyspark.sql.connect.session import SparkSession as Client

    return getattr(Client, "_default_session", None)


def _require_connectors(own: _Own, needs: SessionNeeds) -> None:
    """Make sure that a server has the connectors of a plan; each is asked for once."""
    if own.place == "remote":
        require_on_server(own.session, needs.jars - own.needs.jars)
        own.needs = own.needs | needs


def _is_alive(session: SparkSession) -> bool:
    stopped = getattr(session, "is_stopped", None)  # Spark Connect
    if isinstance(stopped, bool):
        return not stopped
    context = getattr(session, "_sc", None)
    return context is not None and context._jsc is not None and not context._jsc.sc().isStopped()


def _fits(own: _Own, needs: SessionNeeds) -> bool:
    """Whether our session serves these needs; settings that can still be set are set."""
    if own.driver is None:
        _require_connectors(own, needs)
        set_what_can_be_set(own.session, {k: v for k, v in needs.conf.items() if k not in own.settings.conf})
        return True
    if not needs.jars <= own.needs.jars or not set(needs.extensions) <= set(own.needs.extensions):
        return False
    missing = {key: value for key, value in needs.conf.items() if own.session.conf.get(key, None) != value}
    settable = {key: value for key, value in missing.items() if own.session.conf.isModifiable(key)}
    users = own.settings.conf
    if any(key not in settable and key not in users and key not in LIST_KEYS for key in missing):
        return False
    set_what_can_be_set(own.session, {key: value for key, value in settable.items() if key not in users})
    return True


def _refuse_if_busy(session: SparkSession) -> None:
    if session.sparkContext.statusTracker().getActiveJobsIds() or session.streams.active:
        raise AlreadyRunning(
            "The Spark session of this process lacks connectors for this pipeline and is busy with another one.",
            fix="run the two pipelines in separate processes, or one after the other",
        )


# ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _close() -> None:
    global _own
    own, _own = _own, None
    if own is None:
        return
    try:
        if _is_alive(own.session):
            own.session.stop()
    except Exception as exc:  # the JVM died first; there is nothing left to stop
        log.debug("Spark was gone before it could be stopped: %s", type(exc).__name__)
    if own.place == "native":
        native.stop()
    if own.driver is None:
        return
    jvm.forget_gateway()
    # Java writes the archive while it ends, and on a busy machine that takes minutes.
    own.driver.end(timeout_s=900 if own.is_recording else 60)
    if own.wants_archive:
        _ask_for_archive(own)


def _ask_for_archive(own: _Own) -> None:
    archive = archive_of(own.needs, own.settings)
    if archive is not None and archive.is_worth_recording:
        appcds.record_in_background(own.needs, own.settings)


def _register_closing() -> None:
    global _is_registered
    if not _is_registered:
        atexit.register(close_session)
        _is_registered = True


# ── sizes and flags ──────────────────────────────────────────────────────────────────────────────────────────────────

_LOG4J = """\
status = off
rootLogger.level = ${sys:ematix.flow.spark.log:-fatal}
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = ${sys:ematix.flow.spark.log:-fatal}
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{1}
"""
# Spark logs each failed task with its values before we can raise one clear error, hence "fatal" by default. Without the
# same level on the gateway's logger, Spark believes to be in a shell and prints how to change it.


def _jvm_options(cores: int) -> list[str]:
    options = [
        "-Xlog:disable",  # warnings of the JVM about archives go to stdout otherwise
        "-XX:-UsePerfData",
        "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={_log_configuration()}",
    ]
    if log.isEnabledFor(logging.DEBUG):
        options.append("-Dematix.flow.spark.log=warn")
    if cores <= 2:
        options.append("-XX:+UseParallelGC")  # concurrent collectors only take turns with the job on so few cores
    return options


def _log_configuration() -> Path:
    """Our log4j settings as a file; written when missing or different, under its name only when complete."""
    path = jars.cache_root() / "log4j2-quiet.properties"
    try:
        if path.read_text(encoding="ascii") == _LOG4J:
            return path
    except OSError:
        path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    partial.write_text(_LOG4J, encoding="ascii")
    os.replace(partial, path)
    return path


def _merged(layers: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Layers over each other, the last one wins; list-valued settings collect every entry once."""
    conf: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.items():
            if key in LIST_KEYS and conf.get(key):
                entries = [entry.strip() for entry in f"{conf[key]},{value}".split(",")]
                value = ",".join(dict.fromkeys(filter(None, entries)))
            conf[key] = str(value)
    return conf


def _spark_version() -> str:
    return metadata.version("pyspark")
