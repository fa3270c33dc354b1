"""AWS Glue schema registries: schema versions by their UUID, and the newest one of a name."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ematix_flow.backends.schema_registry import Schema
from ematix_flow.declare.connection import GlueSchemaRegistryConnection
from ematix_flow.errors import BrokerRefused, ConnectionFailed, MissingDriver

_WAIT_S = 10
_UNKNOWN = ("EntityNotFoundException",)
_BUSY = ("ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded")
_REFUSED = ("AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredToken")


class GlueClient:
    """Asks one registry. A version means one schema for ever, so it is asked for once; safe for several threads."""

    def __init__(self, connection: GlueSchemaRegistryConnection) -> None:
        self.connection = connection
        self._known: dict[str, Schema] = {}
        self._lock = threading.Lock()
        self._client: Any = None

    def schema(self, version: str) -> Schema:
        """The schema of a version; its `id` is its number among those of its name.

        Raises:
            BrokerRefused: the registry does not know it.
        """
        with self._lock:
            known = self._known.get(version)
        if known is None:
            with self._explained(f"schema version {version}"):
                answer = self._glue().get_schema_version(SchemaVersionId=version)
            known = self._kept(answer)
        return known

    def for_writing(self, name: str, text: str, *, auto_register_schemas: bool) -> tuple[uuid.UUID, Schema]:
        """The version that messages are written with: the newest of a name, or `text`, once registered.

        Raises:
            BrokerRefused: there is no such schema and it may not be made, or the registry takes no such version.
        """
        place = {"RegistryName": self.connection.registry_name, "SchemaName": name}
        with self._explained(f"schema '{name}'"):
            version = self._registered(name, text, place) if auto_register_schemas else None
            wanted = (
                {"SchemaVersionId": version}
                if version
                else {"SchemaId": place, "SchemaVersionNumber": {"LatestVersion": True}}
            )
            answer = self._glue().get_schema_version(**wanted)
        return uuid.UUID(answer["SchemaVersionId"]), self._kept(answer)

    def _registered(self, name: str, text: str, place: dict[str, str]) -> str:
        from botocore.exceptions import ClientError

        try:
            answer = self._glue().register_schema_version(SchemaId=place, SchemaDefinition=text)
        except ClientError as exc:
            if exc.response["Error"]["Code"] not in _UNKNOWN:
                raise
            answer = self._glue().create_schema(
                RegistryId={"RegistryName": self.connection.registry_name},
                SchemaName=name,
                DataFormat="AVRO",
                Compatibility="BACKWARD",
                SchemaDefinition=text,
            )
        return str(answer["SchemaVersionId"])

    def _kept(self, answer: Any) -> Schema:
        found = Schema(int(answer["VersionNumber"]), answer["DataFormat"], answer["SchemaDefinition"])
        with self._lock:
            return self._known.setdefault(str(answer["SchemaVersionId"]), found)

    def _glue(self) -> Any:
        if self._client is None:
            try:
                import boto3
                from botocore.config import Config
            except ImportError as exc:
                raise MissingDriver(
                    "An AWS Glue schema registry needs 'boto3'.", fix='pip install "ematix-flow[kinesis]"'
                ) from exc
            given = self.connection
            session = boto3.session.Session(
                profile_name=given.aws_profile or None,
                region_name=given.region,
                aws_access_key_id=given.aws_access_key_id or None,
                aws_secret_access_key=given.aws_secret_access_key or None,
            )
            patience = Config(connect_timeout=_WAIT_S, read_timeout=_WAIT_S, retries={"max_attempts": 2})
            self._client = session.client("glue", config=patience)
        return self._client

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        where = f"connection '{self.connection.name}' (glue_schema_registry)"
        registry = f"The Glue schema registry '{self.connection.registry_name}'"
        try:
            yield
        except ClientError as exc:
            code = exc.response["Error"]["Code"]
            if code in _UNKNOWN:
                raise BrokerRefused(
                    f"{registry} has no {what}.",
                    where=where,
                    fix="register the schema first, or allow it with auto_register_schemas=true",
                ) from None
            if code in _REFUSED:
                raise ConnectionFailed(f"{registry} refuses the login.", where=where) from None
            if code in _BUSY or exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
                raise ConnectionFailed(f"{registry} is in trouble ({code}).", where=where) from None
            raise BrokerRefused(f"{registry} refuses {what} ({code}).", where=where) from None
        except BotoCoreError as exc:
            raise ConnectionFailed(
                f"{registry} in {self.connection.region} cannot be reached ({type(exc).__name__}).", where=where
            ) from exc
