"""Lineage of declared pipelines: datasets by their public names, columns through maps, markers, merge and scd2."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import pytest

from ematix_flow import BigInt, Text, TimestampTZ, ematix, pk
from ematix_flow.contracts.plans import SourceQuery
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare import registry
from ematix_flow.declare.connection import (
    BigQueryConnection,
    Connection,
    DeltaS3Connection,
    DuckDBConnection,
    IcebergConnection,
    KafkaConnection,
    MySQLConnection,
    ObjectStoreAzureConnection,
    ObjectStoreGcsConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    PubSubConnection,
    RedshiftConnection,
    SnowflakeConnection,
    SQLiteConnection,
)
from ematix_flow.normalize import derive, lower, trim
from ematix_flow.transforms import deduplicate_by, filter_where
from ematix_flow.watch.column_lineage import SqlTable
from ematix_flow.watch.lineage import Dataset, Lineage, lineage_of, table_dataset

PG = PostgresConnection(name="crm", url="postgres://ann:pw@DB.example:6543/sales")
SINK = SQLiteConnection(name="mart", path="mart.db")


@pytest.fixture(autouse=True)
def own_registry():
    with registry.isolated():
        yield


@ematix.table(schema="main")
class People:
    id: Annotated[BigInt, pk()]
    mail: Annotated[Text | None, trim(), lower()]
    label: Annotated[Text | None, derive("first || last")]
    seen_at: TimestampTZ


def lineage(query: SourceQuery | str, **options) -> Lineage:
    chosen = {"target": People, "target_connection": SINK, "mode": "append", **options}

    @ematix.pipeline(**chosen)
    def load(conn):
        return None

    source = SourceQuery(sql=query) if isinstance(query, str) else query
    return lineage_of(load.spec, load.spec.target, source, PG, SINK)


def origins(found: Lineage, column: str) -> set[str]:
    (one,) = [c for c in found.outputs[0].columns if c.name == column]
    return {f"{o.dataset.name}.{o.column} {o.how}{'*' if o.masked else ''}" for o in one.origins}


def influences(found: Lineage) -> set[str]:
    return {f"{o.dataset.name}.{o.column} {o.how}" for o in found.outputs[0].influences}


SQL = "SELECT id, email AS mail, first, last, seen_at FROM contacts WHERE active"


def test_columns_keep_their_origins_through_aliases_and_markers() -> None:
    found = lineage(SQL)
    assert found.inputs == (Dataset("postgres://db.example:6543", "sales.public.contacts"),)
    assert found.outputs[0].dataset == Dataset(f"sqlite://{os.path.realpath('mart.db')}", "main.people")
    assert origins(found, "id") == {"sales.public.contacts.id IDENTITY"}
    assert origins(found, "mail") == {"sales.public.contacts.email TRANSFORMATION"}
    assert origins(found, "label") == {
        "sales.public.contacts.first TRANSFORMATION",
        "sales.public.contacts.last TRANSFORMATION",
    }
    assert influences(found) == {"sales.public.contacts.active FILTER"}
    assert found.gaps == ()


def test_a_column_map_says_what_a_column_is_called_in_the_source() -> None:
    found = lineage("SELECT * FROM crm.contacts", column_map={"mail": "email_address"})
    assert origins(found, "mail") == {"sales.crm.contacts.email_address TRANSFORMATION"}
    assert origins(found, "id") == {"sales.crm.contacts.id IDENTITY"}


def test_a_whole_table_gives_every_column_its_own() -> None:
    found = lineage(SourceQuery(table=TableRef("crm", "Contacts")))
    assert found.inputs == (Dataset("postgres://db.example:6543", "sales.crm.Contacts"),)
    assert origins(found, "seen_at") == {"sales.crm.Contacts.seen_at IDENTITY"}


def test_merge_keeps_origins_and_its_keys_decide() -> None:
    found = lineage(SQL, mode="merge")
    assert origins(found, "mail") == {"sales.public.contacts.email TRANSFORMATION"}
    assert influences(found) == {"sales.public.contacts.active FILTER", "sales.public.contacts.id JOIN"}


def test_scd2_keeps_origins_and_marks_what_it_adds() -> None:
    found = lineage(SQL, mode="scd2", event_timestamp_column="seen_at")
    made = {c.name for c in found.outputs[0].columns if c.made_here}
    assert made == {"valid_from", "valid_to", "is_current", "row_hash", "_loaded_at", "_batch_id"}
    assert origins(found, "mail") == {"sales.public.contacts.email TRANSFORMATION"}
    assert origins(found, "valid_from") == {"sales.public.contacts.seen_at IDENTITY"}
    assert origins(found, "is_current") == set()
    assert origins(found, "row_hash") == {
        f"sales.public.contacts.{name} TRANSFORMATION*" for name in ("email", "first", "last")
    }


def test_row_steps_and_the_watermark_decide() -> None:
    steps = [filter_where("mail IS NOT NULL"), deduplicate_by("id", order_by="seen_at desc")]
    found = lineage(SQL, transforms_pre=steps, incremental_column="seen_at")
    assert influences(found) == {
        f"sales.public.contacts.{name} FILTER" for name in ("active", "email", "id", "seen_at")
    }


def test_what_cannot_be_told_is_said_and_breaks_nothing() -> None:
    unreadable = lineage("SELEC id FORM contacts")
    assert "cannot be read as postgres" in unreadable.gaps[0]
    assert [c.name for c in unreadable.outputs[0].columns][:2] == ["id", "mail"]
    unclear = lineage("SELECT id, mail, first, last, seen_at FROM a JOIN b ON a.k = b.k")
    assert {dataset.name for dataset in unclear.inputs} == {"sales.public.a", "sales.public.b"}
    assert origins(unclear, "id") == set() and "which table 'id' is of" in " ".join(unclear.gaps)
    frame = lineage(SourceQuery(frame=[1]))
    assert frame.inputs == () and "list that Python made" in frame.gaps[0]


KEYS = {"region": "eu-west-1", "access_key_id": "k", "secret_access_key": "s"}


@pytest.mark.parametrize(
    ("connection", "namespace", "name"),
    [
        (PG, "postgres://db.example:6543", "sales.s.t"),
        (MySQLConnection(name="c", url="mysql://u:p@h/shop"), "mysql://h:3306", "s.t"),
        (DuckDBConnection(name="c", path="/data/x.duckdb"), "duckdb:///data/x.duckdb", "s.t"),
        (ObjectStoreLocalConnection(name="c", path="/lake", format="csv"), "file", "/lake/s/t"),
        (DeltaS3Connection(name="c", endpoint="e", bucket="b", prefix="p", **KEYS), "s3://b", "p/s/t"),
        (IcebergConnection(name="c", warehouse="s3://b/w", endpoint="e", **KEYS), "s3://b", "w/s/t"),
        (ObjectStoreGcsConnection(name="c", bucket="b", format="csv"), "gs://b", "s/t"),
        (
            ObjectStoreAzureConnection(name="c", account="a", container="b", format="csv", account_key="k"),
            "abfss://b@a.dfs.core.windows.net",
            "s/t",
        ),
        (KafkaConnection(name="c", bootstrap_servers="k1:9092, k2:9092"), "kafka://k1:9092", "t"),
        (PubSubConnection(name="c", project_id="p"), "pubsub", "topic:p:t"),
        (
            SnowflakeConnection(name="c", account="org-acc", user="u", password="p", database="D"),
            "snowflake://org-acc",
            "D.s.t",
        ),
        (BigQueryConnection(name="c", project="p", dataset="d"), "bigquery", "p.s.t"),
        (
            RedshiftConnection(
                name="c",
                host="box.abc123.eu-west-1.redshift.amazonaws.com",
                database="d",
                user="u",
                password="p",
            ),
            "redshift://box.eu-west-1:5439",
            "d.s.t",
        ),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_datasets_are_named_by_the_public_rules(connection: Connection, namespace: str, name: str) -> None:
    assert table_dataset(connection, SqlTable("", "s", "t")) == Dataset(namespace, name)


def test_a_connection_without_an_address_is_named_by_its_name() -> None:
    later = PostgresConnection(name="later", url="postgres://ann:${PW}@${HOST}/db")
    assert table_dataset(later, SqlTable("", "", "t")) == Dataset("connection://later", "t")


def test_no_name_of_a_dataset_holds_a_secret(tmp_path: Path) -> None:
    assert "pw" not in str(table_dataset(PG, SqlTable("", "", "t")))
