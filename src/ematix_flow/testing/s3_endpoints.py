"""Files in a bucket of S3, of a test load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ematix_flow.declare.connection import ObjectStoreS3Connection
from ematix_flow.testing.bucket_endpoints import BucketFilesEndpoint


class S3FilesEndpoint(BucketFilesEndpoint):
    """Files in a bucket, by boto3 and Arrow alone."""

    def __init__(self, connection: ObjectStoreS3Connection, copy: Path, schema: str = "raw") -> None:
        import boto3
        from botocore.config import Config

        super().__init__(connection, connection.format, copy, schema)
        self.bucket = connection.bucket
        self._client: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=connection.endpoint,
            region_name=connection.region,
            aws_access_key_id=connection.access_key_id,
            aws_secret_access_key=connection.secret_access_key,
            config=Config(s3={"addressing_style": "path"}),
        )

    def versions(self) -> Mapping[str, str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return {item["Key"]: item["ETag"] for page in pages for item in page.get("Contents", [])}

    def download(self, key: str, path: Path) -> None:
        self._client.download_file(self.bucket, key, str(path))

    def upload(self, key: str, path: Path) -> None:
        self._client.upload_file(str(path), self.bucket, key)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self.bucket, Key=key)
