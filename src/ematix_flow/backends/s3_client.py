"""Objects of S3, or of a store that speaks its protocol, by boto3; conditions are `If-Match` and `If-None-Match`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from ematix_flow.backends.files_store import VersionChanged
from ematix_flow.backends.object_client import AT_ONCE, Listing, OnlyIf, StoredObject, StoreRefused
from ematix_flow.backends.s3_refusals import code_of, refusal
from ematix_flow.errors import MissingDriver

_ABSENT = ("NoSuchKey", "404", "NotFound")
_CHANGED = ("PreconditionFailed", "412", "NoSuchKey", "404", "ConditionalRequestConflict")
_KEYS_PER_DELETE = 1000


class S3Client:
    """One bucket of S3, asked by a pair of keys."""

    conditions = ("IfNoneMatch", "IfMatch")
    no_version = '"00000000000000000000000000000000"'

    def __init__(self, *, endpoint: str, region: str, bucket: str, login: tuple[str, str]) -> None:
        self.endpoint, self.region, self.bucket = endpoint, region, bucket
        self._login = login
        self._client: Any = None

    @property
    def is_amazon(self) -> bool:
        """Whether buckets are names of hosts, as only Amazon's own must be."""
        return (urlsplit(self.endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def list(self, prefix: str, *, at_most: int | None = None) -> Listing:
        found: list[StoredObject] = []
        more: dict[str, Any] = {} if at_most is None else {"MaxKeys": at_most}
        with self._asking() as client:
            while True:
                answer = client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **more)
                found += (
                    StoredObject(item["Key"], item["Size"], item["LastModified"]) for item in answer.get("Contents", [])
                )
                if at_most is not None or not answer.get("IsTruncated"):
                    break
                more = {"ContinuationToken": answer["NextContinuationToken"]}
        told = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return Listing(tuple(found), parsedate_to_datetime(told) if told else datetime.now(timezone.utc))

    def size(self, key: str) -> int | None:
        with self._asking() as client:
            try:
                return int(client.head_object(Bucket=self.bucket, Key=key)["ContentLength"])
            except client.exceptions.ClientError as exc:
                if code_of(exc) in _ABSENT:
                    return None
                if code_of(exc) == "403":  # without a reason, as HEAD has no body; a wrong login says so to a listing
                    self.list("", at_most=1)
                raise

    def get(self, key: str) -> tuple[bytes, str] | None:
        with self._asking() as client:
            try:
                answer = client.get_object(Bucket=self.bucket, Key=key)
                return answer["Body"].read(), answer["ETag"]
            except client.exceptions.NoSuchKey:
                return None

    def get_range(self, key: str, start: int, end: int) -> bytes:
        with self._asking() as client:
            answer = client.get_object(Bucket=self.bucket, Key=key, Range=f"bytes={start}-{end}")
            found: bytes = answer["Body"].read()
            return found

    def put(self, key: str, body: bytes, only_if: OnlyIf | None = None) -> str:
        condition: dict[str, str] = {}
        if only_if is not None:
            condition = {"IfNoneMatch": "*"} if only_if.version is None else {"IfMatch": only_if.version}
        with self._asking() as client:
            try:
                answer = client.put_object(
                    Bucket=self.bucket, Key=key, Body=body, ContentType="application/json", **condition
                )
            except client.exceptions.ClientError as exc:
                if condition and code_of(exc) in _CHANGED:
                    raise VersionChanged from None
                raise
            return str(answer["ETag"])

    def copy(self, source: str, destination: str) -> None:
        with self._asking() as client:
            from boto3.s3.transfer import TransferConfig

            # By parts if it is big: a single request copies no more than 5 GiB.
            there = {"Bucket": self.bucket, "Key": source}
            client.copy(there, self.bucket, destination, Config=TransferConfig(use_threads=False))

    def delete(self, keys: Sequence[str]) -> None:
        with self._asking() as client:
            if len(keys) == 1:
                client.delete_object(Bucket=self.bucket, Key=keys[0])
                return
            for start in range(0, len(keys), _KEYS_PER_DELETE):
                batch = [{"Key": key} for key in keys[start : start + _KEYS_PER_DELETE]]
                client.delete_objects(Bucket=self.bucket, Delete={"Objects": batch, "Quiet": True})

    def end_uploads(self, prefix: str) -> None:
        with self._asking() as client:
            for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=prefix):
                for upload in page.get("Uploads", []):
                    if upload["Key"].startswith(prefix):
                        client.abort_multipart_upload(
                            Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                        )

    def folder_marks(self, folder: str) -> Sequence[str]:
        return ()

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """The client, with its refusals as `OSError`, as local files have them."""
        if self._client is None:
            self._client = self._connected()
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield self._client
        except (BotoCoreError, ClientError) as exc:
            raise refusal(exc, bucket=self.bucket, endpoint=self.endpoint, region=self.region) from exc

    def _connected(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise MissingDriver("Buckets need 'boto3'.", fix='pip install "ematix-flow[s3]"') from None
        settings = Config(
            signature_version="s3v4",
            connect_timeout=5,
            read_timeout=60,
            retries={"mode": "standard", "total_max_attempts": 3},
            max_pool_connections=2 * AT_ONCE,
            s3={"addressing_style": "virtual" if self.is_amazon else "path"},
            # Other stores do not know the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            return boto3.session.Session().client(
                "s3",
                endpoint_url=self.endpoint,
                region_name=self.region,
                aws_access_key_id=self._login[0],
                aws_secret_access_key=self._login[1],
                config=settings,
            )
        except ValueError as exc:
            raise StoreRefused(
                "The endpoint of the connection is not an address.", self.endpoint, "write https://host[:port]"
            ) from exc
