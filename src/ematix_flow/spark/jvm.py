"""The one adapter that touches the JVM: starting it, talking to it, ending it.

PySpark starts Java through a shell script that first runs another Java to find out how. On a local master we know the
answer, so we start Spark's own main class directly: one JVM less, a class path that is the same each time (which is
what a class archive needs), and a Java that starts while Python is still importing. Everywhere else `spark-submit`
is used as it is. Settings travel in a private file, not on a command line that every user of the machine can read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.java import JavaHome
from ematix_flow.errors import EngineFailed, MissingDriver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_TIMEOUT_S = 120.0
_DIRECT_MINORS = ("4.0",)
"""Spark versions whose module options we know; for others `spark-submit` is asked."""

_OPENED_PACKAGES = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)


@dataclass(frozen=True)
class Launch:
    """All that decides how the driver's JVM is started.

    Attributes:
        java: The Java to use.
        spark_home: The folder that holds Spark's `jars` and `bin`.
        conf: Every Spark setting.
        class_path: Connector jars for the driver, before Spark's own.
        options: JVM flags, without the user's `spark.driver.extraJavaOptions`.
        is_direct: Start Java ourselves instead of through `spark-submit`.
    """

    java: JavaHome
    spark_home: Path
    conf: Mapping[str, str]
    class_path: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()
    is_direct: bool = True

    def full_class_path(self) -> list[Path]:
        """Every entry in a fixed order, so that a class archive made from it fits the next time."""
        conf_dir = Path(os.environ.get("SPARK_CONF_DIR") or self.spark_home / "conf")
        spark_jars = sorted((self.spark_home / "jars").glob("*.jar"), key=lambda jar: (_rank(jar), jar.name))
        users = [Path(entry) for entry in self.conf.get("spark.driver.extraClassPath", "").split(os.pathsep) if entry]
        return [*users, *self.class_path, *([conf_dir] if conf_dir.is_dir() else []), *spark_jars]

    def user_options(self) -> list[str]:
        """JVM flags that the user set."""
        keys = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
        return [option for key in keys for option in shlex.split(self.conf.get(key, ""))]


def find_spark_home() -> Path:
    """Where Spark is installed: `SPARK_HOME`, else inside the pyspark package, which is not imported for that.

    Raises:
        MissingDriver: pyspark is not installed.
    """
    told = os.environ.get("SPARK_HOME")
    if told:
        return Path(told)
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingDriver(
            "Moving rows with Spark needs 'pyspark', which is not installed.", fix='pip install "ematix-flow[spark]"'
        )
    return Path(spec.origin).parent


def can_start_directly(spark_home: Path, master: str, conf: Mapping[str, str], spark_version: str) -> bool:
    """Whether starting Java ourselves gives what `spark-submit` would: a local master and nothing out of the way."""
    conf_dir = Path(os.environ.get("SPARK_CONF_DIR") or spark_home / "conf")
    return (
        sys.platform != "win32"
        and master.startswith("local")
        and spark_version.rpartition(".")[0] in _DIRECT_MINORS
        and (spark_home / "jars").is_dir()
        and not (conf_dir / "spark-env.sh").exists()
        and "PYSPARK_SUBMIT_ARGS" not in os.environ
        and "spark.driver.extraLibraryPath" not in conf
    )


class DriverJvm:
    """A started JVM: first a process, after `connect` the gateway PySpark talks through.

    Made by `spark/session.py`. The JVM ends by itself when this process is gone, since it watches the pipe between
    the two.
    """

    def __init__(self, launch: Launch, *, extra_options: Sequence[str] = ()) -> None:
        """Start the process and return at once; it comes up while the caller goes on importing."""
        self._folder = Path(tempfile.mkdtemp(prefix="ematix-flow-"))
        self._note = self._folder / "gateway"
        settings = self._folder / "spark.properties"
        settings.write_text(to_properties(launch.conf), encoding="utf-8")
        environment = {
            **os.environ,
            "JAVA_HOME": str(launch.java.path),
            "SPARK_HOME": str(launch.spark_home),
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._note),
        }
        # Its own session: Ctrl-C in the terminal is for Python, which then stops Spark in order.
        # Its stdout is our stderr: stdout belongs to the answer of a command.
        self.process = subprocess.Popen(
            [*_program(launch, extra_options), "--properties-file", str(settings), *_submit_arguments()],
            stdin=subprocess.PIPE,
            stdout=_stderr_number(),
            env=environment,
            start_new_session=sys.platform != "win32",
        )

    def connect(self) -> Any:
        """Wait until the JVM answers and give PySpark's gateway to it.

        Raises:
            EngineFailed: Java ended or did not answer in time.
        """
        try:
            port, secret = self._read_note()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        from pyspark.java_gateway import launch_gateway

        variables = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
        gateway.proc = self.process
        return gateway

    def end(self, timeout_s: float = 60.0) -> None:
        """Let the JVM end and wait for it, so that nothing of ours outlives the command."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            if self.process.stdin:
                self.process.stdin.close()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _read_note(self) -> tuple[int, str]:
        """Port and secret, which the JVM writes under another name and renames, so half a note is never seen."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._note.exists():
            if self.process.poll() is not None:
                raise EngineFailed(
                    f"Java ended with code {self.process.returncode} before Spark was up.",
                    fix="see the lines above; `flow doctor` checks Java, memory and settings",
                )
            if time.monotonic() > deadline:
                self.process.kill()
                raise EngineFailed(
                    f"Java did not come up within {START_TIMEOUT_S:.0f} s.", fix="`flow doctor` checks Java and memory"
                )
            time.sleep(0.005)
        content = self._note.read_bytes()
        port, length = struct.unpack("!ii", content[:8])
        return port, content[8 : 8 + length].decode("utf-8")


def adopt(gateway: Any) -> None:
    """Make PySpark use this gateway for the next session."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized(gateway=gateway)


