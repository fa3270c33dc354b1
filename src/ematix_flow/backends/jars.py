"""Connector jars: one table of tested versions, a cache folder, and how a jar gets into it.

Spark's connectors are chosen by the Spark minor version, not by the installed patch version, and every jar that must
be on the class path is listed, so that nothing has to be resolved when a pipeline runs. `flow jars fetch` fills the
cache once; afterwards runs need no network.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import logging
import os
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ematix_flow.backends.own_folders import writable_folder
from ematix_flow.errors import MissingJar, UnknownName, closest, listed

log = logging.getLogger(__name__)

MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
DEFAULT_SPARK = "4.0"
SHIPPED_FAMILIES: tuple[str, ...] = ()
"""Families that every project needs, and `flow jars fetch` fetches when none is named: so far none.

What a lake table or a bucket needs is fetched when it is first used, or by name.
"""


@dataclass(frozen=True)
class Family:
    """The jars of one connector.

    Attributes:
        coordinates: Every jar that Spark does not bring itself, as `group:artifact:version`, and `:classifier` where
            the jar is one of several of that version.
        probe: A class that is there exactly when the connector is; asked of sessions that we did not start.
        extensions: What goes into `spark.sql.extensions`.
        conf: Settings without which the connector does not work.
    """

    coordinates: tuple[str, ...]
    probe: str
    extensions: tuple[str, ...] = ()
    conf: tuple[tuple[str, str], ...] = ()


_AWS_PARTS = (
    "annotations",
    "apache-client",
    "arns",
    "auth",
    "aws-core",
    "aws-query-protocol",
    "aws-xml-protocol",
    "checksums",
    "checksums-spi",
    "crt-core",
    "endpoints-spi",
    "http-auth",
    "http-auth-aws",
    "http-auth-spi",
    "http-client-spi",
    "identity-spi",
    "json-utils",
    "metrics-spi",
    "netty-nio-client",
    "profiles",
    "protocol-core",
    "regions",
    "s3",
    "s3-transfer-manager",
    "sdk-core",
    "sts",
    "third-party-jackson-core",
    "utils",
)

_COMMITTERS = "org.apache.spark:spark-hadoop-cloud_2.13:4.0.0"  # output committers, without their dependencies
_OPENSSL = "org.wildfly.openssl:wildfly-openssl:1.1.3.Final"

JARS: Mapping[str, Mapping[str, Family]] = {
    "4.0": {
        "kafka": Family(
            # 4.0.0 for every 4.0.x: the token provider exists in no later patch version.
            (
                "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
                "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
                "org.apache.kafka:kafka-clients:3.9.0",
                "org.apache.commons:commons-pool2:2.12.0",
            ),
            probe="org.apache.spark.sql.kafka010.KafkaSourceProvider",
        ),
        # With everything it uses inside: Amazon's login for the Kafka client, renewed by itself.
        "msk-iam": Family(
            ("software.amazon.msk:aws-msk-iam-auth:2.3.2:all",),
            probe="software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        ),
        "avro": Family(("org.apache.spark:spark-avro_2.13:4.0.0",), probe="org.apache.spark.sql.avro.AvroFileFormat"),
        "delta": Family(
            (
                "io.delta:delta-spark_4.0_2.13:4.4.0",
                "io.delta:delta-storage:4.4.0",
                "io.delta:delta-kernel-api:4.4.0",
                "io.delta:delta-kernel-defaults:4.4.0",
                "io.delta:delta-kernel-unitycatalog:4.4.0",
                "io.unitycatalog:unitycatalog-client:0.6.0",
                "io.unitycatalog:unitycatalog-hadoop:0.6.0",
            ),
            probe="io.delta.sql.DeltaSparkSessionExtension",
            extensions=("io.delta.sql.DeltaSparkSessionExtension",),
            conf=(("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"),),
        ),
        "iceberg": Family(
            ("org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",),
            probe="org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            extensions=("org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",),
        ),
        "hadoop-aws": Family(
            (
                "org.apache.hadoop:hadoop-aws:3.4.1",
                _COMMITTERS,
                _OPENSSL,
                "software.amazon.eventstream:eventstream:1.0.1",
                "org.reactivestreams:reactive-streams:1.0.4",
                # The parts of Amazon's library that are used, 10 MB; the bundle with everything in it has 550.
                *(f"software.amazon.awssdk:{part}:2.24.12" for part in _AWS_PARTS),
            ),
            probe="org.apache.hadoop.fs.s3a.S3AFileSystem",
        ),
        # With everything it uses inside, under names of its own; 4.0 is made for the Hadoop that Spark 4.0 has.
        "gcs-connector": Family(
            ("com.google.cloud.bigdataoss:gcs-connector:4.0.4:shaded", _COMMITTERS),
            probe="com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        ),
        "hadoop-azure": Family(
            # One patch version ahead of Spark's own Hadoop: the first that can speak to accounts without directories.
            ("org.apache.hadoop:hadoop-azure:3.4.2", _COMMITTERS, _OPENSSL),
            probe="org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
        ),
        "postgresql": Family(("org.postgresql:postgresql:42.7.14",), probe="org.postgresql.Driver"),
        "mysql": Family(("com.mysql:mysql-connector-j:9.7.0",), probe="com.mysql.cj.jdbc.Driver"),
        "mariadb": Family(("org.mariadb.jdbc:mariadb-java-client:3.5.11",), probe="org.mariadb.jdbc.Driver"),
        "sqlite": Family(("org.xerial:sqlite-jdbc:3.53.4.0",), probe="org.sqlite.JDBC"),
        "duckdb": Family(("org.duckdb:duckdb_jdbc:2.0.0.0",), probe="org.duckdb.DuckDBDriver"),
    },
}


@dataclass(frozen=True)
class Jar:
    """One jar of one family."""

    name: str
    coordinate: str

    @property
    def file_name(self) -> str:
        """How the jar is called in a repository and in the cache."""
        _, artifact, version, *classifier = self.coordinate.split(":")
        return "-".join([artifact, version, *classifier]) + ".jar"

    @property
    def repository_path(self) -> str:
        """Where a Maven repository keeps it."""
        group, artifact, version, *_ = self.coordinate.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.file_name}"


@dataclass(frozen=True)
class JarState:
    """What the cache holds of one jar. `sha1_ok` is None where no sum was computed."""

    name: str
    coordinate: str
    path: Path
    present: bool
    bytes: int
    sha1_ok: bool | None = None


@dataclass(frozen=True)
class Progress:
    """How far the download of one jar is; `total` is 0 when the server does not say."""

    jar: Jar
    done: int
    total: int


def cache_root() -> Path:
    """The folder for everything that can be made again: `EMATIX_FLOW_CACHE_DIR`, else the platform's own place.

    Where that cannot be written to, a temporary folder of this user's, after one warning.
    """
    told = os.environ.get("EMATIX_FLOW_CACHE_DIR")
    if told:
        return Path(told).expanduser()
    return writable_folder(_own_place(), fix="point EMATIX_FLOW_CACHE_DIR at a folder that lasts")


def _own_place() -> str:
    if sys.platform == "darwin":
        return "~/Library/Caches/ematix-flow"
    if sys.platform == "win32":
        return os.path.join(os.environ.get("LOCALAPPDATA", "~/AppData/Local"), "ematix-flow", "Cache")
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "ematix-flow")


def jar_cache_dir(spark_version: str | None = None) -> Path:
    """Where the jars lie: `EMATIX_FLOW_JARS`, else one folder per Spark minor version in the cache."""
    told = os.environ.get("EMATIX_FLOW_JARS")
    if told:
        return Path(told).expanduser()
    folder = Path("jars") / _minor(spark_version)
    if not os.environ.get("EMATIX_FLOW_CACHE_DIR"):
        # An image may have brought them along, in a home that its user cannot write to.
        brought = os.path.expanduser(os.path.join(_own_place(), folder))
        if os.path.isdir(brought):
            return Path(brought)
    return cache_root() / folder


def family(name: str, spark_version: str | None = None) -> Family:
    """One line of the table.

    Raises:
        UnknownName: The table does not know the family.
        MissingJar: The table does not know this Spark.
    """
    minor = _minor(spark_version)
    table = JARS.get(minor)
    if table is None:
        raise MissingJar(
            f"No connector versions are known for Spark {minor}.",
            fix=f'pip install "pyspark=={max(JARS)}.*", or bring the jars yourself in [spark.conf] "spark.jars"',
        )
    if name not in table:
        raise UnknownName(
            f"There is no jar family '{name}'.", fix=closest(name, table) or f"one of {listed(sorted(table))}"
        )
    return table[name]


def jars_for(names: Iterable[str], spark_version: str | None = None) -> list[Jar]:
    """The jars of these families for this Spark (the installed one unless said), each once."""
    jars: dict[str, Jar] = {}
    for name in sorted(set(names)):
        for coordinate in family(name, spark_version).coordinates:
            jars.setdefault(coordinate, Jar(name, coordinate))
    return list(jars.values())


def families(spark_version: str | None = None) -> tuple[str, ...]:
    """Every family in the table, for `flow jars list` and `flow jars fetch --all`."""
    return tuple(sorted(JARS.get(_minor(spark_version), {})))


def state(names: Iterable[str] | None = None, *, spark_version: str | None = None) -> list[JarState]:
    """What is in the cache, without reading the files; all families unless some are named."""
    folder = jar_cache_dir(spark_version)
    return [_state(jar, folder) for jar in jars_for(_or_all(names, spark_version), spark_version)]


def check(names: Iterable[str] | None = None, *, spark_version: str | None = None) -> list[JarState]:
    """Like `state`, and each present jar is compared with the checksum stored beside it."""
    folder = jar_cache_dir(spark_version)
    return [_checked(jar, folder) for jar in jars_for(_or_all(names, spark_version), spark_version)]


def fetch(
    names: Iterable[str] | None = None,
    *,
    progress: Callable[[Progress], None] | None = None,
    spark_version: str | None = None,
) -> list[JarState]:
    """Bring the jars of these families into the cache; what is there and whole is left alone.

    Each jar comes from the user's local Maven repository when it is there, else from the network. A damaged jar is
    fetched again. Two processes may fetch at once: a jar appears under its name only when it is complete.

    Args:
        names: Families; those that the shipped backends need unless said.
        progress: Called while bytes arrive.
        spark_version: The installed Spark's unless said.

    Raises:
        MissingJar: A jar could not be had; the jars fetched before it stay.
    """
    wanted = jars_for(SHIPPED_FAMILIES if names is None else names, spark_version)
    folder = jar_cache_dir(spark_version)
    return [_fetched(jar, folder, progress) for jar in wanted]


def resolve(names: Iterable[str], spark_version: str | None = None) -> list[Path]:
    """Paths of the jars a session needs; what is missing is fetched first, unless `EMATIX_FLOW_OFFLINE` is set.

    Raises:
        MissingJar: A jar is not cached and cannot be fetched; names the coordinates and the command.
    """
    folder = jar_cache_dir(spark_version)
    states = [_state(jar, folder) for jar in jars_for(names, spark_version)]
    missing = [one for one in states if not one.present]
    if missing and os.environ.get("EMATIX_FLOW_OFFLINE"):
        raise _missing(missing, "EMATIX_FLOW_OFFLINE is set")
    for one in missing:
        log.info("Fetching %s (once; see `flow jars list`)", one.coordinate)
        _fetched(Jar(one.name, one.coordinate), folder, None)
    return [one.path for one in states]


# ── the cache ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _minor(spark_version: str | None) -> str:
    """`4.0` for `4.0.5`; without Spark installed, the version this release is made for."""
    if spark_version is None:
        try:
            spark_version = metadata.version("pyspark")
        except metadata.PackageNotFoundError:
            return DEFAULT_SPARK
    return ".".join(spark_version.split(".")[:2])


def _or_all(names: Iterable[str] | None, spark_version: str | None) -> Iterable[str]:
    return families(spark_version) if names is None else names


def _state(jar: Jar, folder: Path) -> JarState:
    path = folder / jar.file_name
    size = path.stat().st_size if path.is_file() else 0
    return JarState(jar.name, jar.coordinate, path, present=size > 0, bytes=size)


def _checked(jar: Jar, folder: Path) -> JarState:
    found = _state(jar, folder)
    if not found.present:
        return found
    stored = _first_word(found.path.with_name(found.path.name + ".sha1"))
    return JarState(
        found.name, found.coordinate, found.path, present=True, bytes=found.bytes, sha1_ok=stored == _sha1(found.path)
    )


def _sha1(path: Path) -> str:
    # The sum that Maven repositories publish for every file; it guards against damage, not against malice.
    digest = hashlib.sha1(usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _first_word(path: Path) -> str | None:
    try:
        words = path.read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return None
    return words[0].lower() if words else None


def _missing(states: Sequence[JarState], why: str) -> MissingJar:
    names = sorted({one.name for one in states})
    return MissingJar(
        f"Connector jars are missing ({why}): {', '.join(one.coordinate for one in states)}.",
        tried=sorted({str(one.path.parent) for one in states}),
        fix=f"run `flow jars fetch {' '.join(names)}` with network access",
    )


# ── getting one jar ──────────────────────────────────────────────────────────────────────────────────────────────────

_ATTEMPTS = 3
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class _Repository:
    """A Maven repository. `authorization` is a header value and is never shown."""

    base: str
    authorization: str | None = None

    def open(self, path: str) -> http.client.HTTPResponse:
        request = urllib.request.Request(f"{self.base}/{path}", headers={"User-Agent": "ematix-flow"})
        if self.authorization:
            request.add_unredirected_header("Authorization", self.authorization)
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
        return response


def _fetched(jar: Jar, folder: Path, progress: Callable[[Progress], None] | None) -> JarState:
    found = _checked(jar, folder)
    if found.present and found.sha1_ok:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    if not _copied_from_local_maven(jar, found.path):
        _download(jar, found.path, progress)
    return _checked(jar, folder)


def _copied_from_local_maven(jar: Jar, path: Path) -> bool:
    """Take the jar from `~/.m2` when Maven has it there, whole, with its checksum."""
    source = Path.home() / ".m2/repository" / jar.repository_path
    published = _first_word(source.with_name(source.name + ".sha1"))
    if published is None or not source.is_file() or _sha1(source) != published:
        return False
    with _arriving(path) as partial:
        shutil.copyfile(source, partial)
        _put_in_place(partial, path, published)
    return True


def _download(jar: Jar, path: Path, progress: Callable[[Progress], None] | None) -> None:
    repository = _repository()
    reason = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(0.5 * 2**attempt)  # a repository that just failed is given a moment
        try:
            with repository.open(jar.repository_path + ".sha1") as answer:
                published = answer.read(200).decode("ascii", "replace").split()[0].lower()
            with _arriving(path) as partial:
                _receive(repository, jar, partial, progress)
                if _sha1(partial) == published:
                    _put_in_place(partial, path, published)
                    return
            reason = "the download does not match its checksum"
        except urllib.error.HTTPError as exc:
            reason = f"the repository answered {exc.code}"
            if exc.code in (401, 403, 404):
                break
        except (OSError, http.client.HTTPException, IndexError) as exc:
            cause = exc.reason if isinstance(exc, urllib.error.URLError) else exc
            reason = f"no connection: {type(cause).__name__}"
    raise _missing([_state(jar, path.parent)], reason)


def _receive(repository: _Repository, jar: Jar, partial: Path, progress: Callable[[Progress], None] | None) -> None:
    with repository.open(jar.repository_path) as answer, partial.open("wb") as stream:
        total, done = int(answer.headers.get("Content-Length") or 0), 0
        while block := answer.read(1 << 18):
            stream.write(block)
            done += len(block)
            if progress:
                progress(Progress(jar, done, total))


@contextmanager
def _arriving(path: Path) -> Iterator[Path]:
    """A file of our own beside `path`, gone afterwards unless it was put in place."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _put_in_place(partial: Path, path: Path, sha1: str) -> None:
    partial.chmod(0o644)
    os.replace(partial, path)
    # The sum after the jar: a crash in between leaves a jar that `check` does not trust, and a next fetch mends it.
    with _arriving(path.with_name(path.name + ".sha1")) as note:
        note.write_text(sha1 + "\n", encoding="ascii")
        note.chmod(0o644)
        os.replace(note, path.with_name(path.name + ".sha1"))


