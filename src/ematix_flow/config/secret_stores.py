"""Secret stores behind `${prefix:reference}`: Vault, AWS, Google, Azure, and how each is found in the environment.

A store that nobody registered is opened at its first use, with the vendor's own client and the vendor's own variables;
its package is an extra. A client is kept for as long as those variables stay the same.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from ematix_flow.errors import MissingSecret, closest

_TIMEOUT_S = 10


class Store(Protocol):
    """Something that can look up a secret."""

    def resolve(self, reference: str) -> str:
        """The secret behind a reference."""
        ...


class VaultResolver:
    """HashiCorp Vault, key-value engine version 2: ``path#key``, or ``path`` for the whole map as JSON.

    Args:
        client: An `hvac.Client`, already authenticated.
        mount_point: Where the engine is mounted.
    """

    def __init__(self, client: Any, mount_point: str = "secret") -> None:
        self._client = client
        self._mount_point = mount_point

    def resolve(self, reference: str) -> str:
        """The secret at a path; a deleted version counts as missing."""
        path, _, key = reference.partition("#")
        answer = self._client.secrets.kv.v2.read_secret_version(
            path=path, mount_point=self._mount_point, raise_on_deleted_version=True
        )
        values = answer["data"]["data"]
        return _field(values, key, f"Vault secret '{path}'") if key else json.dumps(values, sort_keys=True)


class AWSSecretsManagerResolver:
    """AWS Secrets Manager: ``name``, or ``name#field`` when the secret is a JSON map.

    Args:
        client: A boto3 client of ``secretsmanager``.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def resolve(self, reference: str) -> str:
        """The secret of a name or ARN."""
        name, _, key = reference.partition("#")
        answer = self._client.get_secret_value(SecretId=name)
        text = answer.get("SecretString")
        if text is None:
            text = bytes(answer["SecretBinary"]).decode()
        return _json_field(text, key, "AWS secret", name) if key else str(text)


class GCPSecretManagerResolver:
    """Google Secret Manager: ``name``, ``name#version`` or ``projects/…/secrets/…[/versions/…]``.

    Args:
        client: A `SecretManagerServiceClient`.
        project: Needed for the short forms.
    """

    def __init__(self, client: Any, project: str | None = None) -> None:
        self._client = client
        self._project = project

    def resolve(self, reference: str) -> str:
        """The secret of a name; the latest version unless one is given."""
        name, _, version = reference.partition("#")
        if not name.startswith("projects/"):
            if not self._project:
                raise MissingSecret(
                    f"Google secret '{name}' needs a project.",
                    fix="set GOOGLE_CLOUD_PROJECT, pass project='…' to GCPSecretManagerResolver, "
                    "or write the full resource name",
                )
            name = f"projects/{self._project}/secrets/{name}"
        if "/versions/" not in name:
            name = f"{name}/versions/{version or 'latest'}"
        answer = self._client.access_secret_version(request={"name": name})
        return bytes(answer.payload.data).decode()