def forget_gateway() -> None:
    """Close PySpark's gateway, so that the next session starts a JVM of its own, with other jars if need be."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        with contextlib.suppress(Exception):  # the JVM may be gone; there is nothing left to close then
            gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None


def forget_dead_session() -> None:
    """Forget the session whose JVM is gone: it can no longer stop itself, and PySpark allows one at a time."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    for _ in range(2):  # the first time it fails at the JVM, the second time it knows of none
        with contextlib.suppress(Exception):
            if context is not None:
                context.stop()
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    forget_gateway()


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether the driver in this process can load a class; a server is asked by `remote.has_class`."""
    from py4j.protocol import Py4JError

    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JError:
        return False
    return True


def java_name(exc: Exception) -> str:
    """The name of the Java exception behind an error, without its package; its Python name where there is none."""
    thrown: Any = getattr(exc, "java_exception", None)
    return str(thrown.getClass().getSimpleName()) if thrown is not None else type(exc).__name__


class HadoopFolder:
    """Small files below one address of any file system that this JVM's Hadoop knows."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._hadoop, self._io = jvm.org.apache.hadoop.fs, jvm.org.apache.commons.io.IOUtils
        self._root = root
        self._system = self._path("").getFileSystem(spark._jsc.hadoopConfiguration())

    def read(self, name: str) -> str | None:
        """The text of a file; None when it is not there."""
        path = self._path(name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file, replacing the one before."""
        stream = self._system.create(self._path(name), True)
        stream.write(bytearray(text.encode()))
        stream.close()

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none when it is not there."""
        path = self._path(folder)
        if not self._system.exists(path):
            return []
        return [str(entry.getPath().getName()) for entry in self._system.listStatus(path)]

    def size(self, folder: str) -> int:
        """How many bytes the files of a folder have."""
        return int(self._system.getContentSummary(self._path(folder)).getLength())

    def remove(self, name: str) -> None:
        """Remove a file or a folder with all that is in it."""
        self._system.delete(self._path(name), True)

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(f"{self._root}/{name}" if name else self._root)


def to_properties(conf: Mapping[str, str]) -> str:
    """Settings in the form of a Java properties file.

    >>> to_properties({"spark.a": " C:\\\\x", "spark.b": "1\\n2"})
    'spark.a=\\\\ C:\\\\\\\\x\\nspark.b=1\\\\n2\\n'
    """
    return "".join(f"{_escaped(key, in_key=True)}={_escaped(value)}\n" for key, value in conf.items())


def spark_defaults(spark_home: Path) -> dict[str, str]:
    """The user's `spark-defaults.conf`, which counts more than our profile and less than `[spark.conf]`."""
    path = Path(os.environ.get("SPARK_CONF_DIR") or spark_home / "conf") / "spark-defaults.conf"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.replace("=", " ", 1).split(None, 1) for line in lines if line.strip() and line.strip()[0] not in "#!")
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _program(launch: Launch, extra_options: Sequence[str]) -> list[str]:
    if not launch.is_direct:
        name = "spark-submit.cmd" if sys.platform == "win32" else "spark-submit"
        return [str(launch.spark_home / "bin" / name)]
    heap = launch.conf.get("spark.driver.memory", "1g").lower().removesuffix("b")
    return [
        str(launch.java.executable),
        *launch.options,
        *extra_options,
        f"-Xmx{heap}",
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *launch.user_options(),
        "-cp",
        os.pathsep.join(str(entry) for entry in launch.full_class_path()),
        "org.apache.spark.deploy.SparkSubmit",
    ]


def _submit_arguments() -> list[str]:
    return shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))


def _stderr_number() -> int | None:
    """The number of stderr; notebooks and test runners replace `sys.stderr` by something that has none."""
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ else subprocess.DEVNULL
    except (OSError, ValueError):
        return subprocess.DEVNULL


def _rank(jar: Path) -> int:
    return 0 if jar.name.startswith("slf4j-api") else 1  # Spark's own launcher puts it first


def _escaped(text: str, *, in_key: bool = False) -> str:
    out = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if in_key:
        for sign in " =:#!":
            out = out.replace(sign, "\\" + sign)
    elif out.startswith(" "):
        out = "\\" + out
    return out


@contextlib.contextmanager
def keeping_interrupts() -> Iterator[None]:
    """PySpark takes Ctrl-C for itself when it starts. Whoever had asked for it before, such as a stream, keeps it.

    Without that the handler of PySpark would end the jobs of the batch that a stream is to finish, and call Java in the
    middle of another call.
    """
    before = signal.getsignal(signal.SIGINT)
    is_asked_for = callable(before) and before is not signal.default_int_handler and not _is_of_pyspark(before)
    try:
        yield
    finally:
        if is_asked_for and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _is_of_pyspark(handler: Any) -> bool:
    return str(getattr(handler, "__module__", "")).startswith("pyspark.")
