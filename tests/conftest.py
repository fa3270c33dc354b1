"""Fixtures every test may use: real servers, a database per test, a project folder cut off from this user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from ematix_flow.backends.jars import cache_root
from tests.long_proofs import is_long_proof, proves_more
from tests.services import (
    azurite,
    bqemulator,
    fakesnow,
    gcs,
    kafka,
    kinesalite,
    mariadb,
    minio,
    moto,
    postgres,
    pubsub,
    rabbitmq,
    schema_registry,
)
from tests.services.azurite import AzureServer
from tests.services.gcs import GcsServer
from tests.services.kafka import KafkaServer
from tests.services.mariadb import MariadbServer
from tests.services.moto import S3Server
from tests.services.postgres import PostgresServer
from tests.services.pubsub import PubSubServer
from tests.services.rabbitmq import RabbitMQServer
from tests.services.run_folder import RunFolder

# How long an example takes says more about a busy machine than about the code.
hypothesis.settings.register_profile("house", deadline=None, print_blob=True)
hypothesis.settings.load_profile("house")

RUN_FOLDER = pytest.StashKey[RunFolder]()
_SHORT_JOB = "true"  # thousands of tiny jobs: compiling them well takes longer than they do


def pytest_configure(config: pytest.Config) -> None:
    """The main process makes the folder its workers share; they find it in the environment."""
    os.environ.setdefault("EMATIX_TEST_CACHE", str(cache_root()))
    os.environ["EMATIX_FLOW_CACHE_DIR"] = os.environ["EMATIX_TEST_CACHE"]
    os.environ["EMATIX_FLOW_APPCDS"] = "use"
    os.environ["EMATIX_FLOW_SHORT_JOB"] = _SHORT_JOB
    os.environ.setdefault("EMATIX_FLOW_RUN_LOG_URL", "memory://")
    if not hasattr(config, "workerinput"):
        config.stash[RUN_FOLDER] = RunFolder.create()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long proofs to `make prove`; a test that is asked for by its own name runs.

    With `EMATIX_PROVE=only` it is the other way round: what `make test` has in the same form is left out.
    """
    told = os.environ.get("EMATIX_PROVE")
    if any("::" in argument for argument in config.args) or told not in (None, "", "only"):
        return
    if told == "only":
        left_out = [item for item in items if not (is_long_proof(item.nodeid) or proves_more(item.path))]
    else:
        left_out = [item for item in items if is_long_proof(item.nodeid)]
    gone = set(left_out)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in gone]


def pytest_unconfigure(config: pytest.Config) -> None:
    """However the run ended, its servers end with it (a killed run: see `services/run_folder.py`)."""
    folder = config.stash.get(RUN_FOLDER, None)
    if folder is not None:
        postgres.stop(folder.path / "postgres")
        mariadb.stop(folder.path / "mariadb")
        kafka.stop(folder.path / "kafka")
        moto.stop(folder.path / "moto")
        minio.stop(folder.path / "minio")
        fakesnow.stop(folder.path / "fakesnow")
        bqemulator.stop(folder.path / "bqemulator")
        gcs.stop(folder.path / "gcs")
        azurite.stop(folder.path / "azurite")
        kinesalite.stop(folder.path / "kinesalite")
        rabbitmq.stop(folder.path / "rabbitmq")
        pubsub.stop(folder.path / "pubsub")
        schema_registry.stop(folder.path / "schema_registry")
        folder.close()


@pytest.fixture(scope="session")
def postgres_server() -> PostgresServer:
    """The one PostgreSQL of this test run. Missing programs are a failure, not a skip."""
    return postgres.shared_server(RunFolder.joined())


@pytest.fixture
def pg_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty PostgreSQL database that only this test sees."""
    with postgres_server.fresh_database() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_server() -> MariadbServer:
    """The MariaDB of this worker process. Missing programs are a failure, not a skip."""
    return mariadb.shared_server(RunFolder.joined())


@pytest.fixture
def mysql_url(mariadb_server: MariadbServer) -> Iterator[str]:
    """The URL of an empty database on a MariaDB that only this test uses."""
    with mariadb_server.fresh_database() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_with_log() -> MariadbServer:
    """A MariaDB of this worker process that keeps a binary log."""
    return mariadb.shared_server(RunFolder.joined(), with_log=True)


@pytest.fixture
def captured_mysql_url(mariadb_with_log: MariadbServer) -> Iterator[str]:
    """The URL of an empty database whose changes are in a binary log."""
    with mariadb_with_log.fresh_database() as url:
        yield url


@pytest.fixture(scope="session")
def kafka_server() -> KafkaServer:
    """The one Kafka broker of this test run. Jars that cannot be had are a failure, not a skip."""
    return kafka.shared_server(RunFolder.joined())


@pytest.fixture
def kafka_address(kafka_server: KafkaServer) -> str:
    """The broker's address, for a page or a program that makes its own topics."""
    return kafka_server.address


