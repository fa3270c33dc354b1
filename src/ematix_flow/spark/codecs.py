"""Which codec reads a source: by what its backend gives, and for messages by the connection's `payload_format`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ematix_flow.config.resolve import with_registry
from ematix_flow.contracts.streams import StreamsFiles
from ematix_flow.declare.connection import KafkaConnection
from ematix_flow.declare.stream import Source
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.spark.checkpoints import CheckpointFolder
from ematix_flow.spark.file_rows import FileCodec, LineCodec, RowCodec
from ematix_flow.spark.payloads import Codec, codec_for


def codec_of(
    source: Source,
    backend: Any,
    folder: CheckpointFolder,
    tells_types: Callable[[], bool] = lambda: True,
    spec: StreamSpec | None = None,
) -> Codec:
    """The codec of one source, which remembers in the stream's folder what it learns.

    Args:
        tells_types: Whether all targets know their columns; for files that hold only text.
        spec: The stream; a change feed has codecs of its own.

    Raises:
        InvalidDeclaration: the connection's `payload_format` is unknown.
        FlowError: its schema registry cannot be used.
    """
    schema, remember = folder.schema(source.query), partial(folder.keep_schema, source.query)
    if spec is not None and spec.cdc is not None:
        return _of_changes(source, backend, folder, tells_types, spec)
    if isinstance(backend, StreamsFiles):
        if backend.file_format == "json_lines":
            return LineCodec(backend, source.query, schema, remember)
        return FileCodec(backend, source.query, schema, remember, tells_types)
    if not backend.gives_messages:
        return RowCodec(schema, remember)
    if isinstance(source.connection, KafkaConnection) and source.connection.payload_format in ("avro", "protobuf"):
        from ematix_flow.spark.payload_registry import registry_codec

        return registry_codec(source.connection, remember)
    return codec_for(getattr(source.connection, "payload_format", None), schema, remember)


def _of_changes(
    source: Source, backend: Any, folder: CheckpointFolder, tells_types: Callable[[], bool], spec: StreamSpec
) -> Codec:
    """JSON events are read as they are; what comes with columns of its own is decoded first."""
    from ematix_flow.spark.change_events import ChangeCodec, StructuredChangeCodec
    from ematix_flow.spark.change_keys import MessageKeys
    from ematix_flow.spark.payload_registry import key_codec

    assert spec.cdc is not None
    refuses = spec.transform_on_error == "dlq"
    schema, remember = folder.schema(source.query), partial(folder.keep_schema, source.query)
    keys = MessageKeys()
    if isinstance(source.connection, KafkaConnection):
        # The registry of a connection with plain JSON is of no interest to anybody else.
        keys = MessageKeys(key_codec(with_registry(source.connection, where=str(spec.where))))
    changes = ChangeCodec(spec.cdc, schema, remember, refuses=refuses, keys=keys)
    if isinstance(backend, StreamsFiles) and backend.file_format == "json_lines":
        return LineCodec(backend, source.query, schema, remember, reads=changes)
    if backend.gives_messages and (getattr(source.connection, "payload_format", None) or "json") == "json":
        return changes
    inner = codec_of(source, backend, folder, tells_types)
    return StructuredChangeCodec(spec.cdc, inner, refuses=refuses, keys=keys)
