"""Files in a bucket of Google Cloud Storage, by the stand-in for it: the server, its logins and its conditions."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pytest

from ematix_flow.backends import bucket_store
from ematix_flow.backends.files_gcs import GcsFilesBackend, GcsStore
from ematix_flow.backends.gcs_client import GcsClient
from ematix_flow.backends.object_client import StoreForbidden
from ematix_flow.declare.connection import ObjectStoreGcsConnection
from tests.backends.bucket_tests import BucketTests
from tests.services import gcs
from tests.services.gcs import GcsServer


class TestGcsFiles(BucketTests):
    """A bucket of fake-gcs-server, asked as a service account."""

    store_type = GcsStore
    backend_type = GcsFilesBackend
    missing_words = "The bucket"
    condition_words = "ifGenerationMatch=0"
    forbidden_words = "may not do this in bucket"

    @pytest.fixture
    def server(self, gcs_server: GcsServer) -> GcsServer:
        return gcs_server

    @pytest.fixture
    def bucket(self, server: GcsServer) -> Iterator[str]:
        with gcs.fresh_bucket(server) as name:
            yield name

    def wrong_logins(self, server: GcsServer) -> Mapping[str, Mapping[str, str]]:
        return {
            "refuses the login": {"credentials_path": server.stranger},
            "key file of the connection cannot be used": {"credentials_path": "no/such/file.json"},
        }

    def reading_login(self, server: GcsServer) -> Mapping[str, str]:
        return {"credentials_path": server.reader}


def test_an_emulator_is_asked_without_a_login_when_none_is_given(gcs_server: GcsServer) -> None:
    nobody = GcsClient(bucket="b", project=None, credentials_path=None, endpoint=gcs_server.endpoint)
    with pytest.raises(StoreForbidden, match="refuses the login"):
        nobody.list("")


def test_without_any_login_google_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_project: object) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    client = GcsClient(bucket="b", project=None, credentials_path=None, endpoint=None)
    with pytest.raises(StoreForbidden, match="No login for Google Cloud") as caught:
        client.list("")
    assert "GOOGLE_APPLICATION_CREDENTIALS" in caught.value.fix


def test_spark_is_told_what_the_connection_says() -> None:
    served = GcsStore(ObjectStoreGcsConnection(name="lake", bucket="b", format="csv", credentials_path="key.json"))
    assert served.spark_settings()["fs.gs.auth.type"] == "SERVICE_ACCOUNT_JSON_KEYFILE"
    assert served.spark_settings()["fs.gs.auth.service.account.json.keyfile"].endswith("/key.json")
    assert "fs.gs.storage.root.url" not in served.spark_settings()
    chain = GcsStore(ObjectStoreGcsConnection(name="lake", bucket="b", format="csv", project="shop"))
    assert chain.spark_settings()["fs.gs.auth.type"] == "APPLICATION_DEFAULT"
    assert chain.spark_settings()["fs.gs.project.id"] == "shop"
    emulator = GcsStore(ObjectStoreGcsConnection(name="lake", bucket="b", format="csv", endpoint="http://127.0.0.1:1"))
    assert emulator.spark_settings()["fs.gs.auth.type"] == "UNAUTHENTICATED"
    assert emulator.spark_settings()["fs.gs.storage.root.url"] == "http://127.0.0.1:1/"


def test_the_service_itself_is_announced_as_untried_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bucket_store, "_warned", set())
    emulator = ObjectStoreGcsConnection(name="lake", bucket="b", format="csv", endpoint="http://127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        GcsStore(emulator)._warn_once()
        assert not caplog.records
        for _ in range(2):
            GcsStore(emulator.with_fields(endpoint=None))._warn_once()
    (record,) = caplog.records
    assert "fake-gcs-server, never against Google Cloud Storage itself" in record.getMessage()
