"""A Kafka cluster as its client library sees it: settings from a connection, clients, and its errors as ours.

A `Cluster` is plain data, so that it travels to Spark's workers as it is. Every wait has an end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.declare.connection import KafkaConnection
from ematix_flow.errors import (
    BackendError,
    BrokerRefused,
    ConnectionFailed,
    FlowError,
    MissingDriver,
    TakenOver,
    UnfitValue,
    listed,
)

WAIT_S = 10.0
"""How long a broker may take to answer before it counts as unreachable."""

TRANSACTION_MS = 300_000
"""How long one transaction may take; brokers refuse more than their `transaction.max.timeout.ms`, often 15 minutes."""

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = {"sha-256": "SCRAM-SHA-256", "sha-512": "SCRAM-SHA-512"}


def cluster_of(connection: KafkaConnection) -> Cluster:
    """The cluster behind a connection. Nothing connects.

    Raises:
        InvalidConnection: the ways to log in are mixed or incomplete, or the protocol is none.
    """
    settings: dict[str, Any] = {"bootstrap.servers": connection.bootstrap_servers}
    login = _login(connection)
    tls = {
        "ssl.ca.location": connection.tls_ca_path,
        "ssl.certificate.location": connection.tls_cert_path,
        "ssl.key.location": connection.tls_key_path,
    }
    given = {key: value for key, value in tls.items() if value}
    if bool(connection.tls_cert_path) != bool(connection.tls_key_path):
        connection.refuse("tls_cert_path and tls_key_path go together", fix="give both or none")
    protocol = (connection.security_protocol or "").upper()
    if protocol and protocol not in PROTOCOLS:
        connection.refuse(f"security_protocol must be one of {listed(PROTOCOLS)}")
    if protocol and bool(login) != protocol.startswith("SASL"):
        connection.refuse(f"security_protocol '{protocol}' does not go with {'a' if login else 'no'} login")
    # A login without a word about the protocol goes through TLS: a password must not be readable on the way.
    settings["security.protocol"] = protocol or ("SASL_SSL" if login else "SSL" if given else "PLAINTEXT")
    return Cluster(
        connection.name, connection.bootstrap_servers, {**settings, **login, **given}, connection.msk_iam_region
    )


def _login(connection: KafkaConnection) -> dict[str, Any]:
    plain = (connection.sasl_plain_username, connection.sasl_plain_password)
    scram = (connection.sasl_scram_username, connection.sasl_scram_password)
    ways = [name for name, used in (("sasl_plain", any(plain)), ("sasl_scram", any(scram))) if used]
    ways += ["msk_iam"] if connection.msk_iam_region else []
    if len(ways) > 1:
        connection.refuse(f"there is more than one way to log in: {listed(ways)}", fix="keep one of them")
    if connection.msk_iam_region:
        return {"sasl.mechanism": "OAUTHBEARER"}
    user, password = scram if any(scram) else plain
    if bool(user) != bool(password):
        connection.refuse(f"{ways[0]}_username and {ways[0]}_password go together", fix="give both or none")
    if not ways:
        return {}
    mechanism = "PLAIN"
    if any(scram):
        written = (connection.sasl_scram_mechanism or "sha-512").lower().removeprefix("scram-")
        if written not in MECHANISMS:
            connection.refuse(f"sasl_scram_mechanism must be one of {listed(MECHANISMS)}")
        mechanism = MECHANISMS[written]
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}


@dataclass(frozen=True)
class Cluster:
    """One cluster and how to talk to it. `settings` hold the password and are never shown."""

    name: str
    servers: str
    settings: Mapping[str, Any] = field(repr=False)
    msk_iam_region: str | None = None

    def admin(self, heard: Heard) -> Any:
        """A client that asks about topics and makes them."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(self._with(heard))

    def producer(self, transactional_id: str, heard: Heard, **settings: Any) -> Any:
        """A producer of one transaction after another, whose start ends whoever had the same id."""
        from confluent_kafka import Producer

        return Producer(
            {
                **self._with(heard),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_MS,
                "acks": "all",
                "enable.idempotence": True,
                # Java's producers choose partitions so; messages of one key stay together, whoever sends them.
                "partitioner": "murmur2_random",
                **settings,
            }
        )

    def sender(self, heard: Heard) -> Any:
        """A producer without transactions: a message may come twice after a failure, never out of order."""
        from confluent_kafka import Producer

        settings = {"acks": "all", "enable.idempotence": True, "partitioner": "murmur2_random", "linger.ms": 20}
        return Producer({**self._with(heard), **settings})

    def group_reader(self, group_id: str, heard: Heard, **settings: Any) -> Any:
        """A consumer of a group that sees what is committed, and commits its own positions only when told."""
        from confluent_kafka import Consumer

        return Consumer(
            {
                **self._with(heard),
                "group.id": group_id,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                **settings,
            }
        )

    def reader(self, heard: Heard) -> Any:
        """A consumer outside any group that sees what is committed, and is told where a partition ends."""
        from confluent_kafka import Consumer

        return Consumer(
            {
                **self._with(heard),
                "group.id": "ematix-flow",  # the library wants one; nothing is ever committed under it
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,  # the end of a partition is told when a fetch has waited in vain
            }
        )

    def topics(self, heard: Heard | None = None) -> Mapping[str, Any]:
        """All topics by name. Asking for one by its name would make it, on brokers that create topics by themselves."""
        from confluent_kafka import KafkaException

        heard = heard or Heard()
        with self.explaining(heard):
            admin = self.admin(heard)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                found: Mapping[str, Any] = admin.list_topics(timeout=1.0).topics
                return found
            except KafkaException as exc:
                admin.poll(0)
                if heard.refusal or time.monotonic() > deadline:
                    raise self.explained(exc.args[0], heard) from exc

    def largest_message(self, topic: str) -> int | None:
        """The bytes one message of a topic may have; None when the broker does not tell us."""
        from confluent_kafka import KafkaException

        admin = self.admin(Heard())
        try:
            asked = admin.describe_configs([admin_module().ConfigResource("topic", topic)], request_timeout=WAIT_S)
            return int(answer_of(next(iter(asked.values())))["max.message.bytes"].value)
        except (KafkaException, KeyError, ValueError):
            return None  # it may be told to those who administer the cluster only

    @contextmanager
    def explaining(self, heard: Heard, topic: str | None = None, *, wait_s: float = WAIT_S) -> Iterator[None]:
        """The library's errors as ours; everything else passes."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as exc:
            raise self.explained(exc.args[0], heard, topic, wait_s=wait_s) from exc

    def explained(self, error: Any, heard: Heard, topic: str | None = None, *, wait_s: float = WAIT_S) -> FlowError:
        """One error of the library, as what a user can act on. The library's texts hold no row value."""
        from confluent_kafka import KafkaError as E

        code, place = error.code(), f"'{self.name}' (kafka)"
        if heard.refusal:
            return ConnectionFailed(
                f"Kafka at {self.servers} refuses the login of {place}: {heard.refusal}.",
                fix="check user, password, mechanism and security_protocol of the connection",
            )
        if code in (E._FENCED, E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH):
            return TakenOver(
                "Another run of this pipeline has begun and ended this one.",
                fix="look at `flow runs list`; it goes on where this one stopped",
            )
        if code in (E.MSG_SIZE_TOO_LARGE, E.RECORD_LIST_TOO_LARGE):
            return too_large(topic, None)
        if code in (E.UNKNOWN_TOPIC_OR_PART, E._UNKNOWN_TOPIC, E._UNKNOWN_PARTITION):
            return unknown_topic(topic or "?", self.name)
        if code in (
            E.TOPIC_AUTHORIZATION_FAILED,
            E.CLUSTER_AUTHORIZATION_FAILED,
            E.GROUP_AUTHORIZATION_FAILED,
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ):
            return BrokerRefused(
                f"Kafka does not allow the user of {place} to do this{f' on topic {topic!r}' if topic else ''}: "
                f"{_sentence(error)}.",
                fix="grant Write and Describe on the topic, and Read, Write and Create on topics and transactional ids "
                "that begin with '_ematix_flow.'",
            )
        if code in (E._ALL_BROKERS_DOWN, E._TRANSPORT, E._TIMED_OUT, E._RESOLVE, E._MSG_TIMED_OUT, E.REQUEST_TIMED_OUT):
            reason = f" ({heard.trouble})" if heard.trouble else ""
            return ConnectionFailed(
                f"Kafka at {self.servers} cannot be reached within {wait_s:.0f} s{reason}.",
                where=f"connection {place}",
                fix="check bootstrap_servers, and that the addresses the brokers advertise can be reached from here",
            )
        return BrokerRefused(f"Kafka at {self.servers} said no: {_sentence(error)}.", where=f"connection {place}")

    def _with(self, heard: Heard) -> dict[str, Any]:
        # Silent: what the library would print about a broker that is away, `heard` keeps for the error.
        token = {"oauth_cb": IamToken(self.msk_iam_region, heard)} if self.msk_iam_region else {}
        return {**self.settings, **token, "client.id": "ematix-flow", "log_level": 0, "error_cb": heard}


