"""Connections to lake tables: tables that are files with a log of commits, in a folder or a bucket."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from ematix_flow.declare.connection_base import Connection, FolderConnection
from ematix_flow.declare.redaction import display_url, redact_url
from ematix_flow.declare.server_address import url_scheme
from ematix_flow.errors import closest, listed

ICEBERG_CATALOGS = ("path", "rest", "jdbc")
STREAM_CHANGES = ("fail", "skip")
"""What a stream that reads a table does about a commit that changes or deletes rows."""

_ONLY_FOR = {
    "rest": ("token", "warehouse_name", "credential", "scope", "oauth2_server_uri"),
    "jdbc": ("user", "password", "catalog_name"),
}
_OTHERWISE = {"catalog_name": "; warehouse_name= is what a REST catalog calls its warehouse"}

_S3_FIELDS = ("endpoint", "region", "access_key_id", "secret_access_key")


@dataclass(frozen=True, repr=False)
class DeltaLocalConnection(FolderConnection):
    """Delta tables below a folder of this machine."""

    kind: ClassVar[str] = "delta_local"
    required: ClassVar[tuple[str, ...]] = ("path",)
    path: str = ""
    stream_changes: str = "fail"

    def _check_together(self) -> None:
        check_stream_changes(self)


@dataclass(frozen=True, repr=False)
class DeltaS3Connection(Connection):
    """Delta tables in a bucket of S3 or of a store that speaks its protocol."""

    kind: ClassVar[str] = "delta_s3"
    required: ClassVar[tuple[str, ...]] = ("endpoint", "bucket", "region", "access_key_id", "secret_access_key")
    endpoint: str = ""
    bucket: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    prefix: str = ""
    stream_changes: str = "fail"

    def _check_together(self) -> None:
        check_stream_changes(self)


@dataclass(frozen=True, repr=False)
class IcebergConnection(Connection):
    """Apache Iceberg tables below a folder or a bucket (`s3://bucket/prefix`).

    They are listed by the folder itself (`catalog="path"`), by a REST catalog, or by a database (`jdbc`), where
    `catalog_name` is what the list is called. A REST catalog may keep several warehouses, of which `warehouse_name` is
    one, and may want a `token`, or a login (`credential`, "id:secret") that gets one from `oauth2_server_uri`.
    """

    kind: ClassVar[str] = "iceberg"
    required: ClassVar[tuple[str, ...]] = ("warehouse",)
    warehouse: str = ""
    catalog: str = "path"
    uri: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    warehouse_name: str | None = None
    credential: str | None = None
    scope: str | None = None
    oauth2_server_uri: str | None = None
    catalog_name: str | None = None
    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    stream_changes: str = "fail"

    def _check_together(self) -> None:
        check_stream_changes(self)
        if "${" not in self.catalog:
            if self.catalog not in ICEBERG_CATALOGS:
                self.refuse(
                    f"catalog '{self.catalog}' is unknown",
                    fix=closest(self.catalog, ICEBERG_CATALOGS) or f"use {listed(ICEBERG_CATALOGS)}",
                )
            if (self.catalog == "path") != (self.uri is None):
                needs = "has no uri" if self.catalog == "path" else "needs a uri"
                self.refuse(f"catalog '{self.catalog}' {needs}")
            for catalog, names in _ONLY_FOR.items():
                given = [name for name in names if getattr(self, name) is not None]
                if given and self.catalog != catalog:
                    self.refuse(
                        f"{given[0]} is for catalog '{catalog}', and this one is '{self.catalog}'",
                        fix=f"leave it out{_OTHERWISE.get(given[0], '')}",
                    )
            if self.token is not None and self.credential is not None:
                self.refuse("token and credential are two logins", fix="give one of them")
            if self.credential is None and (self.scope is not None or self.oauth2_server_uri is not None):
                self.refuse("scope and oauth2_server_uri belong to a credential", fix='credential = "id:secret"')
        if "${" in self.warehouse:
            return
        missing = [name for name in _S3_FIELDS if getattr(self, name) is None]
        if self.bucket and missing:
            self.refuse(f"a warehouse in S3 needs {listed(missing)}")
        if not self.bucket and len(missing) < len(_S3_FIELDS):
            self.refuse("endpoint, region and keys belong to a warehouse in S3", fix="write s3://bucket/prefix")

    @property
    def bucket(self) -> str:
        """The bucket of a warehouse in S3; empty for a folder of this machine."""
        return urlsplit(self.warehouse).netloc if url_scheme(self.warehouse) in ("s3", "s3a") else ""

    @property
    def prefix(self) -> str:
        """Where in the bucket it is."""
        return urlsplit(self.warehouse).path.strip("/") if self.bucket else ""

    def identity(self) -> str:
        place = f"{self.endpoint} {self.warehouse}" if self.bucket else os.path.realpath(self.warehouse)
        named = [self.warehouse_name] if self.warehouse_name else []
        return " ".join([f"{self.kind}:{self.catalog}", redact_url(self.uri or ""), self.user or "", place, *named])

    def display(self) -> str:
        return " ".join([self.kind, self.catalog, *([display_url(self.uri)] if self.uri else []), self.warehouse])


def check_stream_changes(connection: DeltaLocalConnection | DeltaS3Connection | IcebergConnection) -> None:
    """Refuse another word than the known ones."""
    word = connection.stream_changes
    if "${" not in word and word not in STREAM_CHANGES:
        connection.refuse(
            f"stream_changes '{word}' is unknown", fix=closest(word, STREAM_CHANGES) or f"use {listed(STREAM_CHANGES)}"
        )
