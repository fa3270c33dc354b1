"""Objects of Google Cloud Storage, by Google's own client; an object's version is its generation.

Google lets one object be written about once a second. The client waits and tries again when it is told to.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
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
from ematix_flow.errors import MissingDriver

SERVICE = "https://storage.googleapis.com"
_PATIENCE_S = 6.0
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_BUSY = (408, 429, 500, 502, 503, 504)


class GcsClient:
    """One bucket, asked as a service account, by the usual credential chain, or, of an emulator, by nobody."""

    conditions = ("ifGenerationMatch=0", "ifGenerationMatch")
    no_version = "1"

    def __init__(self, *, bucket: str, project: str | None, credentials_path: str | None, endpoint: str | None) -> None:
        self.bucket, self.endpoint = bucket, endpoint or SERVICE
        self._project, self._credentials_path, self._is_emulator = project, credentials_path, endpoint is not None
        self._bucket: Any = None
        self._turn = threading.Lock()
        self._how: dict[str, Any] = {}
        self._now = datetime.now(timezone.utc)

    def list(self, prefix: str, *, at_most: int | None = None) -> Listing:
        with self._asking() as bucket:
            fields = "items(name,size,updated),nextPageToken"
            found = bucket.client.list_blobs(bucket, prefix=prefix, max_results=at_most, fields=fields, **self._how)
            objects = tuple(StoredObject(blob.name, int(blob.size or 0), blob.updated) for blob in found)
            return Listing(objects, self._now)

    def size(self, key: str) -> int | None:
        with self._asking() as bucket:
            found = bucket.get_blob(key, **self._how)
            return None if found is None else int(found.size or 0)

    def get(self, key: str) -> tuple[bytes, str] | None:
        with self._asking() as bucket:
            from google.api_core.exceptions import NotFound

            blob = bucket.blob(key)
            try:
                body: bytes = blob.download_as_bytes(**self._how)
            except NotFound:
                return None
            return body, str(blob.generation)  # as the answer's own header says it

    def get_range(self, key: str, start: int, end: int) -> bytes:
        with self._asking() as bucket, self._there(key):
            found: bytes = bucket.blob(key).download_as_bytes(start=start, end=end, **self._how)
            return found

    def put(self, key: str, body: bytes, only_if: OnlyIf | None = None) -> str:
        condition = {} if only_if is None else {"if_generation_match": int(only_if.version or 0)}
        with self._asking() as bucket:
            from google.api_core.exceptions import PreconditionFailed

            blob = bucket.blob(key)
            try:
                blob.upload_from_string(body, content_type="application/json", **condition, **self._how)
            except PreconditionFailed:
                raise VersionChanged from None
            return str(blob.generation)

    def copy(self, source: str, destination: str) -> None:
        with self._asking() as bucket, self._there(source):
            there, here = bucket.blob(source), bucket.blob(destination)
            token, _, _ = here.rewrite(there, **self._how)
            while token is not None:  # a big object is copied in several requests
                token, _, _ = here.rewrite(there, token=token, **self._how)

    def delete(self, keys: Sequence[str]) -> None:
        at_once(self._delete, keys)

    def _delete(self, key: str) -> None:
        with self._asking() as bucket:
            from google.api_core.exceptions import NotFound

            try:
                bucket.blob(key).delete(**self._how)
            except NotFound:
                return  # somebody else was faster

    def end_uploads(self, prefix: str) -> None:
        """Nothing to do: Google forgets unfinished uploads after a week, and shows them to nobody."""

    def folder_marks(self, folder: str) -> Sequence[str]:
        return (f"{folder}/",)

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """The bucket, with its refusals as `OSError`, as local files have them."""
        with self._turn:
            if self._bucket is None:
                self._bucket = self._connected()
        from google.api_core.exceptions import GoogleAPICallError, RetryError
        from google.auth.exceptions import GoogleAuthError
        from requests.exceptions import RequestException

        try:
            yield self._bucket
        except StoreRefused:
            raise
        except (GoogleAPICallError, GoogleAuthError, RetryError, RequestException) as exc:
            raise self._refusal(exc) from exc

    @contextmanager
    def _there(self, key: str) -> Iterator[None]:
        """For requests about an object that should be there: it is missing then, not its bucket."""
        from google.api_core.exceptions import NotFound

        try:
            yield
        except NotFound as exc:
            raise StoreRefused(f"gs://{self.bucket}/{key} is gone.", self.endpoint, "run it again") from exc

    def _connected(self) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # how long Google looks after which Python
                from google.api_core.retry import Retry
                from google.auth.transport.requests import AuthorizedSession
                from google.cloud import storage
                from google.cloud.storage.retry import DEFAULT_RETRY
                from requests.adapters import HTTPAdapter
        except ImportError:
            raise MissingDriver(
                "Google Cloud Storage needs 'google-cloud-storage'.", fix='pip install "ematix-flow[gcs]"'
            ) from None
        retry: Retry = DEFAULT_RETRY.with_delay(initial=0.25, maximum=4.0).with_timeout(_PATIENCE_S)
        self._how = {"timeout": (5, 60), "retry": retry}
        credentials, project = self._login()
        session = AuthorizedSession(credentials)
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(pool_maxsize=2 * AT_ONCE))
        session.hooks["response"].append(self._hear_time)
        options = {"api_endpoint": self.endpoint} if self._is_emulator else None
        # Without a project nothing is created, and nothing here is.
        client = storage.Client(
            project=self._project or project or "none", credentials=credentials, _http=session, client_options=options
        )
        return client.bucket(self.bucket)

    def _login(self) -> tuple[Any, str | None]:
        """Who asks, and the project that login belongs to."""
        from google import auth
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
        from google.oauth2.service_account import Credentials

        where = f"bucket '{self.bucket}' at {self.endpoint}"
        if self._credentials_path is not None:
            try:
                known = Credentials.from_service_account_file(self._credentials_path, scopes=[_SCOPE])
                return known, known.project_id
            except (OSError, ValueError, GoogleAuthError) as exc:
                raise StoreForbidden(
                    "The key file of the connection cannot be used.",
                    where,
                    "check credentials_path: it names the JSON key file of a service account",
                ) from exc
        if self._is_emulator:
            return AnonymousCredentials(), None
        try:
            return auth.default(scopes=[_SCOPE])  # type: ignore[no-any-return]
        except DefaultCredentialsError as exc:
            raise StoreForbidden(
                "No login for Google Cloud was found.",
                where,
                "say credentials_path, or set GOOGLE_APPLICATION_CREDENTIALS",
            ) from exc

    def _hear_time(self, answer: Any, *args: Any, **kwargs: Any) -> None:
        """Keep what time it is at the store; every answer tells it."""
        told = answer.headers.get("Date")
        if told:
            self._now = parsedate_to_datetime(told)

    def _refusal(self, exc: Exception) -> StoreRefused:
        """An error of the client library as one of ours."""
        from google.api_core.exceptions import GoogleAPICallError, RetryError
        from google.auth.exceptions import GoogleAuthError, TransportError

        where = f"bucket '{self.bucket}' at {self.endpoint}"
        if isinstance(exc, RetryError) and isinstance(exc.cause, GoogleAPICallError):
            exc = exc.cause
        if isinstance(exc, GoogleAPICallError):
            code = exc.code
            if code == 404:
                return StoreRefused(
                    f"The bucket '{self.bucket}' does not exist.", where, "create it, or mend the connection"
                )
            if code == 401:
                return StoreForbidden(f"The store refuses the login ({code}).", where, "check credentials_path")
            if code == 403:
                return StoreForbidden(
                    f"The login may not do this in bucket '{self.bucket}' ({code}).",
                    where,
                    "allow it to list the bucket and to get, create and delete objects",
                )
            if code in _BUSY:
                return StoreRefused(f"The store is busy ({code}).", where, "run it again")
            return StoreRefused(
                f"The store refused a request ({code}).", where, "check endpoint, bucket and what the login may do"
            )
        if isinstance(exc, GoogleAuthError) and not isinstance(exc, TransportError):
            return StoreForbidden(
                f"The store refuses the login ({type(exc).__name__}).", where, "check credentials_path"
            )
        cause = exc.cause if isinstance(exc, RetryError) and exc.cause is not None else exc
        return StoreRefused(
            f"The store does not answer ({type(cause).__name__}).", where, "check the connection's endpoint"
        )
