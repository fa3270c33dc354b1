"""Schema registries: schemas by id and by subject from Confluent's REST API, and how messages name their schema.

A `Registry` is plain data, so that it travels to Spark's workers as it is; a `RegistryClient` asks it, and asks for no
schema twice. Confluent, Apicurio and others put a zero byte and the schema's number in front of a message, AWS Glue a
three and the schema version's UUID; the functions that do so are here, and know nothing of what a schema says.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.request
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, urlsplit

from ematix_flow.declare.connection import SchemaRegistryConnection
from ematix_flow.errors import BrokerRefused, ConnectionFailed, UnfitValue

WAIT_S = 10.0
"""How long a registry may take to answer before it counts as unreachable."""

LATEST_S = 60.0
"""How long the newest schema of a subject is taken to be the newest."""

SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]
_COME_BACK_LATER = (408, 425, 429)
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


# ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def registry_of(connection: SchemaRegistryConnection) -> Registry:
    """The registry behind a connection. Nothing connects.

    Raises:
        InvalidConnection: the URL is none, or of user and password only one is given.
    """
    if bool(connection.basic_auth_user) != bool(connection.basic_auth_password):
        connection.refuse("basic_auth_user and basic_auth_password go together", fix="give both or none")
    parts = urlsplit(connection.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        connection.refuse("url must begin with 'http://' or 'https://' and name a host")
    if parts.username or parts.password:
        connection.refuse("url has a login in it", fix="give basic_auth_user and basic_auth_password instead")
    user, password = connection.basic_auth_user, connection.basic_auth_password
    return Registry(connection.name, connection.url.rstrip("/"), (user, password) if user and password else None)


@dataclass(frozen=True)
class Registry:
    """One registry. The URL may have a base path, as Apicurio's `/apis/ccompat/v7`; `login` is never shown."""

    name: str
    url: str
    login: tuple[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Schema:
    """One schema: its number, what language it is written in, its text, and the schemas it uses by name."""

    id: int
    type: SchemaType
    text: str
    references: Mapping[str, Schema] = field(default_factory=dict)


class RegistryClient:
    """Asks a registry. A number means one schema for ever, so it is asked for once; safe for several threads."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._by_id: dict[int, Schema] = {}
        self._latest: dict[str, tuple[float, Schema]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[RegistryClient], tuple[Registry]]:
        return RegistryClient, (self.registry,)  # what it knows stays here

    def ping(self) -> None:
        """Ask for the names of subjects."""
        self._ask("GET", "/subjects")

    def schema(self, schema_id: int) -> Schema:
        """The schema with a number.

        Raises:
            BrokerRefused: the registry does not know it.
        """
        with self._lock:
            known = self._by_id.get(schema_id)
        if known is None:
            answer = self._ask("GET", f"/schemas/ids/{schema_id}", f"schema {schema_id}")
            known = self._kept(schema_id, answer)
        return known

    def latest(self, subject: str) -> Schema:
        """The newest schema of a subject; asked for again after a minute.

        Raises:
            BrokerRefused: there is no such subject.
        """
        with self._lock:
            asked_at, known = self._latest.get(subject, (0.0, None))
        if known is not None and time.monotonic() - asked_at < LATEST_S:
            return known
        answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/latest", f"subject '{subject}'")
        known = self._kept(int(answer["id"]), answer)
        with self._lock:
            self._latest[subject] = (time.monotonic(), known)
        return known

    def for_writing(self, subject: str, text: str, kind: SchemaType = "AVRO", *, auto_register_schemas: bool) -> Schema:
        """The schema that messages of a subject are written with: the newest there is, or `text`, once registered.

        Raises:
            BrokerRefused: the subject is not there and may not be made, or the registry takes no such version.
        """
        return self.register(subject, text, kind) if auto_register_schemas else self.latest(subject)

    def register(self, subject: str, text: str, kind: SchemaType = "AVRO") -> Schema:
        """Make a schema a version of a subject; the same text twice is one version."""
        body = {"schema": text, "schemaType": kind}
        path = f"/subjects/{quote(subject, safe='')}/versions"
        answer = self._ask("POST", path, f"subject '{subject}'", json.dumps(body).encode())
        known = self._kept(int(answer["id"]), body)
        with self._lock:
            self._latest[subject] = (time.monotonic(), known)
        return known

    def _kept(self, schema_id: int, answer: Mapping[str, Any]) -> Schema:
        references = {
            item["name"]: self._version(item["subject"], item["version"]) for item in answer.get("references") or ()
        }
        found = Schema(schema_id, answer.get("schemaType") or "AVRO", answer["schema"], references)
        with self._lock:
            return self._by_id.setdefault(schema_id, found)

    def _version(self, subject: str, version: int) -> Schema:
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
        answer = self._ask("GET", path, f"version {version} of subject '{subject}'")
        return self._kept(int(answer["id"]), answer)

    def _ask(self, method: str, path: str, what: str = "it", body: bytes | None = None) -> Any:
        registry = self.registry
        headers = {"Accept": f"{_CONTENT_TYPE}, application/json", "Content-Type": _CONTENT_TYPE}
        if registry.login is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(registry.login).encode()).decode()
        request = urllib.request.Request(registry.url + path, data=body, headers=headers, method=method)
        where = f"connection '{registry.name}' (schema_registry)"
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as exc:
            with exc:
                told = _document(exc)
            if exc.code in (401, 403):
                raise ConnectionFailed(
                    f"The schema registry at {registry.url} refuses the login.",
                    where=where,
                    fix="check basic_auth_user and basic_auth_password",
                ) from None
            # A proxy says 404, too, when the registry behind it is away, and then no message is to blame.
            if exc.code == 404 and "error_code" not in told:
                raise ConnectionFailed(
                    f"There is no schema registry at {registry.url}, or it is away (HTTP 404).",
                    where=where,
                    fix="check the URL, its base path included",
                ) from None
            if exc.code == 404:
                raise BrokerRefused(
                    f"The schema registry at {registry.url} has no {what}.",
                    where=where,
                    fix="register the schema first, or allow it with auto_register_schemas=true",
                ) from None
            if exc.code >= 500 or exc.code in _COME_BACK_LATER:
                raise ConnectionFailed(
                    f"The schema registry at {registry.url} is in trouble (HTTP {exc.code}).", where=where
                ) from None
            said = f", {told['message']}" if "message" in told else ""
            raise BrokerRefused(
                f"The schema registry at {registry.url} refuses {what} (HTTP {exc.code}{said}).", where=where
            ) from None
        except (OSError, ValueError, HTTPException) as exc:
            is_answer = isinstance(exc, ValueError) and not isinstance(exc, OSError)
            raise ConnectionFailed(
                f"The schema registry at {registry.url} "
                f"{'answers with something else than JSON' if is_answer else 'cannot be reached'}.",
                where=where,
                fix="check the URL, its base path included",
            ) from exc


def _document(answer: urllib.error.HTTPError) -> Mapping[str, Any]:
    """What a registry says beside a refusal; nothing where somebody else speaks, or breaks off."""
    try:
        told = json.loads(answer.read(2000))
    except (OSError, ValueError, HTTPException):
        return {}
    return told if isinstance(told, dict) else {}


# ── how a message names its schema ───────────────────────────────────────────────────────────────────────────────────


def with_schema_id(schema_id: int, payload: bytes) -> bytes:
    """A message in Confluent's framing.

    >>> with_schema_id(7, b"rest").hex(" ")
    '00 00 00 00 07 72 65 73 74'
    """
    return b"\x00" + schema_id.to_bytes(4, "big") + payload


def schema_id_and_payload(message: bytes) -> tuple[int, bytes]:
    """What `with_schema_id` put together.

    Raises:
        UnfitValue: the message is not framed so.
    """
    if len(message) < 5 or message[0] != 0:
        raise UnfitValue(
            "A message does not begin with a zero byte and a schema id.",
            fix="it was not written through a schema registry; payload_format='raw_bytes' gives the bytes as they are",
        )
    return int.from_bytes(message[1:5], "big"), message[5:]


def with_message_indexes(indexes: Sequence[int], payload: bytes) -> bytes:
    """A Protobuf payload with the way to its message type in front; the first type of a file is a single zero.

    >>> with_message_indexes([0], b"x"), with_message_indexes([1, 0], b"x")
    (b'\\x00x', b'\\x04\\x02\\x00x')
    """
    if list(indexes) == [0]:
        return b"\x00" + payload
    return b"".join(_varint(number) for number in (len(indexes), *indexes)) + payload


def message_indexes_and_payload(payload: bytes) -> tuple[list[int], bytes]:
    """What `with_message_indexes` put together.

    Raises:
        UnfitValue: the payload does not begin so.
    """
    count, at = _read_varint(payload, 0)
    if count == 0:
        return [0], payload[at:]
    indexes = []
    for _ in range(count):
        number, at = _read_varint(payload, at)
        indexes.append(number)
    return indexes, payload[at:]


def _varint(number: int) -> bytes:
    rest, found = number << 1, bytearray()  # zigzag; none of ours is negative
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(at + 5, len(data))):
        value |= (data[position] & 0x7F) << shift
        shift += 7
        if data[position] < 0x80:
            number = (value >> 1) ^ -(value & 1)
            if 0 <= number < 1000:
                return number, position + 1
            break
    raise UnfitValue("A Protobuf message does not say which type of its schema it is.")


class GlueMessage(NamedTuple):
    """A message in the framing of AWS Glue, taken apart."""

    schema_version: uuid.UUID
    payload: bytes
    is_aws_order: bool


_GLUE = 3
_PLAIN, _ZLIB = 0, 5


def with_glue_version(
    schema_version: uuid.UUID, payload: bytes, *, compress: bool = False, aws_order: bool = True
) -> bytes:
    """A message in the framing of AWS's own serializers: 3, compression, schema version, payload.

    `aws_order=False` puts the compression behind the version, as some older writers do.
    """
    rest = zlib.compress(payload) if compress else payload
    how, version = bytes([_ZLIB if compress else _PLAIN]), schema_version.bytes
    return bytes([_GLUE]) + (how + version if aws_order else version + how) + rest


def glue_version_and_payload(message: bytes) -> GlueMessage:
    """What `with_glue_version` put together, in either order.

    Raises:
        UnfitValue: the message is not framed so, or is damaged.
    """
    if len(message) < 18 or message[0] != _GLUE:
        raise UnfitValue(
            "A message does not begin with the schema version of an AWS Glue registry.",
            fix="it was not written through that registry; payload_format='raw_bytes' gives the bytes as they are",
        )
    aws, older = (message[1], message[2:18]), (message[17], message[1:17])
    fits = [_PLAIN, _ZLIB]
    # A version may begin with a byte that is also a compression; then the UUID with the right bits in it decides.
    is_aws = aws[0] in fits and (older[0] not in fits or _is_uuid(aws[1]) or not _is_uuid(older[1]))
    how, version = aws if is_aws else older
    if how not in fits:
        raise UnfitValue("A message of an AWS Glue registry is compressed in a way that is not known.")
    payload = message[18:]
    if how == _ZLIB:
        try:
            payload = zlib.decompress(payload)
        except zlib.error as exc:
            raise UnfitValue("A compressed message of an AWS Glue registry is damaged.") from exc
    return GlueMessage(uuid.UUID(bytes=version), payload, is_aws)


def _is_uuid(data: bytes) -> bool:
    """Whether the bits that say which kind of UUID it is make sense."""
    return data[8] & 0xC0 == 0x80 and 1 <= data[6] >> 4 <= 8