def answer_of(asked: Future[Any]) -> Any:
    """What a broker answered to a client that still lives and gives up by itself after `WAIT_S`.

    Raises:
        KafkaException: what went wrong, "timed out" included.
    """
    from confluent_kafka import KafkaError, KafkaException

    try:
        return asked.result(timeout=WAIT_S + 1)
    except TimeoutError as exc:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from exc


class Heard:
    """What a client heard in the background: why it may not log in, and which trouble it had with brokers."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.trouble: str | None = None
        self.are_all_away = False

    def __call__(self, error: Any) -> None:
        """Called by the library while it is polled."""
        from confluent_kafka import KafkaError as E

        self.are_all_away = self.are_all_away or error.code() == E._ALL_BROKERS_DOWN
        if error.code() in (E._AUTHENTICATION, E.SASL_AUTHENTICATION_FAILED):
            self.refusal = "its user or password is wrong"
        elif error.code() == E._SSL:
            self.refusal = "the two sides do not agree on TLS"
        elif error.code() == E._RESOLVE:
            self.trouble = "its name is not known"
        elif error.code() == E._TRANSPORT and not self.trouble:
            self.trouble = "connection refused" if "refused" in error.str().lower() else None


class IamToken:
    """A token of an AWS role for Amazon MSK. The library asks for a new one after four fifths of its time."""

    def __init__(self, region: str, heard: Heard) -> None:
        """Makes the first one at once: the library would wait for it in vain.

        Raises:
            ConnectionFailed: AWS gives none.
        """
        require_signer()
        self.region, self.heard = region, heard
        try:
            self.first: tuple[str, float] | None = self._made()
        except Exception as exc:  # AWS's libraries raise many kinds, some with the place of the credentials
            raise ConnectionFailed(
                f"AWS gives no token for Kafka in region '{region}' ({type(exc).__name__}).",
                fix="give this process AWS credentials, by a profile, a role or the environment",
            ) from exc

    def __call__(self, settings: str) -> tuple[str, float]:
        """The token, and until when it is good, in seconds of the clock."""
        first, self.first = self.first, None
        if first is not None:
            return first
        try:
            return self._made()
        except Exception as exc:
            self.heard.refusal = f"AWS gives no token any more ({type(exc).__name__})"
            raise

    def _made(self) -> tuple[str, float]:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

        token, ends_at_ms = MSKAuthTokenProvider.generate_auth_token(self.region)
        return str(token), ends_at_ms / 1000


def require_signer() -> None:
    """Say how to install what makes tokens for Amazon MSK."""
    try:
        import aws_msk_iam_sasl_signer  # noqa: F401
    except ImportError as exc:
        raise MissingDriver(
            "msk_iam_region needs 'aws-msk-iam-sasl-signer-python'.", fix='pip install "ematix-flow[msk]"'
        ) from exc


def admin_module() -> Any:
    """The library's module for topics and settings; its type information leaves out half of what it exports."""
    from confluent_kafka import admin

    return admin


def require_driver() -> None:
    """Say how to install the client library, before anything else fails for its lack."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as exc:
        raise MissingDriver(
            "The kafka backend needs 'confluent-kafka'.", fix='pip install "ematix-flow[kafka]"'
        ) from exc


def unknown_topic(topic: str, connection: str) -> BackendError:
    """A topic that is not there. It is never made on the way: somebody has to decide on partitions and retention."""
    return BrokerRefused(
        f"Kafka has no topic '{topic}' (connection '{connection}').",
        fix=f"create it: kafka-topics.sh --create --topic {topic} --partitions N; or name another one: source_query= "
        "of a stream, topic= of a target, on_message= of a workflow",
    )


def too_large(topic: str | None, limit: int | None) -> FlowError:
    """A message that the topic does not take."""
    allowed = f" of {limit:,} bytes" if limit else ""
    return UnfitValue(
        f"A row makes a message that is larger than topic '{topic}' takes{allowed}.",
        fix="leave out or shorten long columns, or raise max.message.bytes of the topic",
    )


def _sentence(error: Any) -> str:
    return str(error.str()).strip().rstrip(".")
