"""Files in a bucket, of a test load: looked at in a copy on this machine, which is brought up to date first."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ematix_flow.declare.connection import Connection, ObjectStoreAzureConnection, ObjectStoreGcsConnection
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint, Row


class BucketFilesEndpoint(FilesEndpoint):
    """Files in a bucket, by its vendor's client and Arrow alone. Subclasses say how objects are moved about."""

    def __init__(self, connection: Connection, file_format: str, copy: Path, schema: str = "raw") -> None:
        Endpoint.__init__(self, connection, schema)
        self.format = file_format
        self._copy, self._tags = copy, dict[str, str]()

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Every object's key, with something that changes when the object does."""

    @abstractmethod
    def download(self, key: str, path: Path) -> None:
        """Bring an object here."""

    @abstractmethod
    def upload(self, key: str, path: Path) -> None:
        """Put a file there."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object."""

    @property
    def root(self) -> Path:  # type: ignore[override]
        """The copy, as the bucket is now."""
        now = dict(self.versions())
        for key in set(self._tags) - set(now):
            (self._copy / key).unlink(missing_ok=True)
        for key, tag in now.items():
            if self._tags.get(key) != tag and not key.endswith("/"):
                (self._copy / key).parent.mkdir(parents=True, exist_ok=True)
                self.download(key, self._copy / key)
        self._tags = now
        return self._copy

    def make(self, name: str, columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> None:
        super().make(name, columns, rows)
        key = f"{self.schema}/{name}/rows.parquet"
        self.upload(key, self._copy / key)
        for old in [k for k in self._tags if k.startswith(f"{self.schema}/{name}/") and k != key]:
            if old.endswith(".parquet"):
                self.delete(old)


class GcsFilesEndpoint(BucketFilesEndpoint):
    """Files in a bucket of Google Cloud Storage, by a client of the test's own."""

    def __init__(self, connection: ObjectStoreGcsConnection, client: Any, copy: Path, schema: str = "raw") -> None:
        super().__init__(connection, connection.format, copy, schema)
        self._bucket = client.bucket(connection.bucket)

    def versions(self) -> Mapping[str, str]:
        return {blob.name: str(blob.generation) for blob in self._bucket.list_blobs()}

    def download(self, key: str, path: Path) -> None:
        path.write_bytes(self._bucket.blob(key).download_as_bytes())

    def upload(self, key: str, path: Path) -> None:
        self._bucket.blob(key).upload_from_string(path.read_bytes())

    def delete(self, key: str) -> None:
        self._bucket.blob(key).delete()


class AzureFilesEndpoint(BucketFilesEndpoint):
    """Files in a container of Azure, by a client of the test's own; blobs that mark folders are left out."""

    def __init__(self, connection: ObjectStoreAzureConnection, client: Any, copy: Path, schema: str = "raw") -> None:
        super().__init__(connection, connection.format, copy, schema)
        self._container = client.get_container_client(connection.container)

    def versions(self) -> Mapping[str, str]:
        found = self._container.list_blobs(include=["metadata"])
        return {blob.name: blob.etag for blob in found if "hdi_isfolder" not in (blob.metadata or {})}

    def download(self, key: str, path: Path) -> None:
        path.write_bytes(self._container.download_blob(key).readall())

    def upload(self, key: str, path: Path) -> None:
        self._container.upload_blob(key, path.read_bytes(), overwrite=True)

    def delete(self, key: str) -> None:
        self._container.delete_blob(key)
