"""A bucket of S3 as a place for files: what any bucket is (`bucket_store.py`), with rows by Spark's s3a."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from ematix_flow.backends.bucket_store import LEASE_S, BucketStore
from ematix_flow.backends.s3_client import S3Client
from ematix_flow.declare.connection import DeltaS3Connection, IcebergConnection, ObjectStoreS3Connection

_PATIENCE = {
    # Hadoop's own defaults wait for a wrong address for a quarter of an hour.
    "attempts.maximum": "3",
    "retry.limit": "4",
    "retry.interval": "250ms",
    "connection.establish.timeout": "5s",
    "connection.timeout": "60s",
}


class S3Store(BucketStore):
    """Files in one bucket of S3, or of a store that speaks its protocol."""

    scheme = "s3"
    fit_stores = "Amazon S3 or a current MinIO"
    committer = {
        # A task's files are parts of uploads that only the finished job completes: no rename, nothing left of killed
        # tasks.
        "mapreduce.outputcommitter.factory.scheme.s3a": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
        "fs.s3a.committer.name": "magic",
    }
    client: S3Client

    def __init__(
        self,
        connection: ObjectStoreS3Connection | DeltaS3Connection | IcebergConnection,
        *,
        lease_s: float = LEASE_S,
    ) -> None:
        endpoint = (connection.endpoint or "").strip().rstrip("/")
        endpoint = endpoint if "://" in endpoint else f"https://{endpoint}"
        self.region = connection.region or ""
        self._login = (connection.access_key_id or "", connection.secret_access_key or "")
        super().__init__(
            S3Client(endpoint=endpoint, region=self.region, bucket=connection.bucket, login=self._login),
            connection.bucket,
            endpoint,
            prefix="" if isinstance(connection, ObjectStoreS3Connection) else connection.prefix.strip("/"),
            lease_s=lease_s,
        )

    def spark_uri(self, path: str) -> str:
        return f"s3a://{self.bucket}/{self.key(path)}"

    def spark_place(self) -> tuple[str, str]:
        return f"s3a://{self.bucket}", f"the bucket '{self.bucket}'"

    def login_parts(self) -> Sequence[str]:
        return (self.region, *self._login)

    def spark_settings(self) -> Mapping[str, str]:
        start = f"fs.s3a.bucket.{self.bucket}."
        return {
            f"{start}endpoint": self.endpoint,
            f"{start}endpoint.region": self.region,
            f"{start}path.style.access": str(not self.client.is_amazon).lower(),
            f"{start}connection.ssl.enabled": str(urlsplit(self.endpoint).scheme == "https").lower(),
            f"{start}aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            f"{start}access.key": self._login[0],
            f"{start}secret.key": self._login[1],
            f"{start}committer.magic.enabled": "true",
        }

    def spark_patience(self) -> Mapping[str, str]:
        return {f"fs.s3a.bucket.{self.bucket}.{name}": value for name, value in _PATIENCE.items()}
