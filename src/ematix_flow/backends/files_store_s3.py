"""A bucket as a place for files: small files by boto3, rows by Spark's s3a; commits and leases by conditional PUTs.

S3 has no rename and no locks. It has PUTs that succeed only if an object is still the one that was read (`If-Match`),
or is not there yet (`If-None-Match`), and one clock. Leases (`s3_lease.py`) and `replace_json` are made of these; a
store that ignores the conditions is found out when the first lease is taken, and refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from ematix_flow.backends.files_store import Lock, StoredFile, VersionChanged, not_a_pattern
from ematix_flow.backends.s3_lease import Holder, S3Lease
from ematix_flow.backends.s3_refusals import StoreForbidden, StoreRefused, code_of, refusal
from ematix_flow.contracts.backend import Health
from ematix_flow.declare.connection import DeltaS3Connection, IcebergConnection, ObjectStoreS3Connection
from ematix_flow.errors import ConnectionFailed, InvalidPlan, MissingDriver, UnsupportedBackend

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriter, SparkSession

log = logging.getLogger(__name__)

LEASE_S = 60.0
"""How long a lease lasts after its holder was heard of; it is heard of four times as often."""

_POLL_S = 0.25
_COPIES_AT_ONCE = 16
_ABSENT = ("NoSuchKey", "404", "NotFound")
_CHANGED = ("PreconditionFailed", "412", "NoSuchKey", "404", "ConditionalRequestConflict")
_NOT_AN_ETAG = '"00000000000000000000000000000000"'

_COMMITTER = {
    # A task's files are parts of uploads that only the finished job completes: no rename, nothing left of killed tasks.
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter",
    "mapreduce.outputcommitter.factory.scheme.s3a": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
    "fs.s3a.committer.name": "magic",
}
_PATIENCE = {
    # Hadoop's own defaults wait for a wrong address for a quarter of an hour.
    "attempts.maximum": "3",
    "retry.limit": "4",
    "retry.interval": "250ms",
    "connection.establish.timeout": "5s",
    "connection.timeout": "60s",
}

_known_to_spark: dict[tuple[str, str], str] = {}


class S3Store:
    """Files in one bucket, below a prefix if there is one. All paths are relative to it, with forward slashes."""

    locks_can_pass = True

    def __init__(
        self,
        connection: ObjectStoreS3Connection | DeltaS3Connection | IcebergConnection,
        *,
        lease_s: float = LEASE_S,
    ) -> None:
        endpoint = (connection.endpoint or "").strip().rstrip("/")
        self.endpoint = endpoint if "://" in endpoint else f"https://{endpoint}"
        self.bucket, self.region = connection.bucket, connection.region or ""
        self.prefix = "" if isinstance(connection, ObjectStoreS3Connection) else connection.prefix.strip("/")
        self.lease_s = lease_s
        self._login = (connection.access_key_id or "", connection.secret_access_key or "")
        self._client: Any = None
        self._is_reached = self._keeps_conditions = False

    def __repr__(self) -> str:
        return f"<S3Store {self.shown_path('')} at {self.endpoint}>"

    # ── paths ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def key(self, path: str) -> str:
        """The object's name in the bucket."""
        path = "" if path == "." else path.removeprefix("./")
        return f"{self.prefix}/{path}".strip("/") if self.prefix else path

    def shown_path(self, path: str) -> str:
        """The path for people."""
        return f"s3://{self.bucket}/{self.key(path)}".rstrip("/")

    def spark_path(self, path: str) -> str:
        """The path for Spark's readers."""
        return not_a_pattern(self.spark_uri(path))

    def spark_uri(self, path: str) -> str:
        """The path for Spark's writers and options."""
        return f"s3a://{self.bucket}/{self.key(path)}"

    # ── Spark ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, spark: SparkSession) -> None:
        """Tell the session where the bucket is and who asks; Spark hands its settings on to each query.

        Raises:
            ConnectionFailed: the bucket cannot be reached; Spark would find that out later, and slower.
            InvalidPlan: Spark knows a bucket of this name at another place, or by another login.
        """
        if not self._is_reached:
            with self.explained():
                self._list(self.key(""), at_most=1)
            self._is_reached = True
        application = str(spark.conf.get("spark.app.id", "") or "")
        mark = hashlib.sha256("\n".join([self.endpoint, self.region, *self._login]).encode()).hexdigest()
        # Spark opens a bucket once and keeps it by its name alone, with the login of the first time.
        if _known_to_spark.setdefault((application, self.bucket), mark) != mark:
            raise InvalidPlan(
                f"Spark has the bucket '{self.bucket}' open with another endpoint or login, and keeps it.",
                fix="run the two pipelines in separate processes",
            )
        start = f"fs.s3a.bucket.{self.bucket}."
        for name, value in self._spark_settings().items():
            spark.conf.set(start + name, value)
        for name, value in _PATIENCE.items():
            if all(spark.conf.get(f"{kind}{start}{name}", None) is None for kind in ("spark.hadoop.", "")):
                spark.conf.set(start + name, value)

    def _spark_settings(self) -> Mapping[str, str]:
        address = urlsplit(self.endpoint)
        return {
            "endpoint": self.endpoint,
            "endpoint.region": self.region,
            "path.style.access": str(not self._is_amazon).lower(),
            "connection.ssl.enabled": str(address.scheme == "https").lower(),
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "access.key": self._login[0],
            "secret.key": self._login[1],
            "committer.magic.enabled": "true",
        }

    @property
    def _is_amazon(self) -> bool:
        """Whether buckets are names of hosts, as only Amazon's own must be."""
        return (urlsplit(self.endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def save(self, spark: SparkSession, writer: DataFrameWriter, folder: str) -> None:
        """Let Spark write a folder by uploads that only the finished job completes."""
        before = {name: spark.conf.get(name, None) for name in _COMMITTER}
        for name, value in _COMMITTER.items():
            spark.conf.set(name, value)
        try:
            writer.save(self.spark_uri(folder))
            return
        except Exception as exc:
            if "ClassNotFoundException: org.apache.spark.internal.io.cloud" not in str(exc):
                raise
        finally:
            for name, old in before.items():
                spark.conf.unset(name) if old is None else spark.conf.set(name, old)
        # A session that somebody else started, without that class. Hadoop's own way copies each file twice, safely.
        log.debug("The session has no S3 committer; files are renamed instead")
        writer.save(self.spark_uri(folder))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def health(self) -> Health:
        """Whether the bucket answers to this login."""
        started = time.perf_counter()
        ok, detail = True, "ok"
        try:
            self._list(self.key(""), at_most=1)
        except MissingDriver as exc:
            ok, detail = False, exc.message
        except StoreRefused as exc:
            ok, detail = False, exc.message
        return Health(ok, detail, (time.perf_counter() - started) * 1000)

    def exists(self, path: str) -> bool:
        """Whether an object of that name is there, or any below it."""
        return self.is_file(path) or bool(self._list(f"{self.key(path)}/", at_most=1)[0])

    def is_file(self, path: str) -> bool:
        """Whether it is an object."""
        return bool(self.key(path)) and self._head(path) is not None

    def size(self, path: str) -> int:
        """The size of an object in bytes."""
        head = self._head(path)
        if head is None:
            raise StoreRefused(f"{self.shown_path(path)} is gone.", self.shown_path(path), "run it again")
        return int(head["ContentLength"])

    def _head(self, path: str) -> Mapping[str, Any] | None:
        with self._asking(path) as client:
            try:
                found: Mapping[str, Any] = client.head_object(Bucket=self.bucket, Key=self.key(path))
                return found
            except client.exceptions.ClientError as exc:
                if code_of(exc) in _ABSENT:
                    return None
                if code_of(exc) == "403":  # without a reason, as HEAD has no body; a wrong login says so to a listing
                    self._list(self.key(""), at_most=1)
                raise

    def visible_files(self, folder: str) -> list[StoredFile]:
        """Every object below a folder, sorted; a '_' or '.' where a name begins hides it, and all below it."""
        top = f"{self.key(folder)}/" if self.key(folder) else ""
        found = [StoredFile(item["Key"].removeprefix(top), item["Size"]) for item in self._list(top)[0]]
        hidden = ("", "_", ".")  # an empty name is how some programs mark a folder
        shown = [file for file in found if not any(name[:1] in hidden for name in file.path.split("/"))]
        return sorted(shown, key=lambda file: file.path)

    def children(self, folder: str) -> list[str]:
        """The names in a folder, sorted."""
        top = f"{self.key(folder)}/"
        return sorted({item["Key"].removeprefix(top).split("/")[0] for item in self._list(top)[0]} - {""})

    def open(self, path: str) -> IO[bytes]:
        """An object to be read in parts."""
        return cast("IO[bytes]", io.BufferedReader(_Ranges(self, path), buffer_size=256 * 1024))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Some bytes of an object, both ends included."""
        with self._asking(path) as client:
            answer = client.get_object(Bucket=self.bucket, Key=self.key(path), Range=f"bytes={start}-{end}")
            found: bytes = answer["Body"].read()
            return found

    def read_json(self, path: str) -> Any:
        """A small JSON file, or None when it is not there."""
        return self.read_versioned(path)[0]

    def read_versioned(self, path: str) -> tuple[Any, str | None]:
        """The same, with its entity tag."""
        with self._asking(path) as client:
            try:
                answer = client.get_object(Bucket=self.bucket, Key=self.key(path))
                return json.loads(answer["Body"].read()), answer["ETag"]
            except client.exceptions.NoSuchKey:
                return None, None

    def _list(self, prefix: str, *, at_most: int | None = None) -> tuple[list[dict[str, Any]], datetime]:
        """The objects whose names begin so, and what time it is there."""
        found: list[dict[str, Any]] = []
        more: dict[str, Any] = {} if at_most is None else {"MaxKeys": at_most}
        with self._asking(prefix) as client:
            while True:
                answer = client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **more)
                found += answer.get("Contents", [])
                if at_most is not None or not answer.get("IsTruncated"):
                    break
                more = {"ContinuationToken": answer["NextContinuationToken"]}
        told = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return found, parsedate_to_datetime(told) if told else datetime.now(timezone.utc)

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def write_json(self, path: str, content: Any) -> None:
        """Replace a small JSON file in one step."""
        self.put(path, content)

    def replace_json(self, path: str, content: Any, version: str | None) -> None:
        """Replace it only if it is still the version that was read; the store decides, not a lock."""
        self.put(path, content, **({"IfNoneMatch": "*"} if version is None else {"IfMatch": version}))

    def put(self, path: str, content: Any, **condition: str) -> str:
        """Write an object; its entity tag.

        Raises:
            VersionChanged: the condition does not hold.
        """
        body = (json.dumps(content, ensure_ascii=False) + "\n").encode()
        with self._asking(path) as client:
            try:
                answer = client.put_object(
                    Bucket=self.bucket, Key=self.key(path), Body=body, ContentType="application/json", **condition
                )
            except client.exceptions.ClientError as exc:
                if condition and code_of(exc) in _CHANGED:
                    raise VersionChanged from None
                raise
            return str(answer["ETag"])

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        """Copy files to their places, several at once, within the store. The others go with their folder."""
        from concurrent.futures import ThreadPoolExecutor

        if not moves:
            return
        with self._asking("") as client, ThreadPoolExecutor(min(_COPIES_AT_ONCE, len(moves))) as pool:
            list(pool.map(lambda move: self._copy(client, *move), moves))

    def _copy(self, client: Any, source: str, destination: str) -> None:
        from boto3.s3.transfer import TransferConfig

        # By parts if it is big: a single request copies no more than 5 GiB.
        there = {"Bucket": self.bucket, "Key": self.key(source)}
        client.copy(there, self.bucket, self.key(destination), Config=TransferConfig(use_threads=False))

    def remove(self, path: str) -> None:
        """Remove an object; one that is already gone is fine."""
        with self._asking(path) as client:
            client.delete_object(Bucket=self.bucket, Key=self.key(path))

    def remove_tree(self, path: str) -> None:
        """Remove everything below a folder, and uploads into it that nobody will complete."""
        top = f"{self.key(path)}/"
        assert top != "/", "never the whole bucket"
        keys = [item["Key"] for item in self._list(top)[0]]
        with self._asking(path) as client:
            for start in range(0, len(keys), 1000):
                batch = [{"Key": key} for key in keys[start : start + 1000]]
                client.delete_objects(Bucket=self.bucket, Delete={"Objects": batch, "Quiet": True})
        try:
            self._abort_uploads(top)
        except StoreForbidden:
            log.debug("Unfinished uploads below %s cannot be listed; the bucket's own rules must end them", top)

    def _abort_uploads(self, top: str) -> None:
        with self._asking(top) as client:
            for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=top):
                for upload in page.get("Uploads", []):
                    if upload["Key"].startswith(top):
                        client.abort_multipart_upload(
                            Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                        )

    def remove_if_empty(self, folder: str) -> None:
        """Nothing to do: a bucket has no folders, only names with slashes."""

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def lock(self, path: str, *, shared: bool = False, wait: bool = False) -> Lock | None:
        """Take a lease: an object that is kept fresh while its holder lives. A stale one may be taken over."""
        holder = Holder.this_process()
        if shared:
            name = f"{path}.{uuid.uuid4().hex}"
            return S3Lease(self, name, holder, self.put(name, holder.content(0, "")))
        while True:
            lease = self._taken(path, holder)
            if lease is not None or not wait:
                return lease
            time.sleep(_POLL_S)

    def _taken(self, path: str, holder: Holder) -> S3Lease | None:
        found, now = self._list(self.key(path))
        ages = {item["Key"]: (now - item["LastModified"]).total_seconds() for item in found}
        for key, age in ages.items():
            if key != self.key(path):  # somebody shares it
                if age <= self.lease_s:
                    return None
                self.remove(key.removeprefix(f"{self.prefix}/") if self.prefix else key)
        held = self.key(path) in ages
        condition = {"IfNoneMatch": "*"}
        if held:
            known, version = self.read_versioned(path)
            if version is not None:
                if ages[self.key(path)] <= self.lease_s and not Holder.is_gone(known):
                    return None
                condition = {"IfMatch": version}
        try:
            tag = self.put(path, holder.content(0, ""), **condition)
        except VersionChanged:
            return None  # somebody else was faster
        lease = S3Lease(self, path, holder, tag)
        self._require_conditions(path, lease)
        return lease

    def _require_conditions(self, path: str, lease: S3Lease) -> None:
        """Make sure, once, that the store refuses a PUT whose condition does not hold."""
        if self._keeps_conditions:
            return
        for condition in ({"IfNoneMatch": "*"}, {"IfMatch": _NOT_AN_ETAG}):
            try:
                lease.try_to_overwrite(**condition)
            except VersionChanged:
                continue
            lease.release()
            raise UnsupportedBackend(
                f"The store at {self.endpoint} ignores the condition {next(iter(condition))} of a PUT; two runs could "
                "overwrite each other's work.",
                fix="use a store with conditional writes, such as Amazon S3 or a current MinIO",
            )
        self._keeps_conditions = True

    def lock_note(self, path: str) -> str:
        """What the holder of a lease wrote into it."""
        known = self.read_json(path)
        return str(known.get("note", "")) if isinstance(known, dict) else ""

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _asking(self, path: str) -> Iterator[Any]:
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
            max_pool_connections=2 * _COPIES_AT_ONCE,
            s3={"addressing_style": "virtual" if self._is_amazon else "path"},
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

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Let the store's refusals out as ours, with the place."""
        try:
            yield
        except StoreRefused as exc:
            raise ConnectionFailed(exc.message, where=exc.where, fix=exc.fix) from exc


class _Ranges(io.RawIOBase):
    """An object as a file that can be sought in; each read is one request."""

    def __init__(self, store: S3Store, path: str) -> None:
        self._store, self._path, self._place = store, path, 0
        self._size = store.size(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        end = min(self._place + len(buffer), self._size)
        if end <= self._place:
            return 0
        found = self._store.read_range(self._path, self._place, end - 1)
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)
