"""`${…}` references, the environment and plugged-in secret stores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ematix_flow import connections, secrets
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import InvalidConfig, MissingSecret
from ematix_flow.secrets import (
    AWSSecretsManagerResolver,
    GCPSecretManagerResolver,
    MissingSecretError,
    VaultResolver,
    expand,
    register_resolver,
    unregister_resolver,
)


class Store:
    """A secret store that is a dictionary."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def resolve(self, reference: str) -> Any:
        return self.values[reference]


@pytest.fixture
def store() -> Iterator[Store]:
    mine = Store(pw="from-the-store", number=5)
    register_resolver("store", mine)
    yield mine
    unregister_resolver("store")


def test_variables_are_replaced_every_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_1", "one")
    monkeypatch.setenv("_B", "")
    assert expand("x${A_1}y${_B}z${env:A_1}$A_1") == "xoneyzone$A_1"
    assert expand("plain") == "plain"
    assert expand(None) is None
    assert connections.resolve is secrets.expand


def test_a_fetched_value_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", "${INNER}")
    assert expand("${OUTER}") == "${INNER}"


def test_an_unset_variable_is_named() -> None:
    with pytest.raises(KeyError) as caught:
        expand("a ${SURELY_NOT_SET} b")
    assert isinstance(caught.value, MissingSecretError) and MissingSecretError is MissingSecret
    assert "'SURELY_NOT_SET'" in str(caught.value)


def test_names_that_are_no_variables_are_refused_without_repeating_them() -> None:
    with pytest.raises(MissingSecret, match=r"write '\$\{LOWER\}'"):
        expand("${lower}")
    for text in ("${pass word}", "${}", "${PW:-hunter2}"):
        with pytest.raises(MissingSecret) as caught:
            expand(text)
        assert "hunter2" not in str(caught.value) and "pass word" not in str(caught.value)


def test_a_resolver_answers_its_prefix(store: Store) -> None:
    assert expand("a-${store:pw}-b") == "a-from-the-store-b"
    assert scrub("leaked from-the-store here") == "leaked <redacted> here"


def test_what_a_store_cannot_give_names_store_and_key(store: Store) -> None:
    for reference, said in (("gone", "gone"), ("number", "gave int, not text")):
        with pytest.raises(MissingSecret) as caught:
            expand(f"${{store:{reference}}}")
        assert "'store'" in str(caught.value) and said in str(caught.value)


def test_an_unknown_prefix_tells_the_known_ones(store: Store) -> None:
    with pytest.raises(MissingSecret) as caught:
        expand("${stor:pw}")
    assert "'stor'" in str(caught.value) and "did you mean 'store'?" in str(caught.value)


def test_unregistering_twice_is_fine_and_plain_variables_survive_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "one")
    for _ in range(2):
        unregister_resolver("nobody")
    assert expand("${A}") == "one"


@pytest.mark.parametrize("prefix", ["", "a b", "a:b", "1", None])
def test_a_prefix_is_a_word(prefix: str) -> None:
    with pytest.raises(InvalidConfig):
        register_resolver(prefix, Store())


def test_a_resolver_must_resolve() -> None:
    with pytest.raises(InvalidConfig, match="resolve"):
        register_resolver("x", object())  # type: ignore[arg-type]


# The clients below have the shape of hvac's, boto3's and Google's; those libraries are not needed here.


def vault(**paths: dict[str, Any]) -> Any:
    def read_secret_version(path: str, mount_point: str, raise_on_deleted_version: bool) -> dict[str, Any]:
        return {"data": {"data": paths[f"{mount_point}_{path}"]}}

    return SimpleNamespace(
        secrets=SimpleNamespace(kv=SimpleNamespace(v2=SimpleNamespace(read_secret_version=read_secret_version)))
    )


def test_vault_gives_a_field_or_the_whole_map() -> None:
    resolver = VaultResolver(vault(secret_app={"pw": "x", "a": 1}))
    assert resolver.resolve("app#pw") == "x"
    assert resolver.resolve("app#a") == "1"
    assert resolver.resolve("app") == '{"a": 1, "pw": "x"}'
    assert VaultResolver(vault(kv_app={"pw": "y"}), mount_point="kv").resolve("app#pw") == "y"
    with pytest.raises(MissingSecret, match="'app' has no key 'pv'"):
        resolver.resolve("app#pv")


def test_vault_behind_a_reference_reports_a_missing_path() -> None:
    register_resolver("vault", VaultResolver(vault()))
    try:
        with pytest.raises(MissingSecret, match="'vault' could not resolve 'nowhere#x'"):
            expand("${vault:nowhere#x}")
    finally:
        unregister_resolver("vault")


def aws(**values: dict[str, Any]) -> Any:
    return SimpleNamespace(get_secret_value=lambda SecretId: values[SecretId])


def test_aws_gives_the_text_or_a_field_of_it() -> None:
    resolver = AWSSecretsManagerResolver(
        aws(
            db={"SecretString": json.dumps({"pw": "x", "port": 5})},
            raw={"SecretString": "hush"},
            b={"SecretBinary": b"y"},
        )
    )
    assert resolver.resolve("raw") == "hush"
    assert resolver.resolve("b") == "y"
    assert (resolver.resolve("db#pw"), resolver.resolve("db#port")) == ("x", "5")
    for reference in ("raw#pw", "db#nope"):
        with pytest.raises(MissingSecret) as caught:
            resolver.resolve(reference)
        assert "hush" not in str(caught.value) and caught.value.__context__ is None


def gcp(**values: bytes) -> Any:
    def access_secret_version(request: dict[str, str]) -> Any:
        return SimpleNamespace(payload=SimpleNamespace(data=values[request["name"].replace("/", "_")]))

    return SimpleNamespace(access_secret_version=access_secret_version)


def test_gcp_takes_short_and_full_names() -> None:
    client = gcp(projects_p_secrets_s_versions_latest=b"new", projects_p_secrets_s_versions_2=b"old")
    resolver = GCPSecretManagerResolver(client, project="p")
    assert (resolver.resolve("s"), resolver.resolve("s#2")) == ("new", "old")
    alone = GCPSecretManagerResolver(client)
    assert alone.resolve("projects/p/secrets/s/versions/2") == "old"
    assert alone.resolve("projects/p/secrets/s") == "new"
    with pytest.raises(MissingSecret, match="needs a project"):
        alone.resolve("s")