class AzureKeyVaultResolver:
    """Azure Key Vault: ``name`` or ``name/version``, and ``…#field`` when the secret is a JSON map.

    Args:
        client: A `SecretClient` of one vault.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def resolve(self, reference: str) -> str:
        """The secret of a name; the latest version unless one is given."""
        path, _, key = reference.partition("#")
        name, _, version = path.partition("/")
        text = self._client.get_secret(name, version or None).value
        if text is None:
            raise MissingSecret(f"Azure secret '{path}' has no value.")
        return _json_field(text, key, "Azure secret", path) if key else str(text)


# ── found in the environment ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Known:
    """How a store is opened: which variables say where it is, and which extra holds its client."""

    open: Callable[[], Store]
    variables: tuple[str, ...]
    extra: str
    packages: tuple[str, ...]


_lock = threading.Lock()
_opened: dict[str, tuple[tuple[str | None, ...], Store]] = {}


def store_from_environment(prefix: str) -> Store:
    """The store of a prefix in `STORES`, as the environment describes it.

    Raises:
        MissingSecret: (a KeyError) The environment does not describe it, or its client is not installed.
    """
    known = STORES[prefix]
    told = tuple(os.environ.get(name) for name in known.variables)
    if prefix == "vault":
        told = (*told, _vault_token())  # agents write a new token into its file
    with _lock:
        kept = _opened.get(prefix)
        if kept is None or kept[0] != told:
            with _with_packages(prefix, known):
                kept = _opened[prefix] = (told, known.open())
        return kept[1]


@contextmanager
def _with_packages(prefix: str, known: _Known) -> Iterator[None]:
    try:
        yield
    except ImportError as exc:
        raise MissingSecret(
            f"References to '{prefix}' need {' and '.join(known.packages)}.",
            fix=f'pip install "ematix-flow[{known.extra}]"',
        ) from exc


def _vault() -> Store:
    address, token = os.environ.get("VAULT_ADDR"), _vault_token()
    if not address or not token:
        raise MissingSecret(
            "No Vault is known.",
            tried=("a registered resolver", "VAULT_ADDR", "VAULT_TOKEN", "~/.vault-token"),
            fix="export VAULT_ADDR=https://… VAULT_TOKEN=…, or register_resolver('vault', VaultResolver(client))",
        )
    import hvac

    verify = os.environ.get("VAULT_CACERT") or os.environ.get("VAULT_SKIP_VERIFY", "").lower() not in ("1", "true")
    client = hvac.Client(
        url=address, token=token, namespace=os.environ.get("VAULT_NAMESPACE"), verify=verify, timeout=_TIMEOUT_S
    )
    return VaultResolver(client, os.environ.get("VAULT_KV_MOUNT") or "secret")


def _vault_token() -> str | None:
    if token := os.environ.get("VAULT_TOKEN"):
        return token
    try:
        return Path("~/.vault-token").expanduser().read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _aws() -> Store:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import NoRegionError

    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    config = Config(connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S, retries={"max_attempts": 3})
    try:
        return AWSSecretsManagerResolver(
            boto3.session.Session().client("secretsmanager", region_name=region, config=config)
        )
    except NoRegionError as exc:
        raise MissingSecret(
            "No region of AWS is known.",
            tried=("AWS_REGION", "AWS_DEFAULT_REGION", "~/.aws/config"),
            fix="export AWS_REGION=…",
        ) from exc


def _gcp() -> Store:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # how long Google looks after which Python
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud import secretmanager

    try:
        credentials, project = google.auth.default()
    except DefaultCredentialsError as exc:
        raise MissingSecret(
            "No login for Google is known.",
            tried=("GOOGLE_APPLICATION_CREDENTIALS", "gcloud auth application-default login", "the machine's own"),
            fix="put the path of a key file into GOOGLE_APPLICATION_CREDENTIALS",
        ) from exc
    named = os.environ.get("GOOGLE_CLOUD_PROJECT") or project
    return GCPSecretManagerResolver(secretmanager.SecretManagerServiceClient(credentials=credentials), named)


def _azure() -> Store:
    url = os.environ.get("AZURE_KEY_VAULT_URL")
    if not url:
        raise MissingSecret(
            "No Azure Key Vault is known.",
            tried=("a registered resolver", "AZURE_KEY_VAULT_URL"),
            fix="export AZURE_KEY_VAULT_URL=https://NAME.vault.azure.net",
        )
    from azure.identity import DefaultAzureCredential
    from azure.keyvault.secrets import SecretClient

    return AzureKeyVaultResolver(SecretClient(vault_url=url, credential=DefaultAzureCredential()))


STORES: Mapping[str, _Known] = {
    "vault": _Known(
        _vault,
        ("VAULT_ADDR", "VAULT_TOKEN", "VAULT_NAMESPACE", "VAULT_KV_MOUNT", "VAULT_CACERT", "VAULT_SKIP_VERIFY"),
        "secrets-vault",
        ("'hvac'",),
    ),
    "aws": _Known(
        _aws,
        (
            *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
            *("AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SECRETS_MANAGER"),
        ),
        "secrets-aws",
        ("'boto3'",),
    ),
    "gcp": _Known(
        _gcp,
        ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"),
        "secrets-gcp",
        ("'google-cloud-secret-manager'",),
    ),
    "azure": _Known(
        _azure,
        ("AZURE_KEY_VAULT_URL", "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"),
        "secrets-azure",
        ("'azure-keyvault-secrets'", "'azure-identity'"),
    ),
}
"""Prefixes that work without being registered."""


def _json_field(text: str, key: str, kind: str, name: str) -> str:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        # Raised outside the handler: the decoder's own error carries the whole secret.
        raise MissingSecret(
            f"{kind} '{name}' is not a JSON map, so it has no field '{key}'.", fix=f"write '{name}' alone"
        )
    return _field(values, key, f"{kind} '{name}'")


def _field(values: object, key: str, of: str) -> str:
    if not isinstance(values, Mapping) or key not in values:
        known = sorted(str(name) for name in values) if isinstance(values, Mapping) else []
        raise MissingSecret(f"{of} has no key '{key}'.", fix=closest(key, known))
    value = cast(object, values[key])
    return value if isinstance(value, str) else json.dumps(value)
