"""What can be found wrong with a stream once backends and settings may be asked, and nothing has been connected yet."""

from __future__ import annotations

import dataclasses
import os

from ematix_flow.backends.files_options import check_options, given_read_options
from ematix_flow.backends.kafka_client import cluster_of
from ematix_flow.config.spark_place import spark_settings
from ematix_flow.declare.connection import Connection, KafkaConnection
from ematix_flow.declare.connection_base import HoldsFiles
from ematix_flow.declare.fileformats import FILE_FORMATS
from ematix_flow.declare.pipeline import CLUSTER_ANSWER
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.target import FileOptions, Target
from ematix_flow.errors import FlowError, InvalidConfig

_STATE_SIZE = "EMATIX_FLOW_STATE_SIZE_WARN_BYTES"


def check_stream(spec: StreamSpec) -> None:
    """Refuse options that do not fit their files, logins that are mixed or incomplete, and a cluster nobody named.

    Connections that are names, and fields that are still references, are left for `spec.with_connections`; calling this
    again with what that gives checks the rest. Called by `read_stream_toml` and before every run.

    Raises:
        InvalidConfig: (a ValueError) `engine = "distributed"` and no cluster.
        InvalidDeclaration: (a ValueError) an option of files is wrong.
        InvalidConnection: (a ValueError) the ways to log in are mixed or incomplete.
    """
    try:
        for source in spec.sources:
            _check_connection(source.connection)
        for target in spec.targets:
            _check_connection(target.connection)
            _check_file_options(target)
        _check_engine(spec)
    except FlowError as exc:
        if not exc.message.startswith("Stream '"):
            exc.message = f"Stream '{spec.name}': {exc.message}"
        exc.at(str(spec.where))
        raise


def stream_advice(spec: StreamSpec) -> tuple[str, ...]:
    """What is allowed and probably not meant (`StreamSpec.advice`), for whoever starts the stream to say once.

    `EMATIX_FLOW_STATE_SIZE_WARN_BYTES` moves the size from which on expected state is worth a word; 0 is for never.

    Raises:
        InvalidConfig: (a ValueError) the variable is not a whole number.
    """
    told = os.environ.get(_STATE_SIZE)
    if told is None:
        return spec.advice()
    if not told.strip().isdecimal():
        raise InvalidConfig(f"{_STATE_SIZE} must be a number of bytes.", where=_STATE_SIZE)
    return spec.advice(large_state_bytes=int(told))


def _check_connection(connection: object) -> None:
    if isinstance(connection, KafkaConnection) and not _has_references(connection):
        cluster_of(connection)
    if isinstance(connection, HoldsFiles):
        options = FileOptions(
            csv_read_options=given_read_options(connection.csv_read_options),
            json_read_options=given_read_options(connection.json_read_options),
        )
        _check_options(connection, options)


def _check_file_options(target: Target) -> None:
    if isinstance(target.connection, HoldsFiles):
        _check_options(target.connection, target.file_options())


def _check_options(connection: HoldsFiles, options: FileOptions) -> None:
    file_format = next((known for known in FILE_FORMATS if known == connection.format), None)
    if file_format is not None:
        check_options(file_format, options)


def _check_engine(spec: StreamSpec) -> None:
    if spec.engine != "distributed":
        return
    spark = spark_settings()
    if not spark.remote and (spark.master or "local").startswith("local"):
        raise InvalidConfig('engine = "distributed" needs a cluster, and none is named.', fix=CLUSTER_ANSWER)


def _has_references(connection: Connection) -> bool:
    values = (getattr(connection, field.name) for field in dataclasses.fields(connection))
    return any(isinstance(value, str) and "${" in value for value in values)
