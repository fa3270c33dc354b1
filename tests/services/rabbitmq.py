"""The one RabbitMQ of a test run: a real broker from the programs on this machine, without a service manager.

First the broker named by `EMATIX_TEST_RABBITMQ_URL` (an `amqp://` URL whose user may make queues and hosts), else a
fresh one on free ports of 127.0.0.1, with nothing kept after the run. It has a name service of its own, so that brokers
of other runs and of the machine are out of reach. Passwords are really checked.

    python -m tests.services.rabbitmq find           where the server program is; exit code 1 when nowhere
    python -m tests.services.rabbitmq stop FOLDER    stop the broker of a test run
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.services.background import answers, restart_program, start_program, stop_program
from tests.services.postgres import _free_port
from tests.services.run_folder import RunFolder

VARIABLE = "EMATIX_TEST_RABBITMQ_URL"
USER, PASSWORD = "ematix", "rabbit-pw-4713"
PATIENCE = 180.0
# Debian's command of the same name would change to another user first, who may not read the run's folder.
PLACES = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/local/sbin/rabbitmq-server")
SETTINGS = """
listeners.tcp.default = 127.0.0.1:{port}
default_user = {user}
default_pass = {password}
loopback_users = none
log.file = false
log.console = true
log.console.level = warning
disk_free_limit.absolute = 50MB
"""


@dataclass(frozen=True)
class RabbitMQServer:
    """A running broker."""

    url: str

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        """A channel of a test's own, beside what it tests."""
        import pika

        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(self.url))) as connection:
            yield connection.channel()

    def create_queue(self, name: str | None = None, **arguments: Any) -> str:
        """Make a durable queue; its name."""
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        with self.channel() as channel:
            channel.queue_declare(name, durable=True, arguments=arguments)
        return name

    def send(self, queue: str, *bodies: bytes, **properties: Any) -> None:
        """Put messages into a queue; they are there when this returns."""
        import pika

        with self.channel() as channel:
            channel.confirm_delivery()
            for body in bodies:
                channel.basic_publish("", queue, body, pika.BasicProperties(**properties))

    def ready(self, queue: str) -> int:
        """How many messages of a queue nobody holds."""
        with self.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

    def bodies(self, queue: str) -> list[bytes]:
        """Take everything out of a queue."""
        return [body for _, body in self.taken(queue)]

    def taken(self, queue: str) -> list[tuple[Any, bytes]]:
        """Take everything out of a queue: properties and bodies."""
        found = []
        with self.channel() as channel:
            while True:
                method, properties, body = channel.basic_get(queue, auto_ack=True)
                if method is None:
                    return found
                found.append((properties, body))


def find() -> Path | None:
    """The server program, wherever this system keeps it."""
    for place in (*PLACES, shutil.which("rabbitmq-server")):
        if place and os.access(place, os.X_OK):
            return Path(place)
    return None


def shared_server(folder: RunFolder) -> RabbitMQServer:
    """The one broker of this test run; the first caller starts it."""
    if outside := os.environ.get(VARIABLE):
        return RabbitMQServer(outside)
    address = folder.path / "rabbitmq.url"
    with folder.locked("rabbitmq"):
        if not address.exists():
            folder.guard(__name__)
            address.write_text(start(folder.path / "rabbitmq").url)
        return RabbitMQServer(address.read_text())


def start(home: Path) -> RabbitMQServer:
    """Start a broker in `home`. Whoever calls it sees to `stop`."""
    program = find()
    if program is None:
        raise RuntimeError(f"RabbitMQ is not on this machine; install rabbitmq-server, or name a broker in {VARIABLE}")
    names = home / "names"
    names.mkdir(parents=True)
    for attempt in range(3):  # between finding free ports and taking them, somebody else may
        port, distribution, name_service = _free_port(), _free_port(), _free_port()
        data = home / f"data-{attempt}"
        data.mkdir()
        (data / "rabbitmq.conf").write_text(SETTINGS.format(port=port, user=USER, password=PASSWORD))
        (data / "enabled_plugins").write_text("[].")
        (data / "environment").touch()
        (data / "advanced.config").write_text("[].")
        epmd = {"ERL_EPMD_PORT": str(name_service), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        environment = {
            **epmd,
            "HOME": str(home),
            "RUNNING_UNDER_SYSTEMD": "1",  # the broker takes the place of the script, so its process id is the one
            "RABBITMQ_NODENAME": "ematix@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(data / "mnesia"),
            "RABBITMQ_LOG_BASE": str(data),
            "RABBITMQ_PID_FILE": str(data / "broker.pid"),
            "RABBITMQ_CONFIG_FILE": str(data / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(data / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(data / "environment"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(data / "enabled_plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
        }
        stop_program(names)
        start_program(names, ["env", *_settings(epmd), "epmd"])
        pid = start_program(home, ["env", *_settings(environment), str(program)])
        server = RabbitMQServer(f"amqp://{USER}:{PASSWORD}@127.0.0.1:{port}/%2F")
        if answers(pid, partial(_is_up, server), PATIENCE):
            return server
    raise RuntimeError(f"RabbitMQ did not start:\n{(home / 'log').read_text()[-2000:]}")


def restart(home: Path, server: RabbitMQServer) -> None:
    """Let the broker in `home` crash and come back on its port, with its queues."""
    restart_program(home, partial(_is_up, server), PATIENCE)


def stop(home: Path) -> None:
    """Stop the broker in `home`, and its name service."""
    stop_program(home)
    stop_program(home / "names")


def _settings(variables: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def _is_up(server: RabbitMQServer) -> bool:
    import pika.exceptions

    with contextlib.suppress(pika.exceptions.AMQPError, OSError), server.channel():
        return True
    return False


if __name__ == "__main__":
    if sys.argv[1:2] == ["stop"]:
        stop(Path(sys.argv[2]) / "rabbitmq")
    else:
        sys.exit(0 if find() else "RabbitMQ is not on this machine")
