"""Window: `${…}` references and the resolvers behind them, as documented under this path."""

from __future__ import annotations

from ematix_flow.config.secrets import (
    AWSSecretsManagerResolver,
    GCPSecretManagerResolver,
    MissingSecretError,
    Resolver,
    VaultResolver,
    expand,
    register_resolver,
    unregister_resolver,
)

__all__ = [
    "AWSSecretsManagerResolver",
    "GCPSecretManagerResolver",
    "MissingSecretError",
    "Resolver",
    "VaultResolver",
    "expand",
    "register_resolver",
    "unregister_resolver",
]
