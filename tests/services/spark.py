"""Places where Spark runs besides this process: a standalone cluster and a Spark Connect server, both on this machine.

They are started from the Spark inside the pyspark package, for one test, and end with it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ematix_flow.backends import jars
from ematix_flow.backends.java import find_java
from ematix_flow.spark.jvm import find_spark_home

PATIENCE = 180.0


@contextmanager
def connect_server(folder: Path, *, connectors: Sequence[str] = ()) -> Iterator[str]:
    """A Spark Connect server with two cores, and jars of connectors if wanted; its address."""
    port = _free_port()
    conf = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.pyspark.python": sys.executable,
    }
    if connectors:
        conf["spark.jars"] = ",".join(map(str, jars.resolve(connectors)))
        families = [jars.family(name) for name in connectors]
        conf["spark.sql.extensions"] = ",".join(name for family in families for name in family.extensions)
    options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"]
    with _running(folder, "connect", ["spark-submit", *main, *options, "spark-internal"], port):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def standalone_cluster(
    folder: Path, *, workers: int = 2, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A master and workers of one core each; the master's address.

    Args:
        environment: what the workers, and so the executors, see besides this process's own variables.
    """
    port, deploy = _free_port(), "org.apache.spark.deploy"
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(_free_port())]
        stack.enter_context(_running(folder, "master", ["spark-class", f"{deploy}.master.Master", *master], port))
        for number in range(workers):
            own = _free_port()
            worker = [
                "--host",
                "127.0.0.1",
                "--port",
                str(own),
                "--webui-port",
                str(_free_port()),
                "-c",
                "1",
                "-m",
                "1g",
            ]
            place = ["-d", str(folder / f"worker-{number}"), address]
            command = ["spark-class", f"{deploy}.worker.Worker", *worker, *place]
            stack.enter_context(_running(folder, f"worker-{number}", command, own, environment))
        yield address


@contextmanager
def _running(
    folder: Path, name: str, command: list[str], port: int, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    home = find_spark_home()
    variables = {
        **os.environ,
        "JAVA_HOME": str(find_java().path),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "512m",
        "PYSPARK_PYTHON": sys.executable,
        **(environment or {}),
    }
    variables.pop("SPARK_REMOTE", None)
    log = folder / f"{name}.log"
    with log.open("w", encoding="utf-8") as said:
        process = subprocess.Popen(
            [str(home / "bin" / command[0]), *command[1:]],
            cwd=folder,
            env=variables,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _await_listener(process, port, log)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # the group that was started here, and nothing else
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_listener(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(
                    f"{log.stem} did not come up:\n{log.read_text(encoding='utf-8')[-3000:]}"
                ) from None
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