@pytest.fixture(scope="session")
def s3_server() -> S3Server:
    """The one S3 server of this test run: moto, or MinIO with EMATIX_TEST_S3=minio."""
    service = minio if os.environ.get("EMATIX_TEST_S3") == "minio" else moto
    return service.shared_server(RunFolder.joined())


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> Iterator[str]:
    """The name of an empty bucket that only this test sees."""
    with moto.fresh_bucket(s3_server) as name:
        yield name


@pytest.fixture
def s3_endpoint(s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server's address, for a page; its bucket and login are in the environment."""
    monkeypatch.setenv("LAKE_BUCKET", s3_bucket)
    monkeypatch.setenv("LAKE_KEY_ID", s3_server.loader[0])
    monkeypatch.setenv("LAKE_SECRET", s3_server.loader[1])
    return s3_server.endpoint


@pytest.fixture(scope="session")
def moto_server() -> S3Server:
    """The server of this test run that has Kinesis, whatever the S3 server is."""
    return moto.shared_server(RunFolder.joined())


@pytest.fixture(scope="session")
def kinesalite_server() -> S3Server:
    """The one server of this test run that has Kinesis with shards that end; any login does."""
    return kinesalite.shared_server(RunFolder.joined())


@pytest.fixture
def kinesis_endpoint(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of Kinesis, for a page; a stream and a login are in the environment."""
    monkeypatch.setenv("STREAM", moto_server.new_stream())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto_server.loader[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto_server.loader[1])
    return moto_server.endpoint


@pytest.fixture(scope="session")
def rabbitmq_server() -> RabbitMQServer:
    """The one RabbitMQ of this test run. A missing program is a failure, not a skip."""
    return rabbitmq.shared_server(RunFolder.joined())


@pytest.fixture
def rabbitmq_url(rabbitmq_server: RabbitMQServer) -> str:
    """The broker's URL, for a page or a program that makes its own queues."""
    return rabbitmq_server.url


@pytest.fixture(scope="session")
def pubsub_server() -> PubSubServer:
    """The one Pub/Sub of this test run. A program that cannot be built is a failure, not a skip."""
    return pubsub.shared_server(RunFolder.joined())


@pytest.fixture
def pubsub_address(pubsub_server: PubSubServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server's address, for a page; a topic and a subscription to it are in the environment."""
    topic = pubsub_server.create_topic()
    monkeypatch.setenv("TOPIC", topic)
    monkeypatch.setenv("SUBSCRIPTION", pubsub_server.create_subscription(topic))
    return pubsub_server.address


@pytest.fixture(scope="session")
def schema_registry_url() -> str:
    """The URL of the one schema registry of this test run."""
    return schema_registry.shared_server(RunFolder.joined())


@pytest.fixture(scope="session")
def gcs_server() -> GcsServer:
    """The one stand-in for Google Cloud Storage of this test run. One that cannot be built is a failure, not a skip."""
    return gcs.shared_server(RunFolder.joined())


@pytest.fixture(scope="session")
def azure_server() -> AzureServer:
    """The one stand-in for Azure of this test run. One that cannot be installed is a failure, not a skip."""
    return azurite.shared_server(RunFolder.joined())


@pytest.fixture(scope="session")
def snowflake_url() -> str:
    """The address of the one stand-in for Snowflake of this test run."""
    return fakesnow.shared_server(RunFolder.joined())


@pytest.fixture(scope="session")
def bigquery_url() -> str:
    """The address of the one stand-in for BigQuery of this test run."""
    return bqemulator.shared_server(RunFolder.joined())


@pytest.fixture
def tmp_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, an empty home, and no setting of ours in the environment."""
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    for name in [name for name in os.environ if name.startswith("EMATIX_FLOW_")]:
        monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    # Spark's start-up archive and jars are shared by all tests; nobody records a new archive behind a test's back.
    monkeypatch.setenv("EMATIX_FLOW_CACHE_DIR", os.environ["EMATIX_TEST_CACHE"])
    monkeypatch.setenv("EMATIX_FLOW_APPCDS", "use")
    monkeypatch.setenv("EMATIX_FLOW_SHORT_JOB", _SHORT_JOB)
    monkeypatch.chdir(project)
    if os.environ.get("EMATIX_TEST_ENGINE") == "native":
        (project / ".ematix-flow.toml").write_text('[spark]\nengine = "native"\n', encoding="utf-8")
    return project
