"""The run log in a bucket of Google Cloud Storage."""

from __future__ import annotations

import os
from typing import Any

from ematix_flow.backends.gcs_client import GcsClient
from ematix_flow.errors import MissingDriver
from ematix_flow.run.runlogs.objects import ObjectRunLog

KEY_FILE_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


class _Bucket(GcsClient):
    """A bucket, asked with credentials that were given, by the usual Google chain, or through a given client."""

    def __init__(
        self, bucket: str, *, project: str | None, credentials: Any, endpoint: str | None, client: Any
    ) -> None:
        super().__init__(bucket=bucket, project=project, credentials_path=None, endpoint=endpoint)
        self._credentials = credentials
        self._bucket = client

    def _connected(self) -> Any:
        try:
            return super()._connected()
        except MissingDriver as exc:
            raise MissingDriver(
                "A run log in Google Cloud Storage needs 'google-cloud-storage'.",
                fix='pip install "ematix-flow[runlog-gcs]"',
            ) from exc

    def _login(self) -> tuple[Any, str | None]:
        if self._is_emulator and self._credentials_path is None:
            self._credentials_path = os.environ.get(KEY_FILE_VARIABLE)  # whoever set it means it for an emulator too
        return super()._login() if self._credentials is None else (self._credentials, self._project)


class GcsRunLog(ObjectRunLog):
    """A run log in a bucket of Google Cloud Storage; what it can keep is said in `ObjectRunLog`.

    Args:
        bucket: It must exist.
        prefix: What the keys begin with.
        project, credentials: As Google's client takes them; without credentials the usual chain is asked.
        bucket_client: A bucket of Google's client, in place of all that.
        endpoint: Of an emulator, which is asked without a login unless credentials are given.

    Raises:
        MissingDriver: google-cloud-storage is not installed; it is an ImportError.
        ConnectionFailed: The bucket cannot be reached, or the login may not read it.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        project: str | None = None,
        credentials: Any = None,
        bucket_client: Any = None,
        endpoint: str | None = None,
        max_age_days: float | None = None,
        max_records: int | None = None,
    ) -> None:
        super().__init__(
            _Bucket(bucket, project=project, credentials=credentials, endpoint=endpoint, client=bucket_client),
            where=f"gs://{bucket}/{prefix.strip('/')}".rstrip("/"),
            prefix=prefix,
            max_age_days=max_age_days,
            max_records=max_records,
        )
        self.open()