def _repository() -> _Repository:
    """`EMATIX_FLOW_MAVEN`, else the mirror of Maven's own settings, else Maven Central."""
    told = os.environ.get("EMATIX_FLOW_MAVEN")
    if told:
        return _with_credentials(told, None)
    return _mirror(Path.home() / ".m2/settings.xml") or _Repository(MAVEN_CENTRAL)


def _mirror(settings: Path) -> _Repository | None:
    """The repository that a Maven settings file puts in front of Central, with the login it gives for it."""
    try:
        root = ElementTree.parse(settings).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    servers = {_child(server, "id"): server for server in root.iterfind(".//{*}servers/{*}server")}
    for mirror in root.iterfind(".//{*}mirrors/{*}mirror"):
        covers = {part.strip() for part in _child(mirror, "mirrorOf").split(",")}
        if not covers & {"central", "*", "external:*"} or "!central" in covers or _child(mirror, "blocked") == "true":
            continue
        server = servers.get(_child(mirror, "id"))
        login = None if server is None else (_child(server, "username"), _child(server, "password"))
        if login and login[1].startswith("{"):
            login = None  # encrypted with Maven's master password, which only Maven can read
        return _with_credentials(_child(mirror, "url"), login)
    return None


def _child(element: ElementTree.Element, name: str) -> str:
    return (element.findtext(f"{{*}}{name}") or "").strip()


def _with_credentials(url: str, login: tuple[str, str] | None) -> _Repository:
    parts = urllib.parse.urlsplit(url.rstrip("/"))
    if parts.username:
        login = (urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))
        parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    header = "Basic " + base64.b64encode(":".join(login).encode()).decode("ascii") if login and login[0] else None
    return _Repository(urllib.parse.urlunsplit(parts), header)
