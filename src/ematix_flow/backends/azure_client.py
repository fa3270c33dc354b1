"""Blobs of one Azure container, by Microsoft's own client; a blob's version is its entity tag.

Spark's connector marks every folder by an empty blob of the folder's name. An account with a hierarchical namespace
lists its directories in the same way. Both are told apart from files by what the blob says of itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import Any

from ematix_flow.backends.files_store import VersionChanged
from ematix_flow.backends.object_client import (
    AT_ONCE,
    Listing,
    OnlyIf,
    StoredObject,
    StoreForbidden,
    StoreRefused,
    at_once,
)
from ematix_flow.declare.bucket_connection import AzurePlace
from ematix_flow.errors import MissingDriver

_FOLDER = "hdi_isfolder"
_CHANGED = ("ConditionNotMet", "BlobAlreadyExists", "BlobNotFound", "TargetConditionNotMet")
_LOGINS = ("AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation")
_BUSY = ("ServerBusy", "OperationTimedOut", "InternalError", "ServiceUnavailable")
_COPY_POLL_S = 0.1


class AzureClient:
    """One container, asked by the account's key or a shared access signature."""

    conditions = ("IfNoneMatch", "IfMatch")
    no_version = '"0x0000000000000"'

    def __init__(self, place: AzurePlace, container: str) -> None:
        self.place, self.container = place, container
        self._container: Any = None
        self._turn = threading.Lock()

    def list(self, prefix: str, *, at_most: int | None = None) -> Listing:
        told: list[str] = []

        def hear(answer: Any) -> None:
            told.append(answer.http_response.headers.get("Date", ""))

        with self._asking() as container:
            blobs = container.list_blobs(
                name_starts_with=prefix or None, include=["metadata"], results_per_page=at_most, raw_response_hook=hear
            )
            found = tuple(
                StoredObject(blob.name, blob.size or 0, blob.last_modified, _is_folder(blob.metadata))
                for blob in islice(blobs, at_most)  # a page may be empty, and a later one not
            )
        return Listing(found, parsedate_to_datetime(told[-1]) if told and told[-1] else datetime.now(timezone.utc))

    def size(self, key: str) -> int | None:
        with self._asking() as container:
            from azure.core.exceptions import ResourceNotFoundError

            try:
                found = container.get_blob_client(key).get_blob_properties()
            except ResourceNotFoundError as exc:
                if _code(exc) == "ContainerNotFound":
                    raise
                return None
            return None if _is_folder(found.metadata) else int(found.size)

    def get(self, key: str) -> tuple[bytes, str] | None:
        with self._asking() as container:
            from azure.core.exceptions import ResourceNotFoundError

            try:
                found = container.get_blob_client(key).download_blob()
                body: bytes = found.readall()
            except ResourceNotFoundError as exc:
                if _code(exc) == "ContainerNotFound":
                    raise
                return None
            return body, str(found.properties.etag)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        with self._asking() as container:
            found: bytes = container.get_blob_client(key).download_blob(offset=start, length=end - start + 1).readall()
            return found

    def put(self, key: str, body: bytes, only_if: OnlyIf | None = None) -> str:
        with self._asking() as container:
            from azure.core import MatchConditions
            from azure.core.exceptions import HttpResponseError
            from azure.storage.blob import ContentSettings

            how: dict[str, Any] = {"overwrite": only_if is None or only_if.version is not None}
            if only_if is not None and only_if.version is not None:
                how |= {"etag": only_if.version, "match_condition": MatchConditions.IfNotModified}
            settings = ContentSettings(content_type="application/json")
            try:
                answer = container.get_blob_client(key).upload_blob(body, content_settings=settings, **how)
            except HttpResponseError as exc:
                if only_if is not None and (_code(exc) in _CHANGED or exc.status_code == 412):
                    raise VersionChanged from None
                raise
            return str(answer["etag"])

    def copy(self, source: str, destination: str) -> None:
        with self._asking() as container:
            target = container.get_blob_client(destination)
            # A token is a part of the source's address; a key of the account counts for both ends.
            state = target.start_copy_from_url(container.get_blob_client(source).url)["copy_status"]
            while state == "pending":
                time.sleep(_COPY_POLL_S)
                state = target.get_blob_properties().copy.status
        if state != "success":
            raise StoreRefused(f"The store did not copy a blob ({state}).", self._where(), "run it again")

    def delete(self, keys: Sequence[str]) -> None:
        at_once(self._delete, keys)

    def _delete(self, key: str) -> None:
        with self._asking() as container:
            from azure.core.exceptions import HttpResponseError

            try:
                container.delete_blob(key)
            except HttpResponseError as exc:
                # A directory that is in use again is nobody's to remove.
                if _code(exc) not in ("BlobNotFound", "DirectoryIsNotEmpty", "DirectoryNotEmpty"):
                    raise

    def end_uploads(self, prefix: str) -> None:
        """Nothing to do: blocks that no blob is made of are forgotten by Azure after a week."""

    def folder_marks(self, folder: str) -> Sequence[str]:
        return (folder,)

    def is_hierarchical(self) -> bool | None:
        """Whether the account has real directories (Data Lake Storage); None when the login may not ask."""
        with self._asking() as container:
            from azure.core.exceptions import HttpResponseError

            try:
                return bool(container.get_account_information().get("is_hns_enabled"))
            except HttpResponseError as exc:
                if exc.status_code != 403:
                    raise
                return None

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """The container, with its refusals as `OSError`, as local files have them."""
        with self._turn:
            if self._container is None:
                self._container = self._connected()
        from azure.core.exceptions import AzureError

        try:
            yield self._container
        except AzureError as exc:
            raise self._refusal(exc) from exc

    def _connected(self) -> Any:
        try:
            from azure.core.pipeline.transport import RequestsTransport
            from azure.storage.blob import ContainerClient, LinearRetry
            from requests import Session
            from requests.adapters import HTTPAdapter
        except ImportError:
            raise MissingDriver(
                "Azure containers need 'azure-storage-blob'.", fix='pip install "ematix-flow[azure]"'
            ) from None
        # It writes every request into the log, address and all.
        logging.getLogger("azure.core.pipeline.policies.http_logging_policy").setLevel(logging.WARNING)
        session = Session()
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(pool_maxsize=2 * AT_ONCE))
        login: Any = self.place.sas
        if self.place.key is not None:
            login = {"account_name": self.place.account, "account_key": self.place.key}
        try:
            return ContainerClient(
                self.place.endpoint,
                self.container,
                credential=login,
                retry_policy=LinearRetry(backoff=1, retry_total=3, random_jitter_range=1),
                transport=RequestsTransport(session=session, connection_timeout=5, read_timeout=60),
            )
        except ValueError as exc:
            raise StoreRefused(
                "The endpoint of the connection is not an address.", self._where(), "write https://host[:port]"
            ) from exc

    def _where(self) -> str:
        return f"container '{self.container}' at {self.place.endpoint}"

    def _refusal(self, exc: Exception) -> StoreRefused:
        """An error of the client library as one of ours."""
        from azure.core.exceptions import HttpResponseError

        where = self._where()
        if type(exc).__name__ == "AzureSigningError":
            return StoreForbidden("The login is not a key of an account.", where, "check account_key")
        if not isinstance(exc, HttpResponseError):
            return StoreRefused(
                f"The store does not answer ({type(exc).__name__}).",
                where,
                "check the connection's account and endpoint",
            )
        code, status = _code(exc), exc.status_code
        if code in ("ContainerNotFound", "ContainerBeingDeleted"):
            return StoreRefused(
                f"The container '{self.container}' does not exist.", where, "create it, or mend the connection"
            )
        if code in ("BlobNotFound", "CannotVerifyCopySource"):
            return StoreRefused("A blob is gone that was there before.", where, "run it again")
        if code in _LOGINS or status == 401:
            return StoreForbidden(
                f"The store refuses the login ({code or status}).",
                where,
                "check the account and its account_key, sas_token or connection_string",
            )
        if status == 403:
            return StoreForbidden(
                f"The login may not do this in container '{self.container}' ({code or status}).",
                where,
                "check the login; it must be allowed to list the container and to read, write and delete blobs",
            )
        if code in _BUSY or status in (500, 503):
            return StoreRefused(f"The store is busy ({code or status}).", where, "run it again")
        return StoreRefused(
            f"The store refused a request ({code or status}).",
            where,
            "check account, container and what the login may do",
        )


def _code(exc: Any) -> str:
    """Azure's own word for a refusal."""
    code = getattr(exc, "error_code", None)
    return str(getattr(code, "value", code) or "")


def _is_folder(said: Any) -> bool:
    return str((said or {}).get(_FOLDER, "")).lower() == "true"
