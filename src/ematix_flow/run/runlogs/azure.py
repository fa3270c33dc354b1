"""The run log in a container of Azure Blob Storage."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from ematix_flow.backends.azure_client import AzureClient
from ematix_flow.declare.bucket_connection import AzurePlace
from ematix_flow.declare.redaction import remember_secret
from ematix_flow.errors import InvalidConfig, MissingDriver
from ematix_flow.run.runlogs.objects import ObjectRunLog

KEY_VARIABLE, TOKEN_VARIABLE = "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"


class _Container(AzureClient):
    """A container, asked by a login that was given or found, or through a given client."""

    def __init__(self, place: AzurePlace, container: str, *, credential: Any, client: Any) -> None:
        super().__init__(place, container)
        self._credential = credential
        self._container = client

    def _connected(self) -> Any:
        try:
            if self.place.key is not None or self.place.sas is not None:
                return super()._connected()
            from azure.storage.blob import ContainerClient, LinearRetry
        except ImportError as exc:
            raise MissingDriver(
                "A run log in Azure needs 'azure-storage-blob'.", fix='pip install "ematix-flow[runlog-azure]"'
            ) from exc
        return ContainerClient(
            self.place.endpoint,
            self.container,
            credential=self._credential or _chain(),
            retry_policy=LinearRetry(backoff=1, retry_total=3, random_jitter_range=1),
            connection_timeout=5,
            read_timeout=30,
        )


class AzureBlobRunLog(ObjectRunLog):
    """A run log in a container of Azure Blob Storage; what it can keep is said in `ObjectRunLog`.

    Args:
        container: It must exist.
        account_url: `https://<account>.blob.core.windows.net`.
        prefix: What the names of its blobs begin with.
        credential: The account's key, a shared access signature, or a credential of azure-identity. Without it
            `AZURE_STORAGE_KEY` and `AZURE_STORAGE_SAS_TOKEN` are asked, then the chain of azure-identity.
        container_client: A client of azure-storage-blob, in place of all that.

    Raises:
        MissingDriver: azure-storage-blob is not installed; it is an ImportError.
        ConnectionFailed: The container cannot be reached, or the login may not read it.
        InvalidConfig: Neither account_url nor container_client.
    """

    def __init__(
        self,
        container: str,
        *,
        account_url: str | None = None,
        prefix: str = "",
        credential: Any = None,
        container_client: Any = None,
        max_age_days: float | None = None,
        max_records: int | None = None,
    ) -> None:
        if account_url is None and container_client is None:
            raise InvalidConfig("A run log in Azure needs account_url or container_client.")
        address = (account_url or "https://given").rstrip("/")
        account = urlsplit(address).path.strip("/") or (urlsplit(address).hostname or "").partition(".")[0]
        key, sas = _login(credential)
        super().__init__(
            _Container(
                AzurePlace(account, address, key, sas), container, credential=credential, client=container_client
            ),
            where=f"azure://{account}/{container}/{prefix.strip('/')}".rstrip("/"),
            prefix=prefix,
            max_age_days=max_age_days,
            max_records=max_records,
        )
        self.open()


def _login(credential: Any) -> tuple[str | None, str | None]:
    """A key or a token, when the login is one of these; else it is something of azure-identity."""
    said: str | None = credential if isinstance(credential, str) else None
    if credential is None:
        said = os.environ.get(KEY_VARIABLE) or os.environ.get(TOKEN_VARIABLE)
    remember_secret(said)
    if not said:
        return None, None
    is_token = "sig=" in said
    return (None, said.lstrip("?")) if is_token else (said, None)


def _chain() -> Any:
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as exc:
        raise MissingDriver(
            "Logging in to Azure without a key needs 'azure-identity'.",
            fix=f'pip install "ematix-flow[runlog-azure]", or set {KEY_VARIABLE} or {TOKEN_VARIABLE}',
        ) from exc
    return DefaultAzureCredential()
