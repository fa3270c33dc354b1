"""Files in a container of Azure, by Microsoft's own emulator: keys, tokens, entity tags, blobs that mark folders."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ematix_flow.backends import bucket_store
from ematix_flow.backends.files_azure import AzureFilesBackend, AzureStore
from ematix_flow.declare.connection import ObjectStoreAzureConnection
from tests.backends.bucket_tests import FOLDER, BucketTests
from tests.backends.test_files import ID, ids, load, numbers, plan_of
from tests.services import azurite
from tests.services.azurite import AzureServer

KEY = "c2VjcmV0LWtleS1vZi10aGUtYWNjb3VudA=="


class TestAzureFiles(BucketTests):
    """A container of Azurite, asked by the account's key."""

    store_type = AzureStore
    backend_type = AzureFilesBackend
    missing_words = "The container"
    condition_words = "IfNoneMatch"
    forbidden_words = "may not do this in container"

    @pytest.fixture
    def server(self, azure_server: AzureServer) -> AzureServer:
        return azure_server

    @pytest.fixture
    def bucket(self, server: AzureServer) -> Iterator[str]:
        with azurite.fresh_container(server) as name:
            yield name

    def wrong_logins(self, server: AzureServer) -> Mapping[str, Mapping[str, str]]:
        # Azure says AuthenticationFailed to a wrong key; the emulator's word is the one for missing rights.
        return {"AuthorizationFailure": {"account_key": KEY}, "is not a key of an account": {"account_key": "no key"}}

    def reading_login(self, server: AzureServer) -> Mapping[str, Any]:
        return {"account_key": None, "sas_token": server.reader}

    def test_blobs_that_mark_folders_are_no_files(self, connection: Any, server: AzureServer, bucket: str) -> None:
        marks = server.client().get_container_client(bucket)
        for name in ("raw", "raw/events", "raw/events/zone=a"):
            marks.upload_blob(name, b"", metadata={"hdi_isfolder": "true"})
        server.put(bucket, "raw/events/zone=a/a.csv", b"id\n1\n")
        store = self.store(connection)
        assert not store.is_file("raw/events") and store.exists("raw/events")
        assert [file.path for file in store.visible_files("raw")] == ["events/zone=a/a.csv"]
        store.remove_if_empty("raw/events")
        assert store.exists("raw/events")
        store.remove_tree("raw/events")
        assert list(server.objects(bucket)) == ["raw"]
        store.remove_if_empty("raw")
        assert server.objects(bucket) == {}

    def test_a_token_is_enough_to_load(
        self, server: AzureServer, bucket: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # As a process of its own would begin: an account that Spark has open by its key stays open by it.
        monkeypatch.setattr(bucket_store, "_known_to_spark", {})
        token = azurite.token(server.key, "rwdlac")
        lake: Any = AzureFilesBackend(server.connection(bucket, sas_token=token))
        load(lake, ids(spark, 1, 2), plan_of(ID))
        assert numbers(lake, spark) == [1, 2]
        monkeypatch.setattr(bucket_store, "_known_to_spark", {})
        lake = AzureFilesBackend(server.connection(bucket))
        load(lake, ids(spark, 3), plan_of(ID))
        assert numbers(lake, spark) == [1, 2, 3]
        assert lake.store.exists(FOLDER)


def connection(**fields: Any) -> ObjectStoreAzureConnection:
    return ObjectStoreAzureConnection(name="lake", container="lake", format="parquet", **fields)


def test_a_connection_string_says_what_the_fields_say() -> None:
    said = f"DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={KEY};EndpointSuffix=core.windows.net"
    short, long = connection(connection_string=said), connection(account="shop", account_key=KEY)
    assert short.place() == long.place() and short.identity() == long.identity()
    assert KEY not in repr(short) and KEY in short.secrets()
    signed = connection(
        connection_string="BlobEndpoint=https://shop.blob.core.windows.net/;SharedAccessSignature=?sv=1&sig=abc"
    )
    assert (signed.place().account, signed.place().sas) == ("shop", "sv=1&sig=abc")


def test_spark_is_told_where_the_account_answers() -> None:
    served = AzureStore(connection(account="shop", account_key=KEY))
    assert served.spark_uri("raw/a") == "abfss://lake@shop.dfs.core.windows.net/raw/a"
    elsewhere = connection(account="shop", account_key=KEY, endpoint="https://shop.blob.core.chinacloudapi.cn")
    assert AzureStore(elsewhere).spark_uri("a") == "abfss://lake@shop.dfs.core.chinacloudapi.cn/a"
    emulator = AzureStore(connection(account="shop", account_key=KEY, endpoint="http://127.0.0.1:10000"))
    assert emulator.spark_uri("a") == "abfs://lake@shop.dfs.core.windows.net/a"
    assert emulator.endpoint == "http://127.0.0.1:10000/shop"


def test_an_account_with_directories_is_left_to_their_own_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "fs.azure.fns.account.service.type.shop.dfs.core.windows.net"
    for answer, wanted in ((True, None), (None, None), (False, "BLOB")):
        store = AzureStore(connection(account="shop", sas_token="sv=1&sig=abc"))
        monkeypatch.setattr(store.client, "is_hierarchical", lambda answer=answer: answer)
        settings = store.spark_settings()
        assert settings.get(name) == wanted
        assert settings["fs.azure.sas.fixed.token.shop.dfs.core.windows.net"] == "sv=1&sig=abc"
        assert "fs.azure.always.use.https" not in settings


def test_the_service_itself_is_announced_as_untried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bucket_store, "_warned", set())
    with caplog.at_level(logging.WARNING):
        AzureStore(connection(account="shop", account_key=KEY, endpoint="http://127.0.0.1:1"))._warn_once()
        assert not caplog.records
        AzureStore(connection(account="shop", account_key=KEY))._warn_once()
    (record,) = caplog.records
    assert "Azurite, never against Azure itself" in record.getMessage()
