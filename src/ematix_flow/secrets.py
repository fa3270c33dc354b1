"""Window: `${…}` references and the resolvers behind them, as documented under this path."""

from __future__ import annotations

from ematix_flow.config.secret_stores import (
    AWSSecretsManagerResolver,
    AzureKeyVaultResolver,
    GCPSecretManagerResolver,
    VaultResolver,
)
from ematix_flow.config.secrets import (
    MissingSecretError,
    Resolver,
    expand,
    register_resolver,
    unregister_resolver,
)

__all__ = [
    "AWSSecretsManagerResolver",
    "AzureKeyVaultResolver",
    "GCPSecretManagerResolver",
    "MissingSecretError",
    "Resolver",
    "VaultResolver",
    "expand",
    "register_resolver",
    "unregister_resolver",
]
