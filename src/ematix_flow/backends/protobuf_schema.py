"""Protobuf schemas of a registry, compiled: descriptors as bytes that travel to workers, and classes of messages."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ematix_flow.backends.schema_registry import Schema
from ematix_flow.errors import MissingDriver, UnfitValue

_FILE = "message.proto"


@dataclass(frozen=True)
class Compiled:
    """A schema's descriptor set, with all it imports. It is plain bytes, so it travels to Spark's workers."""

    descriptors: bytes

    def name(self, indexes: Sequence[int]) -> str:
        """The full name of the message that a list of indexes leads to.

        Raises:
            UnfitValue: there is none.
        """
        package, inside = _own_messages(self.descriptors)
        names = [package] if package else []
        for index in indexes:
            if index >= len(inside):
                raise UnfitValue("A message names a type that its schema does not have.")
            names.append(inside[index].name)
            inside = inside[index].nested_type
        return ".".join(names)

    def message(self, name: str) -> Any:
        """The class of a message."""
        return _message_class(self.descriptors, name)


def compiled(schema: Schema) -> Compiled:
    """Compile a schema, together with those it refers to.

    Raises:
        MissingDriver: the compiler is not installed.
        UnfitValue: it is not Protobuf, or does not compile.
    """
    if schema.type != "PROTOBUF":
        raise UnfitValue(f"Schema {schema.id} is {schema.type}, not Protobuf.", fix="set payload_format to what it is")
    try:
        import grpc_tools
        from grpc_tools import protoc
    except ImportError as exc:
        raise MissingDriver(
            "payload_format='protobuf' needs 'grpcio-tools'.", fix='pip install "ematix-flow[protobuf]"'
        ) from exc
    known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="ematix-flow-proto-") as folder:
        _write(schema, Path(folder), _FILE)
        out = Path(folder) / "descriptors"
        arguments = ["protoc", f"-I{folder}", f"-I{known}", "--include_imports", f"--descriptor_set_out={out}", _FILE]
        with _silenced():
            failed = protoc.main(arguments) != 0
        if failed:
            raise UnfitValue(f"Schema {schema.id} of the registry does not compile as Protobuf.")
        return Compiled(out.read_bytes())


def _write(schema: Schema, folder: Path, name: str) -> None:
    place = (folder / name).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise UnfitValue(f"Schema {schema.id} refers to a file outside of its own folder.")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(schema.text)
    for import_name, reference in schema.references.items():
        _write(reference, folder, import_name)


@contextmanager
def _silenced() -> Iterator[None]:
    """The compiler writes to the process's own error output, past Python."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _own_messages(descriptors: bytes) -> tuple[str, Sequence[Any]]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    own = next(file for file in FileDescriptorSet.FromString(descriptors).file if file.name == _FILE)
    return own.package, own.message_type


@lru_cache(maxsize=64)
def _message_class(descriptors: bytes, name: str) -> Any:
    from google.protobuf import message_factory
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
