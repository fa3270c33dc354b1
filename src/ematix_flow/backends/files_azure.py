"""Files in a container of Azure: what local files are, with another store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, cast
from urllib.parse import urlsplit

from ematix_flow.backends.azure_client import AzureClient
from ematix_flow.backends.bucket_store import LEASE_S, BucketStore
from ematix_flow.backends.files import FilesBackend
from ematix_flow.backends.files_store import Store
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.declare.bucket_connection import AZURE_DOMAIN
from ematix_flow.declare.connection import Connection, ObjectStoreAzureConnection

_COMMITTERS = "org.apache.hadoop.mapreduce.lib.output.committer.manifest.ManifestCommitterFactory"
_PATIENCE = {
    # Hadoop's own defaults wait for a wrong address for a quarter of an hour.
    "fs.azure.io.retry.max.retries": "4",
    "fs.azure.io.retry.min.backoff.interval": "250",
    "fs.azure.http.connection.timeout": "5000",
}


class AzureStore(BucketStore):
    """Files in one container, with rows by Hadoop's abfs, which speaks to blobs where an account has no directories."""

    scheme = "azure"
    service = "Azure"
    stand_in = "Azurite"
    fit_stores = "Azure itself"
    committer = {
        # Tasks leave lists of their files, and the finished job gives each its place: no folder is ever renamed.
        "mapreduce.outputcommitter.factory.scheme.abfs": _COMMITTERS,
        "mapreduce.outputcommitter.factory.scheme.abfss": _COMMITTERS,
    }
    client: AzureClient

    def __init__(self, connection: ObjectStoreAzureConnection, *, lease_s: float = LEASE_S) -> None:
        self.place = connection.place()
        self.is_service = not self.place.is_local
        client = AzureClient(self.place, connection.container)
        super().__init__(client, connection.container, self.place.endpoint, lease_s=lease_s)
        address = urlsplit(self.endpoint)
        self._is_hierarchical, self._is_asked = cast("bool | None", None), False
        self._scheme = "abfs" if address.scheme == "http" else "abfss"
        # The connector knows an account by the address of its directories, wherever it really is.
        self._host = f"{self.place.account}.dfs.{AZURE_DOMAIN}"
        if self.is_service:
            self._host = (address.hostname or "").replace(".blob.", ".dfs.")

    def shown_path(self, path: str) -> str:
        return f"{self.scheme}://{self.place.account}/{self.bucket}/{self.key(path)}".rstrip("/")

    def spark_uri(self, path: str) -> str:
        return f"{self._scheme}://{self.bucket}@{self._host}/{self.key(path)}"

    def spark_place(self) -> tuple[str, str]:
        return f"abfs://{self._host}", f"the account '{self.place.account}'"

    def login_parts(self) -> Sequence[str]:
        return (self.place.key or "", self.place.sas or "")

    def spark_settings(self) -> Mapping[str, str]:
        settings: dict[str, str] = {}
        if self.place.key is not None:
            settings["fs.azure.account.auth.type"] = "SharedKey"
            settings["fs.azure.account.key"] = self.place.key
        else:
            settings["fs.azure.account.auth.type"] = "SAS"
            settings["fs.azure.sas.fixed.token"] = self.place.sas or ""
        if not self._is_asked:
            self._is_hierarchical, self._is_asked = self.client.is_hierarchical(), True
        if self._is_hierarchical is False:
            settings["fs.azure.account.hns.enabled"] = "false"
            settings["fs.azure.fns.account.service.type"] = "BLOB"
        if not self.is_service:
            address = urlsplit(self.endpoint)
            port = address.port or (80 if address.scheme == "http" else 443)
            settings["fs.azure.abfs.endpoint"] = f"{address.hostname}:{port}"
        told = {f"{name}.{self._host}": value for name, value in settings.items()}
        if self._scheme == "abfs":
            # There is one setting for all accounts; those whose address begins with https keep it by their scheme.
            told["fs.azure.always.use.https"] = "false"
        return told

    def spark_patience(self) -> Mapping[str, str]:
        return _PATIENCE


class AzureFilesBackend(FilesBackend):
    """The files of one container. A table is `<schema>/<table>/` in it, or a prefix of the user's own."""

    connection_type: ClassVar[type[Connection]] = ObjectStoreAzureConnection
    # The login is told to the session when it is used: settings of a start would show in process lists.
    needs = FilesBackend.needs | SessionNeeds(jars=frozenset({"hadoop-azure"}))

    def open_store(self, connection: Connection) -> Store:
        assert isinstance(connection, ObjectStoreAzureConnection)
        return AzureStore(connection)
