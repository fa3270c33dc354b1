"""The run log in a bucket of S3, or of a store that speaks its protocol."""

from __future__ import annotations

from typing import Any

from ematix_flow.backends.s3_client import S3Client
from ematix_flow.errors import MissingDriver
from ematix_flow.run.runlogs.objects import ObjectRunLog


class _Bucket(S3Client):
    """A bucket, asked by the usual AWS credential chain or through a client that was given."""

    def __init__(self, bucket: str, *, endpoint: str | None, region: str | None, client: Any) -> None:
        self._given_endpoint, self._given_region = endpoint, region
        super().__init__(
            endpoint=endpoint or "Amazon S3", region=region or "the default region", bucket=bucket, login=("", "")
        )
        self._client = client

    def _connected(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as exc:
            raise MissingDriver("A run log in S3 needs 'boto3'.", fix='pip install "ematix-flow[runlog-s3]"') from exc
        settings = Config(
            connect_timeout=5,
            read_timeout=30,
            retries={"mode": "standard", "total_max_attempts": 3},
            s3={"addressing_style": "path" if self._given_endpoint else "auto"},
            # Other stores do not know the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return boto3.session.Session().client(
            "s3", endpoint_url=self._given_endpoint, region_name=self._given_region, config=settings
        )


class S3RunLog(ObjectRunLog):
    """A run log in a bucket of S3; what it can keep is said in `ObjectRunLog`.

    Args:
        bucket: It must exist.
        prefix: What the keys begin with.
        client: A client of boto3; without it one is made by the usual credential chain.
        region, endpoint: For that client.

    Raises:
        MissingDriver: boto3 is not installed; it is an ImportError.
        ConnectionFailed: The bucket cannot be reached, or the login may not read it.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        client: Any = None,
        region: str | None = None,
        endpoint: str | None = None,
        max_age_days: float | None = None,
        max_records: int | None = None,
    ) -> None:
        super().__init__(
            _Bucket(bucket, endpoint=endpoint, region=region, client=client),
            where=f"s3://{bucket}/{prefix.strip('/')}".rstrip("/"),
            prefix=prefix,
            max_age_days=max_age_days,
            max_records=max_records,
        )
        self.open()
