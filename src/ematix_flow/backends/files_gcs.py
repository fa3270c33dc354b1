"""Files in a bucket of Google Cloud Storage: what local files are, with another store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ematix_flow.backends.bucket_store import LEASE_S, BucketStore
from ematix_flow.backends.files import FilesBackend
from ematix_flow.backends.files_store import Store
from ematix_flow.backends.gcs_client import SERVICE, GcsClient
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.declare.connection import Connection, ObjectStoreGcsConnection

_PATIENCE = {
    "fs.gs.http.connect-timeout": "5s",
    "fs.gs.http.max.retry": "5",
}


class GcsStore(BucketStore):
    """Files in one bucket, with rows by Google's connector for Hadoop."""

    scheme = "gs"
    service = "Google Cloud Storage"
    stand_in = "fake-gcs-server"
    fit_stores = "Google Cloud Storage itself"
    committer = {
        # Tasks leave lists of their files, and the finished job gives each its place: no folder is ever renamed.
        "mapreduce.outputcommitter.factory.scheme.gs": (
            "org.apache.hadoop.mapreduce.lib.output.committer.manifest.ManifestCommitterFactory"
        ),
    }

    def __init__(self, connection: ObjectStoreGcsConnection, *, lease_s: float = LEASE_S) -> None:
        endpoint = (connection.endpoint or "").strip().rstrip("/") or None
        if endpoint is not None and "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        path = connection.credentials_path
        self._credentials_path = None if path is None else os.path.abspath(os.path.expanduser(path))
        self._project, self.is_service = connection.project, endpoint is None
        client = GcsClient(
            bucket=connection.bucket,
            project=connection.project,
            credentials_path=self._credentials_path,
            endpoint=endpoint,
        )
        super().__init__(client, connection.bucket, endpoint or SERVICE, lease_s=lease_s)

    def spark_uri(self, path: str) -> str:
        return f"gs://{self.bucket}/{self.key(path)}"

    def spark_place(self) -> tuple[str, str]:
        # The connector has one login for all buckets.
        return "gs://", "Google Cloud Storage"

    def login_parts(self) -> Sequence[str]:
        return (self._credentials_path or "", self._project or "")

    def spark_settings(self) -> Mapping[str, str]:
        settings = {
            "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
            "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
            # Folders need no objects that stand for them.
            "fs.gs.implicit.dir.repair.enable": "false",
            # A copy and a removal: the way that was tried.
            "fs.gs.operation.move.enable": "false",
        }
        if self._project:
            settings["fs.gs.project.id"] = self._project
        if self._credentials_path is not None:
            settings["fs.gs.auth.type"] = "SERVICE_ACCOUNT_JSON_KEYFILE"
            settings["fs.gs.auth.service.account.json.keyfile"] = self._credentials_path
        else:
            settings["fs.gs.auth.type"] = "APPLICATION_DEFAULT" if self.is_service else "UNAUTHENTICATED"
        if not self.is_service:
            settings["fs.gs.storage.root.url"] = f"{self.endpoint}/"
        return settings

    def spark_patience(self) -> Mapping[str, str]:
        return _PATIENCE


class GcsFilesBackend(FilesBackend):
    """The files of one bucket. A table is `<schema>/<table>/` in it, or a prefix of the user's own."""

    connection_type: ClassVar[type[Connection]] = ObjectStoreGcsConnection
    needs = FilesBackend.needs | SessionNeeds(jars=frozenset({"gcs-connector"}))

    def open_store(self, connection: Connection) -> Store:
        assert isinstance(connection, ObjectStoreGcsConnection)
        return GcsStore(connection)
