"""Connections to Google Cloud Storage and Azure: what is refused when they are declared, and what stays a secret."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow.declare.connection import ObjectStoreAzureConnection, ObjectStoreGcsConnection
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import InvalidConnection

KEY = "c2VjcmV0LWtleS1vZi10aGUtYWNjb3VudA=="
STRING = f"DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={KEY};EndpointSuffix=core.windows.net"


def azure(**fields: Any) -> ObjectStoreAzureConnection:
    return ObjectStoreAzureConnection(name="lake", container="lake", format="parquet", **fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"account": "shop"}, "one of 'account_key', 'sas_token', 'connection_string' is required"),
        ({"account": "shop", "account_key": KEY, "sas_token": "sv=1"}, "exclude each other"),
        ({"account_key": KEY}, "account is required"),
        ({"connection_string": STRING, "account": "shop"}, "says account and endpoint already"),
        ({"connection_string": STRING, "endpoint": "http://127.0.0.1:1"}, "says account and endpoint already"),
        ({"connection_string": "no settings at all"}, "not of the form name=value"),
        ({"connection_string": "UseDevelopmentStorage=true"}, "may not be UseDevelopmentStorage"),
        ({"account": "shop", "account_key": KEY, "on_corrupt_file": "skip"}, "on_corrupt_file 'skip' is unknown"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConnection, match=said) as caught:
        azure(**fields)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("string", "said"),
    [
        (f"AccountKey={KEY}", "names no AccountName"),
        ("AccountName=shop", "holds no AccountKey and no SharedAccessSignature"),
    ],
)
def test_a_connection_string_that_lacks_something_is_refused_when_it_is_used(string: str, said: str) -> None:
    waiting = azure(connection_string="${STRING}")  # nobody knows yet what it says
    waiting.identity()
    with pytest.raises(InvalidConnection, match=said):
        waiting.with_fields(connection_string=string).check_ready()


def test_the_key_in_a_connection_string_is_a_secret_of_its_own() -> None:
    made = azure(connection_string=STRING)
    for text in (repr(made), made.display(), made.identity(), scrub(f"the library said {KEY}")):
        assert KEY not in text
    made.check_ready()


@pytest.mark.parametrize(
    ("endpoint", "address", "is_local"),
    [
        (None, "https://shop.blob.core.windows.net", False),
        ("shop.blob.core.usgovcloudapi.net/", "https://shop.blob.core.usgovcloudapi.net", False),
        ("http://127.0.0.1:10000", "http://127.0.0.1:10000/shop", True),
        ("http://127.0.0.1:10000/shop/", "http://127.0.0.1:10000/shop", True),
        ("http://localhost:10000", "http://localhost:10000/shop", True),
        ("http://azurite:10000/shop", "http://azurite:10000/shop", True),
    ],
)
def test_an_emulator_has_the_account_in_its_path(endpoint: str | None, address: str, is_local: bool) -> None:
    place = azure(account="shop", account_key=KEY, endpoint=endpoint).place()
    assert (place.endpoint, place.account, place.is_local) == (address, "shop", is_local)


def test_a_question_mark_in_front_of_a_token_is_no_part_of_it() -> None:
    assert azure(account="shop", sas_token="?sv=1&sig=abc").place().sas == "sv=1&sig=abc"


def test_a_bucket_of_google_needs_no_login_of_its_own() -> None:
    made = ObjectStoreGcsConnection(name="lake", bucket="b", format="csv", credentials_path="key.json")
    assert "key.json" in repr(made) and made.secrets() == ()  # a path is no secret
    assert made.identity() != made.with_fields(format="orc").identity()
