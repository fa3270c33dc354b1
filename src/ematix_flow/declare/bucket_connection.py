"""Connections to buckets of Google Cloud Storage and containers of Azure: files of one format, as S3's are."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

from ematix_flow.declare.connection_base import Connection, HoldsFiles
from ematix_flow.errors import listed

AZURE_DOMAIN = "core.windows.net"
_AZURE_LOGINS = ("account_key", "sas_token", "connection_string")


@dataclass(frozen=True, repr=False)
class ObjectStoreGcsConnection(HoldsFiles, Connection):
    """Files of one format in a bucket of Google Cloud Storage; options as for local files.

    Without `credentials_path`, the key file of a service account, the usual Google credential chain is asked. An
    `endpoint` is for emulators, which are asked without a login then.
    """

    kind: ClassVar[str] = "object_store_gcs"
    required: ClassVar[tuple[str, ...]] = ("bucket", "format")
    bucket: str = ""
    format: str = ""
    project: str | None = None
    credentials_path: str | None = None
    endpoint: str | None = None
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None
    on_corrupt_file: str | None = None


@dataclass(frozen=True)
class AzurePlace:
    """Where an Azure account answers, and by what login: a key or a token, never both.

    Attributes:
        endpoint: The address of the account's blobs, without a slash at its end.
        is_local: The account is a part of the path, not of the host's name: an emulator.
    """

    account: str
    endpoint: str
    key: str | None
    sas: str | None

    @property
    def is_local(self) -> bool:
        host = urlsplit(self.endpoint).hostname or ""
        return host == "localhost" or _is_ip(host) or bool(urlsplit(self.endpoint).path.strip("/"))


class _InAzure(Connection):
    """What the fields of a connection to Azure mean together."""

    account: str | None
    container: str
    account_key: str | None
    sas_token: str | None
    connection_string: str | None
    endpoint: str | None

    def place(self) -> AzurePlace:
        """The account, its address and its login, from the fields or the connection string.

        Raises:
            InvalidConnection: The connection string cannot be read.
        """
        told = self._told()
        account = self.account or told.get("accountname", "")
        suffix = told.get("endpointsuffix", AZURE_DOMAIN)
        scheme = told.get("defaultendpointsprotocol", "https")
        endpoint = self.endpoint or told.get("blobendpoint") or f"{scheme}://{account}.blob.{suffix}"
        endpoint = (endpoint if "://" in endpoint else f"https://{endpoint}").strip().rstrip("/")
        if not account:  # a connection string with a token names the account in its address only
            account = (urlsplit(endpoint).hostname or "").partition(".")[0]
        sas = self.sas_token or told.get("sharedaccesssignature")
        place = AzurePlace(account, endpoint, self.account_key or told.get("accountkey"), sas and sas.lstrip("?"))
        if place.is_local and not urlsplit(endpoint).path.strip("/"):
            return AzurePlace(account, f"{endpoint}/{account}", place.key, place.sas)
        return place

    def _told(self) -> dict[str, str]:
        """The connection string as settings, their names in small letters."""
        parts = [part.partition("=") for part in (self.connection_string or "").split(";") if part.strip()]
        if any(not sign for _, sign, _ in parts):
            self.refuse("connection_string is not of the form name=value;name=value")
        told = {name.strip().lower(): value.strip() for name, _, value in parts}
        if told.get("usedevelopmentstorage"):
            self.refuse(
                "connection_string may not be UseDevelopmentStorage=true",
                fix="say endpoint, account and account_key of the emulator",
            )
        return told

    def check_ready(self) -> None:
        place = self.place()
        if not place.account:
            self.refuse("connection_string names no AccountName and no BlobEndpoint")
        if not place.key and not place.sas:
            self.refuse("connection_string holds no AccountKey and no SharedAccessSignature")

    def secrets(self) -> tuple[str, ...]:
        said = self.connection_string
        if not said or "${" in said:
            return super().secrets()
        place = self.place()
        return (*super().secrets(), *(secret for secret in (place.key, place.sas) if secret))

    def identity(self) -> str:
        if any("${" in (getattr(self, name) or "") for name in (*_AZURE_LOGINS, "account", "endpoint")):
            return super().identity()
        place = self.place()
        return f"{self.kind}:{place.endpoint.lower()} {place.account} {self.container}"

    def check_login(self) -> None:
        """Refuse logins that are missing or contradict each other."""
        given = [name for name in _AZURE_LOGINS if getattr(self, name)]
        if len(given) != 1:
            problem = f"{listed(given)} exclude each other" if given else f"one of {listed(_AZURE_LOGINS)} is required"
            self.refuse(problem, fix="give one login")
        if self.connection_string and (self.account or self.endpoint):
            self.refuse("connection_string says account and endpoint already", fix="leave account and endpoint out")
        if not self.connection_string and not self.account:
            self.refuse("account is required")


@dataclass(frozen=True, repr=False)
class ObjectStoreAzureConnection(HoldsFiles, _InAzure):
    """Files of one format in a container of Azure Blob Storage or Data Lake Storage; options as for local files.

    The login is the account's key, a shared access signature, or a connection string, which names the account as well.
    An `endpoint` is for emulators and for clouds with addresses of their own.
    """

    kind: ClassVar[str] = "object_store_azure"
    required: ClassVar[tuple[str, ...]] = ("container", "format")
    account: str | None = None
    container: str = ""
    format: str = ""
    account_key: str | None = None
    sas_token: str | None = None
    connection_string: str | None = None
    endpoint: str | None = None
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None
    on_corrupt_file: str | None = None

    def _check_together(self) -> None:
        super()._check_together()
        self.check_login()


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
