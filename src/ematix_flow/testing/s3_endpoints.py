"""Files in a bucket, of a test load: looked at in a copy on this machine, which is brought up to date first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ematix_flow.declare.connection import ObjectStoreS3Connection
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint, Row


class S3FilesEndpoint(FilesEndpoint):
    """Files in a bucket, by boto3 and Arrow alone."""

    def __init__(self, connection: ObjectStoreS3Connection, copy: Path, schema: str = "raw") -> None:
        import boto3
        from botocore.config import Config

        Endpoint.__init__(self, connection, schema)
        self.bucket, self.format = connection.bucket, connection.format
        self._copy, self._tags = copy, dict[str, str]()
        self._client: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=connection.endpoint,
            region_name=connection.region,
            aws_access_key_id=connection.access_key_id,
            aws_secret_access_key=connection.secret_access_key,
            config=Config(s3={"addressing_style": "path"}),
        )

    @property
    def root(self) -> Path:  # type: ignore[override]
        """The copy, as the bucket is now."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        now = {item["Key"]: item["ETag"] for page in pages for item in page.get("Contents", [])}
        for key in set(self._tags) - set(now):
            (self._copy / key).unlink(missing_ok=True)
        for key, tag in now.items():
            if self._tags.get(key) != tag and not key.endswith("/"):
                (self._copy / key).parent.mkdir(parents=True, exist_ok=True)
                self._client.download_file(self.bucket, key, str(self._copy / key))
        self._tags = now
        return self._copy

    def make(self, name: str, columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> None:
        super().make(name, columns, rows)
        key = f"{self.schema}/{name}/rows.parquet"
        self._client.upload_file(str(self._copy / key), self.bucket, key)
        for old in [k for k in self._tags if k.startswith(f"{self.schema}/{name}/") and k != key]:
            if old.endswith(".parquet"):
                self._client.delete_object(Bucket=self.bucket, Key=old)
